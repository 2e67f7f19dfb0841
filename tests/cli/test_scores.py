"""Scores on the command line: `hocket submit --score`."""

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
