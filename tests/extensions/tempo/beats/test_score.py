"""Scores: what is wrong is named with its field, line and remedy; budgets are ceilings, and retries shrink and end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import PHASE_NAMES, is_downbeat, make_tempo
from hocket.extensions.tempo.messages import HelpPromise, PromiseOutcome
from hocket.extensions.tempo.policy import FILE_BYTES_MAX, BadField
from hocket.extensions.tempo.promises import promise_outcome, promise_times, reply_due
from hocket.extensions.tempo.score import (
    NextStep,
    ScoreEvent,
    Waits,
    escalate,
    fitted_score,
    parse_score,
    phrase_phases,
    phrase_place,
    read_score,
    score_json,
    wait_end,
)
from hocket.kernel.policy import Score

# Section 5 of the document.
SCORE = b"""\
score:
  tempo: 15        # bpm hint; cluster policy can override
  bar_len: 8       # beats per bar
  phases:
    plan: 2        # beats
    work: 4
    review: 2
  wait_budget:
    help: 2
    io: 1
  retry:
    max_phrases: 2
    backoff: geometric
  escalation:
    on_wait_exhausted: ["emit:needs-attention", "fallback:coarse-answer"]
    on_overrun: ["checkpoint", "defer:next-phrase"]
"""
# Section 11.2.
ATTACHED = b"""\
ucxl: ucxl://proj:any/*/task/graph_ingest
score:
  tempo: 15
  bar_len: 8
  phases: {plan: 2, work: 4, review: 2}
  wait_budget: {help: 2, io: 1}
  retry: {max_phrases: 2, backoff: geometric}
  escalation:
    on_wait_exhausted: ["emit:needs-attention", "fallback:coarse-answer"]
