"""How a node or an agent that falls silent is graded."""

import pytest

from hocket.families.liveness import BEAT_S, MISSES, Grade, grade

BEAT_MS = round(BEAT_S * 1000)


@pytest.mark.req("VX-11")
@pytest.mark.parametrize("every_ms", [1_000, BEAT_MS, 24 * 3600 * 1000])
def test_each_grade_begins_with_its_number_of_missed_heartbeats(every_ms: int) -> None:
    assert [*MISSES] == [Grade.WARN, Grade.ALERT, Grade.CRITICAL, Grade.DEAD]
    before = Grade.LIVE
    for found, misses in MISSES.items():
        assert grade(misses * every_ms - 1, every_ms) is before
        assert grade(misses * every_ms, every_ms) is found
        before = found
    assert grade(10**15, every_ms) is Grade.DEAD


def test_a_heartbeat_that_is_on_its_way_through_a_third_node_is_not_missed() -> None:
    """It leaves a beat later at most, and arrives a beat later at most."""
    assert grade(2 * BEAT_MS + BEAT_MS // 2) is Grade.LIVE


def test_a_clock_that_was_set_back_makes_nobody_dead() -> None:
    assert grade(-(10**9)) is Grade.LIVE
