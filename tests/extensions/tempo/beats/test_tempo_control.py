"""Adaptive tempo: the guardrails hold whatever is reported, and the tempo answers load as it should."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.extensions.tempo.beats import TempoChange, Timeline, is_downbeat, timeline
from hocket.extensions.tempo.messages import BarReport, ClaimState
from hocket.extensions.tempo.policy import (
    CHANGE_MS,
    ControlState,
    TempoPolicy,
    control,
    load_error,
    make_policy,
    redistribute,
    suggested_bpm,
)
from hocket.kernel.clock import wall_text

POLICY = replace(make_policy("one", 12, 8), min_bpm=6, max_bpm=24, is_adaptive=True)
NOW = 1_756_865_547_183


def report(queue: int = 0, busy: float = 0.0, tasks: int = 10, overruns: int = 0, broken: int = 0) -> BarReport:
    return BarReport(
        *("one", wall_text(NOW), 12, 8, tasks, tasks, dict.fromkeys(ClaimState, 0), overruns, 0, 0, broken),
        *(queue, busy, 12, False, wall_text(NOW) + "+0"),
    )


REPORTS = st.builds(
    report,
    *(st.integers(0, 10**6), st.floats(0, 1), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 50)),
)


def played(policy: TempoPolicy, bars: Any) -> tuple[Timeline, list[bool]]:
    """The tempi after these reports, each with whether there was an incident."""
    line, state, now = timeline(policy.initial_tempo), ControlState(), NOW
    froze = []
    for told, is_frozen in bars:
        tempo = line.changes[-1].tempo
        state, change = control(policy, state, tempo, told, now, is_frozen=is_frozen)
        froze.append(is_frozen and change is not None)
        if change is not None:
            line = line.with_change(change)
        now = line.window_at(now).end_ms
    return line, froze


@pytest.mark.req("BB-04")
@pytest.mark.touches("BB-11")
@given(st.lists(st.tuples(REPORTS, st.booleans()), max_size=60))
def test_the_guardrails_hold(bars: Any) -> None:
    line, froze = played(POLICY, bars)
    assert not any(froze)
    for before, after in pairwise(line.changes):
        assert abs(before.tempo.bpm - after.tempo.bpm) == 1
        assert 6 <= after.tempo.bpm <= 24
        assert is_downbeat(before.tempo, after.since_ms) and is_downbeat(after.tempo, after.since_ms)
    for before, after in pairwise(line.changes[1:]):
        assert after.since_ms - before.since_ms >= CHANGE_MS


@pytest.mark.touches("BB-11")
@given(st.lists(REPORTS, max_size=30))
def test_nothing_changes_when_it_is_off_or_frozen(reports: list[BarReport]) -> None:
    for policy, is_frozen in ((replace(POLICY, is_adaptive=False), False), (POLICY, True)):
        line, _ = played(policy, [(each, is_frozen) for each in reports])
        assert len(line.changes) == 1
    state = ControlState(1.5, NOW - 10)
    assert control(POLICY, state, POLICY.initial_tempo, report(99), NOW, is_frozen=True) == (state, None)


@pytest.mark.touches("BB-11")
def test_within_the_hysteresis_nothing_moves() -> None:
    # At 12 beats a minute a wish of up to 1.2 beats more or less is none.
    assert [suggested_bpm(POLICY, 12, error) for error in (0.0, 0.19, 0.21, -0.19, -0.21)] == [12, 12, 13, 12, 11]
    assert suggested_bpm(replace(POLICY, hysteresis_pct=20), 12, 0.21) == 12
    assert suggested_bpm(POLICY, 24, 5.0) == 24 and suggested_bpm(POLICY, 6, -5.0) == 6


@pytest.mark.touches("BB-11")
def test_what_each_signal_asks_for() -> None:
    right = load_error(report(queue=1, busy=0.8))
    assert abs(right) < 0.05
    assert load_error(report(queue=50, busy=0.8)) > right > load_error(report(queue=0, busy=0.2))
    assert load_error(report(queue=1, busy=1.0)) > right
    assert load_error(report(queue=1, busy=0.8, overruns=3)) < right
    assert load_error(report(queue=1, busy=0.8, broken=1)) < right
    assert load_error(report(tasks=0)) < 0


class Workers:
    """A mesh in which each job takes eight beats on one of ten slots: a faster beat means more work."""

    def __init__(self) -> None:
        self.line, self.state, self.now = timeline(POLICY.initial_tempo), ControlState(), NOW
        self.queue, self.bpms = 0.0, []

    def bar(self, arrivals_a_minute: float, is_frozen: bool = False) -> None:
        tempo = self.line.changes[-1].tempo
        end_ms = self.line.window_at(self.now).end_ms
        minutes = (end_ms - self.now) / 60_000
        room = 10 * tempo.bpm / 8 * minutes
        wanted = self.queue + arrivals_a_minute * minutes
        done = min(room, wanted)
        self.queue = wanted - done
        told = report(queue=round(self.queue), busy=round(done / room, 6), tasks=max(1, round(done)))
        self.state, change = control(POLICY, self.state, tempo, told, self.now, is_frozen=is_frozen)
        if isinstance(change, TempoChange):
            self.line = self.line.with_change(change)
        self.now = end_ms
        self.bpms.append(self.line.changes[-1].tempo.bpm)


@pytest.mark.touches("BB-11")
def test_a_step_in_load_is_answered_and_worked_off() -> None:
    workers = Workers()
    for _ in range(30):
        workers.bar(12)
    calm = workers.bpms[-1]
    # At the calm tempo this load could never be worked off.
    for _ in range(150):
        workers.bar(25)
    assert workers.bpms[-1] > calm and workers.queue < 10
    turns = [after - before for before, after in pairwise(workers.bpms[-60:]) if after != before]
    assert len(turns) <= 12, "the tempo swings"


@pytest.mark.touches("BB-11")
def test_starvation_slows_the_beat_to_its_limit_and_work_wakes_it() -> None:
    workers = Workers()
    for _ in range(120):
        workers.bar(0)
    # Nothing was added up at the limit, so the answer does not take as long as the calm did.
    assert workers.bpms[-1] == 6 and workers.state.integral > -2
    for _ in range(10):
        workers.bar(40)
    assert workers.bpms[-1] > 6


@pytest.mark.touches("BB-11")
def test_an_incident_freezes_the_tempo() -> None:
    workers = Workers()
    for _ in range(20):
        workers.bar(30)
    before = workers.bpms[-1]
    for _ in range(20):
        workers.bar(0, is_frozen=True)
    assert {*workers.bpms[-20:]} == {before}


PHASES = {"plan": 2, "work": 4, "review": 2}


@pytest.mark.req("BB-11", "BB-23")
def test_a_phase_that_many_overrun_gets_a_beat_of_the_longest_that_none_does() -> None:
    def moved(phases: dict[str, int], tasks: int = 10, **overruns: int) -> dict[str, int] | None:
        return redistribute(POLICY, phases, replace(report(tasks=tasks), overruns_by_phase=overruns))

    assert moved(PHASES, review=3) == {"plan": 2, "work": 3, "review": 3}
    assert moved(PHASES, work=9, plan=1) == {"plan": 2, "work": 5, "review": 1}
    assert moved(PHASES, review=2) is None, "not many"
    assert moved(PHASES, review=5, work=1, plan=1) is None, "nobody has a beat to spare"
    assert moved({"plan": 1, "work": 6, "review": 1}, work=9) is None, "each phase keeps one"


@pytest.mark.req("BB-23")
def test_the_deepest_queue_and_the_busiest_processors_count() -> None:
    idle = report(busy=0.2)
    assert load_error(replace(idle, cpu_utilisation=0.9)) > load_error(idle)
    assert load_error(replace(idle, gpu_utilisation=0.9)) == load_error(replace(idle, cpu_utilisation=0.9))
    deep, shallow = {"acme.render": 40}, {"acme.render": 20, "acme.mail": 20}
    queued = replace(idle, queue_depth=40)
    assert load_error(replace(queued, queue_by_role=deep)) > load_error(replace(queued, queue_by_role=shallow))
