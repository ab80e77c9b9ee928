"""Draws lines over time as an SVG, in panels with their own axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, PANEL, LEFT, GAP = 760, 120, 60, 44
COLOURS = ["#2563eb", "#d97706", "#059669", "#dc2626"]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: the title with the unit.
        lines: points of time in seconds and value, by name.
    """

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def svg(panels: Sequence[Panel], marks: Mapping[str, float], seconds: float) -> str:
    """Return an SVG of all panels, with named times as vertical lines."""
    height = len(panels) * (PANEL + GAP) + 30
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, 26 + number * (PANEL + GAP), seconds)
    for name, at_s in marks.items():
        x = _x(at_s, seconds)
        parts.append(
            f'<path d="M{x:.1f} 20V{height - 30}" stroke="#9ca3af" stroke-dasharray="2 3"/>'
            f'<text x="{x + 3:.1f}" y="{height - 34}" fill="#6b7280">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, top: float, seconds: float) -> list[str]:
    most = max((v for line in panel.lines.values() for _, v in line), default=1) * 1.05 or 1
    parts = [f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{escape(panel.title)}</text>']
    for share in (0, 0.5, 1):
        y = top + PANEL * (1 - share)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - 10}" stroke="#e5e7eb"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:,.4g}</text>'
        )
    for minutes in range(0, int(seconds / 60) + 1, max(1, int(seconds / 360))):
        x = _x(minutes * 60, seconds)
        parts.append(
            f'<text x="{x:.1f}" y="{top + PANEL + 14}" text-anchor="middle">{minutes}</text>'
        )
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{_x(at, seconds):.1f},{top + PANEL * (1 - value / most):.1f}" for at, value in line
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
            f'<text x="{WIDTH - 12 - 90 * number}" y="{top - 6}" fill="{colour}" '
            f'text-anchor="end">{escape(name)}</text>'
        )
    return parts


def _x(at_s: float, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - 10) * at_s / seconds
