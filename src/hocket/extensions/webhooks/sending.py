"""Sends events to webhooks, in one process of a node at a time. For each webhook it follows the log and submits a job
for each event; a worker of its own delivers. The jobs bring retries, and show what waits and what was given up. If too
many wait, the webhook waits in the log, which keeps its place.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.api import Program, Service, programs
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.events import Emit
from hocket.events.workers import StepFailed
from hocket.extensions.file_tasks import LOOK_S
from hocket.extensions.webhooks.addresses import AllowList
from hocket.extensions.webhooks.delivery import deliver
from hocket.extensions.webhooks.webhook_file import Webhook, WebhookFile, Webhooks
from hocket.families.jobs import requests
from hocket.families.jobs.authorship import is_own
from hocket.families.jobs.drafts import policy
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import node_text
from hocket.kernel.policy import DEFAULT
from hocket.node.log_events import EventNeed, FoundEvent, LogEvent, PlaceGone, events_of
from hocket.store import JobFilter, Session, Stage
from hocket.work.environment import WorkerOptions
from hocket.work.handler_errors import Fatal
from hocket.work.handlers import Handlers, JobType

if TYPE_CHECKING:
    from hocket.node.node import Node
    from hocket.node.runtime import Runtime

KIND = "hocket.webhook."
# How many deliveries of one webhook wait; then no more are submitted until some are done.
WAITING_MAX = 100
ROOM_LOOK_S = 1.0
DELIVERING = 8
RETRIES = 20
TIMEOUT = "60s"
# The same event is not submitted twice within this time, should the sender die between a submit and noting its place.
ONCE_FOR = "1h"

_OPTIONS = policy(DEFAULT, retries=RETRIES, backoff="5s", timeout=TIMEOUT)
NOT_DONE = tuple(each for each in Stage if each is not Stage.DONE)


def kind_of(node: int, name: str) -> str:
    """The kind of the jobs that deliver for a webhook of this node."""
    return f"{KIND}{node_text(node)}.{name}"


def file_of(runtime: "Runtime") -> WebhookFile:
    return WebhookFile(runtime.home.path, runtime.home.processes)


class Sender:
    def __init__(self, node: "Node", emit: Emit) -> None:
        self._node, self._emit = node, emit
        self._file = file_of(node.runtime)
        self._programs: dict[str, Program | None] = {}
        self._places: dict[str, int] = {}

    async def serve(self, changed: Callable[[float], Awaitable[object]]) -> None:
        """Returns when there are no webhooks left."""
        self._places = await self._node.call(self._file.places)
        following: dict[Webhook, asyncio.Task[None]] = {}
        delivering = asyncio.create_task(self._deliver())
        try:
            while not delivering.done():
                webhooks = await self._node.call(self._look)
                live = {each for each in webhooks.hooks if each.token is None or self._programs.get(each.token)}
                await end_tasks(task for hook, task in following.items() if hook not in live and not task.done())
                following = {hook: task for hook, task in following.items() if hook in live and not task.done()}
                for hook in live - following.keys():
                    following[hook] = asyncio.create_task(self._followed(hook))
                if not webhooks.hooks:
                    return
                await changed(LOOK_S)
            delivering.result()
        finally:
            await end_tasks([*following.values(), delivering])

    def _look(self) -> Webhooks:
        webhooks = self._file.read()
        service = Service(self._node.runtime)
        tokens = {each.token for each in webhooks.hooks if each.token is not None}
        self._programs = {each: programs.in_force(service, each) for each in tokens}
        return webhooks

    def _may(self, hook: Webhook, need: EventNeed) -> bool:
        program = None if hook.token is None else self._programs.get(hook.token)
        if program is None:
            return hook.token is None
        return program.may(need.resource, "Read", need.words, need.scope)

    async def _followed(self, hook: Webhook) -> None:
        try:
            await self._follow(hook)
        except HocketError as error:
            self._emit(StepFailed(f"the webhook {hook.name}", str(error)))

    async def _follow(self, hook: Webhook) -> None:
        feed, place = self._node.event_feed, self._places.get(hook.id, hook.after)
        try:
            listener = await feed.listen(hook.wanted, lambda need: self._may(hook, need), place)
        except PlaceGone as error:
            self._emit(StepFailed(f"the webhook {hook.name}", f"{error}; it goes on after {error.first}"))
            await self._keep(hook, error.first)
            return  # it begins again there
        try:
            while True:
                event = await anext(listener)
                # Deliveries are jobs, too, and would never end.
                wanted = [each for each in (event, *listener.waiting()) if not (each.kind or "").startswith(KIND)]
                if wanted:
                    await self._room(hook)
                    await self._submit(hook, wanted)
                await self._keep(hook, int(listener.place))
        finally:
            await listener.aclose()

    async def _room(self, hook: Webhook) -> None:
        waiting = JobFilter(NOT_DONE, kind=kind_of(self._node.log.node, hook.name))
        while await self._node.peek(lambda session: session.job_count(waiting)) >= WAITING_MAX:
            await asyncio.sleep(ROOM_LOOK_S)

    async def _submit(self, hook: Webhook, events: list[LogEvent]) -> None:
        kind = kind_of(self._node.log.node, hook.name)
        drafts = []
        for each in events:
            once = policy(_OPTIONS, unique=f"{hook.id}/{each.id}", unique_for=ONCE_FOR)
            drafts.append(Draft(kind, msgspec.json.encode({"hook": hook.id, "seq": each.seq}), once))
        await self._node.run(lambda tx: requests.submit(tx, drafts))
        self._node.wrote()

    async def _keep(self, hook: Webhook, place: int) -> None:
        self._places[hook.id] = place
        kept = dict(self._places)
        await self._node.call(lambda: self._file.keep_places(kept))

    async def _deliver(self) -> None:
        """A worker for the deliveries of this node, which takes no job of another."""
        node = self._node.log.node

        def wants(session: Session, schedule: bytes) -> bool:
            return is_own(session, node, schedule)

        job_type: JobType[Any, Any] = JobType(
            f"{KIND}{node_text(node)}.", function=self._delivered, retries=RETRIES, wants=wants
        )
        options = WorkerOptions(Handlers([job_type]), concurrency=DELIVERING, emit=self._emit)
        async with self._node.worker(options) as worker:
            await worker.run()

    def _delivered(self, ctx: Any, hook: str, seq: int) -> str:
        """Delivers an event, on a thread of the worker."""
        webhooks = self._file.read()
        found = next((each for each in webhooks.hooks if each.id == hook), None)
        if found is None:
            return "not sent: the webhook was removed"
        event = self._event(seq)
        if not self._may(found, event.need):
            return "not sent: the token that added the webhook may not read it any more"
        now_s = self._node.log.physical() // 1000
        sent = deliver(found.url, found.secret, AllowList(webhooks.allowed), event.event.id, event.event, now_s)
        return f"{sent.status}"

    def _event(self, seq: int) -> FoundEvent:
        log = self._node.log
        with log.store.read() as session:
            rows = [row for row in session.ops_after(seq - 1, 1) if row.seq == seq]
            events = events_of(session, rows, log.rules.is_strict)
        if not events:
            raise Fatal(f"the log no longer has the event {seq}, or it does not count any more")
        return events[0]
