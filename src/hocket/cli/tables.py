"""Tables that fit a terminal. Columns in which no row says anything are left out. If the rest is too wide, the widest
columns become narrower, and no word is broken: a list of lines cuts the text, any other table wraps it between words.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.kernel.safe_text import clean

if TYPE_CHECKING:
    from rich.table import Table

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
