"""What a user meets every day: errors for programs, names in logs, narrow terminals, questions between agents."""

import json
import re
import threading

import hocket as hocket_api

from .conftest import Program, Result, until
from .test_program import on_a_terminal

RETRIED = """
import hocket


@hocket.job("acme.flaky", retries=1, backoff="10ms")
def flaky(ctx):
    if ctx.attempt == 1:
        raise ValueError("no such frame:\\n  frame 7\\n  is missing")
"""


def test_errors_are_json_where_answers_are(hocket: Program) -> None:
    for words, code in ((("show", "01J9ZC"), 2), (("jobs", "--limit", "many"), 2), (("jobs", "--nonsense"), 2)):
        plain, shown = hocket(*words, code=code), hocket(*words, "--json", code=code)
        assert shown.out == "" and plain.err.startswith("hocket: ")
        said = json.loads(shown.err)
        assert said["exit_code"] == code and f"hocket: {said['error']}\n" == plain.err


def test_an_unknown_member_of_a_batch_line_is_answered_with_a_suggestion(hocket: Program) -> None:
    said = hocket("submit", "--batch", "-", input='{"kind": "a.b", "prioritty": 3}', code=2).sentence
    assert "line 1: unknown member 'prioritty' (did you mean 'priority'?); known are after, approval_by, " in said
    said = hocket("submit", "--batch", "-", input='{"kind": "a.b", "pay_load": {}}', code=2).sentence
    assert "did you mean 'payload'?" in said


def test_no_color_means_no_escape(hocket: Program) -> None:
    job_id = hocket.submit("test.fail")
    hocket("work", "tasks.py", "--until-idle", code=0)
    for words in (("jobs",), ("show", job_id), ("status",), ("top", "--once"), ("cancel", "--kind", "none", "--yes")):
        shown = on_a_terminal(hocket, *words, NO_COLOR="1")
        assert "\x1b" not in shown, words
    assert "\x1b[" in on_a_terminal(hocket, "jobs")


def test_a_narrow_terminal_keeps_the_ids_of_jobs(hocket: Program) -> None:
    ids = [hocket.submit("acme.render.preview.thumbnails", "--priority", "5") for _ in range(3)]
    for columns in (60, 30, 20):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(hocket, "jobs", columns=columns)).splitlines()
        endings = [line.split()[0] for line in shown[2:5]]
        assert all(job_id.endswith(end) for job_id, end in zip(reversed(ids), endings, strict=True)), shown
        assert all(len(line.rstrip()) <= columns for line in shown)


def test_a_question_is_asked_and_answered_in_the_shell(hocket: Program) -> None:
    answers: list[Result] = []
    asking = threading.Thread(
        target=lambda: answers.append(hocket("ask", "editor", "may I merge?", "--wait", "60s", "--agent", "writer"))
    )
    asking.start()
    (asked,) = _claimed(hocket)
    assert asked["body"] == "may I merge?" and asked["from"].startswith("writer/ask-")
    sent = hocket("reply", asked["id"], "yes", "--agent", "editor", code=0)
    asking.join()
    assert (answers[0].code, answers[0].out) == (0, "yes\n"), answers[0]
    assert hocket("inbox", "--agent", "editor", "--json", code=0).json == []
    assert "claim it with" in hocket("reply", asked["id"], "again", "--agent", "editor", code=3).sentence
    assert sent.out.strip() in hocket("thread", asked["id"], code=0).out
    assert "no reply from nobody" in hocket("ask", "nobody", "?", "--wait", "100ms", code=5).sentence


def _claimed(hocket: Program) -> list[dict[str, str]]:
    words = ("inbox", "--agent", "editor", "--claim", "1", "--lease", "5m", "--json")
    found: list[dict[str, str]] = until(lambda: hocket(*words, code=0).json, "the question")
    return found


def test_a_failed_try_is_logged_with_the_next_one_and_without_the_tail_of_its_traceback(hocket: Program) -> None:
    (hocket.home.parent / "flaky.py").write_text(RETRIED)
    job_id = hocket.submit("acme.flaky")
    lines = hocket("work", "flaky.py", "--until-idle", code=0).err.splitlines()
    (failed,) = [line for line in lines if "failed" in line]
    said = rf"hocket: job {job_id}: acme\.flaky failed: ValueError: no such frame:; it is tried again in [\d.]+ seconds"
    assert re.fullmatch(said, failed), failed


def test_the_repr_of_a_handle_has_the_id_of_its_job(hocket: Program) -> None:
    with hocket_api.open(hocket.home) as node:
        handle = node.submit("test.echo")
        assert repr(handle) == f"<SyncHandle of job {handle.job_id}>"
