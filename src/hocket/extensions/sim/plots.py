"""Draws what a simulation of the tempo found as SVG: tempo, queue and utilisation, one below the other."""

from collections.abc import Sequence
from typing import NamedTuple

from hocket.extensions.sim.tempo import SimulatedBar

WIDTH, HEIGHT = 720, 130
LEFT, RIGHT, TOP, GAP = 60, 15, 30, 25
TICK_MINUTES = 20
COLOURS = ("#2563eb", "#dc2626", "#16a34a")
INCIDENT = "#fde68a"


class _Curve(NamedTuple):
    name: str
    values: list[float]
    most: float


def tempo_plot(title: str, bars: Sequence[SimulatedBar]) -> str:
    """The text of an SVG file. The same bars give the same text."""
    minutes = [bar.minute for bar in bars]
    last = max(minutes)
    curves = (
        _Curve("beats a minute", [bar.bpm for bar in bars], 25),
        _Curve("jobs waiting", [bar.queue for bar in bars], max(10, *(bar.queue for bar in bars))),
        _Curve("slots busy, %", [100 * bar.utilisation for bar in bars], 100),
    )
    height = TOP + len(curves) * (HEIGHT + GAP) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
    ]
    for place, curve in enumerate(curves):
        top = TOP + place * (HEIGHT + GAP)
        lines += _frozen(bars, last, top)
        lines += _axes(curve, last, top)
        points = " ".join(
            f"{_x(minute, last):.1f},{_y(value, curve.most, top):.1f}"
            for minute, value in zip(minutes, curve.values, strict=True)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[place]}" stroke-width="1.5"/>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">minutes</text>')
    return "\n".join([*lines, "</svg>", ""])


def _axes(curve: _Curve, last: float, top: int) -> list[str]:
    bottom = top + HEIGHT
    lines = [
        f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#6b7280"/>',
        f'<text x="{LEFT + 6}" y="{top + 12}">{curve.name}</text>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{curve.most:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for minute in range(0, int(last) + 1, TICK_MINUTES):
        lines.append(f'<text x="{_x(minute, last):.1f}" y="{bottom + 14}" text-anchor="middle">{minute}</text>')
    return lines


def _frozen(bars: Sequence[SimulatedBar], last: float, top: int) -> list[str]:
    """A background where an incident froze the tempo."""
    frozen = [bar.minute for bar in bars if bar.is_incident]
    if not frozen:
        return []
    left, right = _x(min(frozen), last), _x(max(frozen), last)
    return [f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{HEIGHT}" fill="{INCIDENT}"/>']


def _x(minute: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * minute / last


def _y(value: float, most: float, top: int) -> float:
    return top + HEIGHT - HEIGHT * value / most
