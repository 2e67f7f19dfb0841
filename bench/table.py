"""The tables: what the results of a row come to, with a column for each subject."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.lineups import OURS, Lineup
from bench.rows import Figure, Row

EMPTY = "ours, empty log"  # the other side of the rows on the full log: ours again, in the same repetition
EARLIER = "ours, earlier"  # ours at another commit, with that commit's own harness


@dataclass
class Figures:
    """What one subject gave for one row, all repetitions."""

    results: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def median(self, of: Callable[[dict[str, Any]], float]) -> float | None:
        return statistics.median(of(result) for result in self.results) if self.results else None


@dataclass(frozen=True)
class Line:
    """A line of a table: the median of each subject, or nothing where it has no figure."""

    key: str
    title: str
    unit: str
    less_is_more: bool
    values: dict[str, float | None]
    is_compared: bool = True


def label(name: str, subjects: dict[str, ModuleType]) -> str:
    """A subject that is not there goes by the name of its module."""
    if name in (EMPTY, EARLIER):
        return name
    return str(subjects[name].LABEL) if name in subjects else name.rpartition(".")[2]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def value_of(figure: Figure, result: dict[str, Any]) -> float:
    value = result[figure.name]
    return float(value) if figure.percentile is None else percentile(value, figure.percentile)


def lines(row: Row, figures: dict[str, Figures]) -> list[Line]:
    """A row's lines in the table: a rate, or p50 and p99; and the workers' peak memory where there were workers."""
    made: list[Line] = []

    def line(
        key: str,
        title: str,
        unit: str,
        less_is_more: bool,
        of: Callable[[dict[str, Any]], float],
        is_compared: bool = True,
    ) -> None:
        values = {name: figure.median(of) for name, figure in figures.items()}
        made.append(Line(key, title, unit, less_is_more, values, is_compared))

    for figure in row.figures:
        share = "" if figure.percentile is None else f"-p{figure.percentile * 100:.0f}"
        key = f"{row.key}-{figure.name}{share}"
        line(key, figure.title, figure.unit, figure.less_is_more, partial(value_of, figure), figure.is_compared)
    if row.figures:
        return made
    if row.function in ("latency", "hint_to_claim"):
        line(f"{row.key}-p50", f"{row.title}, p50", "ms", True, lambda result: percentile(result["latencies_ms"], 0.50))
        line(f"{row.key}-p99", f"{row.title}, p99", "ms", True, lambda result: percentile(result["latencies_ms"], 0.99))
    else:
        line(row.key, row.title, "/s", False, lambda result: result.get("count", row.count) / result["seconds"])
    if row.function == "admit":
        line(
            "verify", "signatures verified/s by pynacl alone, all cores", "/s", False, lambda result: result["raw_rate"]
        )
        rate = lambda result: result["count"] / result["seconds"] / result["raw_rate"]  # noqa: E731
        line("admit-share", "  ops admitted for each signature that could be verified", "×", False, rate)
    if row.key in ("refold", "sync"):
        line(
            f"{row.key}-seconds",
            f"{row.title.removesuffix(', ops/s')}, seconds",
            "s",
            True,
            lambda result: result["seconds"],
        )
    has_workers = any("peak_kib" in result for figure in figures.values() for result in figure.results)
    if has_workers or any(goal.line == "memory" for goal in row.goals):
        line(
            f"{row.key}-memory",
            "  peak memory of the receiver" if row.function == "first_sync" else "  peak memory of a worker",
            "MiB",
            True,
            lambda result: max(result.get("peak_kib") or [0]) / 1024,
        )
    return made


def show(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "/s":
        return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
    return f"{value:,.2f}" if unit in ("ms", "s", "×") else f"{value:,.1f}"


def with_unit(title: str, unit: str) -> str:
    return title if unit in ("/s", "") else f"{title} ({unit})"


def ratio(ours: float, other: float, less_is_more: bool) -> float:
    """Above 1, ours is better."""
    return other / ours if less_is_more else ours / other


def ratios(line: Line, compared: tuple[str, ...]) -> str:
    """Ours over the better peer's, over our own on an empty log, or over ours at another commit."""
    ours = line.values.get(OURS)
    if not ours or not line.is_compared:
        return ""
    found = []
    for names, mark in ((compared, "×"), ((EARLIER,), "×"), ((EMPTY,), "× of empty")):
        others = [value for name in names if (value := line.values.get(name))]
        if others:
            found.append(f"{min(ratio(ours, other, line.less_is_more) for other in others):.2f}{mark}")
    return ", ".join(found)


def print_table(
    console: Console,
    table_lines: list[Line],
    lineup: Lineup,
    subjects: dict[str, ModuleType],
    against: str | None,
) -> None:
    table = Table(title=None, title_justify="left")
    table.add_column("")
    names = [*subjects] if against is None else [OURS, EARLIER]
    for name in names:
        table.add_column(f"at {against}" if name == EARLIER else subjects[name].LABEL, justify="right")
    if OURS in subjects:
        table.add_column(lineup.heading if against is None else "now : then", justify="right")
    for line in table_lines:
        cells = [show(line.values.get(name), line.unit) for name in names]
        last = [ratios(line, lineup.compared)] if OURS in subjects else []
        table.add_row(with_unit(line.title, line.unit), *cells, *last)
    console.print(table)
