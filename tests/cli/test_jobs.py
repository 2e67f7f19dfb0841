"""Lists of jobs, one job in full, and what can be done to it."""

import json
from contextlib import closing

import pytest

from hocket import open_sync
from hocket.families.jobs import claiming
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy
from hocket.node.runtime import Runtime

from .conftest import Program, until


@pytest.mark.req("LW-17")
@pytest.mark.touches("LW-19")
def test_the_list_and_its_filters(used: Program):
    everything = used("jobs", "--json", code=0).json
    assert len(everything) == 22
    ids = [job["job_id"] for job in everything]
    assert ids == sorted(ids, reverse=True)
    assert [job["kind"] for job in used("jobs", "--state", "pending", "--json").json] == ["other.kind"]
    assert used("jobs", "--state", "claimed", "--json").json == []
    assert len(used("jobs", "--state", "completed", "--json").json) == 21
    assert [job["kind"] for job in used("jobs", "--outcome", "failed", "--json").json] == ["test.fail"]
    assert used("jobs", "--state", "failed", "--json").json == used("jobs", "--outcome", "failed", "--json").json
    assert used("jobs", "--state", "failed", "--outcome", "cancelled", code=2).sentence.startswith("no job is failed")
    assert len(used("jobs", "--outcome", "succeeded", "--limit", "7", "--json").json) == 7
    assert used("jobs", "--outcome", "succeeded", "--state", "pending", "--json").json == []
    assert len(used("jobs", "--kind", "test.", "--json").json) == 21
    assert len(used("jobs", "--kind", "test.fail", "--json").json) == 1
    assert used("jobs", "--kind", "test", "--json").json == used("jobs", "--kind", "tes.", "--json").json == []
    assert len(used("jobs", "--limit", "3", code=0).out.splitlines()) == 3
    assert used("jobs", "--state", "claimed", code=0).out == ""


def test_lines_for_a_pipe(used: Program):
    line = used("jobs", "--outcome", "failed", code=0).out.rstrip("\n").split("\t")
    assert len(line) == 8 and line[1:5] == ["test.fail", "failed", "1", "0"]
    assert line[6:] == [used("whoami", "--json", code=0).json["name"], "ValueError: it broke"]


@pytest.mark.touches("LW-41")
def test_show_tells_everything(used: Program):
    failed = used("jobs", "--outcome", "failed", "--json").json[0]["job_id"]
    text = used("show", failed, code=0).out
    for part in (failed, "test.fail", "ValueError: it broke", "FailWork", "ScheduleJob", "ClaimWork", 'File "'):
        assert part in text
    done = used("jobs", "--outcome", "succeeded", "--limit", "1", "--json").json[0]["job_id"]
    assert '\nresult\t{"n":' in used("show", done, code=0).out
    shown = used.show(done)
    assert [op["type"] for op in shown["ops"]] == ["ScheduleJob", "ClaimWork", "CompleteJob"]
    assert all(op["author"] == shown["claimer"] and op["counts"] for op in shown["ops"])


@pytest.mark.parametrize("command", ["show", "cancel", "retry", "postpone"])
def test_ids_that_name_no_job_or_several(used: Program, command: str):
    when = ["--now"] if command == "postpone" else []
    assert "no job '7ZZZZZZZZZ'" in used(command, "7ZZZZZZZZZ", *when, code=2).sentence
    assert "is not a job id" in used(command, "no job!", *when, code=2).sentence
    assert "no job ''" in used(command, "", *when, code=2).sentence
    ambiguous = used(command, "0", *when, code=2).sentence
    assert "'0' is the beginning of several job ids" in ambiguous and ambiguous.endswith("give more of it")


def test_a_unique_beginning_or_end_is_enough_in_either_case(hocket: Program):
    job_id = hocket.submit("test.echo")
    assert hocket.show(job_id[:6].lower())["job_id"] == job_id
    assert hocket.show(job_id[-4:].lower())["job_id"] == job_id
    assert hocket.show(job_id[-25:])["job_id"] == job_id
    assert "no job" in hocket("show", job_id[-3:], code=2).sentence


