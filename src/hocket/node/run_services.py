"""What the runs of jobs need of their node: blobs, ids, times and quotas for a handler, and help between agents. A
request for help is a message of the type `help`. A helper answers with a promise, a HelpPromise in a message of the
type `promise`, and then with its help; or with its help at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from hocket.extensions.tempo.beats.messages import HelpPromise, PromiseOutcome, PromiseResult, from_json
from hocket.extensions.tempo.beats.promises import promise_times, reply_due
from hocket.extensions.tempo.promise_watch import PromiseWatch
from hocket.extensions.tempo.run_tempo import RunTempo
from hocket.extensions.tempo.score_keeper import keeper_alone
from hocket.extensions.tempo.scored_run import HELP_TYPE, PROMISE_TYPE, HelpMissing
from hocket.families.inbox.requests import content_of, default_agent
from hocket.families.jobs.rules import Job
from hocket.kernel.ids import node_text, parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.log.output_quota import output_room
from hocket.node.inbox import Inbox, ReceivedMessage, message_id_of
from hocket.node.requests import ProgramNode
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.work.run_outputs import RunServices


def run_services(runtime: Runtime, kind: str, monotonic: Callable[[], float]) -> RunServices:
    """What a run of a job of that kind needs."""

    def audited() -> bool:
        permissions = runtime.log.permissions_reader.latest
        return permissions is None or permissions.authority.audited(runtime.log.node, runtime.log.reading().wall, kind)

    def read(query: Callable[[Session], Any]) -> Any:
        def run() -> Any:
            with runtime.read() as session:
                return query(session)

        return run() if runtime.helpers is None else runtime.helpers.submit(run).result()

    def room(job: Job) -> int | None:
        if job.scheduled.node == runtime.log.node and job.policy.schedule_op is None:
            return None
        now_ms = runtime.log.physical()
        found: int | None = read(lambda s: output_room(s, runtime.log.permissions(s), job, now_ms))
        return found

    physical = runtime.log.physical
    tempo = runtime.tempo or partial(keeper_alone, clock_ms=physical)
    return RunServices(
        runtime.blobs,
        runtime.log.reading,
        runtime.log.new_id,
        monotonic,
        audited,
        read,
        output=runtime.output,
        tempo=tempo,
        room=room,
        beat_ms=lambda: runtime.home_beat_ms if runtime.heard_beat_ms is None else runtime.heard_beat_ms(),
    )


# Promises that one request takes in; of a storm, the first ones count.
PROMISES_MAX = 16
HELP_TTL_S = 86_400
REPLIES_AT_ONCE = 8


def helper(
    node: Callable[[], ProgramNode], watch: PromiseWatch | None
) -> Callable[[str, Any, RunTempo], Coroutine[Any, Any, ReceivedMessage]]:
    """What a run asks for help with."""
    return lambda to, body, tempo: ask_help(node(), to, body, tempo, watch)


async def ask_help(
    node: ProgramNode, to: str, body: Any, tempo: RunTempo, watch: PromiseWatch | None
) -> ReceivedMessage:
    """Asks for help, and waits for it as long as the promises say. Raises HelpMissing if no promise comes by the end of
    the bar, or the thread closes without help.
    """
    log = node.log
    asking = f"{default_agent()}/help-{ulid_text(log.new_id(log.physical()))[-12:].lower()}"
    asked_ms = tempo.now_ms
    thread_id = await node.send(to, body, agent=asking, type=HELP_TYPE, ttl=HELP_TTL_S)
    tempo.ask(thread_id)
    box, closes_ms = Inbox(node, asking), reply_due(tempo.tempo, asked_ms)
    promised: set[str] = set()
    while (left_ms := closes_ms - tempo.now_ms) > 0:
        for message in await box.claim(REPLIES_AT_ONCE, wait=left_ms / 1000):
            await message.ack()
            promise, agent = read_promise(message, thread_id), message.data.sender_address
            if message.data.type != PROMISE_TYPE:
                if watch is not None:
                    watch.answered(thread_id, agent, tempo.now_ms)
                return message
            if promise is None or agent in promised or len(promised) >= PROMISES_MAX:
                continue
            made_ms = min(max(asked_ms, message.data.sent_ms), tempo.now_ms)
            until_ms = promise_times(promise, made_ms, tempo.beat_ms).closes_ms
            closes_ms = max(closes_ms, until_ms) if promised else until_ms
            promised.add(agent)
            if watch is not None:
                watch.promised(agent, promise, made_ms, tempo.beat_ms)
        await asyncio.sleep(0)
    raise HelpMissing


def read_promise(message: ReceivedMessage, thread_id: str) -> HelpPromise | None:
    """The promise in a reply; None if it has none for this thread."""
    if message.data.type != PROMISE_TYPE:
        return None
    try:
        promise = from_json(message.body, HelpPromise)
    except Malformed:
        return None
    return promise if promise.thread_id == thread_id else None


def answered_at(session: Session, thread_id: str, agent_id: str) -> int | None:
    """When an agent has answered a request with more than a promise, by the log."""
    found = [
        reply.sent.wall
        for reply in session.replies(message_id_of(thread_id))
        if f"{reply.sender}@{node_text(reply.sent.node)}" == agent_id
        and content_of(session, reply.id).message_type != PROMISE_TYPE
    ]
    return min(found, default=None)


def may_tell(session: Session, result: PromiseResult, node: int) -> bool:
    """Whether a node may say how a promise ended, by the log: the one that asked for help, of an agent that has
    promised it there. A helper may say of itself that it was late or broke its promise.
    """
    if result.outcome is not PromiseOutcome.KEPT and result.agent_id.endswith(f"@{node_text(node)}"):
        return True
    try:
        thread_id = parse_ulid(result.thread_id)
    except ValueError:
        return False
    asked = session.message(thread_id)
    if asked is None or asked.sent.node != node:
        return False
    return any(
        f"{reply.sender}@{node_text(reply.sent.node)}" == result.agent_id
        and content_of(session, reply.id).message_type == PROMISE_TYPE
        for reply in session.replies(thread_id)
    )
