"""The table at the end of the benchmarks: each goal is judged by the best peer of the same run, and nothing is met that
was not measured.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from bench import __main__ as harness
from bench.goals import MET, MISSED, NOT_MEASURED, Judge, Verdict, print_goals
from bench.lineups import OURS, Lineup
from bench.postgres_rows import postgres_rows
from bench.rows import Figure, Goal, Row, Size, rows
from bench.table import EMPTY, Figures, lines

QUICK_PEER, SLOW_PEER, LIMIT = "bench.peers.quick", "bench.peers.slow", "bench.peers.limit"
LINEUP = Lineup(OURS, (QUICK_PEER, SLOW_PEER, LIMIT), (QUICK_PEER, SLOW_PEER), "ours : better peer")


def subject(label: str, *functions: str) -> ModuleType:
    made = ModuleType(label)
    made.__dict__.update({"LABEL": label, "NOTES": {}, "describe": lambda: label} | dict.fromkeys(functions))
    return made


TEAM = {
    OURS: subject("Hocket", "drain"),
    QUICK_PEER: subject("Quick", "drain"),
    SLOW_PEER: subject("Slow", "drain"),
    LIMIT: subject("Limit", "drain"),
}


def rate(per_s: float, peak_mib: float | None = None) -> Figures:
    result: dict[str, Any] = {"count": 100, "seconds": 100 / per_s}
    return Figures([result if peak_mib is None else result | {"peak_kib": [peak_mib * 1024]}])


def failed(*before: Figures) -> Figures:
    return Figures([result for each in before for result in each.results], "it fell over")


def row(*goals: Goal, key: str = "drain-1", function: str = "drain", **options: Any) -> Row:
    return Row(key, "no-op jobs/s", function, {}, lineup=LINEUP, goals=goals, **options)


def judged(
    *chosen: Row, team: dict[str, ModuleType] = TEAM, cores: int = 16, **figures: dict[str, Figures]
) -> list[Verdict]:
    named = {key.replace("_", "-"): each for key, each in figures.items()}
    return Judge(chosen, named, {LINEUP: team}, cores).verdicts()


def figures(ours: Figures, quick: Figures, slow: Figures, limit: float = 90_000) -> dict[str, Figures]:
    return {OURS: ours, QUICK_PEER: quick, SLOW_PEER: slow, LIMIT: rate(limit)}


@pytest.mark.parametrize(("ours", "state"), [(1_500, MET), (1_499, MISSED)])
def test_a_goal_is_so_many_times_the_best_peer(ours: float, state: str) -> None:
    (found,) = judged(row(Goal(at_least=1.5)), drain_1=figures(rate(ours), rate(1_000), rate(200)))
    assert (found.peer, found.peer_value, found.state) == ("Quick", pytest.approx(1_000), state)
    assert found.ratio == pytest.approx(ours / 1_000)


def test_the_best_peer_is_the_one_with_the_lowest_figure_where_less_is_better() -> None:
    goal = Goal(at_least=0.5)
    late = lambda ms: Figures([{"latencies_ms": [ms] * 3}])  # noqa: E731
    team = {name: subject(module.LABEL, "latency") for name, module in TEAM.items()}
    got = {OURS: late(2.0), QUICK_PEER: late(1.0), SLOW_PEER: late(80.0), LIMIT: late(0.1)}
    (found,) = judged(row(goal, function="latency"), team=team, drain_1=got)
    assert (found.key, found.peer, found.peer_value) == ("drain-1-p50", "Quick", 1.0)
    assert (found.ratio, found.state) == (0.5, MET)


@pytest.mark.parametrize(("mib", "state"), [(55, MET), (55.1, MISSED)])
def test_a_bound_is_in_the_unit_of_its_line_and_stands_beside_the_peer_that_needs_least(mib: float, state: str) -> None:
    got = figures(rate(1_000, mib), rate(1_000, 40), rate(200, 20))
    (found,) = judged(row(Goal(at_most=55, line="memory")), drain_1=got)
    assert (found.key, found.ours, found.peer, found.state) == ("drain-1-memory", mib, "Slow", state)
    assert found.ratio == pytest.approx(20 / mib)


def test_a_row_without_a_figure_of_ours_is_not_measured() -> None:
    goals = Goal(at_least=0.1), Goal(at_most=55, line="memory")
    quick, slow = rate(1_000, 20), rate(200, 20)
    for ours in (failed(), failed(rate(90_000, 1)), Figures()):
        states = [each.state for each in judged(row(*goals), drain_1=figures(ours, quick, slow))]
        assert states == [NOT_MEASURED, NOT_MEASURED]
    assert [each.state for each in judged(row(*goals))] == [NOT_MEASURED, NOT_MEASURED], "the row was never run"
    silent = Figures([{"count": 1, "seconds": 1, "peak_kib": []}])
    no_memory = judged(row(goals[1]), drain_1=figures(silent, quick, slow))
    assert [each.state for each in no_memory] == [NOT_MEASURED], "no worker has told its memory"


def test_a_goal_is_not_met_without_a_peer_that_failed_and_can_be_missed_without_it() -> None:
    goal = row(Goal(at_least=1.5))
    for quick in (failed(), failed(rate(1))):
        (found,) = judged(goal, drain_1=figures(rate(1_000), quick, rate(200)))
        assert (found.peer, found.ratio) == ("Slow", pytest.approx(5.0))
        assert (found.state, found.reason) == (NOT_MEASURED, "no figure of Quick")
    (found,) = judged(goal, drain_1=figures(rate(1_000), failed(), rate(900)))
    assert (found.peer, found.state) == ("Slow", MISSED)


def test_a_peer_that_is_not_installed_is_missing_and_one_that_cannot_do_it_is_not() -> None:
    got = {OURS: rate(1_000), SLOW_PEER: rate(200)}
    without = {name: module for name, module in TEAM.items() if name != QUICK_PEER}
    (found,) = judged(row(Goal(at_least=1.5)), team=without, drain_1=got)
    assert (found.state, found.reason) == (NOT_MEASURED, "no figure of quick")
    (found,) = judged(row(Goal(at_least=1.5)), team=without | {QUICK_PEER: subject("Quick")}, drain_1=got)
    assert (found.peer, found.state) == ("Slow", MET)


def test_more_workers_are_judged_by_ours_with_fewer() -> None:
    one, four = row(), row(Goal(at_least=1.8, row="drain-1", cores=4), key="drain-4", ours_only=True)
    got = {"drain_1": figures(rate(1_000), rate(5_000), rate(5_000)), "drain_4": {OURS: rate(1_800)}}
    (found,) = judged(one, four, **got)
    assert (found.peer, found.ratio, found.state) == ("ours, drain-1", pytest.approx(1.8), MET)
    (found,) = judged(one, four, cores=2, **got)
    assert (found.state, found.reason) == (NOT_MEASURED, "needs 4 cores")
    (found,) = judged(four, **got)
    assert (found.state, found.reason) == (NOT_MEASURED, "no figure of ours, drain-1")


def test_a_full_log_is_judged_by_an_empty_one() -> None:
    full = row(Goal(at_least=0.95), key="full-drain-1", full=True, ours_only=True)
    for empty, state in ((rate(1_000), MET), (rate(1_100), MISSED), (failed(), NOT_MEASURED)):
        (found,) = judged(full, full_drain_1={OURS: rate(1_000), EMPTY: empty})
        assert (found.state, found.peer) == (state, None if empty.error else EMPTY)


def test_peers_may_be_figures_of_the_same_measurement() -> None:
    goal = Goal(at_least=0.5, line="nodes_rate", figures={"taskiq_rate": "taskiq", "synced_rate": "taskiq, synced"})
    names = ("rate", "nodes_rate", "taskiq_rate", "synced_rate")
    grid = row(goal, key="grid-4", ours_only=True, figures=tuple(Figure(name, f"  {name}", "/s") for name in names))
    result = dict(zip(names, (9_000.0, 600.0, 1_000.0, 1_300.0), strict=True))
    (found,) = judged(grid, grid_4={OURS: Figures([result])})
    assert (found.title, found.ours, found.peer) == ("no-op jobs/s: nodes_rate", 600, "taskiq, synced")
    assert (found.state, found.ratio) == (MISSED, pytest.approx(600 / 1_300))


def test_the_table_says_each_goal_and_how_many_are_met() -> None:
    goals = Goal(at_least=1.5), Goal(at_most=55, line="memory")
    four = row(Goal(at_least=1.8, row="drain-1", cores=4), key="drain-4", ours_only=True)
    got = figures(rate(1_600, 70), rate(1_000, 25), rate(200, 30))
    told = StringIO()
    print_goals(Console(file=told, width=160), judged(row(*goals), four, cores=2, drain_1=got))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.getvalue().splitlines() if "│" in line]
    memory = "no-op jobs/s: peak memory of a worker (MiB)"
    assert cells == [
        ["no-op jobs/s", "1,600", "Quick 1,000", "1.60×", "at least 1.50×", "met"],
        [memory, "70.0", "Quick 25.0", "0.36×", "at most 55 MiB", "missed"],
        ["no-op jobs/s", "–", "ours, drain-1 1,600", "–", "at least 1.80×", "not measured: needs 4 cores"],
    ]
    assert told.getvalue().splitlines()[-1].strip() == "1 met, 1 missed, 1 not measured"


def test_each_goal_of_the_benchmarks_names_a_line_a_row_and_figures_that_are_there() -> None:
    size = Size()
    known = [*rows(size), *postgres_rows(size)]
    keys = {row.key: {line.key for line in lines(row, {})} for row in known}
    assert len(keys) == len(known)
    for each in known:
        for goal in each.goals:
            assert (goal.at_least is None) != (goal.at_most is None)
            assert not goal.line or f"{each.key}-{goal.line}" in keys[each.key]
            assert not goal.row or goal.row in keys
            assert {f"{each.key}-{figure}" for figure in goal.figures} <= keys[each.key]
    verdicts = Judge(known, {}, {}, 16).verdicts()
    assert len(verdicts) > 15 and {each.state for each in verdicts} == {NOT_MEASURED}


def test_a_run_ends_with_the_goals_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(subject: str, *_: Any) -> dict[str, Any]:
        if subject != OURS:
            raise RuntimeError("it fell over")
        return {"seconds": 1.0}

    monkeypatch.setattr(harness, "measure", measure)
    team = {OURS: subject("Hocket", "submit_single"), "bench.peers.huey": subject("Huey", "submit_single")}
    monkeypatch.setattr(harness, "load_subjects", lambda lineup: (team, []))
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "single", "--dir", str(tmp_path), "--json", str(file)])
    assert harness.main() == 1
    (goal,) = json.loads(file.read_text())["goals"]
    assert (goal["key"], goal["ours"], goal["at_least"], goal["state"]) == ("single", 20_000, 0.9, NOT_MEASURED)
    assert capsys.readouterr().out.splitlines()[-1].strip() == "0 met, 0 missed, 1 not measured"


def test_a_subject_whose_package_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def describe() -> str:
        raise PackageNotFoundError("quick")

    for name, module in TEAM.items():
        monkeypatch.setitem(sys.modules, name, subject(module.LABEL))
    sys.modules[QUICK_PEER].__dict__["describe"] = describe
    found, missing = harness.load_subjects(LINEUP)
    assert [*found] == [OURS, SLOW_PEER, LIMIT]
    assert len(missing) == 1 and missing[0].startswith(QUICK_PEER)
