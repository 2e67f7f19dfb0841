"""Durations as people write them: `500ms`, `30s`, `5m`, `1h30m`, `2d`; a bare number is seconds. And, rounded, as
people see them.
"""

import re

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_BARE = re.compile(r"\d+(?:\.\d+)?")


def duration_ms(text: str | int | float) -> int:
    """Milliseconds; ValueError names the value."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = repr(text)
    cleaned = str(text).strip().lower()
    if _BARE.fullmatch(cleaned):
        return round(float(cleaned) * 1000)
    if cleaned and "".join(match.group(0) for match in re.finditer(_PART, cleaned)) == cleaned:
        return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, cleaned)))
    raise ValueError(f"not a duration: {text!r}; write it like 500ms, 30s, 5m or 1h30m")


def span(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * length:
            return f"{ms // length} {unit}"
    return f"{ms / 1000:.0f} s" if ms >= 10_000 else f"{max(0, ms) / 1000:.1f} s"
