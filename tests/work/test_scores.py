"""The score of a job: how it travels with the job, and what a bad one is answered."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hocket.errors import Usage
from hocket.extensions.tempo.policy import BadField
from hocket.extensions.tempo.score import read_score
from hocket.families.jobs.drafts import policy
from hocket.kernel.policy import DEFAULT, Policy, Score, decode_policy, encode_policy, readable_policy

TEXT = "score:\n  phases: {plan: 2, work: 4, review: 2}\n  wait_budget: {help: 2}\n  retry: {max_phrases: 2}\n"
SCORE = read_score(TEXT.encode())


@pytest.mark.req("BB-07")
def test_a_score_travels_in_the_policy(tmp_path: Path):
    (tmp_path / "score.yaml").write_text(TEXT)
    members = {"phases": {"plan": 2, "work": 4, "review": 2}, "wait_budget": {"help": 2}, "retry": {"max_phrases": 2}}
    for given in (tmp_path / "score.yaml", members, {"score": members}, SCORE):
        made = policy(DEFAULT, score=given)
        assert made.score == SCORE
        assert decode_policy(encode_policy(made)) == made
    assert policy(DEFAULT, score=None) == DEFAULT and encode_policy(DEFAULT) == b""


@pytest.mark.req("BB-07")
@pytest.mark.parametrize(
    ("score", "said"),
    [
        ({"phases": {"plan": 9}}, "score.phases.plan: 9 is not allowed; write a whole number from 1 to 8"),
        ({"phases": {"work": 1}, "wait_budget": {"help": -1}}, "score.wait_budget.help: -1"),
        ({"phases": {"work": 1}, "escalation": {"on_overrun": ["explode"]}}, "write emit:NAME"),
        ("score.yaml", "is not a mapping"),
        (7, "is not a mapping"),
        (Path("/nowhere/score.yaml"), "No such file"),
    ],
)
def test_a_bad_score_is_refused_with_its_field(score: Any, said: str):
    with pytest.raises(Usage, match="bad score") as caught:
        policy(DEFAULT, score=score)
    assert said in str(caught.value)


@pytest.mark.req("BB-07")
def test_a_score_that_no_file_could_have_makes_a_policy_unreadable():
    for bad in (
        Score(8, {"work": 9}, {"help": 1, "io": 1}, 1),
        Score(8, {"work": 1}, {"help": -1, "io": 1}, 1),
        Score(8, {}, {"help": 1, "io": 1}, 1),
        Score(8, {"work": 1}, {"help": 1, "io": 1}, 10_000),
        Score(8, {"work": 1}, {"help": 1, "io": 1}, 1, ("explode",)),
    ):
        envelope = msgspec.json.encode(Policy(score=bad))
        assert readable_policy(envelope) is None
        with pytest.raises(BadField):
            decode_policy(envelope)
    loose = msgspec.json.encode(
        {"score": {"bar_len": 8, "phases": {"work": 1, "plan": 1}, "wait_budget": {}, "max_phrases": 1}}
    )
    read = decode_policy(loose).score
    assert read is not None and list(read.phases) == ["plan", "work"] and read.wait_budget == {"help": 2, "io": 2}
