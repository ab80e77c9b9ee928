"""Measures events per second over HTTP from the mock model: the cost of loop, streams and server.

    python benchmarks/mock_streams.py --streams 64 --tokens 500 --repeats 3
    python benchmarks/mock_streams.py --profile loop|server
    python benchmarks/mock_streams.py --monitors prometheus
    python benchmarks/mock_streams.py --cache-events

Server and client are separate processes; the client counts events without parsing them. An event is
one token of one stream. With ``--profile``, one part of the server runs under cProfile.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Run and print."""
    options = _options()
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = context.Process(
        target=serve_mock,
        args=(port, options.profile, options.monitors, options.cache_events),
        daemon=True,
    )
    server.start()
    rates = []
    try:
        asyncio.run(wait(port))
        asyncio.run(round_of(port, 4, 50))
        for _ in range(options.repeats):
            num_events, seconds = asyncio.run(round_of(port, options.streams, options.tokens))
            rates.append(num_events / seconds)
            print(f"{num_events} events in {seconds:.2f} s: {rates[-1]:,.0f} events/s")
    finally:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        server.join()
    print(f"median of {options.repeats}: {statistics.median(rates):,.0f} events/s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", choices=["loop", "server"])
    parser.add_argument("--monitors", nargs="*", default=[], help="names, as in monitors.use")
    parser.add_argument("--cache-events", action="store_true", help="an observer indexes blocks")
    return parser.parse_args()


def serve_mock(
    port: int, profile: str | None, monitors: list[str], cache_events: bool = False
) -> None:
    """Serve the mock model, optionally with an observer of cache events."""
    from vlmkit.config import read_layers
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.running.engine_loop.loop import Loop
    from vlmkit.running.pipeline.pipeline import Pipeline
    from vlmkit.settings.pipeline import PipelineSettings
    from vlmkit.settings.plugins import PluginSettings
    from vlmkit_mock.engine import MockEngine
    from vlmkit_mock.tokenizer import MockTokenizer
    from vlmkit_server.commands.components import monitors as built
    from vlmkit_server.run import serve
    from vlmkit_server.settings.server import ServerSettings

    if profile == "loop":
        Loop._run = _profiled(Loop._run)  # type: ignore[method-assign]
    settings = PipelineSettings(max_output_tokens=100_000)
    plugins = load_plugins(PluginSettings(), environ={})
    layers = read_layers(environ={}, arguments={"monitors": {"use": monitors}})
    observing = built(layers.read(plugins.tables).config, plugins) if monitors else {}
    made = {name: monitor.observer("mock") for name, monitor in observing.items()}
    if cache_events:
        made["index"] = _index_observer()
    pipeline = Pipeline(
        tokenizer=MockTokenizer(),
        engine=MockEngine(),
        settings=settings,
        name="mock",
        observers={name: each for name, each in made.items() if each is not None},
    )
    run = _profiled(serve) if profile == "server" else serve
    run({"mock": pipeline}, ServerSettings(port=port), monitors=observing)


def _index_observer() -> Any:
    """Return an observer that keeps an index of the engine's cache."""
    from vlmkit.interfaces.cache_events import CacheChange
    from vlmkit.interfaces.observer import Observer
    from vlmkit.kit.cache_index import CacheIndex

    class IndexObserver(Observer):
        def __init__(self) -> None:
            self.index = CacheIndex()

        def blocks(self, change: CacheChange, at_s: float) -> None:  # noqa: ARG002
            self.index.apply(change)

    return IndexObserver()


def _profiled(function: Callable[..., None]) -> Callable[..., None]:
    import cProfile
    import pstats

    def run(*args: object, **options: object) -> None:
        profile = cProfile.Profile()
        try:
            profile.runcall(function, *args, **options)
        finally:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)

    return run


async def wait(port: int) -> None:
    """Wait until a port is open."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def round_of(port: int, num_streams: int, num_tokens: int) -> tuple[int, float]:
    """Read streams to their ends; return the events and the time from the first to the last."""
    started = time.perf_counter()
    counts = await asyncio.gather(*(_read(port, num_tokens) for _ in range(num_streams)))
    return sum(counts), time.perf_counter() - started


async def _read(port: int, num_tokens: int) -> int:
    script = json.dumps({"mock": {"text": "token ", "tokens": num_tokens}})
    body = json.dumps(
        {
            "model": "mock",
            "stream": True,
            "max_tokens": num_tokens,
            "messages": [{"role": "user", "content": script}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    num_events = 0
    while data := await reader.read(65_536):
        num_events += data.count(b'"content":')
    writer.close()
    assert num_events == num_tokens + 1, num_events  # the first event states the role
    return num_tokens


if __name__ == "__main__":
    main()
