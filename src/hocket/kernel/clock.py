"""The hybrid logical clock: how a node's time moves when it writes an op and when it receives one, and how a time is
written as bytes and as text. Reading the wall clock, keeping the last value across restarts, and judging whether a
remote time is too far ahead are left to others.
"""

import re
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
# The last millisecond that a ULID can hold, in the year 10889.
WALL_MAX = 2**48 - 1
_PACKED = Struct(">QIQ")
_WALL = r"([0-9]{4,9}-[0-9]{2}-[0-9]{2})T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])\.([0-9]{3})Z"
_LOGICAL = "0|[1-9][0-9]{0,9}"
_DAY_MS = 86_400_000


class Hlc(NamedTuple):
    """A time in the mesh. Tuple order is the total order of ops: wall, then logical, then node."""

    wall: int
    logical: int
    node: int


class ClockOverflow(Exception):
    """The logical counter is used up for this millisecond; the node must not write until the wall clock moves on."""


def _bump(wall: int, logical: int, node: int) -> Hlc:
    if logical >= U32_MAX:
        raise ClockOverflow(f"the logical counter is used up at wall {wall}")
    return Hlc(wall, logical + 1, node)


def tick(prior: Hlc, wall_now: int) -> Hlc:
    """The time of a new op by this node: always later than prior, and at the wall clock if that is ahead."""
    wall, logical, node = prior
    return Hlc(wall_now, 0, node) if wall_now > wall else _bump(wall, logical, node)


def recv(prior: Hlc, remote: Hlc, wall_now: int) -> Hlc:
    """The node's own time after it has seen remote: later than both, whether or not it accepts the op."""
    wall = max(prior.wall, remote.wall, wall_now)
    if wall == prior.wall:
        seen = max(prior.logical, remote.logical) if wall == remote.wall else prior.logical
        return _bump(wall, seen, prior.node)
    if wall == remote.wall:
        return _bump(wall, remote.logical, prior.node)
    return Hlc(wall, 0, prior.node)


def just_before(at: Hlc) -> Hlc:
    """The latest time of this node that is earlier."""
    return at._replace(logical=at.logical - 1) if at.logical else Hlc(at.wall - 1, U32_MAX, at.node)


def just_after(at: Hlc) -> Hlc:
    """The earliest time of this node that is later."""
    return at._replace(logical=at.logical + 1) if at.logical < U32_MAX else Hlc(min(at.wall + 1, U64_MAX), 0, at.node)


def pack(h: Hlc) -> bytes:
    """Twenty bytes whose byte order is the HLC order, so that an index over them sorts by time."""
    return _PACKED.pack(*h)


def unpack(b: bytes) -> Hlc:
    return Hlc(*_PACKED.unpack(b))


# Days are counted in years that begin on 1 March, so that the leap day is the last day of its year and
# every month's start is a linear formula; 719468 days lie between 1 March of year 0 and 1 January 1970.


def _civil(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def _days(year: int, month: int, day: int) -> int:
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def wall_text(ms: int) -> str:
    """Milliseconds since 1970 as `2025-09-03T02:12:27.183Z`."""
    days, ms = divmod(ms, _DAY_MS)
    year, month, day = _civil(days)
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{year:04d}-{month:02d}-{day:02d}T{hours:02d}:{minutes:02d}:{seconds:02d}.{ms:03d}Z"


# A node reads many times of few days.
@lru_cache(maxsize=64)
def _parse_day(text: str) -> int | None:
    year, month, day = map(int, text.split("-"))
    days = _days(year, month, day)
    return days if _civil(days) == (year, month, day) and f"{year:04d}-{text[-5:]}" == text else None


def parse_wall(text: str) -> int:
    """The inverse of wall_text. Anything that wall_text would not have written (30 February) is refused."""
    if (found := re.fullmatch(_WALL, text)) is not None and (days := _parse_day(found[1])) is not None:
        hours, minutes, seconds, ms = map(int, found.groups()[1:])
        if 0 <= (wall := days * _DAY_MS + ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms) <= U64_MAX:
            return wall
    raise ValueError(f"not a time: {text!r}")


def hlc_text(h: Hlc) -> str:
    """The form for people, `2025-09-03T02:12:27.183Z+17`: the logical part follows the plus, the node is left
    out.
    """
    return f"{wall_text(h.wall)}+{h.logical}"


def parse_hlc(text: str, node: int) -> Hlc:
    """The inverse of hlc_text. Anything that hlc_text would not have written (30 February, +017) is refused."""
    wall, _, logical = text.partition("+")
    if re.fullmatch(_LOGICAL, logical) is None or int(logical) > U32_MAX:
        raise ValueError(f"not an HLC time: {text!r}")
    try:
        return Hlc(parse_wall(wall), int(logical), node)
    except ValueError:
        raise ValueError(f"not an HLC time: {text!r}") from None
