"""How an answer is shown to people, whatever the face: lines, names with their values, and tables."""

from collections.abc import Sequence
from typing import NamedTuple

from hocket.kernel.texts import span


class Line(NamedTuple):
    """One line, or the text of many if `lines`."""

    text: object
    style: str | None = None
    lines: bool = False


class Pairs(NamedTuple):
    """Names with their values."""

    pairs: Sequence[tuple[str, object]]


class Table(NamedTuple):
    """`empty` is the text for people if there are no rows. In one that `is_cut`, each row is one line of a terminal."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str
    is_cut: bool = False


class Terminal(NamedTuple):
    """What a terminal shows, if a pipe gets something else."""

    terminal: "View"
    pipe: "View"


View = Line | Pairs | Table | Terminal


def moment(ms: int | None) -> str | None:
    """A time in the user's zone."""
    from datetime import datetime  # few commands show one

    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


def ago(then_ms: int, now_ms: int) -> str:
    """How long ago or ahead, rounded."""
    away = then_ms - now_ms
    return f"in {span(away)}" if away > 0 else f"{span(-away)} ago"