@pytest.mark.req("LW-41")
@pytest.mark.touches("LW-02")
def test_cancel_and_retry(hocket: Program):
    job_id = hocket.submit("test.echo")
    follower = hocket.submit("test.echo", "--after", job_id)
    assert hocket("cancel", job_id, "--reason", "wrong frame", code=0).out == f"cancelled {job_id}\n"
    shown = hocket.show(job_id)
    assert (shown["state"], shown["outcome"], shown["error"]) == ("cancelled", "cancelled", "wrong frame")
    assert hocket.show(follower)["outcome"] == "cancelled"
    assert "completed already" in hocket("cancel", job_id, code=3).sentence
    assert hocket("retry", job_id, "--json", code=0).json["state"] == "pending"
    assert "only a failed or cancelled job can be retried" in hocket("retry", job_id, code=3).sentence
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert "has succeeded" in hocket("retry", job_id, code=3).sentence
    assert hocket.show(job_id)["outcome"] == "succeeded"


@pytest.mark.req("LW-41")
def test_a_pending_job_is_postponed_and_moved_to_now(hocket: Program):
    job_id = hocket.submit("test.echo")
    assert hocket("postpone", job_id, "--for", "1h", "--reason", "no disk", code=0).out == f"postponed {job_id}\n"
    shown = hocket.show(job_id)
    assert (shown["state"], shown["stage"], shown["wait_reason"]) == ("pending", "delayed", "time")
    assert shown["ready_at_ms"] - shown["scheduled_ms"] >= 3_600_000
    assert [op["type"] for op in shown["ops"]] == ["ScheduleJob", "PostponeJob"]
    assert shown["ops"][1]["detail"].endswith(": no disk") and "waits: not before" in hocket("why", job_id).out
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job_id)["state"] == "pending"
    hocket("postpone", job_id, "--not-before", "2040-01-31T09:00:00Z", code=0)
    assert hocket.show(job_id)["ready_at_ms"] == 2_211_613_200_000
    assert hocket("postpone", job_id, "--now", "--json", code=0).json["stage"] == "ready"
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job_id)["outcome"] == "succeeded"
    assert "has ended: it is succeeded; only a pending job" in hocket("postpone", job_id, "--now", code=3).sentence


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "say when the job may start"),
        (("--now", "--for", "1h"), "say when the job may start"),
        (("--for", "soon"), "bad time"),
        (("--for", "31d"), "a delay is at most 30 days"),
        (("--not-before", "tomorrow"), "bad time"),
        (("--not-before", str(2**53 + 1)), "too late"),
    ],
)
def test_a_bad_start_is_refused(hocket: Program, options: tuple[str, ...], says: str):
    assert says in hocket("postpone", "01J9ZC", *options, code=2).sentence


