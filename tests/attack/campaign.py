"""Attacks every declared field of a server and collects what it finds."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field as default
from typing import Any

from attack import judge
from attack.bodies import Bodies, Sent
from attack.declared import Field
from attack.growths import Growth, growths
from attack.judge import Point
from attack.mutations import MARKER, combined, mutants
from attack.served import Target, resident_bytes

NUM_CLIENTS = 4
SETTLE_S = 60.0
MAX_GROWTH_BYTES = 256 * 2**20
MAX_RATIO = 1.5  # of a field's CPU time to that of the first of its kind


@dataclass
class Row:
    """What a field cost in one shape."""

    field: Field
    shape: str
    points: list[Point]
    verdict: str

    @property
    def worst(self) -> Point:
        """The dearest request."""
        return max(self.points, key=lambda point: point.cost.cpu_s)


@dataclass
class Found:
    """What a campaign saw."""

    rows: list[Row] = default(default_factory=list)
    statuses: Counter[int] = default(default_factory=Counter)
    breaches: dict[str, int] = default(default_factory=dict)
    num_unreached: int = 0
    num_fields: int = 0

    def add(self, place: str, text: str, sent: Sent | None = None) -> None:
        """Note a breach, with the request when it is the first of its kind."""
        key = f"{place}: {text}"
        if key not in self.breaches and sent is not None and len(sent.content) < 2000:
            key += f"\n      {sent.method} {sent.path} {sent.content[:2000]!r}"
        self.breaches[key] = self.breaches.get(key, 0) + 1


def dearest(rows: Sequence[Row]) -> dict[str, float]:
    """Return the shapes that cost most CPU time and most memory, and the CPU time of each."""
    by_cpu = sorted(rows, key=lambda row: row.worst.cost.cpu_s)[-1:]
    by_memory = sorted(rows, key=lambda row: max(p.cost.peak_bytes for p in row.points))[-1:]
    return {row.shape: row.worst.cost.cpu_s for row in [*by_cpu, *by_memory]}


class Campaign:
    """Attacks a server.

    Args:
        server: it.
        bodies: makes requests.
        fields: that are attacked.
        seed: of what is left to chance.
        restore: stores again what requests name, after the server was started again.
    """

    def __init__(
        self,
        server: Target,
        bodies: Bodies,
        fields: Sequence[Field],
        seed: int,
        restore: Callable[[], Mapping[str, str]],
    ) -> None:
        self._server, self._bodies, self._fields = server, bodies, fields
        self._restore = restore
        self._chance, self.found = random.Random(seed), Found(num_fields=len(fields))
        self._dear: dict[tuple[str, ...], dict[str, float]] = {}
        self._lock = threading.Lock()

    def reach(self) -> None:
        """Send a valid value at each field; count those that the server does not accept."""
        for field in self._fields:
            answer = self._server.send(self._bodies.request(field))
            self._judge(field, answer)
            self.found.num_unreached += answer.status != 200

    def mutate(self, per_field: int, per_operation: int) -> None:
        """Send bodies that are wrong at one field, and at several."""
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            for _ in pool.map(self._mutant, self._mutants(per_field, per_operation)):
                pass

    def _mutants(self, per_field: int, per_operation: int) -> Iterator[tuple[Field | None, Sent]]:
        for field in self._fields:
            for sent in mutants(field, self._bodies, self._chance, per_field):
                yield field, sent
        operations: dict[tuple[str, str], list[Field]] = {}
        for field in self._fields:
            if field.where == "json":
                operations.setdefault((field.method, field.route), []).append(field)
        for fields in operations.values():
            for sent in combined(fields, self._bodies, self._chance, per_operation):
                yield None, sent

    def _mutant(self, asked: tuple[Field | None, Sent]) -> None:
        field, sent = asked
        self._judge(field, self._server.send(sent), sent)

    def _judge(self, field: Field | None, answer: Any, sent: Sent | None = None) -> None:
        text = judge.flaw(field, answer)
        with self._lock:
            self.found.statuses[answer.status] += 1
            if text:
                place = field.place if field else f"{sent.method} {sent.path}" if sent else ""
                self.found.add(place, text, sent)

    def curves(self, until: float, *, every_shape: bool) -> int:
        """Measure what each field costs as it grows; return how many fields there was no time for.

        The first field of a kind is measured in all shapes. Others of that kind are compared with
        it in its dearest shapes, and measured where they cost more.

        Args:
            until: on the clock of ``time.monotonic``.
            every_shape: measure all shapes of each field.
        """
        num_left = 0
        for field in self._fields:
            shapes = growths(field, self._bodies)
            if time.monotonic() > until:
                num_left += bool(shapes)
                continue
            family = tuple(shape.name for shape in shapes)
            known = None if every_shape else self._dear.get(family)
            if known is None:
                rows = [self._row(field, shape) for shape in shapes]
                self._dear[family] = dearest(rows)
            else:
                rows = [self._compared(field, g, known[g.name]) for g in shapes if g.name in known]
            if rows:
                self.found.rows.append(max(rows, key=lambda row: row.worst.cost.cpu_s))
        return num_left

    def _compared(self, field: Field, shape: Growth, usual_cpu_s: float) -> Row:
        """Probe two sizes of a shape, and measure it where it costs more than in its kind."""
        sizes = shape.sizes
        points = self._points(field, shape, sorted({sizes[len(sizes) // 2], sizes[-1]}))
        most_cpu_s = max(judge.NOTED_CPU_S, MAX_RATIO * usual_cpu_s)
        is_dear = max(point.cost.cpu_s for point in points) > most_cpu_s
        if is_dear or judge.flaw_of_curve(points):
            return self._row(field, shape)
        return Row(field, shape.name, points, "ok")

    def _row(self, field: Field, shape: Growth) -> Row:
        """Probe three sizes of a shape, and measure all of them where one is dear."""
        sizes = shape.sizes
        probed = {sizes[0], sizes[len(sizes) // 2], sizes[-1]}
        points = self._points(field, shape, sorted(probed))
        if max(point.cost.cpu_s for point in points) < judge.NOTED_CPU_S:
            text = judge.flaw_of_curve(points)
        else:
            text = "measure"
        for _ in range(2):  # once more after a breach: something else may have run
            if text:
                points = self._points(field, shape, sizes)
                text = judge.flaw_of_curve(points)
        if text:
            self.found.add(field.place, f"{shape.name}: {text}")
        return Row(field, shape.name, points, text or "ok")

    def _points(self, field: Field, shape: Growth, sizes: Sequence[int]) -> list[Point]:
        points = []
        for size in sizes:
            points.append(self._point(field, shape, size))
            if judge.takes_too_long(points[-1].cost) or points[-1].status == 0:
                break
        return points

    def _point(self, field: Field, shape: Growth, size: int) -> Point:
        sent = self._bodies.request(field, shape.make(size))
        answer, cost = self._server.measured(sent)
        text = judge.flaw(None, answer)
        self.found.statuses[answer.status] += 1
        if text:
            self.found.add(field.place, f"{shape.name} of size {size}: {text}")
        if judge.takes_too_long(cost) or answer.status == 0:
            self._recover(field, f"{shape.name} of size {size}")
        return Point(size, answer.status, cost)

    def _recover(self, field: Field, what: str) -> None:
        """Start the server again if it does not come to rest."""
        if not self._server.is_at_rest():
            has_ended = self._server.process.poll() is not None
            text = "the server ended" if has_ended else "the server works on after the client left"
            self.found.add(field.place, f"{what}: {text}")
            self._server.restart()
            self._bodies.stored.update(self._restore())

    def settle(self, before_bytes: int) -> int:
        """Return the memory that did not come back in a minute; caches may keep some."""
        deadline = time.monotonic() + SETTLE_S
        while (kept := self._server.memory_bytes() - before_bytes) > MAX_GROWTH_BYTES:
            if time.monotonic() > deadline:
                each = [resident_bytes(i) // 2**20 for i in self._server.processes()]
                text = f"{kept / 2**20:.0f} MiB did not come back; MiB of each process: {each}"
                self.found.add("memory", text)
                break
            time.sleep(1)
        return kept

    def read_log(self) -> None:
        """Note a log that holds what was sent."""
        log = self._server.log.read_text(errors="replace")
        if MARKER in log:
            place = log.index(MARKER)
            self.found.add("log", f"holds what was sent: {log[max(0, place - 200) : place + 80]!r}")
