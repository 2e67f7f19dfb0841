"""An agent as four kinds of jobs. `agent.think` asks a model; when that wants a tool, it submits the tool's job and a
thought that comes after it, and ends. `agent.tool` is the tool. The last thought suggests an action to the user.
`agent.approve` is the user's yes, and `agent.act`, which comes after it, does what was approved. So every step is a
job, on whichever machine.
"""

import os
from typing import Any

import hocket
from hocket.inference import OpenAI
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.vocabulary import ActionStatus, CreateEpisode, CreateSuggestedAction, UpdateActionStatus
from tests.scenarios.noting import note

CLIENT = OpenAI(os.environ.get("HOCKET_TEST_MODEL", "http://127.0.0.1:9/v1"), timeout=30.0)


@hocket.job("agent.tool", retries=2)
def tool(ctx: hocket.Context, city: str) -> dict[str, Any]:
    note(ctx, "start")
    return {"city": city, "people": {"Paris": 2_100_000, "Lyon": 520_000}[city]}


@hocket.job("agent.think", retries=2)
def think(ctx: hocket.Context, messages: list[dict[str, Any]], after: list[str] | None = None) -> dict[str, Any]:
    note(ctx, "start")
    with hocket.open() as node:
        found = [node.job(each) for each in after or ()]
        messages = messages + [{"role": "tool", "content": str(each.result(timeout=0))} for each in found]
        evidence = [line["artifact_id"] for each in found for line in each.status()["artifacts"]]
        said = CLIENT.chat(ctx, model="small", messages=messages, context=evidence)["choices"][0]["message"]
        messages = messages + [said]
        if not said.get("tool_calls"):
            return {"answer": said["content"], "action": suggest(ctx, said["content"])}
        tools = [node.submit("agent.tool", **call["function"]["arguments"]) for call in said["tool_calls"]]
        ids = [each.job_id for each in tools]
        following = node.submit(think.using(after=ids), messages=messages, after=ids)
        return {"tools": ids, "following": following.job_id}


def suggest(ctx: hocket.Context, answer: str) -> str:
    """What came of the thoughts, as an episode, and what could be done about it."""
    episode, action = ctx.new_id(), ctx.new_id()
    ctx.emit(CreateEpisode(episode, "A question", answer, 1_750_000_000_000, None, (), (), (), 0.9))
    ctx.emit(CreateSuggestedAction(action, "Send it", answer, "send_answer", episode, (), (), None, 0.9))
    return ulid_text(action)


@hocket.job("agent.approve")
def approve(ctx: hocket.Context, action: str, text: str) -> dict[str, str]:
    note(ctx, "start")
    ctx.emit(UpdateActionStatus(parse_ulid(action), ActionStatus.APPROVED))
    with hocket.open() as node:
        return {"act": node.submit(act.using(after=[ctx.job_id]), action=action, text=text).job_id}


@hocket.job("agent.act")
def act(ctx: hocket.Context, action: str, text: str) -> str:
    note(ctx, "start")
    ctx.emit(UpdateActionStatus(parse_ulid(action), ActionStatus.EXECUTING))
    ctx.emit(UpdateActionStatus(parse_ulid(action), ActionStatus.COMPLETED, f"sent {text!r}"))
    return "sent"
