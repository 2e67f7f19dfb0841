"""Promises of help. A request for help is a message of the type `help`. A helper answers with a promise, a HelpPromise
in a message of the type `promise`, and then with its help; or with its help at once.

`PromiseWatch` watches the promises that a worker's jobs were given. When a thread closes, or help has come, it tells on
the bus how the promise ended, and counts that to the agent that made it. What other nodes tell is counted too, if they
are parties of the promise. Each result counts less with time, so an agent that had a bad day is trusted again. The
order in which results arrive does not matter.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from hocket.api import Service
from hocket.api.inbox import MessageShown, find, send
from hocket.errors import Usage
from hocket.extensions.tempo.beats import Tempo, next_downbeat
from hocket.extensions.tempo.messages import HelpPromise, PromiseOutcome, PromiseResult, from_json, to_json
from hocket.extensions.tempo.run_pace import NO_SCORE, HelpMissing, Pace, pace_of
from hocket.extensions.tempo.tempo_messages import Heard, TempoMessages
from hocket.families.inbox.requests import content_of, default_agent
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.decoding import convert
from hocket.kernel.ids import node_text, parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.node.calls import ProgramNode
from hocket.node.inbox import Inbox, ReceivedMessage, message_data, message_id_of
from hocket.store import Session
from hocket.work.runner import Run

HELP_TYPE = "help"
PROMISE_TYPE = "promise"
# Promises that one request takes in; of a storm, the first ones count.
PROMISES_MAX = 16
HELP_TTL_S = 86_400
REPLIES_AT_ONCE = 8
OPEN_MAX = 4_096
AGENTS_MAX = 10_000
RESULTS_MAX = 10_000
OUTGOING_MAX = 1_024
HEARD_S = 60.0
# A result can come before the log has its promise: it is looked at again once, after this time, and so many wait.
AGAIN_S = 5.0
AGAIN_MAX = 64
# After this time a promise counts half.
HALF_LIFE_MS = 24 * 3600 * 1000
# A late answer is worth this part of a kept promise.
LATE_WORTH = 0.5
Key = tuple[str, str]


"""A thread, and the agent that made a promise in it."""


class PromiseTimes(NamedTuple):
    due_ms: int
    closes_ms: int


def promise_times(promise: HelpPromise, made_ms: int, beat_ms: int) -> PromiseTimes:
    return PromiseTimes(
        made_ms + promise.promise_beats * beat_ms,
        made_ms + promise.fail_after_beats * beat_ms,
    )


def promise_outcome(times: PromiseTimes, answered_ms: int | None, now_ms: int) -> PromiseOutcome | None:
    """None while the thread is open and nothing has come. An answer after the thread has closed does not count."""
    if answered_ms is not None and answered_ms <= times.closes_ms:
        return PromiseOutcome.KEPT if answered_ms <= times.due_ms else PromiseOutcome.LATE
    return PromiseOutcome.BROKEN if now_ms > times.closes_ms else None


def reply_due(tempo: Tempo, asked_ms: int) -> int:
    """Until when a request for help must get a promise: the end of the bar, but at least one beat."""
    return next_downbeat(tempo, asked_ms + tempo.beat_ms)


def make_promise(thread_id: str, beats: int, fail_after: int | None, confidence: float, on_fail: str) -> HelpPromise:
    """Raises Usage."""
    members = {
        "thread_id": thread_id,
        "promise_beats": beats,
        "confidence": confidence,
        "fail_after_beats": 2 * beats if fail_after is None else fail_after,
        "on_fail": on_fail,
    }
    try:
        return convert(members, HelpPromise)
    except msgspec.ValidationError as error:
        raise Usage(f"bad promise: {error}") from None


def promise(run: Run, request: Any, beats: int, fail_after: int | None, confidence: float, on_fail: str) -> Any:
    """What a handler's context offers."""
    made = make_promise(request.data.thread, beats, fail_after, confidence, on_fail)
    return request.reply(to_json(made), type=PROMISE_TYPE)


