"""A local hub with the part of the real HTTP API that huggingface_hub needs.

A file may have any size: its content is generated while it is sent, and never stored.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

PIECE_BYTES = 2**18


@dataclass(frozen=True)
class Large:
    """A file of many bytes: some at its beginning, and zeros.

    Attributes:
        begins: its first bytes.
        num_bytes: how many it has.
    """

    begins: bytes
    num_bytes: int

    def __len__(self) -> int:
        return self.num_bytes

    def piece(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``."""
        begun = self.begins[start:stop]
        return begun + bytes(stop - start - len(begun))


Content = bytes | Large


def weights(num_bytes: int, num_tensors: int = 1) -> Large:
    """Return a safetensors file of bfloat16 tensors, of about as many bytes."""
    each = num_bytes // num_tensors // 2 * 2
    tensors = {
        f"layers.{i}.weight": {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(num_tensors)
    }
    header = json.dumps(tensors).encode()
    begins = len(header).to_bytes(8, "little") + header
    return Large(begins, len(begins) + each * num_tensors)


@dataclass
class Repository:
    """One model: its files at each revision, and who may read it."""

    revisions: Mapping[str, Mapping[str, Content]]
    token: str | None = None
    is_gated: bool = False

    def sha(self, revision: str) -> str:
        content = repr(sorted(self.revisions[revision].items()))
        return hashlib.sha1(content.encode()).hexdigest()

    def files(self, revision: str) -> Mapping[str, Content] | None:
        names = {**{name: name for name in self.revisions}}
        names |= {self.sha(name): name for name in self.revisions}
        return self.revisions.get(names.get(revision, ""))


@dataclass
class StubHub:
    """The hub's repositories, and every request that it got."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    num_sent_bytes: int = 0
    bytes_per_s: float | None = None
    url: str = ""

    def add(
        self,
        name: str,
        *,
        token: str | None = None,
        is_gated: bool = False,
        **revisions: Mapping[str, Content],
    ) -> None:
        """Publish a model, with its files by name at each revision."""
        self.repositories[name] = Repository(revisions, token, is_gated)

    def downloaded(self) -> set[str]:
        """Return the names of the files whose content was requested."""
        resolved = (
            p.split("/resolve/") for m, p in self.requests if m == "GET" and "/resolve/" in p
        )
        return {name.split("/", 1)[1] for _, name in resolved}


@contextmanager
def stub_hub() -> Iterator[StubHub]:
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
                        "oid": _digest(content),
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
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        stop = min(int(wanted[2]) + 1 if wanted and wanted[2] else len(content), len(content))
        headers = {
            "ETag": f'"{_digest(content)}"',
            "X-Repo-Commit": revision,
            "Content-Length": str(stop - start),
            "Content-Type": "application/octet-stream",
        }
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._headers(206 if wanted else 200, headers)
        if self.command == "GET":
            self._send(content, start, stop)

    def _send(self, content: Content, start: int, stop: int) -> None:
        for begin in range(start, stop, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, stop)
            piece = content.piece(begin, end) if isinstance(content, Large) else content[begin:end]
            try:
                self.wfile.write(piece)
            except OSError:  # the client has enough
                self.close_connection = True
                return
            self.hub.num_sent_bytes += len(piece)
            if self.hub.bytes_per_s is not None:
                time.sleep(len(piece) / self.hub.bytes_per_s)

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
            self.hub.num_sent_bytes += len(body)

    def _error(self, status: int, code: str) -> None:
        self._headers(status, {"X-Error-Code": code, "Content-Length": "0"})

    def _headers(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _digest(content: Content) -> str:
    told = content if isinstance(content, bytes) else repr(content).encode()
    return hashlib.sha1(told).hexdigest()
