"""A thousand seeds, every fault at once: no acknowledged op lost, all replicas alike, one holder for each fence, none
of the arbiter's jobs run twice at a time, nothing completed that is not completed for good, nothing stuck. Ten of
them run with every `make test`, the others in the soak, which has a thousand more, of larger meshes.
"""

import pytest

from hocket.extensions import sim

SEEDS = 1_000
# An odd number, so that each part has meshes of two nodes and of three.
PARTS = 101
SOME = [pytest.param(part, marks=() if part == 0 else pytest.mark.soak) for part in range(PARTS)]


@pytest.mark.slow
@pytest.mark.req("LW-22", "LW-32", "LW-37", "LW-38", "LW-39")
@pytest.mark.parametrize("part", SOME)
def test_no_rule_is_broken_in_a_thousand_meshes(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        report = sim.run(seed, nodes=2 + seed % 2, minutes=0.08, jobs=4)
        assert not report.violations, report


@pytest.mark.req("VX-10")
@pytest.mark.parametrize("seed", [129, 472, 916])
def test_a_message_whose_lease_has_ended_is_not_received(seed: int) -> None:
    report = sim.run(seed, nodes=2 + seed % 2, minutes=0.08, jobs=4)
    assert not report.violations, report
