"""The beats of one run, by a clock that the test moves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.heard_beats import LocalBeats
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.run_pace import ScoreKeeper, keeper_alone
from hocket.extensions.tempo.score import phrase_phases
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc
from hocket.kernel.policy import Budget, Policy, Score

BEAT_MS = 4_000
SCORE = Score(8, {"plan": 2, "work": 4, "review": 2}, {"help": 2, "io": 1}, 3)


class Clock:
    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def __call__(self) -> int:
        return self.at_ms


def keeper(at_ms: int, score: Score | None = SCORE, phrase: int = 0, bar_len: int = 8) -> tuple[Clock, ScoreKeeper]:
    return kept_job(at_ms, Policy(score=score), phrase, bar_len)


def kept_job(at_ms: int, policy: Policy, phrase: int = 0, bar_len: int = 8) -> tuple[Clock, ScoreKeeper]:
    clock, hlc = Clock(at_ms), Hlc(at_ms, 0, 0)
    job = Job(bytes(16), "test", b"", hlc, policy, hlc, failures=phrase)
    return clock, ScoreKeeper(LocalBeats(make_policy("test", 15, bar_len), clock), job)


@pytest.mark.req("BB-07")
@given(st.integers(0, 10**9), st.integers(0, 3))
def test_a_phrase_begins_and_its_phases_end_on_a_beat(at_ms: int, phrase: int) -> None:
    clock, kept = keeper(at_ms, phrase=phrase)
    seconds = kept.begin()
    beats = sum(phrase_phases(SCORE, phrase).values())
    end_ms = at_ms + round(seconds * 1000)
    assert end_ms % BEAT_MS == 0 and beats * BEAT_MS <= seconds * 1000 < (beats + 1) * BEAT_MS
    places = []
    for clock.at_ms in range(end_ms - beats * BEAT_MS, end_ms, BEAT_MS):
        places.append(kept.place)
    assert [place.phrase_beats_left for place in places] == [*reversed(range(beats))]
    assert {name: sum(each.phase == name for each in places) for name in SCORE.phases} == phrase_phases(SCORE, phrase)
    clock.at_ms = end_ms + 2 * BEAT_MS
    assert kept.place == ("review", -3, -3)


@pytest.mark.req("BB-07")
@given(
    st.integers(0, 10**9),
    st.lists(
        st.tuples(st.sampled_from(["help", "io"]), st.integers(0, 3 * BEAT_MS), st.integers(0, 9 * BEAT_MS)), max_size=6
    ),
)
def test_no_wait_outlasts_its_budget_or_its_phase(at_ms: int, waits: list[tuple[str, int, int]]) -> None:
    clock, kept = keeper(at_ms)
    end_ms = at_ms + round(kept.begin() * 1000)
    spent = {"help": 0, "io": 0}
    for kind, rest_ms, wanted_ms in waits:
        clock.at_ms += rest_ms
        before, phase = clock.at_ms, kept.place.phase
        allowed_ms = round(kept.begin_wait(kind) * 1000)
        assert kept.is_waiting and 0 <= allowed_ms <= SCORE.wait_budget[kind] * BEAT_MS - spent[kind]
        assert before + allowed_ms <= max(before, end_ms)
        if allowed_ms:
            clock.at_ms = before + allowed_ms - 1
            assert kept.place.phase == phase
        clock.at_ms = before + min(wanted_ms, allowed_ms)
        spent[kind] += min(wanted_ms, allowed_ms)
        assert kept.end_wait(kind) == spent[kind] <= SCORE.wait_budget[kind] * BEAT_MS and not kept.is_waiting


@pytest.mark.req("BB-07")
def test_a_score_shrinks_to_the_bars_of_the_cluster() -> None:
    _, kept = keeper(0, bar_len=4)
    assert kept.score is not None and kept.score.phases == {"plan": 1, "work": 2, "review": 1}


@pytest.mark.req("BB-06")
def test_only_a_number_from_0_to_1_is_progress() -> None:
    _, kept = keeper(0)
    kept.report(b"0.25")
    for other in (b"1.01", b"-0.1", b"true", b'"0.5"', b"null", b'{"stage":1}'):
        kept.report(other)
        assert kept.progress == 0.25
    kept.report(b"1")
    assert kept.progress == 1.0


def test_without_a_score_the_phase_is_the_clusters() -> None:
    clock, kept = keeper(BEAT_MS, None)
    assert kept.begin() == math.inf
    assert (kept.place.phase, kept.place.beats_left, kept.beat.index) == ("plan", 0, 2)
    assert not kept.has_new_bar()
    clock.at_ms += 8 * BEAT_MS
    assert kept.has_new_bar() and not kept.has_new_bar()


@pytest.mark.req("BB-14")
def test_the_caps_of_a_budget_hold_for_the_score() -> None:
    budget = Budget(phase_caps={"work": 1, "review": 8}, wait_caps={"help": 1})
    _, kept = kept_job(0, Policy(score=SCORE, budget=budget))
    assert kept.score is not None
    assert kept.score.phases == {"plan": 2, "work": 1, "review": 2}
    assert kept.score.wait_budget == {"help": 1, "io": 1}
    assert kept.left_s() == math.inf


@pytest.mark.req("BB-14")
@given(st.integers(0, 10**9), st.integers(1, 5), st.integers(0, 10 * 8 * BEAT_MS))
def test_a_hard_end_is_a_downbeat_so_many_bars_after_that_of_the_submit(at_ms: int, bars: int, later_ms: int) -> None:
    clock, kept = kept_job(at_ms, Policy(budget=Budget(hard_end=bars)))
    clock.at_ms += later_ms
    bar_ms = 8 * BEAT_MS
    assert clock.at_ms + round(kept.left_s() * 1000) == max(clock.at_ms, at_ms // bar_ms * bar_ms + bars * bar_ms)


@pytest.mark.req("BB-14")
def test_a_hard_end_needs_no_tempo() -> None:
    hlc = Hlc(0, 0, 0)
    job = Job(bytes(16), "test", b"", hlc, Policy(budget=Budget(hard_end=1)), hlc)
    kept = keeper_alone(job, lambda: 0)
    assert kept is not None and kept.left_s() == 32.0 and kept.begin() == math.inf
    assert keeper_alone(Job(bytes(16), "test", b"", hlc, Policy(), hlc), lambda: 0) is None
