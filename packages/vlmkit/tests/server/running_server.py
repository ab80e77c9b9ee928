"""A real server in a thread, in front of the mock model; what every test here starts from."""

import base64
import io
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
from PIL import Image as PilImage

from vlmkit.pipeline import Pipeline, PipelineSettings
from vlmkit.scheduler import ContinuousScheduler, SchedulerSettings
from vlmkit.server.run import Loader, Server
from vlmkit.server.service import Service
from vlmkit.server.settings import ServerSettings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


def mock_pipeline(
    *,
    takes_images: bool = True,
    max_waiting: int = 1024,
    settings: PipelineSettings | None = None,
    **engine: Any,
) -> Pipeline:
    return Pipeline(
        tokenizer=MockTokenizer(),
        engine=MockEngine(MockEngineSettings(**engine)),
        vision_encoder=MockVisionEncoder(MockEncoderSettings()) if takes_images else None,
        scheduler=ContinuousScheduler(SchedulerSettings(max_waiting=max_waiting)),
        settings=settings,
        name="mock",
    )


@dataclass
class Running:
    """A server that listens."""

    port: int
    service: Service
    http: httpx2.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http
        )

    def post(self, body: Any, **options: Any) -> httpx2.Response:
        """Send a body to the chat API."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        url = f"{self.url}/v1/chat/completions"
        return self.http.post(url, content=body, headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return self.http.get(f"{self.url}{path}", **options)

    def connect(self, body: Any, *, receive_bytes: int | None = None) -> socket.socket:
        """Send a chat request over a bare socket."""
        connection = socket.socket()
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(300)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(http_request(body))
        return connection

    def pipeline(self, name: str = "mock") -> Pipeline:
        pipeline = self.service.models[name].pipeline
        assert pipeline is not None
        return pipeline

    def is_idle(self) -> bool:
        """Whether nothing is left of any request."""
        stats = self.pipeline().stats()
        return not (stats.num_running or stats.num_waiting or self.service.num_open)


def http_client() -> httpx2.Client:
    """A client that opens a connection for each request, and needs no certificates."""
    once = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.Client(trust_env=False, verify=False, timeout=300, limits=once)


def http_request(body: Any) -> bytes:
    content = json.dumps(body).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    ) % (len(content), content)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A body that asks one question."""
    return {"model": "mock", "messages": [{"role": "user", "content": text}]} | fields


def scripted(**script: Any) -> str:
    """A question that tells the mock what to answer."""
    return json.dumps({"mock": script})


def picture(width: int = 8, height: int = 6, *, kind: str = "PNG") -> str:
    """A data: URL of a picture in one colour."""
    content = io.BytesIO()
    PilImage.new("RGB", (width, height), "teal").save(content, kind)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def eventually(is_true: Callable[[], bool], *, timeout_s: float = 300.0) -> bool:
    """Wait for something that must come, not for a time in which it must come."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def running(
    models: Mapping[str, Pipeline | Loader] | None = None, **settings: Any
) -> Iterator[Running]:
    """Run a server in a thread of this process."""
    service = Service(models or {"mock": None}, ServerSettings(port=0, **settings))
    pipelines = dict(models) if models is not None else {"mock": mock_pipeline()}
    for name, pipeline in pipelines.items():
        if isinstance(pipeline, Pipeline):
            service.models[name].start()
            service.models[name].finish(pipeline)
    server = Server(service)
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
        for pipeline in pipelines.values():
            if isinstance(pipeline, Pipeline):
                pipeline.close()


class Process:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(command: Sequence[str], port: int, folder: Path) -> Iterator[Process]:
    """Run a server's command in a folder, where what it says goes into the file ``log``."""
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder, stderr=log)
        server = Process(started, port, folder / "log")
        try:
            yield server
        finally:
            server.client.close()
            started.kill()
            started.wait()
