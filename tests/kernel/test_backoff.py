"""The one formula for rests after failures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel import retrying as backoff
from hocket.kernel.policy import DELAY_MS_MAX
from hocket.kernel.retrying import PEER_RETRIES, RETRY_S_MAX, RetryPolicy, backoff_ms

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
def test_a_retry_waits_no_longer_than_its_cap_and_never_less_after_more_failures(
    count: int, base: float, cap: float, chance: float
):
    policy = RetryPolicy(base, cap)
    delay = policy.delay_s(count, chance)
    assert math.isfinite(delay) and 0 <= delay <= cap
    assert policy.delay_s(count, 0) <= delay <= policy.delay_s(count, 1)
    assert delay <= policy.delay_s(count + 1, chance)


@pytest.mark.req("VX-15")
def test_a_retry_waits_for_the_base_doubled_each_time_plus_jitter():
    assert [PEER_RETRIES.delay_s(failures, 0.0) for failures in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert [PEER_RETRIES.delay_s(failures, 0.5) for failures in (1, 2, 3, 4)] == [1.5, 3.0, 6.0, 12.0]
    assert [PEER_RETRIES.delay_s(99, chance) for chance in (0.0, 0.5, 1.0)] == [15.0, 22.5, 30.0], (
        "still random at the cap"
    )


@pytest.mark.req("VX-15")
def test_no_policy_waits_longer_than_half_a_minute():
    policies = {name: each for name, each in vars(backoff).items() if isinstance(each, RetryPolicy)}
    assert {"PEER_RETRIES", "STORE_RETRIES", "ARBITER_RETRIES"} <= policies.keys()
    assert RETRY_S_MAX == 30.0
    assert {name for name, each in policies.items() if each.delay_s(99, 1.0) > 30.0} == set()


@pytest.mark.touches("LW-41")
def test_the_rests_of_jobs_are_what_earlier_programs_wrote():
    """Replicas of one log must agree on them, whatever program runs where."""
    assert [backoff_ms(n, 1_000, 3_600_000, 0) for n in (1, 2, 3, 4)] == [1_000, 2_000, 4_000, 8_000]
    assert [backoff_ms(n, 1_000, 3_600_000, 65_535) for n in (1, 2, 12, 13)] == [1_499, 2_999, 3_071_984, 3_600_000]
    assert backoff_ms(41, 1, DELAY_MS_MAX, 12_345) == DELAY_MS_MAX
    assert backoff_ms(7, 0, 60_000, 65_535) == 0
