"""Durations as people write them: `500ms`, `30s`, `5m`, `1h30m`, `2d`; a bare number is seconds. And, rounded, as
people see them. Also lengths in beats of a cluster's tempo.
"""

import re
from typing import NamedTuple

# 15 beats a minute.
BEAT_MS_DEFAULT = 4_000
HOLD_BEATS_MAX = 100_000
_BEATS = r"([0-9]{1,9})b"
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


class BeatsLong(NamedTuple):
    """A length in beats, as opposed to one in milliseconds."""

    beats: int


def parse_length(text: str | int | float) -> BeatsLong | int:
    """`4b` is beats; everything else is a duration, in milliseconds. ValueError names the value."""
    found = re.fullmatch(_BEATS, str(text).strip().lower())
    if found is None:
        return duration_ms(text)
    if not 1 <= int(found[1]) <= HOLD_BEATS_MAX:
        raise ValueError(f"not a length in beats: {text!r}; write 1b to {HOLD_BEATS_MAX}b")
    return BeatsLong(int(found[1]))


def span(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * length:
            return f"{ms // length} {unit}"
    return f"{ms / 1000:.0f} s" if ms >= 10_000 else f"{max(0, ms) / 1000:.1f} s"
