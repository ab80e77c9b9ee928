"""A server whose answers and delays a test states, in a thread of the test's process."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
CLOSE = None  # cuts the connection without an end
CLOSE_ON_REQUEST = object()  # cuts the connection when the next request arrives on it


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(**fields):
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


def finish(reason="stop"):
    return event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])


def usage(prompt, completion):
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


def answer(num_events, *, first_s=0.0, gap_s=0.0):
    """Return the steps of a complete answer with one token for each event."""
    steps = [HEAD, first_s]
    for number in range(num_events):
        steps += [gap_s if number else 0.0, delta(content="word ")]
    return [*steps, finish(), usage(7, num_events), DONE]


def refusal(status, **error):
    content = json.dumps({"error": error}).encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return [head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content]


class ScriptedServer:
    """Answers each chat completion with the steps of its number.

    A step is bytes to send, seconds to wait, ``CLOSE`` or ``CLOSE_ON_REQUEST``.

    Args:
        steps: returns the steps of a request, from its number and its body.
        models: the ids of its models.

    Attributes:
        bodies: the bodies of the chat completions, in the order of their arrival.
        num_open: the largest number of requests at once.
        url: the base URL of its API.
    """

    def __init__(self, steps: Callable[[int, dict], Sequence], models=("scripted",)):
        self.bodies, self.headers = [], []
        self.num_open = self._num_open = 0
        self.stalled_until = 0.0
        self._steps, self._models = steps, models

    @contextmanager
    def running(self):
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            server.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    async def _serve(self, reader, writer):
        self._num_open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                content = json.dumps({"data": [{"id": each} for each in self._models]}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
                    b"content-length: %d\r\n\r\n" % len(content) + content
                )
                return
            length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            number = len(self.bodies)
            self.bodies.append(body)
            self.headers.append(head)
            self.num_open = max(self.num_open, self._num_open)
            for step in self._steps(number, body):
                if step is CLOSE_ON_REQUEST:
                    await reader.read(1)
                    writer.transport.abort()
                elif step is CLOSE:
                    writer.transport.abort()
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    await asyncio.sleep(self.stalled_until - time.monotonic())
                    writer.write(step)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._num_open -= 1
            writer.close()
