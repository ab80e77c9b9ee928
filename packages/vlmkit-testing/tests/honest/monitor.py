"""A monitor that counts answers by route and status, and tokens by model."""

import re
import threading
from collections import Counter

from vlmkit.interfaces.observer import Observer, RequestFacts
from vlmkit.types.completion import Chunk
from vlmkit_server.interfaces.monitor import HttpEnd, HttpRequest, Monitor, Page, ServerState

PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Tokens(Observer):
    """Counts the tokens of a model for a monitor."""

    def __init__(self, counts: Counter[str], model: str, lock: threading.Lock) -> None:
        self.counts, self.model, self.lock = counts, model, lock

    def tokens(self, request: RequestFacts, chunk: Chunk, at_s: float) -> None:
        """Count the tokens of a chunk."""
        with self.lock:
            self.counts[self.model] += len(chunk.samples)


class Tally(Monitor):
    """Counts requests and tokens, and shows the counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.num_open = 0

    def observer(self, model: str) -> Observer | None:
        """Return the token counter of a model."""
        return Tokens(self.counts, model, self.lock)

    def began(self, request: HttpRequest) -> str:
        """Count the request, and continue its trace."""
        self.num_open += 1
        return request.traceparent if PARENT.fullmatch(request.traceparent) else ""

    def ended(self, request: HttpRequest, end: HttpEnd) -> None:
        """Count the request by route and status."""
        self.num_open -= 1
        with self.lock:
            self.counts[f"{end.route} {end.status}"] += 1

    def page(self, state: ServerState, accept: str) -> Page | None:
        """Return all counts, one a line."""
        with self.lock:
            counts = dict(self.counts)
        lines = [f"{name} {count}" for name, count in sorted(counts.items())]
        lines += [f"{model.name} {model.state}" for model in state.models]
        text = "\n".join([f"open {self.num_open}", *lines])
        return Page(text.encode(errors="replace"), "text/plain")