def ask_help(run: Run, to: str, body: Any) -> Coroutine[Any, Any, ReceivedMessage]:
    """What a handler's context offers."""
    if (pace := pace_of(run)) is None:
        raise Usage(NO_SCORE)
    return _ask_help(run.products.kit.node(True), to, body, pace)


async def _ask_help(node: ProgramNode, to: str, body: Any, pace: Pace) -> ReceivedMessage:
    """Asks for help, and waits for it as long as the promises say. Raises HelpMissing if no promise comes by the end of
    the bar, or the thread closes without help.
    """
    log, tempo, watch = node.log, pace.keeper, pace.promises
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


class PromiseRecord(msgspec.Struct, frozen=True):
    """Counts as of `at_ms`, the time of the newest result."""

    kept: float = 0.0
    late: float = 0.0
    broken: float = 0.0
    at_ms: int = 0

    def after(self, outcome: PromiseOutcome, at_ms: int) -> "PromiseRecord":
        newest = max(self.at_ms, at_ms)
        before, added = _decay(newest - self.at_ms), _decay(newest - at_ms)
        return PromiseRecord(
            self.kept * before + added * (outcome is PromiseOutcome.KEPT),
            self.late * before + added * (outcome is PromiseOutcome.LATE),
            self.broken * before + added * (outcome is PromiseOutcome.BROKEN),
            newest,
        )

    def reliability(self, now_ms: int) -> float:
        """From 0 to 1. An agent without a record has 1, and every agent comes back to that with time."""
        decay = _decay(now_ms - self.at_ms)
        good = decay * (self.kept + LATE_WORTH * self.late)
        return (good + 1) / (decay * (self.kept + self.late + self.broken) + 1)


def _decay(age_ms: int) -> float:
    return math.pow(0.5, max(0, age_ms) / HALF_LIFE_MS)


