"""The clock of a pulse: it follows the time of day without ever going back, whatever the machine does to its clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.heard_beats import STEP_MS, TempoClock

NOON = 1_756_865_520.0


class Machine:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.monotonic, self.wall = 100.0, NOON
        self.clock = TempoClock(lambda: self.monotonic, lambda: self.wall)

    def passes(self, seconds: float, rate: float = 1.0) -> None:
        self.monotonic += seconds
        self.wall += seconds * rate

    def off_ms(self) -> float:
        return self.clock.now_ms() - self.wall * 1000


def test_a_fresh_clock_shows_the_time_of_day() -> None:
    machine = Machine()
    machine.passes(3.5)
    assert machine.clock.now_ms() == int((NOON + 3.5) * 1000)


@pytest.mark.req("BB-18")
@pytest.mark.parametrize("rate", [1.0005, 0.9995])
def test_a_clock_that_runs_at_another_rate_is_followed_for_an_hour(rate: float) -> None:
    machine, last, longest = Machine(), 0, 0
    for _ in range(36_000):
        machine.passes(0.1, rate)
        now = machine.clock.now_ms()
        if last:
            longest = max(longest, abs(now - last - 100))
        last = now
    # No tenth of a second was off by more than a percent, and the hour ends right.
    assert longest <= 1 and abs(machine.off_ms()) <= 2


@pytest.mark.req("BB-18")
@pytest.mark.parametrize("step_ms", [-900, -20, 20, 900])
def test_small_steps_are_slewed(step_ms: int) -> None:
    machine = Machine()
    machine.passes(1.0)
    machine.clock.now_ms()
    machine.wall += step_ms / 1000
    machine.passes(1.0)
    assert abs(machine.off_ms() + step_ms) <= 6 and machine.clock.is_steady
    for _ in range(200):
        machine.passes(1.0)
        machine.clock.now_ms()
    assert abs(machine.off_ms()) <= 1


@pytest.mark.parametrize("minutes", [1, 5, 600])
def test_after_a_step_ahead_or_a_sleep_the_clock_follows_at_once(minutes: int) -> None:
    machine = Machine()
    machine.passes(1.0)
    machine.clock.now_ms()
    machine.wall += minutes * 60  # a monotonic clock does not count a machine's sleep
    machine.passes(0.1)
    assert abs(machine.off_ms()) <= 1 and machine.clock.is_steady


def test_after_a_step_back_by_minutes_the_clock_runs_slowly_and_says_so() -> None:
    machine = Machine()
    machine.passes(1.0)
    before = machine.clock.now_ms()
    machine.wall -= 120
    machine.passes(10.0)
    assert 4_990 <= machine.clock.now_ms() - before <= 5_010 and not machine.clock.is_steady
    for _ in range(500):
        machine.passes(1.0)
        machine.clock.now_ms()
    assert machine.clock.is_steady and abs(machine.off_ms()) <= STEP_MS


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(-1_000, 1_000)),
        max_size=50,
    )
)
def test_the_clock_never_goes_back_nor_stands_still(moves: list[tuple[float, float]]) -> None:
    machine = Machine()
    for seconds, step in moves:
        before = machine.clock.now_ms()
        machine.wall += step
        machine.passes(seconds)
        assert machine.clock.now_ms() - before >= seconds * 500 - 1