"""
DOCUMENTS = read_score(SCORE)
ACTIONS = st.lists(st.sampled_from(("emit:help", "emit:more", "checkpoint", "defer:next-phrase")), max_size=5)
FALLBACKS = st.sampled_from(([], ["fallback:plain"]))


@st.composite
def scores(draw: Any) -> Score:
    phases = draw(st.dictionaries(st.sampled_from(PHASE_NAMES), st.integers(1, 20), min_size=1))
    score: dict[str, Any] = {"bar_len": sum(phases.values()) + draw(st.integers(0, 5)), "phases": phases}
    score["wait_budget"] = {name: draw(st.integers(0, 30)) for name in ("help", "io")}
    score["retry"] = {"max_phrases": draw(st.integers(1, 16)), "backoff": "geometric"}
    score["escalation"] = {
        name: draw(ACTIONS) + draw(FALLBACKS) for name in ("on_wait_exhausted", "on_overrun") if draw(st.booleans())
    }
    if draw(st.booleans()):
        score["tempo"] = draw(st.integers(1, 1200))
    return parse_score({"score": score})


@pytest.mark.touches("BB-07")
def test_the_documents_score() -> None:
    assert (
        Score(
            8,
            {"plan": 2, "work": 4, "review": 2},
            {"help": 2, "io": 1},
            2,
            ("emit:needs-attention", "fallback:coarse-answer"),
            ("checkpoint", "defer:next-phrase"),
            15,
        )
        == DOCUMENTS
    )
    assert read_score(ATTACHED).ucxl == "ucxl://proj:any/*/task/graph_ingest"


@pytest.mark.touches("BB-07")
@given(scores())
def test_a_score_comes_back_from_json(score: Score) -> None:
    assert parse_score(score_json(score)) == read_score(json.dumps(score_json(score)).encode()) == score


@pytest.mark.touches("BB-07")
@given(scores(), st.integers(1, 64))
def test_a_score_fits_the_bars_of_any_cluster(score: Score, bar_len: int) -> None:
    found = fitted_score(score, bar_len)
    assert found.bar_len == bar_len and 0 < sum(found.phases.values()) <= bar_len
    assert parse_score(score_json(found)) == found
    assert bar_len < sum(score.phases.values()) or found.phases == score.phases


def test_phases_have_one_order() -> None:
    score = parse_score({"score": {"phases": {"review": 1, "plan": 1, "work": 1}}})
    assert list(score.phases) == ["plan", "work", "review"] and score.bar_len == 8
    # Without a budget a wait ends with the phrase.
    assert score.wait_budget == {"help": 3, "io": 3} and score.max_phrases == 1


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (name, name, b",".join([b"*%c" % before] * 9))
    for before, name in zip(b"abcdefgh", b"bcdefghi", strict=True)
)


@pytest.mark.touches("BB-07")
@pytest.mark.parametrize(
    ("old", "new", "field", "line", "told"),
    [
        (b"work: 4", b"work: 40", "score.phases.work", 6, "40 is not allowed; write a whole number from 1 to 8"),
        (b"work: 4", b"work: 5", "score.phases", 4, "they have 9 beats; a bar has 8"),
        (b"work: 4", b"wrok: 4", "score.phases.wrok", 6, "unknown field; known are plan, work, review"),
        (b"work: 4", b"work: four", "score.phases.work", 6, "'four' is not allowed"),
        (b"work: 4", b"work: 0", "score.phases.work", 6, "0 is not allowed"),
        (b"help: 2", b"help: -1", "score.wait_budget.help", 9, "-1 is not allowed; write a whole number from 0 to"),
        (b"tempo: 15", b"tempo: 0", "score.tempo", 2, "write a whole number from 1 to 1200"),
        (b"tempo: 15", b"tempo: 1000000", "score.tempo", 2, "write a whole number from 1 to 1200"),
        (b"bar_len: 8", b"bar_len: true", "score.bar_len", 3, "true is not allowed"),
        (b"geometric", b"linear", "score.retry.backoff", 13, "'linear' is not allowed; write geometric"),
        (b"max_phrases: 2", b"max_phrases: 0", "score.retry.max_phrases", 12, "from 1 to 16"),
        (b"checkpoint", b"panic", "score.escalation.on_overrun.0", 16, "write emit:NAME, fallback:NAME, checkpoint"),
        (b"emit:needs", b"emit: needs", "score.escalation.on_wait_exhausted.0", 15, "write emit:NAME"),
        (b"emit:needs-attention", b"fallback:x", "score.escalation.on_wait_exhausted", 15, "there are two fallbacks"),
        (b'["checkpoint", "defer:next-phrase"]', b"checkpoint", "score.escalation.on_overrun", 16, "write a list"),
        (b"  wait_budget:", b"  waits:", "score.waits", 8, "unknown field; known are tempo, bar_len, phases"),
        (b"score:\n", b"ucxl: http://x\nscore:\n", "ucxl", 1, "write an address like ucxl://"),
        (b"score:", b"notes: x\nscore:", "notes", 1, "unknown field; known are ucxl, score"),
        (SCORE[6:], b" 5", "score", 1, "5 is not a mapping"),
        (SCORE, b"score: {}", "score.phases", 1, "the field is missing"),
        (SCORE, b"score: {phases: {}}", "score.phases", 1, "there is no phase"),
        (SCORE, b"- a", "", 1, "a list is not a mapping"),
        (SCORE, b'{"score":\n {"phases":\n\t{"plan": 0}}}', "score.phases.plan", 3, "0 is not allowed"),
        (SCORE, BOMB, "", 1, "line 1: the file cannot be read: anchors and aliases are not supported"),
        (SCORE, b"score: " + b"{a: " * 9 + b"1" + b"}" * 9, "", 1, "nested deeper than 8 levels"),
        (SCORE, b"#" * (FILE_BYTES_MAX + 1), "", None, f"longer than {FILE_BYTES_MAX} bytes"),
        (SCORE, b"score: [", "", 2, "did not find"),
        (SCORE, b"", "", None, "it is empty"),
        (SCORE, b"\xff", "", None, "not UTF-8"),
    ],
)
def test_a_wrong_score_is_refused_with_field_line_and_remedy(
    old: bytes, new: bytes, field: str, line: int | None, told: str
) -> None:
    with pytest.raises(BadField) as raised:
        read_score(SCORE.replace(old, new, 1))
    assert (raised.value.field, raised.value.line) == (field, line) and told in str(raised.value)


# Phrases.


@pytest.mark.touches("BB-07")
def test_the_documents_phrases() -> None:
    assert [phrase_phases(DOCUMENTS, phrase) for phrase in range(4)] == [
        {"plan": 2, "work": 4, "review": 2},
        {"plan": 1, "work": 2, "review": 1},
        {"plan": 1, "work": 1, "review": 1},
        {"plan": 1, "work": 1, "review": 1},
    ]
    assert phrase_place(DOCUMENTS, 0, 0) == ("plan", 1, 7) and phrase_place(DOCUMENTS, 0, 5) == ("work", 0, 2)
    assert phrase_place(DOCUMENTS, 0, 8) is None and phrase_place(DOCUMENTS, 1, 4) is None


@pytest.mark.touches("BB-07")
@given(scores())
def test_retries_shrink_and_end(score: Score) -> None:
    lengths = [sum(phrase_phases(score, phrase).values()) for phrase in range(score.max_phrases)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == sum(score.phases.values()) <= score.bar_len
    # Geometric: all phrases together are at most twice the first, and a beat for each phase that cannot shrink.
    assert sum(lengths) <= 2 * lengths[0] + len(score.phases) * score.max_phrases
    phrase, steps = 0, 0
    while (found := escalate(score, ScoreEvent.OVERRUN, phrase)).step is NextStep.DEFER:
        phrase, steps = phrase + 1, steps + 1
    assert steps < score.max_phrases and found.step in (NextStep.FALLBACK, NextStep.FAIL)


@pytest.mark.touches("BB-07")
@given(scores(), st.integers(0, 15))
def test_each_beat_of_a_phrase_has_one_phase_and_no_phase_overruns(score: Score, phrase: int) -> None:
    phases = phrase_phases(score, phrase)
    places = [phrase_place(score, phrase, beats) for beats in range(sum(phases.values()))]
    assert [place.phase for place in places if place] == [name for name, beats in phases.items() for _ in range(beats)]
    assert [place.phrase_beats_left for place in places if place] == list(range(len(places) - 1, -1, -1))
    assert phrase_place(score, phrase, len(places)) is None
    for place, after in zip(places, [*places[1:], None], strict=True):
        assert place is not None
        assert (place.beats_left == 0) == (after is None or after.phase != place.phase)


# Waits.


@pytest.mark.touches("BB-07")
@given(
    scores(),
    st.lists(st.tuples(st.sampled_from(("help", "io")), st.integers(0, 10**5), st.booleans()), max_size=20),
    st.integers(50, 60_000),
    st.integers(0, 10**6),
)
def test_no_series_of_waits_exceeds_its_budget_or_its_phase(
    score: Score, wanted: list[tuple[str, int, bool]], beat_ms: int, phase_ms: int
) -> None:
    now_ms, waits = 5000, Waits()
    phase_end_ms = now_ms + phase_ms
    for kind, wish_ms, _ in wanted:
        end_ms = wait_end(score, waits, kind, beat_ms, now_ms, phase_end_ms)
        until_ms = min(now_ms + wish_ms, end_ms)
        assert now_ms <= until_ms <= max(now_ms, phase_end_ms)
        waits, now_ms = waits.after(kind, until_ms - now_ms), until_ms
    for kind in ("help", "io"):
        assert waits.of(kind) <= score.wait_budget[kind] * beat_ms


def test_a_clock_that_steps_back_gives_no_time_back() -> None:
    waits = Waits().after("help", 700).after("help", -(10**6)).after("io", 30)
    assert waits == Waits(700, 30)
    assert wait_end(DOCUMENTS, waits, "help", 1000, 0, 99_999) == 1300
    assert wait_end(DOCUMENTS, Waits(5000), "help", 1000, 50, 99_999) == 50


# Escalations.


@pytest.mark.touches("BB-07")
def test_the_documents_escalations() -> None:
    exhausted = escalate(DOCUMENTS, ScoreEvent.WAIT_EXHAUSTED, 0)
    assert (exhausted.step, exhausted.fallback) == (NextStep.FALLBACK, "coarse-answer")
    assert exhausted.emits == ("needs-attention",) and not exhausted.is_checkpointed
    overrun = escalate(DOCUMENTS, ScoreEvent.OVERRUN, 0)
    assert overrun.step is NextStep.DEFER and overrun.is_checkpointed and not overrun.emits
    assert escalate(DOCUMENTS, ScoreEvent.OVERRUN, 1).step is NextStep.FAIL


@pytest.mark.touches("BB-07")
@given(scores(), st.sampled_from(ScoreEvent), st.integers(0, 20))
def test_every_escalation_ends_the_wait_or_the_phrase(score: Score, event: ScoreEvent, phrase: int) -> None:
    found = escalate(score, event, phrase)
    actions = score.on_overrun if event is ScoreEvent.OVERRUN else score.on_wait_exhausted
    assert (found.step is NextStep.FALLBACK) == bool(found.fallback)
    assert found.step is not NextStep.DEFER or phrase + 1 < score.max_phrases
    assert found.step is not NextStep.FAIL or "fallback:plain" not in actions
    assert [f"emit:{name}" for name in found.emits] == [each for each in actions if each.startswith("emit:")]


# Promises of help.


@pytest.mark.touches("BB-08")
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**6) | st.none(), st.integers(50, 60_000))
def test_what_becomes_of_a_promise(beats: int, more: int, answered: int | None, beat_ms: int) -> None:
    times = promise_times(HelpPromise("t", beats, 0.5, beats + more, "a"), 1000, beat_ms)
    assert times.due_ms == 1000 + beats * beat_ms and times.closes_ms == times.due_ms + more * beat_ms
    late_ms = max(times.closes_ms, answered or 0) + 1
    found = promise_outcome(times, answered, late_ms)
    if answered is None or answered > times.closes_ms:
        assert found is PromiseOutcome.BROKEN
    else:
        assert found is (PromiseOutcome.KEPT if answered <= times.due_ms else PromiseOutcome.LATE)
    # Open until the thread closes, and never open after it.
    assert promise_outcome(times, None, times.closes_ms) is None


@pytest.mark.touches("BB-08")
@given(st.integers(0, 10**9))
def test_a_promise_is_due_by_the_end_of_the_bar(asked_ms: int) -> None:
    tempo = make_tempo(60, 8)
    due_ms = reply_due(tempo, asked_ms)
    assert is_downbeat(tempo, due_ms) and asked_ms + 1000 <= due_ms < asked_ms + 9000