class PromiseCounts:
    """What became of each agent's promises. A result counts once, however often it is heard."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, PromiseRecord] = OrderedDict()
        self._counted: OrderedDict[Key, None] = OrderedDict()

    def add(self, result: PromiseResult, at_ms: int) -> None:
        key = result.thread_id, result.agent_id
        if key in self._counted:
            return
        self._counted[key] = None
        self._records[result.agent_id] = self.of(result.agent_id).after(result.outcome, at_ms)
        self._records.move_to_end(result.agent_id)
        for kept, most in ((self._counted, RESULTS_MAX), (self._records, AGENTS_MAX)):
            if len(kept) > most:
                kept.popitem(last=False)

    def of(self, agent_id: str) -> PromiseRecord:
        return self._records.get(agent_id, PromiseRecord())

    def of_node(self, node: str, now_ms: int) -> float:
        """The reliability of the worst agent of a node."""
        return min(
            (kept.reliability(now_ms) for agent, kept in self._records.items() if agent.endswith(f"@{node}")),
            default=1.0,
        )


class _Open(NamedTuple):
    times: PromiseTimes
    timer: asyncio.TimerHandle


class PromiseWatch:
    """`reading` reads the clock of the log, and `now_ms` that of the cluster. `answered_at` finds on the log when an
    agent has answered a thread; None if it has not. `may_tell` finds there whether a node may say how a promise ended.
    `promised` and `answered` may be called from any thread.
    """

    def __init__(
        self,
        messages: TempoMessages,
        lane: str,
        reading: Callable[[], Hlc],
        now_ms: Callable[[], int],
        answered_at: Callable[[str, str], Awaitable[int | None]],
        may_tell: Callable[[PromiseResult, int], Awaitable[bool]],
    ) -> None:
        self._messages, self._lane = messages, lane
        self._reading, self._now_ms, self._answered_at, self._may_tell = reading, now_ms, answered_at, may_tell
        self.counts = PromiseCounts()
        self._open: dict[Key, _Open] = {}
        self._outgoing: asyncio.Queue[msgspec.Struct] = asyncio.Queue(OUTGOING_MAX)
        self._judging: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def promised(self, agent_id: str, promise: HelpPromise, made_ms: int, beat_ms: int) -> None:
        times = promise_times(promise, made_ms, beat_ms)
        self._soon(self._promised, (promise.thread_id, agent_id), promise, times)

    def answered(self, thread_id: str, agent_id: str, at_ms: int) -> None:
        """Help has come. Others that have promised it are released."""
        self._soon(self._answered, thread_id, agent_id, at_ms)

    def _soon(self, act: Callable[..., None], *given: object) -> None:
        with suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(act, *given)

    def _promised(self, key: Key, promise: HelpPromise, times: PromiseTimes) -> None:
        if key in self._open or len(self._open) >= OPEN_MAX:
            return
        left_ms = times.closes_ms - self._now_ms()
        timer = self._loop.call_later(max(0, left_ms + 1) / 1000, self._close, key)
        self._open[key] = _Open(times, timer)
        self._tell(promise)

    def _answered(self, thread_id: str, agent_id: str, at_ms: int) -> None:
        for key in [each for each in self._open if each[0] == thread_id]:
            found = self._open.pop(key)
            found.timer.cancel()
            if key[1] == agent_id:
                self._judge(key, found.times, at_ms)

    def _close(self, key: Key) -> None:
        self._begin(self._look(key))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _look(self, key: Key) -> None:
        """The requester has not seen an answer. One may be on the log all the same."""
        answered_ms = await self._answered_at(*key)
        if (found := self._open.pop(key, None)) is not None:
            self._judge(key, found.times, answered_ms)

    def _judge(self, key: Key, times: PromiseTimes, answered_ms: int | None) -> None:
        now = self._reading()
        outcome = promise_outcome(times, answered_ms, self._now_ms()) or PromiseOutcome.BROKEN
        result = PromiseResult(*key, outcome, hlc_text(now))
        self.counts.add(result, now.wall)
        self._tell(result)

    def _tell(self, message: msgspec.Struct) -> None:
        with suppress(asyncio.QueueFull):
            self._outgoing.put_nowait(message)

    async def send(self) -> None:
        """Sends for ever."""
        while True:
            message = await self._outgoing.get()
            await self._messages.publish(message, self._lane)

    async def hear(self) -> None:
        """Counts what other nodes tell, for ever."""
        queue = await self._messages.subscribe(PromiseResult, self._lane)
        try:
            while True:
                heard = await queue.get(HEARD_S)
                if heard is not None and not await self._count(heard) and len(self._judging) < AGAIN_MAX:
                    self._begin(self._count_later(heard))
        finally:
            queue.close()

    async def _count(self, heard: Heard[PromiseResult]) -> bool:
        is_party = await self._may_tell(heard.message, heard.at.node)
        if is_party:
            self.counts.add(heard.message, heard.at.wall)
        return is_party

    async def _count_later(self, heard: Heard[PromiseResult]) -> None:
        await asyncio.sleep(AGAIN_S)
        await self._count(heard)


def send_promise(
    service: Service,
    request: str,
    beats: int,
    fail_after: int | None,
    confidence: float,
    on_fail: str,
    agent: str = "",
) -> MessageShown:
    """Promises help to the sender of a request, which is known by the beginning of its id."""
    message_id = find(service, request)
    with service.read() as session:
        message = session.message(parse_ulid(message_id))
        assert message is not None
        data = message_data(service.runtime.log, session, message, None)
    if data.type != HELP_TYPE:
        raise Usage(f"message {message_id} asks for no help: its type is {data.type!r}, not {HELP_TYPE!r}")
    made = make_promise(message_id, beats, fail_after, confidence, on_fail)
    return send(service, data.sender_address, to_json(made), agent=agent, type=PROMISE_TYPE, reply_to=message_id)
