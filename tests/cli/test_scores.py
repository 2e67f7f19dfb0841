"""Scores on the command line: `hocket submit --score`."""

import json
from pathlib import Path

import pytest

from .conftest import Program


@pytest.mark.req("BB-07")
def test_submit_takes_a_score_and_says_what_is_wrong_with_it(hocket: Program, tmp_path: Path):
    file = tmp_path / "score.yaml"
    file.write_text("score:\n  phases: {plan: 2, work: 4}\n")
    shown = hocket.show(hocket.submit("test.echo", "--score", str(file)))
    assert shown["options"]["score"]["phases"] == {"plan": 2, "work": 4}
    file.write_text("score:\n  phases: {plan: 2, work: 40}\n")
    refused = hocket("submit", "test.echo", "--score", str(file), code=2)
    checked = hocket("score", "check", str(file), code=1)
    assert refused.err == checked.err and "line 2: score.phases.work: 40 is not allowed" in refused.err


@pytest.mark.req("BB-08")
def test_promise_answers_a_request_for_help(hocket: Program):
    request = hocket("send", "editor", "how?", "--type", "help", "--agent", "writer", "--json", code=0).json["id"]
    options = ("--beats", "2", "--confidence", "0.5", "--on-fail", "guess", "--agent", "editor")
    shown = hocket("promise", request[:12], *options, "--json", code=0).json
    assert (shown["type"], shown["thread"], shown["reply_to"]) == ("promise", request, request)
    assert json.loads(shown["body"]) == {
        **{"thread_id": request, "promise_beats": 2, "fail_after_beats": 4, "confidence": 0.5, "on_fail": "guess"}
    }
    refused = hocket("promise", request, "--beats", "5", "--fail-after", "3", code=2)
    assert "a promise cannot fail before it is due" in refused.err
    other = hocket("send", "editor", "hello", "--json", code=0).json["id"]
    assert "asks for no help" in hocket("promise", other, "--beats", "1", code=2).err
