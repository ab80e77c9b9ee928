"""Attacks every declared field of a server and collects what it finds."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field as default
from typing import Any, NamedTuple

from attack import judge
from attack.bodies import Bodies, Sent
from attack.declared import Field
from attack.growths import Growth, growths, is_open
from attack.judge import Point
from attack.mutations import MARKER, combined, mutants
from attack.served import NUM_TOGETHER, Answer, Target, resident_bytes

NUM_CLIENTS = 4
SETTLE_S = 60.0
MAX_GROWTH_BYTES = 256 * 2**20
MAX_RATIO = 2.0  # of a field's CPU time to that of the first of its kind
REPEATED_CPU_S = 0.1  # of a value that many fields receive
HIDDEN_CPU_S = 0.5  # that a field may cost more than usual, among others
UNDECIDED = (0, 429, 503)  # statuses of requests whose content was not judged
RISKS = ("any", "text", "list", "object", "number")
"""Kinds of fields, those first that cost most where something is wrong."""


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

    @property
    def usual(self) -> Point:
        """The dearest request that can be repeated often."""
        cheap = [point for point in self.points if point.cost.cpu_s <= REPEATED_CPU_S]
        return max(cheap or self.points[:1], key=lambda point: point.cost.cpu_s)


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


def family_of(field: Field, shapes: Sequence[Growth]) -> tuple[str, ...]:
    """Return the key that fields share if their values grow in the same shapes for the same use."""
    return (field.use, *(shape.name for shape in shapes))


def ends_of(shape: Growth) -> list[int]:
    """Return a middle size and the largest."""
    return sorted({shape.sizes[len(shape.sizes) // 2], shape.sizes[-1]})


class TimeOverError(Exception):
    """There is no time for a field."""


class Probe(NamedTuple):
    """One value of a field, and its usual cost."""

    field: Field
    shape: Growth
    size: int
    usual_cpu_s: float


def in_order(fields: Sequence[Field]) -> list[Field]:
    """Return the fields in the order of measurement.

    The first field of each declaration precedes all others, and riskier ones precede the rest. If
    time runs out, the remaining fields would only repeat earlier measurements.
    """
    firsts: dict[tuple[str, ...], Field] = {}
    for field in fields:
        firsts.setdefault(field.declaration, field)

    def rank(field: Field) -> tuple[bool, bool, int]:
        is_first = firsts[field.declaration] is field
        risk = RISKS.index(field.kind) if field.kind in RISKS else len(RISKS)
        return not is_first, not is_open(field), risk

    return sorted(fields, key=rank)


class Campaign:
    """Attacks a server.

    Args:
        server: the target.
        bodies: builds requests.
        fields: the fields to attack.
        seed: of the random choices.
        restore: stores the objects again that requests name, after a restart of the server.
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
        self._first: dict[tuple[str, ...], Row] = {}
        self._until = 0.0
        self._lock = threading.Lock()

    def reach(self) -> None:
        """Send a valid value at each field; count fields that the server does not accept."""
        for field in self._fields:
            answer = self._server.send(self._bodies.request(field))
            self._judge(field, answer)
            self.found.num_unreached += answer.status != 200

    def mutate(self, per_field: int, per_operation: int) -> None:
        """Send bodies that are wrong at one field, and at several.

        Args:
            per_field: bodies for the first field of each declaration; others get a third.
            per_operation: bodies that are wrong at several fields.
        """
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            for _ in pool.map(self._mutant, self._mutants(per_field, per_operation)):
                pass

    def _mutants(self, per_field: int, per_operation: int) -> Iterator[tuple[Field | None, Sent]]:
        begun = set[tuple[str, ...]]()
        for field in self._fields:
            count = per_field if field.declaration not in begun else -(-per_field // 3)
            begun.add(field.declaration)
            for sent in mutants(field, self._bodies, self._chance, count):
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

    def curves(self, until: float, *, every_shape: bool) -> list[Field]:
        """Measure what each field costs as it grows; return those that there was no time for.

        The first field of a family of shapes is measured in all of them. The first field of a
        declaration is compared with it in its dearest shapes, and every other field of that
        declaration with this one in its dearest value. Whatever costs more is measured.

        Args:
            until: on the clock of ``time.monotonic``.
            every_shape: measure all shapes of each field.
        """
        self._until = until
        alone, cheap, repeated, left = self._sorted(every_shape=every_shape)
        for many, take in ((cheap, self._cheap), (repeated, self._repeated)):
            for start in range(0, len(many), NUM_TOGETHER):
                fields = many[start : start + NUM_TOGETHER]
                try:
                    self._in_time()
                    alone += take(fields)
                except TimeOverError:
                    left += fields
        self.found.rows += alone
        return left

    def _sorted(
        self, *, every_shape: bool
    ) -> tuple[list[Row], list[Field], list[Field], list[Field]]:
        """Measure the first field of each family and of each dear declaration.

        Returns:
            What they cost; the first fields of cheap declarations; the other fields of all
            declarations; and those that there was no time for.
        """
        rows, cheap, repeated, left = [], [], [], []
        begun = set[tuple[str, ...]]()
        for field in in_order(self._fields):
            shapes = growths(field, self._bodies)
            known = None if every_shape else self._dear.get(family_of(field, shapes))
            if not shapes:
                continue
            if not every_shape and field.declaration in begun:
                repeated.append(field)
                continue
            begun.add(field.declaration)
            if known is not None and max(known.values()) < judge.NOTED_CPU_S:
                cheap.append(field)
                continue
            try:
                self._in_time()
                rows.append(self._measured(field, shapes, every_shape=every_shape))
            except TimeOverError:
                left.append(field)
        return rows, cheap, repeated, left

    def _measured(self, field: Field, shapes: Sequence[Growth], *, every_shape: bool) -> Row:
        """Return the cost of a field in its most expensive shape."""
        known = None if every_shape else self._dear.get(family_of(field, shapes))
        if known is None:
            rows = [self._row(field, shape) for shape in shapes]
            self._dear[family_of(field, shapes)] = dearest(rows)
        else:
            rows = [self._compared(field, g, known[g.name]) for g in shapes if g.name in known]
        row = self._first[field.declaration] = max(rows, key=lambda row: row.worst.cost.cpu_s)
        return row

    def _cheap(self, fields: Sequence[Field]) -> list[Row]:
        """Probe first fields of declarations together, in the dearest shapes of their families."""
        probes = []
        for field in fields:
            shapes = growths(field, self._bodies)
            known = self._dear[family_of(field, shapes)]
            for shape in (shape for shape in shapes if shape.name in known):
                probes += [Probe(field, shape, s, known[shape.name]) for s in ends_of(shape)]
        rows = self._together(probes)
        if rows is None:
            rows = [
                self._measured(field, growths(field, self._bodies), every_shape=False)
                for field in fields
            ]
        self._first |= {row.field.declaration: row for row in rows}
        return rows

    def _repeated(self, fields: Sequence[Field]) -> list[Row]:
        """Send a dear value of each declaration's first field to others of it."""
        probes = []
        for field in fields:
            usual = self._first[field.declaration].usual
            probes.append(Probe(field, self._shape(field), usual.size, usual.cost.cpu_s))
        return self._together(probes) or [
            self._judged(
                each.field,
                each.shape,
                self._points(each.field, each.shape, [each.size]),
                each.usual_cpu_s,
            )
            for each in probes
        ]

    def _together(self, probes: Sequence[Probe]) -> list[Row] | None:
        """Send values at once; None where they cost more together than they usually do.

        What one of them costs more than usual is half a second at most, then.
        """
        sent = [self._bodies.request(each.field, each.shape.make(each.size)) for each in probes]
        answers, cost = self._server.measured_together(sent)
        usual_s = sum(each.usual_cpu_s for each in probes)
        most_s = max(judge.NOTED_CPU_S, min(MAX_RATIO * usual_s, usual_s + HIDDEN_CPU_S))
        if cost.cpu_s > most_s or cost.peak_bytes > judge.MAX_BYTES:
            return None
        if any(answer.status in UNDECIDED for answer in answers):
            return None
        rows: dict[str, Row] = {}
        share = cost._replace(cpu_s=cost.cpu_s / len(probes))
        for each, answer in zip(probes, answers, strict=True):
            self._judge_curve(each.field, each.shape, each.size, answer)
            key = f"{each.field.place} {each.field.steps}"
            row = rows.setdefault(
                key, Row(each.field, each.shape.name, [], f"ok, of {len(probes)} together")
            )
            if row.shape == each.shape.name:
                row.points.append(Point(each.size, answer.status, share))
        return [*rows.values()]

    def _shape(self, field: Field) -> Growth:
        """Return the shape in which the first field of a declaration cost most."""
        name = self._first[field.declaration].shape
        return next(g for g in growths(field, self._bodies) if g.name == name)

    def _compared(self, field: Field, shape: Growth, usual_cpu_s: float) -> Row:
        """Probe two sizes of a shape, and measure it where it costs more than in its kind."""
        points = self._points(field, shape, ends_of(shape))
        return self._judged(field, shape, points, usual_cpu_s)

    def _judged(self, field: Field, shape: Growth, points: list[Point], usual_cpu_s: float) -> Row:
        """Measure a shape whose probes cost more than they usually do."""
        most_cpu_s = max(judge.NOTED_CPU_S, MAX_RATIO * usual_cpu_s)
        is_dear = max(point.cost.cpu_s for point in points) > most_cpu_s
        if is_dear or judge.flaw_of_curve(points):
            return self._curve(field, shape)
        return Row(field, shape.name, points, "ok")

    def _in_time(self) -> None:
        if time.monotonic() > self._until:
            raise TimeOverError

    def _row(self, field: Field, shape: Growth) -> Row:
        """Probe three sizes of a shape, and measure all of them where one is dear."""
        sizes = shape.sizes
        probed = {sizes[0], sizes[len(sizes) // 2], sizes[-1]}
        points = self._points(field, shape, sorted(probed))
        is_cheap = max(point.cost.cpu_s for point in points) < judge.NOTED_CPU_S
        if is_cheap and not judge.flaw_of_curve(points):
            return Row(field, shape.name, points, "ok")
        return self._curve(field, shape)

    def _curve(self, field: Field, shape: Growth) -> Row:
        """Measure all sizes of a shape, and again after a breach: something else may have run."""
        for _ in range(2):
            points = self._points(field, shape, shape.sizes)
            if not (text := judge.flaw_of_curve(points)):
                return Row(field, shape.name, points, "ok")
        self.found.add(field.place, f"{shape.name}: {text}")
        return Row(field, shape.name, points, text)

    def _points(self, field: Field, shape: Growth, sizes: Sequence[int]) -> list[Point]:
        points = []
        for size in sizes:
            self._in_time()
            points.append(self._point(field, shape, size))
            if judge.takes_too_long(points[-1].cost) or points[-1].status == 0:
                break
        return points

    def _point(self, field: Field, shape: Growth, size: int) -> Point:
        sent = self._bodies.request(field, shape.make(size))
        answer, cost = self._server.measured(sent)
        self._judge_curve(field, shape, size, answer)
        if judge.takes_too_long(cost) or answer.status == 0:
            self._recover(field, f"{shape.name} of size {size}")
        return Point(size, answer.status, cost)

    def _judge_curve(self, field: Field, shape: Growth, size: int, answer: Answer) -> None:
        self.found.statuses[answer.status] += 1
        if text := judge.flaw(None, answer):
            self.found.add(field.place, f"{shape.name} of size {size}: {text}")

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
        """Record a breach if the log contains sent values."""
        log = self._server.log.read_text(errors="replace")
        if MARKER in log:
            place = log.index(MARKER)
            self.found.add("log", f"holds what was sent: {log[max(0, place - 200) : place + 80]!r}")
