"""Draws simple charts as SVG that is readable in light and dark mode."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 26, 300, 110, 40
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.bar{fill:#2f6fde}"
    ".line{fill:none;stroke:#2f6fde;stroke-width:2}.axis{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#6ea8fe}.line{stroke:#6ea8fe}}"
)


def bar_chart(title: str, values: Mapping[str, float], unit: str) -> str:
    """Draws one bar for each value; the longest has the full width."""
    most = max(values.values()) or 1.0
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y = TOP + number * ROW
        width = max(1.0, value / most * (WIDTH - LEFT - RIGHT))
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 8}" rx="3"/>')
        parts.append(f'<text x="{LEFT + width + 8:.1f}" y="{y + 14}">{value:,.4g} {escape(unit)}</text>')
    return _picture(title, TOP + len(values) * ROW + 10, parts)


def line_chart(title: str, values: Sequence[float], unit: str) -> str:
    """Draws a series of values; the axis starts at zero."""
    most, height = max(values) * 1.1 or 1.0, 200
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values) - 1)
    points = [(LEFT + step * number, TOP + height * (1 - value / most)) for number, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    bottom = TOP + height
    parts = [
        f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>',
        f'<polyline class="line" points="{path}"/>',
        f'<text x="{LEFT - 10}" y="{points[0][1]:.1f}" text-anchor="end">{values[0]:g} {escape(unit)}</text>',
        f'<text x="{WIDTH - RIGHT + 8}" y="{points[-1][1]:.1f}">{values[-1]:g} {escape(unit)}</text>',
        f'<text x="{LEFT - 10}" y="{bottom}" text-anchor="end">0</text>',
    ]
    return _picture(title, bottom + 20, parts)


def _picture(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    text = escape(title)
    named = f'<title>{text}</title><style>{STYLE}</style><text class="title" x="10" y="22">{text}</text>'
    return "\n".join((head, named, *parts, "</svg>", ""))
