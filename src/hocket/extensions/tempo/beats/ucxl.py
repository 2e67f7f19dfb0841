"""UCXL addresses with the addendum's suffixes, like `ucxl://proj:any/*/task/ingest;beats=^^4;phase=work`. `^^4` is four
beats from now, `~~4` four beats ago. A phase means the beats of that phase, in the bar where the beat lies.
"""

import re
from typing import NamedTuple

import msgspec

from hocket.extensions.tempo.beats.messages import BEATS_MAX
from hocket.extensions.tempo.beats.phases import PHASE_NAMES, Phases, phase_at, spans
from hocket.extensions.tempo.beats.tempo import Tempo, beat_at

ADDRESS_CHARS_MAX = 2_048
_SCHEME = "ucxl://"
_BEATS = re.compile(r"(\^\^|~~)([0-9]{1,9})")
# The suffix of older programs, `;bar=1287#beat=8`.
_OLD_BAR = re.compile("[0-9]{1,20}(?:#beat=[0-9]{1,20})?")
_FORM = "write ucxl://NAME/PATH, and after it ;beats=^^N, ;beats=~~N or ;phase=plan, work or review"


class BadAddress(ValueError):
    pass


class UcxlAddress(msgspec.Struct, frozen=True):
    """`beats` is how many beats ahead, or behind if negative; None if the address does not say. `path` begins with a
    slash, unless it is empty.
    """

    authority: str
    path: str
    beats: int | None = None
    phase: str = ""


def parse_ucxl(text: str) -> UcxlAddress:
    """Raises BadAddress. An old suffix with a bar is accepted and ignored."""
    if len(text) > ADDRESS_CHARS_MAX:
        raise BadAddress(f"the address has more than {ADDRESS_CHARS_MAX} characters")
    if not text.startswith(_SCHEME) or not text.isprintable() or " " in text:
        raise BadAddress(f"{text!r} is not a UCXL address; {_FORM}")
    place, *suffixes = text.removeprefix(_SCHEME).split(";")
    authority, slash, path = place.partition("/")
    if not authority:
        raise BadAddress(f"{text!r} has no name after ucxl://; {_FORM}")
    found: dict[str, str] = {}
    for each in suffixes:
        name, _, value = each.partition("=")
        if name in found:
            raise BadAddress(f"the suffix {name!r} is repeated; write it once")
        if not _is_suffix(name, value):
            raise BadAddress(f"{';' + each!r} is not a suffix; {_FORM}")
        found[name] = value
    return UcxlAddress(authority, slash + path, _beats(found.get("beats")), found.get("phase", ""))


def ucxl_text(address: UcxlAddress) -> str:
    beats, phase = "", f";phase={address.phase}" if address.phase else ""
    if address.beats is not None:
        beats = f";beats={'~~' if address.beats < 0 else '^^'}{abs(address.beats)}"
    return f"{_SCHEME}{address.authority}{address.path}{beats}{phase}"


class ResolvedAddress(NamedTuple):
    """The time that an address means, from `from_ms` up to but without `until_ms`."""

    from_ms: int
    until_ms: int
    beat_index: int
    window_ms: int
    phase: str


def resolve_ucxl(address: UcxlAddress, tempo: Tempo, phases: Phases, now_ms: int) -> ResolvedAddress:
    """As if the tempo had never changed and never will. Raises BadAddress."""
    beat = beat_at(tempo, beat_at(tempo, now_ms).epoch_ms + (address.beats or 0) * tempo.beat_ms)
    if beat.window_ms < 0:
        raise BadAddress(f"{ucxl_text(address)} is before 1970")
    if not address.phase:
        phase = phase_at(phases, tempo.bar_len, beat.index).name
        return ResolvedAddress(beat.epoch_ms, beat.epoch_ms + tempo.beat_ms, beat.index, beat.window_ms, phase)
    for span in spans(phases, tempo.bar_len):
        if span.name == address.phase:
            first_ms, end_ms = (beat.window_ms + place * tempo.beat_ms for place in (span.first, span.end))
            return ResolvedAddress(first_ms, end_ms, span.first + 1, beat.window_ms, span.name)
    raise BadAddress(f"a bar of {tempo.bar_len} beats has no phase {address.phase}")


def _is_suffix(name: str, value: str) -> bool:
    match name:
        case "beats":
            return (found := _BEATS.fullmatch(value)) is not None and int(found[2]) <= BEATS_MAX
        case "phase":
            return value in PHASE_NAMES
        case "bar":
            return _OLD_BAR.fullmatch(value) is not None
    return False


def _beats(value: str | None) -> int | None:
    if value is None:
        return None
    return int(value[2:]) if value.startswith("^^") else -int(value[2:])
