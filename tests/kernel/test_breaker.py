"""The circuit breaker as a state machine: what opens it, what it lets out while it is open, and what closes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.retrying import FAILURES_MAX, OPEN_MS, PROBE_MS_MAX, Breaker, BreakerState


def failing(breaker: Breaker, times: int, now_ms: int = 0) -> Breaker:
    for _ in range(times):
        breaker, call = breaker.admit(now_ms)
        assert call is not None
        breaker = breaker.failed(call, now_ms, "no answer")
    return breaker


OPEN = failing(Breaker(), 5)


@pytest.mark.req("VX-16")
def test_five_failures_in_a_row_open_it_and_it_answers_at_once():
    assert (FAILURES_MAX, OPEN_MS) == (5, 30_000)
    assert failing(Breaker(), 4).state is BreakerState.CLOSED
    assert OPEN.state is BreakerState.OPEN and OPEN.error == "no answer"
    for now_ms in (0, 1, 29_999):
        assert OPEN.admit(now_ms).call is None


def test_a_success_begins_the_count_anew():
    breaker = failing(Breaker(), 4)
    breaker = breaker.succeeded(breaker.call)
    assert failing(breaker, 4).state is BreakerState.CLOSED
    assert failing(breaker, 5).state is BreakerState.OPEN


@pytest.mark.req("VX-16")
def test_after_half_a_minute_one_probe_goes_out_and_decides():
    probing, call = OPEN.admit(30_000)
    assert call is not None and probing.state is BreakerState.HALF_OPEN
    assert probing.admit(30_001).call is None, "one probe is enough"
    closed = probing.succeeded(call)
    assert closed.state is BreakerState.CLOSED and closed.failures == 0
    again = probing.failed(call, 30_500, "still none")
    assert again.state is BreakerState.OPEN and again.since_ms == 0
    assert again.admit(60_499).call is None and again.admit(60_500).call is not None


def test_a_call_that_comes_back_late_changes_nothing():
    call = Breaker().call
    assert OPEN.succeeded(call) == OPEN and OPEN.failed(call, 9, "late") == OPEN
    probing, probe = OPEN.admit(30_000)
    assert probe is not None
    assert probing.succeeded(call) == probing and probing.abandoned(call) == probing
    closed = probing.succeeded(probe)
    assert closed.failed(call, 30_001, "late") == closed and closed.failed(probe, 30_001, "late") == closed


def test_a_probe_without_a_verdict_leaves_its_place_to_the_next_call():
    probing, call = OPEN.admit(30_000)
    assert call is not None
    left = probing.abandoned(call)
    assert left.state is BreakerState.OPEN
    assert left.admit(30_001).call is not None


def test_a_probe_whose_process_died_is_given_up():
    probing, _ = OPEN.admit(30_000)
    assert probing.admit(30_000 + PROBE_MS_MAX - 1).call is None
    assert probing.admit(30_000 + PROBE_MS_MAX).call is not None


def test_a_clock_that_is_set_back_does_not_keep_it_open():
    breaker = failing(Breaker(), 5, now_ms=1_000_000)
    assert breaker.admit(999_999).call is not None


steps = st.lists(st.tuples(st.sampled_from(["call", "success", "failure", "leave"]), st.integers(0, 40_000)))


@given(steps)
def test_whatever_happens_an_open_breaker_lets_one_call_out_in_half_a_minute(history: list[tuple[str, int]]):
    """All calls that are under way report in any order; the clock only rises."""
    breaker, now, out, last_let_out = Breaker(), 0, [], -OPEN_MS
    for step, gap in history:
        now += gap
        if step == "call":
            was_closed = breaker.state is BreakerState.CLOSED
            breaker, call = breaker.admit(now)
            if call is not None:
                out.append(call)
                if not was_closed:
                    assert out.count(call) == 1, "a probe has a number of its own"
                    last_let_out = now
        elif out:
            call = out.pop()
            before = breaker
            if step == "success":
                breaker = breaker.succeeded(call)
            elif step == "failure":
                breaker = breaker.failed(call, now, "x")
            else:
                breaker = breaker.abandoned(call)
            assert call == before.call or breaker == before
        if breaker.state is BreakerState.HALF_OPEN:
            assert breaker.probe_ms == last_let_out
            assert breaker.admit(now).call is None or now - last_let_out >= PROBE_MS_MAX
