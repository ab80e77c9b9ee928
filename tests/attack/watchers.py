"""Observers of a server under attack: an honest client, and a probe of its health."""

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field

from attack.bodies import MODEL, Sent
from attack.served import TICK_S, Target, cpu_ticks

PAUSE_S = 0.2
MAX_HEALTH_S = 1.0
HEALTH = Sent("GET", "/healthz", {}, b"")


@dataclass
class Seen:
    """The observations.

    Attributes:
        honest: expected answers.
        refused: answers 429 and 503.
        wrong: unexpected answers, and broken connections.
        health_s: the delay of the slowest probe by the server itself, as CPU time of the process
            meanwhile.
        slowest_s: the duration of the slowest probe, for any reason.
    """

    honest: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    health_s: float = 0.0
    slowest_s: float = 0.0

    def breaches(self) -> list[str]:
        """Return the breaches among the observations."""
        found = [f"honest client: {text}" for text in self.wrong[:10]]
        if self.health_s > MAX_HEALTH_S:
            found.append(f"/healthz: the server computed {self.health_s:.1f} s before it answered")
        return found


class Watchers:
    """Sends requests from threads of its own until it is closed.

    Args:
        server: the server under attack.
    """

    def __init__(self, server: Target) -> None:
        self._server, self._is_over = server, threading.Event()
        self.seen = Seen()
        self._threads = [
            threading.Thread(target=self._repeat, args=(once,), daemon=True)
            for once in (self._ask, self._probe)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> Seen:
        """Stop; return the observations."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        return self.seen

    def _repeat(self, once: object) -> None:
        while not self._is_over.wait(PAUSE_S):
            with contextlib.suppress(OSError):
                once()  # type: ignore[operator]

    def _ask(self) -> None:
        text = f"known answer {self.seen.honest}"
        asked = json.dumps({"mock": {"text": text}})
        messages = [{"role": "user", "content": asked}]
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 50}).encode()
        headers = {"content-type": "application/json"}
        answer = self._server.send(Sent("POST", "/v1/chat/completions", headers, body))
        if answer.status in (429, 503):
            self.seen.refused += 1
        elif answer.status != 200:
            self.seen.wrong.append(f"status {answer.status}: {answer.content[:200]!r}")
        elif json.loads(answer.content)["choices"][0]["message"]["content"] != text:
            self.seen.wrong.append(f"{answer.content[:300]!r} in place of {text!r}")
        else:
            self.seen.honest += 1

    def _probe(self) -> None:
        pid = self._server.process.pid
        cpu, started = cpu_ticks(pid), time.monotonic()
        answer = self._server.send(HEALTH)
        wall_s, cpu_s = time.monotonic() - started, (cpu_ticks(pid) - cpu) * TICK_S
        self.seen.slowest_s = max(self.seen.slowest_s, wall_s)
        self.seen.health_s = max(self.seen.health_s, min(wall_s, cpu_s))
        if answer.status != 200:
            self.seen.wrong.append(f"/healthz: status {answer.status}")
