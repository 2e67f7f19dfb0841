"""How an answer is shown to people, whatever the face: lines, names with their values, and tables."""

import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

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
T = TypeVar("T")


def table(
    of: type[T], empty: str, columns: Mapping[str, str | Callable[[T], object]], *, is_cut: bool = False
) -> Callable[[Any], list[View]]:
    """Shows a list, or a page of one, as a table. A column has the name of a member, or a function of an item."""
    cells = [attrgetter(cell) if isinstance(cell, str) else cell for cell in columns.values()]

    def show(answer: Any) -> list[View]:
        items = getattr(answer, "items", answer)
        return [Table(tuple(columns), [tuple(cell(each) for cell in cells) for each in items], empty, is_cut)]

    return show


def at(member: str, otherwise: str | None = None) -> Callable[[Any], object]:
    """The time in a member."""
    return lambda each: moment(getattr(each, member)) or otherwise


def seen(member: str) -> Callable[[Any], str]:
    """How long ago the time in a member was."""
    return lambda each: ago(min(ms, now_ms()), now_ms()) if (ms := getattr(each, member)) else "never"


def now_ms() -> int:
    return int(time.time() * 1000)


def json_text(value: object) -> str:
    from msgspec.json import encode

    return encode(value).decode()


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
