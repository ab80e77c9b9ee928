"""The result of a load test as a file, as tables, and beside another result.

Texts of the server, such as names of models and codes of errors, are shown without control
characters.
"""

import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from vlmkit.errors import RequestError
from vlmkit.kit.one_line import one_line
from vlmkit_bench.client import Outcome
from vlmkit_bench.summary import Distribution, Summary

FORMAT = 1
MAX_RESULT_BYTES = 2**30
BUSY_CORES = 0.8  # at which the client's own time may show in the figures
LATE_S = 0.05
Rows = list[Sequence[str]]


class Versions(msgspec.Struct, frozen=True):
    """What measured.

    Attributes:
        vlmkit_bench, aiohttp, python: their versions.
        system: the operating system and the processor.
    """

    vlmkit_bench: str
    aiohttp: str
    python: str
    system: str


class Clock(msgspec.Struct, frozen=True):
    """When the test ran, and the clock that measured.

    Attributes:
        started_at: the start, in UTC.
        resolution_s: the resolution of the monotonic clock, in seconds.
    """

    started_at: str
    resolution_s: float


class Result(msgspec.Struct, frozen=True):
    """A load test, as its JSON file has it.

    Attributes:
        format: the version of this format.
        command: the command line, without the program; it contains no key.
        url: the base URL of the server.
        model: the name of the model.
        load: the options that make the load, by name.
        versions: what measured.
        clock: when.
        summary: the figures.
        outcomes: what became of each request.
    """

    format: int
    command: list[str]
    url: str
    model: str
    load: dict[str, str]
    versions: Versions
    clock: Clock
    summary: Summary
    outcomes: list[Outcome]


def versions() -> Versions:
    """Return what measures here."""
    return Versions(
        version("vlmkit-bench"),
        version("aiohttp"),
        sys.version.split()[0],
        f"{platform.system()} {platform.machine()}",
    )


def clock() -> Clock:
    """Return the present time, and the clock that measures."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Clock(now, time.get_clock_info("perf_counter").resolution)


def write(result: Result, path: Path) -> None:
    """Write a result to a file.

    Raises:
        RequestError: the file cannot be written.
    """
    write_text(msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a text to a file.

    Raises:
        RequestError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from error


def read(path: Path) -> Result:
    """Return the result in a file.

    Raises:
        RequestError: the file cannot be read, or has no result of this format.
    """
    try:
        if path.stat().st_size > MAX_RESULT_BYTES:
            raise RequestError(f"{path} is over {MAX_RESULT_BYTES // 2**30} GiB")
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no result of vlmkit bench: {error}") from None
    if result.format != FORMAT:
        raise RequestError(f"{path} has the format {result.format}; this version reads {FORMAT}")
    return result


def latency_rows(summary: Summary) -> Rows:
    """Return the table of latencies, in milliseconds, with its header."""
    rows: Rows = [("latency, ms", "p50", "p90", "p99", "max", "samples")]
    for name, each in summary.latencies.items():
        cells = (f"{value * 1e3:,.1f}" for value in (each.p50, each.p90, each.p99, each.max))
        rows.append((name, *cells, f"{each.num_samples:,}"))
    return rows


def figure_rows(summary: Summary) -> Rows:
    """Return the table of the other figures, with its header."""
    rows: Rows = [
        ("figure", "value"),
        ("requests", f"{summary.num_requests:,} in {summary.duration_s:,.1f} s"),
        ("succeeded", f"{summary.num_succeeded:,}, {summary.requests_per_s:,.2f}/s"),
        *((f"failed: {shown(name)}", f"{num:,}") for name, num in summary.errors.items()),
    ]
    if summary.num_good is not None:
        limits = ", ".join(f"{name} at most {limit:g} s" for name, limit in summary.slo.items())
        rows.append(
            ("good", f"{summary.num_good:,}, {summary.goodput_per_s or 0:,.2f}/s: {limits}")
        )
    if summary.completion_tokens:
        cached = f", {summary.cached_tokens:,} cached" if summary.cached_tokens else ""
        rows += [
            ("prompt tokens", f"{summary.prompt_tokens:,}{cached}"),
            ("answer tokens", f"{summary.completion_tokens:,}, {summary.tokens_per_s:,.1f}/s"),
            ("events per token", f"{summary.events_per_token or 0:.3f}"),
        ]
    if summary.num_without_usage:
        rows.append(("without usage", f"{summary.num_without_usage:,}, not in the tokens"))
    if summary.num_resent:
        rows.append(("sent again", f"{summary.num_resent:,}, for connections that had closed"))
    return rows


def warnings(summary: Summary) -> list[str]:
    """Return what makes the figures doubtful."""
    found = []
    if summary.client_cores > BUSY_CORES:
        found.append(
            f"the client used {summary.client_cores:.2f} cores: it may have been too slow, so that "
            "latencies are too large"
        )
    if summary.late_s is not None and summary.late_s.p99 > LATE_S:
        found.append(f"the client sent requests late: p99 {summary.late_s.p99 * 1e3:,.0f} ms")
    return found


def comparison_rows(one: Summary, other: Summary) -> Rows:
    """Return a table of the figures of two tests and their ratios, with its header."""
    pairs: list[tuple[str, float | None, float | None]] = [
        ("requests/s", one.requests_per_s, other.requests_per_s),
        ("answer tokens/s", one.tokens_per_s, other.tokens_per_s),
        ("goodput/s", one.goodput_per_s, other.goodput_per_s),
        ("failed", one.num_requests - one.num_succeeded, other.num_requests - other.num_succeeded),
    ]
    for name in dict.fromkeys([*one.latencies, *other.latencies]):
        first, second = one.latencies.get(name), other.latencies.get(name)
        pairs += [
            (f"{name} {figure}, ms", _ms(first, figure), _ms(second, figure))
            for figure in ("p50", "p90", "p99")
        ]
    rows: Rows = [("figure", "A", "B", "B / A")]
    rows += [
        (name, _number(a), _number(b), f"{b / a:.3f}" if a and b is not None else "-")
        for name, a, b in pairs
        if a is not None or b is not None
    ]
    return rows


def aligned(rows: Rows) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def differing_options(one: Result, other: Result) -> list[str]:
    """Return the names of the options of the load that differ between two tests."""
    names = dict.fromkeys([*one.load, *other.load])
    return [name for name in names if one.load.get(name) != other.load.get(name)]


def shown(text: str) -> str:
    """Return a text of the server without control characters, and not too long."""
    return one_line(text, 200)


def _ms(latency: Distribution | None, figure: str) -> float | None:
    return None if latency is None else getattr(latency, figure) * 1e3


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
