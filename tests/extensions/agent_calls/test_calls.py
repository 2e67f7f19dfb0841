"""Jobs that foreign agents do: real servers, of this program's own A2A and of the official SDK."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.a2a.clients import KIND, OTHER_KIND, A2aClient, worker
from tests.cli.conftest import Program, until
from tests.mcp.agents import new_home
from tests.server.served import Served, serving
from tests.server.test_worker_routes import Worker

JOB_KIND = "hocket.agent.partner"


class Meeting(NamedTuple):
    """A home that calls the agent `partner`, which is another home's server."""

    caller: Program
    partner: Served

    def call(self, *words: str) -> str:
        return self.caller("a2a", "call", "partner", *words, "--skill", KIND, code=0).out.split()[-1]

    def work(self, name: str) -> Worker:
        return worker(self.partner, name)

    def ended(self, job_id: str) -> dict[str, Any]:
        return until(lambda: (shown := self.caller.show(job_id))["outcome"] and shown, "the end of the job")


def taken(work: Worker) -> dict[str, Any]:
    """The next job of the partner, when it has come."""
    (held,) = work.claim(wait_ms=45_000, lease_ms=600_000)
    return held


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(new_home(tmp_path_factory.mktemp("partner")), "--a2a", KIND, "--a2a", OTHER_KIND) as running:
        yield running


@pytest.fixture(scope="module")
def meeting(partner: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meeting]:
    caller = named(tmp_path_factory.mktemp("caller"), partner, "hocket")
    with ExitStack() as stack:
        stack.callback(caller.end_started)
        caller.start("serve", "--port", "0")
        yield Meeting(caller, partner)


def named(directory: Path, partner: Served, agent: str) -> Program:
    """A home that has named the partner, with the token of an agent of the partner's."""
    caller, token = Program(new_home(directory)), directory / "token"
    token.write_text(A2aClient(partner, agent, "all").token)
    added = caller("a2a", "add", "partner", partner.address, "--token-file", token, "--json", code=0).json
    assert added["kind"] == JOB_KIND and added["skills"] == [KIND, OTHER_KIND] and added["has_token"]
    assert oct((caller.home / "agents.json").stat().st_mode & 0o777) == "0o600"
    return caller


def test_an_agent_does_a_job_and_its_result_is_that_of_the_task(meeting: Meeting) -> None:
    job_id = meeting.call("be strict", "--data", '{"file": "a.py"}')
    work = meeting.work("w-result")
    held = taken(work)
    assert held["payload"] == {"file": "a.py", "text": "be strict"}
    work.end(held, result={"verdict": "good"})
    shown = meeting.ended(job_id)
    assert (shown["outcome"], shown["result"]) == ("succeeded", {"verdict": "good"})


def test_a_task_that_fails_or_is_rejected_fails_the_job(meeting: Meeting) -> None:
    job_id = meeting.call("x")
    work = meeting.work("w-fails")
    held = taken(work)
    work.end(held, "fail", error="bad paper", retry=False)
    shown = meeting.ended(job_id)
    assert shown["outcome"] == "failed" and "partner: failed:" in shown["error"] and "bad paper" in shown["error"]
    assert shown["failures"] == 1, "it is not tried again"
    meeting.caller("retry", job_id, "--reason", "other paper", code=0)
    held = taken(work)
    work.end(held, result="now")
    assert meeting.ended(job_id)["result"] == "now", "a retry is a new task"


def test_what_the_agent_asks_the_job_asks_its_submitter(meeting: Meeting) -> None:
    job_id = meeting.call("x")
    work = meeting.work("w-asks")
    held = taken(work)
    for number, text in enumerate(("a", "b"), 1):
        ask = {"question": "Which one?", "within_ms": 600_000, "number": number}
        assert work.end(held, "ask", **ask).json["answer"] is None
        asked = until(lambda: meeting.caller.show(job_id)["question"], "the question")
        assert asked["text"] == "Which one?"
        meeting.caller("answer", job_id, text, code=0)
        assert work.end(held, "ask", **ask, wait_ms=45_000).json["answer"] == text
    work.end(held, result="done")
    assert meeting.ended(job_id)["result"] == "done"


def test_a_cancelled_job_cancels_the_task(meeting: Meeting) -> None:
    job_id = meeting.call("x")
    held = taken(meeting.work("w-cancel"))
    meeting.caller("cancel", job_id, "--reason", "enough", code=0)
    program = Program(meeting.partner.home)
    until(lambda: program.show(held["job_id"])["outcome"] == "cancelled", "the end of the task")


def test_a_killed_caller_goes_on_with_its_task(partner: Served, tmp_path: Path) -> None:
    caller = named(tmp_path, partner, "killed")
    meeting, work = Meeting(caller, partner), worker(partner, "w-killed")
    try:
        job_id = meeting.call("x")
        running = caller.start("serve", "--port", "0")
        held = taken(work)
        for _ in range(2):
            fence = caller.show(job_id)["fence"]
            running.kill()
            running.wait()
            running = caller.start("serve", "--port", "0")
            until(lambda fence=fence: caller.show(job_id)["fence"] > fence, "the next try")
        work.end(held, result="once")
        assert meeting.ended(job_id)["result"] == "once"
    finally:
        caller.end_started()
    found = Program(partner.home)("jobs", "--kind", KIND, "--state", "pending", "--json", code=0).json
    assert found == [], "the partner got one task"


def test_an_agent_that_cannot_be_called_is_refused_when_it_is_named(partner: Served, tmp_path: Path) -> None:
    caller, token = Program(new_home(tmp_path)), tmp_path / "token"
    token.write_text("secret")
    add = ("a2a", "add", "partner")
    assert "needs https" in caller(*add, "http://agents.example.com", "--token-file", token, code=2).sentence
    assert "bad URL" in caller(*add, "ftp://x", code=2).sentence
    assert "bad name" in caller("a2a", "add", "Bad Name", partner.address, code=2).sentence
    assert "does not answer" in caller(*add, "http://127.0.0.1:1", code=5).sentence
    assert "status 404" in caller(*add, f"{partner.address}/nowhere", code=1).sentence
    assert caller("a2a", "list", "--json", code=0).json == []
    assert "no agent" in caller("a2a", "remove", "partner", code=2).sentence
    assert "say something" in caller("a2a", "call", "partner", code=2).sentence
    caller(*add, partner.address, code=0)
    caller("a2a", "remove", "partner", code=0)
    assert caller("a2a", "list", "--json", code=0).json == []


def test_a_token_that_the_agent_refuses_fails_the_job(partner: Served, tmp_path: Path) -> None:
    caller, token = Program(new_home(tmp_path)), tmp_path / "token"
    token.write_text("hkt_wrong")
    caller("a2a", "add", "partner", partner.address, "--token-file", token, code=0)
    caller.start("serve", "--port", "0")
    try:
        shown = Meeting(caller, partner).ended(Meeting(caller, partner).call("x"))
    finally:
        caller.end_started()
    assert shown["outcome"] == "failed" and "does not take the token: status 401" in shown["error"]
    assert "hkt_wrong" not in json.dumps(shown)
