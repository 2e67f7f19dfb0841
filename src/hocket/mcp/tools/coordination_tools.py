"""Tools for agents that share machines: locks and mail."""

from typing import Annotated, Literal

from msgspec import Meta

from hocket.api.locks import LockShown, held_here
from hocket.errors import Conflict, Usage
from hocket.families.locks.rules import KEYS_MAX
from hocket.mcp.answers import Data, ToolAnswer, bounded, present
from hocket.mcp.caller import McpCaller
from hocket.mcp.resources import SCHEME
from hocket.mcp.tools.declared import Tool, ToolArguments, ToolNeed, WaitSeconds

MESSAGES_MAX = 10
MAIL_LEASE_MS = 1_800_000


class LockAsked(ToolArguments, frozen=True):
    keys: Annotated[list[str], Meta(min_length=1, max_length=KEYS_MAX, description="like file:src/a.py or file:src/**")]
    do: Literal["acquire", "renew", "release"] = "acquire"
    wait_s: WaitSeconds = 0
    shared: bool = False
    scope: Annotated[str, Meta(description="such as a repository")] = ""


class LockDone(ToolAnswer, frozen=True):
    state: Literal["held", "released"]
    fence: int = 0
    lease_s: int = 0


async def lock(caller: McpCaller, asked: LockAsked) -> LockDone:
    if asked.do == "acquire":
        return await _acquired(caller, asked)
    holds = [each for each in await _own(caller, asked.scope) if set(each.keys) & set(asked.keys)]
    if not holds:
        where = f" in {asked.scope!r}" if asked.scope else ""
        raise Conflict(f"you hold none of these locks{where}: acquire them first")
    left_s = 0
    for each in holds:
        place = {"key": each.keys[0], "fence": each.fence, "scope": asked.scope}
        if asked.do == "renew":
            renewed = await caller.do("renew_lock", **place, ttl_ms=caller.lease_ms)
            left_s = max(0, renewed.expires_ms - caller.node.log.physical()) // 1000
        elif caller.holds is None or not await caller.holds.release(asked.scope, each.fence):
            await caller.do("release_lock", **place)
    if asked.do == "renew":
        return LockDone(state="held", fence=holds[0].fence, lease_s=left_s)
    return LockDone(state="released")


async def _acquired(caller: McpCaller, asked: LockAsked) -> LockDone:
    if caller.holds is not None:
        fence = await caller.holds.acquire(caller, asked.keys, asked.scope, asked.wait_s, shared=asked.shared)
        return LockDone(state="held", fence=fence)
    shown = await caller.do(
        "acquire_lock",
        keys=asked.keys,
        scope=asked.scope,
        shared=asked.shared,
        wait_ms=asked.wait_s * 1000,
        ttl_ms=caller.lease_ms,
    )
    left_ms = shown.expires_ms - caller.node.log.physical()
    return LockDone(state="held", fence=shown.fence, lease_s=max(0, left_ms) // 1000)


async def _own(caller: McpCaller, scope: str) -> list[LockShown]:
    caller.service.check("Lock", "Acquire", scope=scope)
    return await caller.api.read(lambda: held_here(caller.service, caller.agent, scope))


class MailAsked(ToolArguments, frozen=True):
    do: Annotated[
        Literal["read", "send", "done", "give_back"], Meta(description="done: a message that you read is dealt with")
    ] = "read"
    to: Annotated[str, Meta(description="agent, agent@node, group/ or all")] | None = None
    text: str | None = None
    reply_to: Annotated[str, Meta(description="message id")] | None = None
    id: Annotated[str, Meta(description="of a message that you read")] | None = None
    count: Annotated[int, Meta(ge=1, le=MESSAGES_MAX)] = 1


class MailDone(ToolAnswer, frozen=True):
    state: str
    id: str = ""
    data: Data = None


async def mail(caller: McpCaller, asked: MailAsked) -> MailDone:
    if asked.do == "read":
        return await _read(caller, asked.count)
    if asked.do == "send":
        if asked.to is None or asked.text is None:
            raise Usage("a message needs `to` and `text`")
        sent = await caller.do("send_message", to=asked.to, body=asked.text, reply_to=asked.reply_to)
        return MailDone(state="sent", id=sent.id)
    if asked.id is None:
        raise Usage("name the message by its id")
    operation = "acknowledge_message" if asked.do == "done" else "return_message"
    await caller.do(operation, message=asked.id)
    if caller.holds is not None:
        await caller.holds.drop_message(asked.id)
    return MailDone(state="acknowledged" if asked.do == "done" else "returned", id=asked.id)


async def _read(caller: McpCaller, count: int) -> MailDone:
    if caller.holds is None:
        claimed = await caller.do("claim_messages", count=count, lease_ms=MAIL_LEASE_MS)
    else:
        claimed = await caller.holds.claim_messages(caller, count, MAIL_LEASE_MS)
    if not claimed:
        return MailDone(state="no mail")
    messages = [
        bounded(
            {
                "id": each.id,
                "from": each.sender,
                "thread": each.thread,
                "text": each.body if each.body is not None else "(no text)",
                **present(
                    type=each.type or None,
                    attachments=[[one.name, one.artifact_id] for one in each.attachments] or None,
                ),
            },
            f"{SCHEME}thread/{each.thread}",
        )
        for each in claimed
    ]
    return MailDone(state=f"{len(messages)} read", data=messages)


COORDINATION_TOOLS = (
    Tool(
        "lock",
        "Lock files or other things before you change them; release them after.",
        lock,
        LockAsked,
        LockDone,
        (ToolNeed("Lock", "Acquire"),),
    ),
    Tool(
        "mail",
        "Messages between agents.",
        mail,
        MailAsked,
        MailDone,
        (ToolNeed("Inbox", "Claim"), ToolNeed("Inbox", "Write")),
    ),
)
