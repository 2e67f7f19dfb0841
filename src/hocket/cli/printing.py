"""Prints answers. A terminal gets tables, colours and progress bars; a pipe gets plain lines with tabs between the
columns; `--json` gets only JSON. Characters in foreign text that control a terminal or reorder text are escaped. Rich
is loaded only for terminals.

In a table, columns in which no row says anything are left out. If the rest is too wide, the widest columns become
narrower, and no word is broken: a list of lines cuts the text, any other table wraps it between words.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal

from hocket.cli.settings import settings
from hocket.kernel.texts import clean, clean_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Progress = Callable[[int, int], None]
Row = Sequence[object]

# What a cell says that has nothing to say.
SILENT = ("", "-")
STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "ok": "green",
    "live": "green",
    "warn": "yellow",
    "alert": "yellow",
    "critical": "red",
    "dead": "bold red",
    "bad": "bold red",
}
GAP = 2
# No column is made narrower than this, or than its longest word, if that is longer.
WRAPPED_MIN = 20
CUT_MIN = 8
# A cut id names nothing, so these columns keep their width, and the last columns go if all do not fit.
IDS = ("job", "id", "fence")
LEAST_COLUMNS = 2


def on_terminal(stream: IO[str] | None = None) -> bool:
    try:
        return (stream or sys.stdout).isatty()
    except ValueError:
        return False


def console(stream: IO[str] | None = None) -> "Console":
    from rich.console import Console

    # With NO_COLOR, rich leaves out colours only; without a colour system it writes no escape at all.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=True, color_system=colours)


def say(text: object = "", style: str | None = None, *, lines: bool = False) -> None:
    """Prints one line for people; nothing with --json."""
    if settings.as_json:
        return
    shown = clean(text, lines=lines)
    if style is not None and on_terminal():
        from rich.text import Text

        console().print(Text(shown, style))
    else:
        print(shown)


def emit(value: Any) -> None:
    """Prints the JSON answer, if --json was given: indented on a terminal, otherwise on one line."""
    import msgspec

    if not settings.as_json:
        return
    encoded = msgspec.json.encode(value)
    print(clean_json((msgspec.json.format(encoded, indent=2) if on_terminal() else encoded).decode()))


def emit_line(value: Any) -> None:
    """Prints one line of JSON now, if --json was given."""
    import msgspec

    if settings.as_json:
        print(clean_json(msgspec.json.encode(value).decode()), flush=True)


def emit_each(values: Iterable[Any]) -> None:
    """Prints a JSON list, if --json was given, one value at a time: a list of any length is not held in memory."""
    import msgspec

    if not settings.as_json:
        return
    before = "["
    for value in values:
        print(before, clean_json(msgspec.json.encode(value).decode()), sep="", end="")
        before = ",\n" if on_terminal() else ","
    print("[]" if before == "[" else "]")


def notice(text: str) -> None:
    """Prints a message on stderr while a command runs."""
    print(f"hocket: {clean(text)}", file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Sequence[Row], empty: str, *, is_cut: bool = False) -> None:
    """Prints a table on a terminal, tab-separated lines in a pipe. `empty` is the text for people if there are no
    rows. If the terminal is too narrow for the table, each row becomes a block of lines; in a table that `is_cut` its
    text is cut instead.
    """
    if settings.as_json:
        return
    if not on_terminal():
        for row in rows:
            print("\t".join(clean(cell) for cell in row))
        return
    if not rows:
        say(empty, "dim")
        return
    draw = lines_drawn if is_cut else drawn
    if (shown := draw(columns, rows, console().width)) is not None:
        console().print(shown, soft_wrap=False)
        return
    for index, row in enumerate(rows):
        if index:
            say()
        fields([(name, cell) for name, cell in zip(columns, row, strict=True) if clean(cell) not in SILENT])


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names with their values: aligned on a terminal and wrapped between words, tab-separated in a pipe."""
    if settings.as_json:
        return
    if not on_terminal():
        for name, value in pairs:
            print(f"{name}\t{clean(value)}")
        return
    from textwrap import wrap

    from rich.text import Text

    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        text = clean(value)
        room = max(1, console().width - width)
        shown = ("\n" + " " * width).join(wrap(text, room, break_long_words=False, break_on_hyphens=False))
        console().print(Text.assemble((name.ljust(width), "dim"), (shown, STYLES.get(text, ""))))


def confirmed(question: str, *, err: bool = False) -> bool:
    """Asks on a terminal."""
    import typer

    try:
        return typer.confirm(question, err=err)
    except typer.Abort:
        raise KeyboardInterrupt from None


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Shows a progress bar on stderr if that is a terminal. Call the result with the amount done and the total."""
    if settings.as_json or not on_terminal(sys.stderr) or os.environ.get("NO_COLOR"):
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console(sys.stderr), transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def lines_drawn(columns: Sequence[str], rows: Sequence[Row], width: int, middle: Sequence[str] = ()) -> "Table":
    """A table with one line for each row. Text that does not fit is cut at its end, or in these columns in the middle:
    kinds that begin alike often differ at the end.
    """
    names, cells = _telling(columns, rows)
    natural = _widths(names, cells)
    least = [each if name in IDS else min(each, CUT_MIN) for name, each in zip(names, natural, strict=True)]
    widths = _narrowed(natural, least, width)
    while len(names) > LEAST_COLUMNS and _total(widths) > width:
        # The last columns say the least.
        names, widths, cells = names[:-1], widths[:-1], [row[:-1] for row in cells]
    for index in (names.index(name) for name in middle if name in names):
        for row in cells:
            row[index] = _cut_middle(row[index], widths[index])
    return _table(names, cells, widths, cut=True)


def _cut_middle(text: str, width: int) -> str:
    end = (width - 1) // 2
    return text if _cells(text) <= width else f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def drawn(columns: Sequence[str], rows: Sequence[Row], width: int) -> "Table | None":
    """A table whose text is wrapped between words; None if it would not fit."""
    names, cells = _telling(columns, rows)
    words = [[word for row in cells for word in row[index].split()] for index in range(len(names))]
    natural = _widths(names, cells)
    least = [
        min(wide, max(WRAPPED_MIN, len(name), *map(_cells, column), 0))
        for name, column, wide in zip(names, words, natural, strict=True)
    ]
    widths = _narrowed(natural, least, width)
    return _table(names, cells, widths, cut=False) if _total(widths) <= width else None


def _telling(columns: Sequence[str], rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The columns in which a row says something."""
    cells = [[clean(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if any(row[index] not in SILENT for row in cells)]
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in cells]


def _widths(names: list[str], cells: list[list[str]]) -> list[int]:
    return [max(map(_cells, (name, *(row[index] for row in cells)))) for index, name in enumerate(names)]


def _narrowed(natural: list[int], least: list[int], width: int) -> list[int]:
    """Takes from the widest column that may be narrower, until the columns fit."""
    widths = list(natural)
    while _total(widths) > width:
        wide = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _table(names: list[str], cells: list[list[str]], widths: list[int], *, cut: bool) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, width in zip(names, widths, strict=True):
        shown.add_column(name, width=width, no_wrap=cut, overflow="ellipsis" if cut else "fold")
    for row in cells:
        shown.add_row(*(Text(cell, STYLES.get(cell.split(" ", 1)[0], "")) for cell in row))
    return shown
