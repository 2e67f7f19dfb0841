"""Prints answers. A terminal gets tables, colours and progress bars; a pipe gets plain lines with tabs between the
columns; `--json` gets only JSON. Characters in foreign text that control a terminal or reorder text are escaped. Rich
is loaded only for terminals.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal

from hocket.cli.settings import settings
from hocket.cli.tables import SILENT, STYLES, Row, drawn, lines_drawn
from hocket.kernel.durations import span
from hocket.kernel.safe_text import clean, clean_json

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int], None]


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


def table(columns: Sequence[str], rows: Sequence[Row], empty: str) -> None:
    """Prints a table on a terminal, tab-separated lines in a pipe. `empty` is the text for people if there are no
    rows. If the terminal is too narrow for the table, each row becomes a block of lines.
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
    if (shown := drawn(columns, rows, console().width)) is not None:
        console().print(shown, soft_wrap=False)
        return
    for index, row in enumerate(rows):
        if index:
            say()
        fields([(name, cell) for name, cell in zip(columns, row, strict=True) if clean(cell) not in SILENT])


def lines(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Prints a table on a terminal, with one line for each row; text that does not fit is cut."""
    if settings.as_json:
        return
    console().print(lines_drawn(columns, rows, console().width), soft_wrap=False)


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


def ago(then_ms: int, now_ms: int) -> str:
    """How long ago or ahead, rounded."""
    away = then_ms - now_ms
    return f"in {span(away)}" if away > 0 else f"{span(-away)} ago"
