"""A real server in front of the mock model, in a thread or a process."""

import base64
import io
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from PIL import Image as PilImage
from worker_processes import mocks_in_workers

import vlmkit
from vlmkit.checkpoints.pooling import Pooling
from vlmkit.interfaces.runner import Runner
from vlmkit.running.constraints.compiled import MakeCompiler
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.fetch import FetchSettings
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.request import Request
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_server.apis.builtin import APIS
from vlmkit_server.exchange.service import Service
from vlmkit_server.fleet.model_spec import Loader, ModelSpec
from vlmkit_server.interfaces.api import Api
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.run import Server
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.tools.toolbox import Toolbox

MAX_WAITING = 1024


def mock_pipeline(
    *,
    takes_images: bool = True,
    max_waiting: int = MAX_WAITING,
    settings: PipelineSettings | None = None,
    constraint: MakeCompiler | None = None,
    tokenizer: MockTokenizer | None = None,
    pooling: Callable[[], Pooling] = Pooling,
    runner: str | None = None,
    **engine: Any,
) -> Any:
    """Return a pipeline of the mock, or the runner that ``runner`` names.

    By default, ``TESTS_RUNNER`` names it: ``subprocess`` for a child process, or ``grpc`` for two
    workers, or one where a test depends on its room. A component that only this process has needs a
    pipeline here.
    """
    num_workers = 1 if "max_sequences" in engine or max_waiting != MAX_WAITING else 2
    runner = runner or os.environ.get("TESTS_RUNNER")
    own = (constraint, tokenizer, None if pooling is Pooling else pooling)
    if runner is not None and not any(own):
        sections: dict[str, Any] = {
            "engine": {"use": "mock", **engine},
            "media_encoder": {"use": "auto" if takes_images else "none"},
            "scheduler": {"max_waiting": max_waiting},
            "constraint": {"use": "none"},
            "media_loaders": {"use": ["image", "tiff"]},
            "pipeline": msgspec.to_builtins(settings or PipelineSettings()),
        }
        if runner == "grpc":
            return mocks_in_workers(num_workers, sections)
        own_process = {"use": runner, "max_restarts": 0}
        return vlmkit.load("mock", **sections, runner=own_process).runner
    return Pipeline(
        tokenizer=tokenizer or MockTokenizer(),
        engine=MockEngine(MockEngineSettings(**engine)),
        media_encoder=MockVisionEncoder(MockEncoderSettings()) if takes_images else None,
        scheduler=ContinuousScheduler(SchedulerSettings(max_waiting=max_waiting)),
        constraint=constraint,
        pooling=pooling,
        settings=settings,
        name="mock",
    )


class ServerRequests:
    """HTTP requests to a server."""

    url: str
    http: httpx2.Client

    def post(
        self, body: Any, path: str = "/v1/chat/completions", **options: Any
    ) -> httpx2.Response:
        """Send a body to a path, by default the chat API."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        return self.http.post(f"{self.url}{path}", content=body, headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return self.http.get(f"{self.url}{path}", **options)


@dataclass
class Running(ServerRequests):
    """A listening server in a thread."""

    port: int
    service: Service
    http: httpx2.Client

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http
        )

    def connect(
        self,
        body: Any,
        *,
        path: str = "/v1/chat/completions",
        receive_bytes: int | None = None,
    ) -> socket.socket:
        """Send a request over a plain socket."""
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(300)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(http_request(body, path))
        return connection

    def runner(self, name: str = "mock") -> Runner:
        runner = self.service.models[name].runner
        assert runner is not None
        return runner

    def is_idle(self) -> bool:
        """Return whether no request is running, waiting or open."""
        stats = self.runner().stats()
        return not (stats.num_running or stats.num_waiting or self.service.admission.num_open)


def http_client() -> httpx2.Client:
    """Return a client with a new connection for each request and without certificate checks."""
    once = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(trust_env=False, verify=False, timeout=300, limits=once)


def http_request(body: Any, path: str = "/v1/chat/completions") -> bytes:
    content = json.dumps(body).encode()
    return (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    ) % (path.encode(), len(content), content)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return a chat body with one question."""
    return {"model": "mock", "messages": [{"role": "user", "content": text}]} | fields


def scripted(**script: Any) -> str:
    """Return a prompt that scripts the mock's answer."""
    return json.dumps({"mock": script})


def image_url(width: int = 8, height: int = 6, *, kind: str = "PNG") -> str:
    """Return the data: URL of an image in one colour."""
    content = io.BytesIO()
    PilImage.new("RGB", (width, height), "teal").save(content, kind)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def eventually(is_true: Callable[[], bool], *, timeout_s: float = 300.0) -> bool:
    """Wait until a condition is true; return False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def running(
    models: Mapping[str, ModelSpec | Runner | Loader | None] | None = None,
    toolbox: Toolbox | None = None,
    monitors: Mapping[str, Monitor] = MappingProxyType({}),
    component_names: ComponentNames = UNKNOWN,
    fetch: FetchSettings | None = None,
    apis: Mapping[str, Api] = APIS,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server in a thread of this process.

    Requests still running at the end are soon aborted.
    """
    settings = {"drain_timeout_s": 0.5} | settings
    served = {"mock": mock_pipeline()} if models is None else models
    settled = ServerSettings(port=0, **settings)
    service = Service(
        served, settled, toolbox, monitors, component_names=component_names, fetch=fetch
    )
    server = Server(service, apis, component_names)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert eventually(lambda: server.started)
        with http_client() as http:
            yield Running(listener.getsockname()[1], service, http)
    finally:
        server.stop()
        thread.join()
        listener.close()
        service.fleet.close()
        server.close()


@contextmanager
def recorded_requests(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Request]]:
    """Record the requests that reach the model."""
    runner = server.runner()
    requests: list[Request] = []
    submit: Any = type(runner).asubmit

    async def record(self: Runner, request: Request, admit: Any = None) -> Any:
        requests.append(request)
        return await submit(self, request, admit)

    with monkeypatch.context() as patched:
        patched.setattr(type(runner), "asubmit", record)
        yield requests


def message_content(message: Message) -> tuple[str, str | None, list[Any]]:
    """Return the content of a message, with images as their digests and options."""
    parts = [
        (part.image.digest, part.options) if isinstance(part, ImagePart) else part
        for part in message.parts
    ]
    return message.role, message.call_id, parts


class Process(ServerRequests):
    """A server in its own process."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
        self.process = process
        self.log = log
        self.url = url
        self.http = http_client()
        self.client = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http
        )

    def stream(self, text: str, model: str = "mock") -> "openai.Stream[Any]":
        return self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], stream=True
        )

    def status(self, path: str = "/readyz") -> int | None:
        try:
            return self.http.get(f"{self.url}{path}").status_code
        except httpx2.HTTPError:
            return None


@contextmanager
def process(command: Sequence[str], folder: Path) -> Iterator[Process]:
    """Run a server command in a folder, with standard error in the file ``log``.

    The command chooses a free port and logs it. Another process could take a port chosen here
    before the server opens it.
    """
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(command, cwd=folder, stderr=file) as started:
        try:
            eventually(lambda: started.poll() is not None or listening(log) is not None)
            found = listening(log)
            assert found, log.read_text()
            server = Process(started, found[1], log)
            with server.client:
                yield server
        finally:
            started.kill()


def listening(log: Path) -> "re.Match[str] | None":
    """Find the address of a server in its log."""
    return re.search(r"listening on (\S+)\n", log.read_text())
