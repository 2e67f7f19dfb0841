"""How values are written for people, and read from them: counts, durations (`500ms`, `30s`, `5m`, `1h30m`, `2d`; a bare
number is seconds), lengths in beats of a cluster's tempo, and foreign text, which is made safe to show.
"""

import re
from typing import NamedTuple

# ASCII control characters except tab and line feed, those of Latin-1, all characters that are invisible or change the
# direction of text, and halves of characters, which no terminal can show.
_UNSAFE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
# 15 beats a minute.
BEAT_MS_DEFAULT = 4_000
HOLD_BEATS_MAX = 100_000
_BEATS = r"([0-9]{1,9})b"
_ONE_LINE = str.maketrans("\t\n", "  ")


def clean(text: object, *, lines: bool = False) -> str:
    """The text in a form that is safe to show; on one line unless `lines` allows several."""
    shown = str(text) if lines else str(text).translate(_ONE_LINE)
    return shown if shown.isascii() and shown.isprintable() else re.sub(_UNSAFE, _spelled, shown)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean_json(text: str) -> str:
    """Equivalent JSON that is safe to show. Unsafe characters can only occur inside strings."""
    return text if text.isascii() and "\x7f" not in text else re.sub(_UNSAFE, _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    # JSON escapes these as two halves.
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def counted(count: float, noun: str) -> str:
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}{'' if count == 1 else 's'}"


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


_SIZE = re.compile(r"(\d+) ?(|b|kib|mib)")
_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024 * 1024}


def size_bytes(text: str | int) -> int:
    """Bytes; ValueError names the value."""
    found = _SIZE.fullmatch(str(text).strip().lower())
    if found is None:
        raise ValueError(f"not a size: {text!r}; write it like 0, 4096, 64KiB or 1MiB")
    return int(found[1]) * _SIZES[found[2]]


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
