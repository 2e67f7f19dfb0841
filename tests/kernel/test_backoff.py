"""The one formula for rests after failures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.backoff import backoff_ms, backoff_s
from hocket.kernel.policy import DELAY_MS_MAX

failures = st.one_of(st.integers(-5, 70), st.integers(0, 2**80))
delays = st.integers(0, DELAY_MS_MAX)
jitters = st.integers(-65536, 65536)
factors = st.integers(1, 10)


@given(failures, delays, delays, jitters, factors)
def test_a_rest_is_never_negative_and_never_longer_than_its_cap(
    count: int, base: int, cap: int, jitter: int, factor: int
):
    assert 0 <= backoff_ms(count, base, cap, jitter, factor) <= cap


@given(failures, st.integers(0, 100), delays, delays, jitters, factors)
def test_a_rest_never_shrinks_as_failures_go_on(count: int, more: int, base: int, cap: int, jitter: int, factor: int):
    assert backoff_ms(count, base, cap, jitter, factor) <= backoff_ms(count + more, base, cap, jitter, factor)


@given(failures, delays, delays, jitters, factors)
def test_jitter_changes_a_rest_by_a_half_at_most(count: int, base: int, cap: int, jitter: int, factor: int):
    plain = backoff_ms(count, base, cap, 0, factor)
    assert plain // 2 <= backoff_ms(count, base, cap, jitter, factor) <= plain + plain // 2
    assert backoff_ms(count, base, cap, -65536, factor) == (plain + 1) // 2 or plain % 2


@given(failures, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1))
def test_rests_in_seconds_keep_to_the_same_bounds(count: int, base: float, cap: float, chance: float):
    rest = backoff_s(count, base, cap, chance)
    assert math.isfinite(rest) and 0 <= rest <= cap + 0.0005
    assert backoff_s(count, base, cap, 0) <= rest <= backoff_s(count, base, cap, 1)


@pytest.mark.touches("LW-41")
def test_the_rests_of_jobs_are_what_earlier_programs_wrote():
    """Replicas of one log must agree on them, whatever program runs where."""
    assert [backoff_ms(n, 1_000, 3_600_000, 0) for n in (1, 2, 3, 4)] == [1_000, 2_000, 4_000, 8_000]
    assert [backoff_ms(n, 1_000, 3_600_000, 65_535) for n in (1, 2, 12, 13)] == [1_499, 2_999, 3_071_984, 3_600_000]
    assert backoff_ms(41, 1, DELAY_MS_MAX, 12_345) == DELAY_MS_MAX
    assert backoff_ms(7, 0, 60_000, 65_535) == 0
