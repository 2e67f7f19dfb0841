"""Scenarios of agents: a loop of thoughts and tools, on one machine and over three."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.snapshot import SNAPSHOT_TYPE
from hocket.kernel.vocabulary import CreateSuggestedAction, UpdateActionStatus
from tests.scenarios.machines import Machine, agree, journal, machines, until, verify
from tests.work.inference.endpoint import Endpoint, Handler, chat, endpoint

AGENT = str(Path(__file__).with_name("agent.py"))
STEPS = ("proposed", "approved", "executing", "completed")
QUESTION = {"messages": [{"role": "user", "content": "How many people live in Paris and Lyon?"}]}


def answer(handler: Handler) -> None:
    """A model that first asks for Paris, then for Lyon, then adds up what the tools have told it."""
    told = [each for each in json.loads(handler.server.asked[-1]["body"])["messages"] if each["role"] == "tool"]
    cities = ["Paris", "Lyon"][len(told) :]
    if not cities:
        handler.say(chat(f"2620000, says {told[-1]['content']}"))
        return
    call = {"id": "call-1", "type": "function", "function": {"name": "people", "arguments": {"city": cities[0]}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    handler.say(chat("", choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}]))


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint() as made:
        made.answering = answer
        yield made


def follow(machine: Machine, first: str) -> tuple[list[str], list[str], dict[str, Any]]:
    """The thoughts and tools of a loop in order, and what it came to."""
    thoughts, tools = [first], []
    while True:
        until(lambda: machine.is_done(thoughts[-1]), f"thought {len(thoughts)}")
        said = machine.runtime.show(thoughts[-1])["result"]
        if "following" not in said:
            return thoughts, tools, said
        tools += said["tools"]
        thoughts.append(said["following"])


def check_order(machine: Machine, thoughts: list[str], tools: list[str]) -> None:
    """Each thought that comes after a tool ended after it, by the log's own time."""
    ends = {job.id: job.done for job in machine.jobs()}
    for tool, thought in zip(tools, thoughts[1:], strict=True):
        assert ends[parse_ulid(tool)] < ends[parse_ulid(thought)]


def check_why(machine: Machine, last: str) -> None:
    """The chain behind the answer: the model, the prompt with what the tools told, and the evidence."""
    told = machine("why", last, "--full")
    assert "model     small small-2025-01-01 by openai 127.0.0.1" in told.out
    assert "How many people live in Paris and Lyon?" in told.out and "520000" in told.out
    [call] = machine("why", last, "--json").json["snapshots"]
    assert call["named"] and len(call["evidence"]) == 1


def snapshots(machine: Machine, jobs: list[str]) -> int:
    def query(session: Any) -> int:
        made = [each for job in jobs for each in session.artifacts_of_job(parse_ulid(job))]
        return sum(each.type == SNAPSHOT_TYPE for each in made)

    return machine.look(query)


def story(machine: Machine, action: str) -> list[tuple[str, str]]:
    """What happened to a suggested action by ops that count, in the order of their time: each step and its author."""
    steps: list[tuple[Any, str, str]] = []
    for row in machine.look(lambda session: session.ops_after(0, 1_000_000)):
        op = decode(row.body)
        told = op.payload
        if isinstance(told, CreateSuggestedAction | UpdateActionStatus) and row.reason == 0:
            assert ulid_text(told.action_id) == action
            step = told.new_status.name.lower() if isinstance(told, UpdateActionStatus) else "proposed"
            steps.append((op.timestamp, step, f"{op.node_id:016x}"))
    return [(step, author) for _, step, author in sorted(steps)]


def approved(machine: Machine, said: dict[str, Any]) -> tuple[str, str]:
    """The user says yes on that machine; gives the jobs of the approval and of the action."""
    payload = json.dumps({"action": said["action"], "text": said["answer"]})
    yes = machine.submit("agent.approve", payload)
    until(lambda: machine.is_done(yes), "the approval")
    act: str = machine.runtime.show(yes)["result"]["act"]
    until(lambda: machine.is_done(act), "the action")
    return yes, act


