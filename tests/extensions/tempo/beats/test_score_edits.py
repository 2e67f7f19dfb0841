"""Edits of the text of a score: they mean what they say, and leave comments, order and layout as they are."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.score import read_score
from hocket.extensions.tempo.views.score_edits import (
    FIRST,
    BadEdit,
    changed,
    field_values,
    score_text,
    with_fields,
    with_values,
)

BLOCK = """\
# c1
ucxl: "ucxl://proj:any/task"  # c2
score:  # c3 \U0001f600
    phases:  # c4
        plan: 2  # c5
        # c6
        work: 4  # c7
    escalation:
        on_overrun:  # c8
        - checkpoint
        # c9
    bar_len:   8
# c10
"""
FLOW = "score: {bar_len: 8, phases: {plan: 2, work: 4}, escalation: {on_overrun: ['checkpoint']}}  # c1\n"
JSON = json.dumps({"score": {"bar_len": 8, "phases": {"plan": 2, "work": 4}, "escalation": {"on_overrun": []}}})
TEXTS = (BLOCK, FLOW, JSON, FIRST)

pytestmark = pytest.mark.filterwarnings("error")
PHASES = st.sampled_from(["plan", "work", "review"])
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "bar_len": st.integers(20, 40),
        "tempo": st.none() | st.integers(1, 60),
        "phases.plan": st.integers(1, 6),
        "phases.work": st.integers(1, 6),
        "phases.review": st.none() | st.integers(1, 6),
        "wait_budget.help": st.none() | st.integers(0, 6),
        "wait_budget.io": st.none() | st.integers(0, 6),
        "retry.max_phrases": st.none() | st.integers(1, 4),
        "escalation.on_overrun": st.none() | st.just(["checkpoint", "fallback:less"]),
        "escalation.on_wait_exhausted": st.none() | st.just(["emit:needs-attention"]),
    },
)


def comments(text: str) -> list[str]:
    return re.findall(r"# c\d+", text)


@pytest.mark.req("BB-19")
@given(st.sampled_from(TEXTS), st.lists(VALUES, min_size=1, max_size=3))
def test_values_are_written_and_read_again(text: str, edits: list[dict[str, int | list[str] | None]]):
    after = with_values(text, {"bar_len": 40})
    for values in edits:
        after = with_values(after, values)
    wanted = {name: value for values in edits for name, value in values.items()}
    shown = field_values(read_score(after.encode()))
    for name, value in wanted.items():
        if value is not None:
            assert shown[name] == (", ".join(value) if isinstance(value, list) else str(value)), after
    assert ("phases.review" in wanted and wanted["phases.review"] is None) <= (shown["phases.review"] == "")
    # Only the comment of a line that is gone, or of a list that another one replaces, may go.
    assert {*comments(text)} - {*comments(after)} <= {"# c8", "# c9"}


@pytest.mark.req("BB-19")
def test_an_edit_leaves_every_other_character_alone():
    assert with_values(BLOCK, {"phases.work": 3}) == BLOCK.replace("work: 4", "work: 3")
    assert with_values(BLOCK, {"phases.review": 1}) == BLOCK.replace("# c7\n", "# c7\n        review: 1\n")
    assert with_values(BLOCK, {"phases.plan": None}) == BLOCK.replace("        plan: 2  # c5\n", "")
    assert with_values(FLOW, {"phases.plan": None}) == FLOW.replace("plan: 2, ", "")
    assert with_values(FLOW, {"tempo": 12}) == FLOW.replace("}}  #", "}, tempo: 12}  #")
    assert json.loads(with_values(JSON, {"tempo": 12, "wait_budget.io": 1}))["score"]["wait_budget"] == {"io": 1}


@pytest.mark.req("BB-19")
@given(st.sampled_from(TEXTS), st.lists(st.tuples(st.sampled_from(["move", "grow"]), PHASES, st.integers(-3, 3))))
def test_moved_and_stretched_cues_stay_within_the_bar(text: str, steps: list[tuple[str, str, int]]):
    for how, name, by in steps:
        before = read_score(text.encode())
        try:
            text = changed(text, f"{how}:{name}:{by:+}")
        except BadEdit:
            continue
        after = read_score(text.encode())
        if how == "grow":
            assert after.phases[name] == before.phases[name] + by
        else:
            assert after.phases[name] == before.phases[name]
            assert _start(after.phases, name) == _start(before.phases, name) + by
        assert min(after.phases.values()) >= 1 and sum(after.phases.values()) <= after.bar_len


def _start(phases: dict[str, int], name: str) -> int:
    return sum(beats for each, beats in phases.items() if [*phases].index(each) < [*phases].index(name))


@pytest.mark.req("BB-19")
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"score":\t{"phases":\n\t{"plan": 2}}}', {"phases.plan": 3}),
        ("score: 3\n", {"tempo": 3}),
        ("score: [", {"tempo": 3}),
        ("score: {phases: {plan: 1}}\n", {"phases.plan": None}),
    ],
)
def test_a_text_that_cannot_be_edited_is_left_alone(text: str, values: dict[str, int | None]):
    with pytest.raises(BadEdit):
        with_values(text, values)


@pytest.mark.req("BB-19")
def test_a_score_is_written_as_it_is_read():
    for text in TEXTS:
        score = read_score(text.encode())
        assert read_score(score_text(score).encode()) == score


def test_fields_are_numbers_and_lists():
    with pytest.raises(BadEdit, match="not a whole number"):
        with_fields(BLOCK, {"bar_len": "8.5"})
    with pytest.raises(BadEdit, match="no field"):
        with_fields(BLOCK, {"ucxl": "x"})
    assert '["emit:a", "checkpoint"]' in with_fields(BLOCK, {"escalation.on_overrun": "emit:a,checkpoint ,"})
