"""The closing table: ours beside the best peer of the same run for each row that has a goal, and whether the goal is
met. A row without the figures for that is not measured, and never met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console
from rich.table import Table

from bench.lineups import OURS, Lineup
from bench.rows import Goal, Row
from bench.table import EMPTY, Figures, Line, label, lines, ratio, show, with_unit

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"


@dataclass(frozen=True)
class Verdict:
    """A goal after a run. `peer` is the best of those that have a figure, and `reason` why there is no verdict."""

    key: str
    title: str
    unit: str
    ours: float | None
    peer: str | None
    peer_value: float | None
    ratio: float | None
    at_least: float | None
    at_most: float | None
    state: str
    reason: str = ""


class Judge:
    """Judges the goals of the rows that a run has `chosen` by the figures that it got for them."""

    def __init__(
        self,
        chosen: Sequence[Row],
        figures: dict[str, dict[str, Figures]],
        teams: dict[Lineup, dict[str, ModuleType]],
        cores: int,
    ) -> None:
        self._rows = {row.key: row for row in chosen}
        self._figures = figures
        self._teams = teams
        self._cores = cores

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(row, goal) for row in self._rows.values() for goal in row.goals]

    def _verdict(self, row: Row, goal: Goal) -> Verdict:
        line = self._line(row, goal.line)
        ours = self._value(row, line, OURS)
        others = self._others(row, goal, line)
        known = {name: value for name, value in others.items() if value is not None}
        peer = min(known, key=lambda name: known[name] * (1 if line.less_is_more else -1)) if known else None
        reached = ratio(ours, known[peer], line.less_is_more) if ours and peer else None
        state, reason = self._state(goal, ours, reached, [name for name in others if name not in known])
        is_part = line.title.startswith(" ")
        return Verdict(
            key=line.key,
            title=f"{row.title}: {line.title.strip()}" if is_part else line.title,
            unit=line.unit,
            ours=ours,
            peer=peer,
            peer_value=known[peer] if peer else None,
            ratio=reached,
            at_least=goal.at_least,
            at_most=goal.at_most,
            state=state,
            reason=reason,
        )

    def _state(self, goal: Goal, ours: float | None, reached: float | None, silent: list[str]) -> tuple[str, str]:
        """A peer without a figure may be the best one, so ours can miss the goal without it, and not meet it."""
        if self._cores < goal.cores:
            return NOT_MEASURED, f"needs {goal.cores} cores"
        if ours is None:
            return NOT_MEASURED, "no figure of ours"
        if goal.at_most is not None and ours > goal.at_most:
            return MISSED, ""
        if goal.at_least is not None:
            if reached is not None and reached < goal.at_least:
                return MISSED, ""
            if silent or reached is None:
                return NOT_MEASURED, f"no figure of {' or '.join(silent)}"
        return MET, ""

    def _line(self, row: Row, end: str) -> Line:
        made = lines(row, self._figures.get(row.key, {}))
        return next(line for line in made if not end or line.key == f"{row.key}-{end}")

    def _value(self, row: Row, line: Line, name: str) -> float | None:
        """No figure of zero counts, nor one of a subject that failed in one of the repetitions."""
        figures = self._figures.get(row.key, {}).get(name)
        return None if figures is None or figures.error else line.values.get(name) or None

    def _others(self, row: Row, goal: Goal, line: Line) -> dict[str, float | None]:
        """What ours stands beside. A peer that cannot do what the row measures is left out."""
        if goal.row:
            other = self._rows.get(goal.row)
            value = None if other is None else self._value(other, self._line(other, ""), OURS)
            return {f"ours, {goal.row}": value}
        if goal.figures:
            return {name: self._value(row, self._line(row, key), OURS) for key, name in goal.figures.items()}
        if row.full:
            return {EMPTY: self._value(row, line, EMPTY)}
        subjects = self._teams.get(row.lineup, {})
        able = [name for name in row.lineup.compared if name not in subjects or hasattr(subjects[name], row.function)]
        return {label(name, subjects): self._value(row, line, name) for name in able}


def print_goals(console: Console, verdicts: list[Verdict]) -> None:
    table = Table("goals")
    for heading in ("ours", "best peer", "ours : best peer", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for each in verdicts:
        table.add_row(
            with_unit(each.title, each.unit),
            show(each.ours, each.unit),
            f"{each.peer} {show(each.peer_value, each.unit)}" if each.peer else "–",
            "–" if each.ratio is None else f"{each.ratio:.2f}×",
            f"at least {each.at_least:.2f}×" if each.at_most is None else f"at most {each.at_most:g} {each.unit}",
            f"{each.state}: {each.reason}" if each.reason else each.state,
            style="bold" if each.state == MISSED else None,
        )
    console.print(table)
    counts = [(state, sum(each.state == state for each in verdicts)) for state in (MET, MISSED, NOT_MEASURED)]
    console.print(", ".join(f"{count} {state}" for state, count in counts), highlight=False)
