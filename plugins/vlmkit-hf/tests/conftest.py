"""What the tests share: tokenizers of the zoo's families, and a hub on this machine.

The hub has just enough of the real one's HTTP API for huggingface_hub to download from.
"""

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import zoo
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Return a function that gives a family's checkpoint, without weights."""

    @functools.cache
    def checkpoint(name: str) -> Checkpoint:
        return Checkpoint(name, zoo.save_processor(name, tmp_path_factory.mktemp(name)))

    return checkpoint


@pytest.fixture(scope="session")
def tokenizer_of(checkpoint_of: Callable[[str], Checkpoint]) -> Callable[[str], HfTokenizer]:
    """Return a function that gives a family's tokenizer, loaded from its checkpoint."""

    @functools.cache
    def tokenizer(name: str) -> HfTokenizer:
        return HfTokenizer(checkpoint_of(name), HfTokenizerSettings())

    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, str], HfTokenizer]:
    """Return a function that gives the tokenizer of a vocabulary with a chat template."""

    def tokenizer(vocabulary: Any, template: str) -> HfTokenizer:
        folder = tmp_path_factory.mktemp("m")
        vocabulary.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(template)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        return HfTokenizer(Checkpoint("m", folder), HfTokenizerSettings())

    return tokenizer


@dataclass
class Repository:
    """One model: its files at each revision, and who may read it."""

    revisions: Mapping[str, Mapping[str, bytes]]
    token: str | None = None
    is_gated: bool = False

    def sha(self, revision: str) -> str:
        content = repr(sorted(self.revisions[revision].items()))
        return hashlib.sha1(content.encode()).hexdigest()

    def files(self, revision: str) -> Mapping[str, bytes] | None:
        names = {**{name: name for name in self.revisions}}
        names |= {self.sha(name): name for name in self.revisions}
        return self.revisions.get(names.get(revision, ""))


@dataclass
class StubHub:
    """The hub's repositories, and every request that it got."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""

    def add(
        self,
        name: str,
        *,
        token: str | None = None,
        is_gated: bool = False,
        **revisions: Mapping[str, bytes],
    ) -> None:
        """Publish a model, with its files by name at each revision."""
        self.repositories[name] = Repository(revisions, token, is_gated)

    def downloaded(self) -> set[str]:
        """Return the names of the files whose content was asked for."""
        resolved = (
            p.split("/resolve/") for m, p in self.requests if m == "GET" and "/resolve/" in p
        )
        return {name.split("/", 1)[1] for _, name in resolved}


@pytest.fixture
def hub() -> Iterator[StubHub]:
    """Serve an empty hub on a free loopback port."""
    made = StubHub()
    handler = type("Handler", (_Handler,), {"hub": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: StubHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.requests.append((self.command, path))
        header = self.headers.get("authorization")
        self.hub.tokens.append(header.removeprefix("Bearer ") if header else None)
        parts = path.split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:])
        else:
            self._resolve("/".join(parts[:2]), parts[2:])

    def _api(self, name: str, rest: list[str]) -> None:
        repository = self._readable(name)
        if repository is None:
            return
        verb, revision = rest[0], rest[1]
        files = repository.files(revision)
        if files is None:
            self._error(404, "RevisionNotFound")
        elif verb == "revision":
            sha = revision if revision not in repository.revisions else repository.sha(revision)
            self._json({"id": name, "sha": sha, "siblings": [{"rfilename": f} for f in files]})
        else:
            self._json(
                [
                    {
                        "type": "file",
                        "path": path,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                    }
                    for path, content in files.items()
                ]
            )

    def _resolve(self, name: str, rest: list[str]) -> None:
        repository = self._readable(name)
        if repository is None:
            return
        if repository.is_gated:
            self._error(403, "GatedRepo")
            return
        _, revision, *path = rest
        files = repository.files(revision) or {}
        content = files.get("/".join(path))
        if content is None:
            self._error(404, "EntryNotFound")
            return
        self._headers(
            200,
            {
                "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
                "X-Repo-Commit": revision,
                "Content-Length": str(len(content)),
                "Content-Type": "application/octet-stream",
            },
        )
        if self.command == "GET":
            self.wfile.write(content)

    def _readable(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        sent = self.hub.tokens[-1]
        if repository is None or (repository.token is not None and sent != repository.token):
            self._error(401, "RepoNotFound")
            return None
        return repository

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self._headers(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        if self.command == "GET":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self._headers(status, {"X-Error-Code": code, "Content-Length": "0"})

    def _headers(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