@pytest.mark.req("LW-36", "LW-35", "LW-16")
def test_tool_use_agent_loop(tmp_path: Path, model: Endpoint):
    with machines(tmp_path, "box") as [box]:
        box("init")
        box.work(module=AGENT, HOCKET_TEST_MODEL=model.url)
        first = box.submit("agent.think", json.dumps(QUESTION))
        thoughts, tools, said = follow(box, first)
        assert (len(thoughts), len(tools)) == (3, 2) and said["answer"].startswith("2620000")
        check_order(box, thoughts, tools)
        assert box.show(thoughts[1])["after"] == tools[:1]
        assert snapshots(box, thoughts) == 3 and len(model.asked) == 3
        check_why(box, thoughts[-1])
        # Nothing is done about it before the user has approved it.
        me = box.node
        assert story(box, said["action"]) == [("proposed", me)]
        assert [line["kind"] for line in journal(tmp_path)].count("agent.act") == 0
        yes, act = approved(box, said)
        assert box.show(act)["after"] == [yes]
        assert story(box, said["action"]) == [(step, me) for step in STEPS]
        box.stop()
        verify(box)


@pytest.mark.req("LW-36", "LW-01", "LW-12", "LW-13", "LW-16", "LW-35", "LW-39", "LW-40")
def test_mesh_agent_loop(tmp_path: Path, model: Endpoint):
    """The phone submits and decides, one machine thinks, another has the tools. Both could do everything: the routes
    say who does what.
    """
    with machines(tmp_path, "phone", "thinker", "toolbox") as [phone, thinker, toolbox]:
        phone("init")
        phone.serve()
        for place in (thinker, toolbox):
            grants = [f"job:{verb}:agent." for verb in ("schedule", "claim", "complete")] + ["action:write"]
            may = [word for grant in [*grants, "episode:write"] for word in ("--may", grant)]
            # Under audit, so that a suggestion without the record of its model call counts nowhere.
            place("join", phone("invite", place.name, *may, "--audit", "--json").json["token"])
            place.work(module=AGENT, HOCKET_TEST_MODEL=model.url)
        phone("route", "agent.think", "thinker")
        phone("route", "agent.tool", "toolbox")
        phone("route", "agent.act", "toolbox")
        phone("route", "agent.approve", "here")
        until(lambda: all(place.reasons("RouteKind")[0] == 4 for place in (thinker, toolbox)), "the routes to be known")
        first = phone.submit("agent.think", json.dumps(QUESTION))
        thoughts, tools, said = follow(phone, first)
        assert (len(thoughts), len(tools)) == (3, 2) and said["answer"].startswith("2620000")
        check_order(phone, thoughts, tools)
        runs = [(line["kind"], line["machine"], line["fence"]) for line in journal(tmp_path)]
        think, tool = ("agent.think", "thinker", 1), ("agent.tool", "toolbox", 1)
        assert runs == [think, tool, think, tool, think]
        # The user approves on the phone, and the machine with the tools acts.
        assert story(phone, said["action"]) == [("proposed", thinker.node)]
        phone.work(module=AGENT)
        _, act = approved(phone, said)
        authors = (thinker.node, phone.node, toolbox.node, toolbox.node)
        assert story(phone, said["action"]) == list(zip(STEPS, authors, strict=True))
        last = [(line["kind"], line["machine"]) for line in journal(tmp_path)][-2:]
        assert last == [("agent.approve", "phone"), ("agent.act", "toolbox")]
        # Every claim and every end of another machine was the phone's to accept.
        for job in [*thoughts, *tools, act]:
            assert phone.ops_of(job) == ["ScheduleJob", "AcceptWork", "AcceptWork"]
        agree(phone, thinker, toolbox)
        for place in (thinker, toolbox, phone):
            place.stop()
        assert phone.digest() == thinker.digest() == toolbox.digest()
        # Why can be asked wherever the records are.
        for place in (phone, thinker, toolbox):
            assert snapshots(place, thoughts) == 3
        verify(phone, thinker, toolbox)
        check_why(phone, thoughts[-1])