@pytest.mark.req("LW-41")
def test_a_job_waits_for_an_approval_from_a_shell_or_by_mail(hocket: Program):
    asked = ("submit", "test.echo", '{"n": 1}', "--approval-by", "alice")
    by_shell, by_mail, refused = (hocket(*asked, "--json", code=0).json["job_id"] for _ in range(3))
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert "waits for approval by alice since" in hocket.show(by_shell)["waits_for"]
    assert "waits: waits for approval by alice" in hocket("why", by_shell, code=0).out
    assert "of alice, not of bob" in hocket("approve", by_shell, "--agent", "bob", code=4).sentence
    assert "approval, which alone" in hocket("postpone", by_shell, "--now", code=3).sentence
    assert hocket("approve", by_shell, "--agent", "alice", "--note", "fine", code=0).out == f"approved {by_shell}\n"
    hocket("refuse", refused, "--agent", "alice", "--note", "no", code=0)
    assert hocket.show(refused)["error"] == "refused by alice: no"
    messages = hocket("inbox", "--agent", "alice", "--claim", "3", "--json", code=0).json
    (message,) = (each["id"] for each in messages if by_mail in each["body"])
    hocket("reply", message, "approve", "--agent", "alice", code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    for job_id in (by_shell, by_mail):
        shown = hocket.show(job_id)
        assert (shown["outcome"], shown["ops"][1]["type"]) == ("succeeded", "ApproveJob")
    assert hocket.show(by_shell)["ops"][1]["detail"] == "approved by alice: fine"
    assert "waits for no approval" in hocket("approve", by_shell, "--agent", "alice", code=3).sentence


@pytest.mark.req("LW-41")
def test_a_dead_job_is_tried_anew(used: Program):
    failed = used("jobs", "--outcome", "failed", "--json").json[0]["job_id"]
    assert used("retry", failed, code=0).out == f"retried {failed}\n"
    used("work", "tasks.py", "--until-idle", code=0)
    shown = used.show(failed)
    assert (shown["outcome"], shown["fence"]) == ("failed", 2)


@pytest.mark.parametrize("reason", ["", "x" * 501])
def test_reasons_are_bounded(hocket: Program, reason: str):
    job_id = hocket.submit("test.echo")
    assert "a reason must have 1 to 500 characters" in hocket("cancel", job_id, "--reason", reason, code=2).sentence


@pytest.mark.touches("LW-17")
def test_watch_prints_a_list_at_each_change(hocket: Program):
    watch = hocket.start("jobs", "--watch", "--json")
    assert watch.stdout is not None
    assert json.loads(watch.stdout.readline()) == []
    job_id = hocket.submit("test.echo")
    assert [job["job_id"] for job in json.loads(watch.stdout.readline())] == [job_id]
    hocket("cancel", job_id, code=0)
    assert json.loads(watch.stdout.readline())[0]["outcome"] == "cancelled"


def test_watch_in_a_pipe_prints_the_lines_that_change(hocket: Program):
    first = hocket.submit("test.echo")
    watch = hocket.start("jobs", "--watch")
    assert watch.stdout is not None
    assert watch.stdout.readline().startswith(first)
    second = hocket.submit("test.echo")
    assert watch.stdout.readline().startswith(second)
    hocket("cancel", first, code=0)
    line = watch.stdout.readline()
    assert line.startswith(first) and "\tcancelled\t" in line
    until(lambda: watch.poll() is None)


def test_states_have_one_vocabulary_and_old_words_are_understood(hocket: Program):
    ended, later = hocket.submit("test.echo"), hocket.submit("test.echo", "--not-before", "+1h")
    hocket("cancel", ended, code=0)
    shown = hocket("show", ended, code=0).out
    assert "state\tcancelled" in shown and "completed" not in shown.partition("ops:")[0]
    assert hocket.show(ended)["state"] == "cancelled" and hocket.show(later)["state"] == "pending"
    assert hocket("jobs", code=0).out.split("\t")[2] == "pending delayed"
    for word, expected in (
        *(("pending", [later]), ("waiting", [later]), ("delayed", [later]), ("ready", []), ("running", [])),
        *(("claimed", []), ("cancelled", [ended]), ("completed", [ended])),
    ):
        assert [each["job_id"] for each in hocket("jobs", "--state", word, "--json", code=0).json] == expected, word
    assert (
        "states are pending, ready, delayed, blocked, running" in hocket("jobs", "--state", "asleep", code=2).sentence
    )
    assert "claimed" not in hocket("jobs", "--help").out and "claimed" not in hocket("status", code=0).out
    assert hocket("cancel", "--state", "waiting", "--yes", code=0).out == "cancelled 1 job\n"


@pytest.mark.req("LW-17")
def test_which_claims_are_past_their_deadline(hocket: Program):
    with Runtime.open(hocket.home) as runtime:
        drafts = [Draft("acme.x", b"{}", Policy()), Draft("acme.y", b"{}", Policy())]
        made = [ulid_text(each.job_id) for each in runtime.submit(drafts)]
        leases = {"acme.x": 100, "acme.y": 600_000}
        runtime.log.run(lambda tx: claiming.claim(tx, 1, 2, leases.get))
        listed = lambda *more: [  # noqa: E731
            each["job_id"] for each in hocket("jobs", "--overdue", *more, "--json", code=0).json
        ]
        until(lambda: listed() == made[:1])
        assert listed("--kind", "acme.") == made[:1] and listed("--kind", "acme.y") == []
    with closing(open_sync(hocket.home)) as node:
        assert [job.job_id for job in node.overdue()] == made[:1] and node.overdue("acme.y") == []
