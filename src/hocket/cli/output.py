"""Prints answers. A terminal gets tables, colours and progress bars; a pipe gets plain lines with tabs between the
columns; `--json` gets only JSON. Characters in foreign text that control a terminal or reorder text are escaped. Rich
is loaded only for terminals.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from hocket.cli.settings import settings
from hocket.kernel.durations import span
from hocket.kernel.safe_text import clean, clean_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Sequence[object]
Progress = Callable[[int, int], None]

STYLES = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "claimed": "cyan",
    "ok": "green",
    "warn": "yellow",
    "bad": "bold red",
}


def on_terminal(stream: IO[str] | None = None) -> bool:
    try:
        return (stream or sys.stdout).isatty()
    except ValueError:
        return False


def console(stream: IO[str] | None = None) -> "Console":
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)


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


def notice(text: str) -> None:
    """Prints a message on stderr while a command runs."""
    print(f"hocket: {clean(text)}", file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Sequence[Row], empty: str) -> None:
    """Prints a table on a terminal, tab-separated lines in a pipe. `empty` is the text for people if there are no
    rows.
    """
    if settings.as_json:
        return
    if not on_terminal():
        for row in rows:
            print("\t".join(clean(cell) for cell in row))
    elif rows:
        console().print(drawn(columns, rows), soft_wrap=False)
    else:
        say(empty, "dim")


def drawn(columns: Sequence[str], rows: Sequence[Row]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        shown.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        cells = [clean(cell) for cell in row]
        shown.add_row(*(Text(cell, STYLES.get(cell.split(" ", 1)[0], "")) for cell in cells))
    return shown


def fields(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names with their values: aligned on a terminal, tab-separated in a pipe."""
    if settings.as_json:
        return
    if not on_terminal():
        for name, value in pairs:
            print(f"{name}\t{clean(value)}")
        return
    from rich.text import Text

    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        text = clean(value)
        console().print(Text.assemble((name.ljust(width), "dim"), (text, STYLES.get(text, ""))))


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """Shows a progress bar on stderr if that is a terminal. Call the result with the amount done and the total."""
    if settings.as_json or not on_terminal(sys.stderr):
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console(sys.stderr), transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def ago(then_ms: int, now_ms: int) -> str:
    """How long ago or ahead, rounded."""
    away = then_ms - now_ms
    return f"in {span(away)}" if away > 0 else f"{span(-away)} ago"
