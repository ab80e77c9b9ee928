"""Draws the latencies of load tests as an SVG: which share of the samples is below which time."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import numpy as np

from vlmkit_bench.report import Result
from vlmkit_bench.summary import LATENCIES

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 56, 46, 40
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#4b5563")
DASHES = ("", "6 3")
NUM_POINTS = 200
DRAWN = ("first_event", "first_reasoning", "first_text", "gap", "total")
FLOOR_S = 1e-5


def svg(results: Sequence[Result]) -> str:
    """Return an SVG of one test or of two; lines of the second are dashed."""
    lines = [
        (name, number, samples)
        for number, result in enumerate(results)
        for name, samples in _samples(result).items()
    ]
    largest = max((float(s.max()) for *_, s in lines), default=1.0)
    smallest = min((float(np.quantile(s, 0.01)) for *_, s in lines), default=1e-3)
    low, high = (
        math.floor(math.log10(max(smallest, FLOOR_S))),
        math.ceil(math.log10(largest * 1.01)),
    )
    scale = _Scale(low, max(high, low + 1))
    title = " and ".join(f"{result.model} at {result.url}" for result in results)
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title[:110])}</text>',
        *_axes(scale),
    ]
    for name, number, samples in lines:
        colour = COLOURS[DRAWN.index(name)]
        shares = np.linspace(0, 1, NUM_POINTS)
        points = " ".join(
            f"{scale.x(float(at)):.1f},{_y(float(share)):.1f}"
            for at, share in zip(np.quantile(samples, shares), shares, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'stroke-dasharray="{DASHES[number]}"/>'
        )
    for place, name in enumerate(dict.fromkeys(name for name, *_ in lines)):
        x, colour = LEFT + 120 * place, COLOURS[DRAWN.index(name)]
        parts.append(f'<text x="{x}" y="34" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


class _Scale:
    """The logarithmic axis of time, between two powers of ten of a second."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def x(self, at_s: float) -> float:
        """Return the place of a time."""
        power = math.log10(max(at_s, 10.0**self.low))
        return LEFT + (WIDTH - LEFT - 16) * (power - self.low) / (self.high - self.low)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share


def _axes(scale: _Scale) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 0.9, 0.99):
        y = _y(share)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - 16}" stroke="#e5e7eb"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    for power in range(scale.low, scale.high + 1):
        x, at_s = scale.x(10.0**power), 10.0**power
        label = f"{at_s:g} s" if at_s >= 1 else f"{at_s * 1e3:g} ms"
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e7eb"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'
        )
    return parts


def _samples(result: Result) -> Mapping[str, np.ndarray]:
    good = [outcome for outcome in result.outcomes if outcome.error is None]
    found = {
        name: np.array([each for outcome in good for each in LATENCIES[name](outcome)])
        for name in DRAWN
    }
    return {name: samples for name, samples in found.items() if samples.size}
