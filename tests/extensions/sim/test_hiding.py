"""A simulated mesh whose log is pruned, with a member that forges, withholds, dates back and splits checkpoints and
snapshots: honest nodes agree, find it out, and lose nothing.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.extensions import sim
from hocket.extensions.sim import hiding, pruning
from hocket.families.locks.rules import LOCKS
from hocket.kernel.arbitration import Reason
from hocket.log.retention import remaining
from hocket.store.checkpoint_rows import CheckpointSession
from hocket.store.horizon_rows import HorizonSession

Plant = Callable[[pytest.MonkeyPatch], None]
pytestmark = pytest.mark.slow
SOME = [pytest.param(seed, marks=() if seed < 2 else pytest.mark.soak) for seed in range(8)]


def run(seed: int, *faults: str) -> sim.Report:
    return sim.run(seed, nodes=2, minutes=0.3, faults=["hiding", *faults], jobs=2, coordination=2)


@pytest.mark.req("LW-52", "LW-43")
@pytest.mark.parametrize("seed", SOME)
def test_a_member_with_something_to_hide_achieves_nothing(seed: int) -> None:
    report = run(seed, *(sim.HONEST_FAULTS if seed % 2 else ()))
    assert not report.violations, report
    assert report.settled_s is not None


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
def test_many_seeds_with_a_member_that_hides(part: int) -> None:
    for seed in range(part, 400, 20):
        report = run(seed, *((), sim.HONEST_FAULTS, ("hostile",))[seed % 3])
        assert not report.violations, report


def test_it_is_hostile_indeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lie is told, ops of each sort are refused on the logs, and the late node takes a snapshot."""
    told: Counter[str] = Counter()
    reasons: set[int] = set()
    events: set[str] = set()
    check, emitted, damaged = pruning.violations, sim.world.World.emitted, hiding.HidingNode._damage

    def violations(nodes: Any, *more: Any) -> Any:
        for node in nodes:
            with node.store.read() as session:
                reasons.update(session.refusal_counts())
        return check(nodes, *more)

    def emit(self: Any, node: int, event: Any) -> None:
        events.add(type(event).__name__)
        emitted(self, node, event)

    def damage(self: Any) -> str:
        chosen = damaged(self)
        told[chosen] += 1
        return chosen

    monkeypatch.setattr(pruning, "violations", violations)
    monkeypatch.setattr(sim.world.World, "emitted", emit)
    monkeypatch.setattr(hiding.HidingNode, "_damage", damage)
    wanted = {Reason.NOT_COORDINATOR, Reason.BEHIND_HORIZON, Reason.OWNER_ONLY}
    happened = {"SnapshotTaken", "CheckpointsDiffer", "HorizonMoved", "OpsPruned"}
    for seed in range(20):
        run(seed)
        if told.keys() == set(hiding.DAMAGES) and reasons >= wanted and events >= happened:
            return
    pytest.fail(f"only {told}, {reasons} and {events}")


# What it gains by.


def fences_fall(patch: pytest.MonkeyPatch) -> None:
    plain = remaining._Decision._based_row

    def based_row(self: Any, subject: Any, going: Any) -> Any:
        row = plain(self, subject, going)
        if subject.family != "lock" or row.state is None:
            return row
        return row._replace(state=LOCKS.encode(replace(LOCKS.decode(row.state), fence=0)))

    patch.setattr(remaining._Decision, "_based_row", based_row)


def the_op_behind_the_border_is_lost(patch: pytest.MonkeyPatch) -> None:
    plain = HorizonSession.delete_ops
    patch.setattr(HorizonSession, "delete_ops", lambda self, first, last: plain(self, first, last + 1))


def trees_of_another_log_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A node that takes a snapshot goes on with the trees that it has in memory."""
    patch.setattr(CheckpointSession, "drop_trees", lambda self, author: None)


PLANTS: dict[str, tuple[Plant, str, int]] = {
    "fences fall": (fences_fall, "fences never fall", 0),
    "the op behind the border is lost": (the_op_behind_the_border_is_lost, "the log verifies", 0),
    "trees of another log are kept": (trees_of_another_log_are_kept, "checkpoints agree with the log", 4),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "fences fall" else pytest.mark.soak) for name in PLANTS]
)
def test_a_planted_mistake_lets_it_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed finds it."""
    plant, rule, first = PLANTS[name]
    plant(monkeypatch)
    reports = (run(seed) for seed in range(first, first + 20))
    assert any(violation.rule == rule for report in reports for violation in report.violations)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run(3) for _ in range(2))
    assert first.digest == second.digest
