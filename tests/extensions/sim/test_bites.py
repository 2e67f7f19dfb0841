"""The checks bite: each mistake that is planted in the real code is found within 200 seeds, every fault at once, and by
a rule that has to do with it. The search begins with a seed that is known to find the mistake. If a change of the
program makes that seed miss it, the others still find it, only later; then write the new seed here.
"""

import pytest

from hocket.extensions import sim
from tests.extensions.sim.bugs import BUGS

SEEDS = 200
FOUND_BY = {
    "late claim wins": {"no two holders at once", "one holder per fence", "completed is final", "replicas agree"},
    "fence not checked": {"only the holder ends a job", "one holder per fence", "replicas agree"},
    "clock not advanced on refused ops": {"clocks never go back", "replicas agree"},
    "expiry by wall clock": {"no two holders at once"},
    "lost group commit": {"no acknowledged op is lost"},
    "fence from the row": {"fences of locks rise", "one lock per fence"},
    "locks end by the merged clock": {"no two holders of a lock at once"},
    "ack without lease": {"only the lease holder ends a delivery", "no two consumers of a message at once"},
    "version compared outside the transaction": {"no update of a row is lost"},
}
FIRST = {
    "late claim wins": 20,
    "fence not checked": 20,
    "expiry by wall clock": 70,
    "locks end by the merged clock": 4,
    "ack without lease": 11,
    "version compared outside the transaction": 6,
}


@pytest.mark.req("LW-39", "LW-40")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for number in range(SEEDS):
        seed = (FIRST.get(bug, 0) + number) % SEEDS
        report = (
            sim.run(seed, nodes=4, minutes=0.5, jobs=16) if seed % 2 else sim.run(seed, nodes=3, minutes=0.1, jobs=5)
        )
        if FOUND_BY[bug] & {violation.rule for violation in report.violations}:
            assert f"seed {seed}:" in str(report)
            return
    pytest.fail(f"{SEEDS} seeds, and nothing was found")
