"""The API of a node for programs. `async with hocket.open() as node` gives a `Node`, `with hocket.open() as node` a
`SyncNode`. Both submit jobs, return handles and run workers, over the same runtime.
"""

import asyncio
import os
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from hocket.bus.hints import ANYTHING, Changes
from hocket.errors import Failed, StoreAway, Unreachable, Usage
from hocket.events import Emit, ignore, sentences
from hocket.events.event_logging import logged
from hocket.families.inbox import requests as messages
from hocket.families.jobs import bulk
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.bulk import CANCEL, RETRY, BulkChange, Changed, Which, postponing
from hocket.families.jobs.parts import Part
from hocket.families.jobs.postponing import start_time
from hocket.families.jobs.requests import Decision, Draft, Offer, Submitted
from hocket.families.jobs.tracing import tracer
from hocket.kernel.extension import extension_kinds, loaded, part
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.log import Transaction
from hocket.mesh.waiting import Waiting
from hocket.node import handles
from hocket.node.calls import Blocking, JobRequest, StreamNews, drafts_of, each, id_of, kept, now, pairs_of
from hocket.node.delivery import Delivery
from hocket.node.handles import Handle, SyncHandle
from hocket.node.home import switched_on
from hocket.node.inbox import (
    Attached,
    Body,
    Duration,
    Inbox,
    MessageData,
    MessageOptions,
    ReceivedMessage,
    SyncInbox,
    ask,
    draft_of,
    node_of,
)
from hocket.node.kept_requests import keep_jobs, keep_message, send_kept
from hocket.node.local_node import LOOK_AGAIN_S, LocalNode, run_services
from hocket.node.locks import HeldLock, LockOptions, NodeLock, for_threads
from hocket.node.process_loop import INLINE, on_loop, process_loop
from hocket.node.rows import RowTable, SyncRowTable
from hocket.node.runtime import Runtime
from hocket.node.signals import held_interrupts, stopped_by_signals
from hocket.store import Session
from hocket.system import has_process_control
from hocket.work.environment import WorkerOptions
from hocket.work.handler_threads import ProcessPlan, plan
from hocket.work.handlers import Handlers, JobType, named_kind
from hocket.work.members import RosterAsk, claimable, overdue
from hocket.work.output_capture import catching
from hocket.work.presence import Serving, WorkerPart, serving
from hocket.work.run_outputs import RunServices
from hocket.work.worker import Worker

if TYPE_CHECKING:
    from hocket.node.calls import Pairs, Step
    from hocket.node.log_events import Allowed, EventFilter, LogEvent

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

SubmitDrafts = Callable[[Transaction, list[Draft]], list[Submitted]]
# Called with the worker when it begins.
Started = Callable[[Worker], None]

OWNED = "this node belongs to the worker or the server that runs here, which closes it"


def handler_processes(runtime: Runtime, count: int, handlers: Handlers) -> ProcessPlan:
    """How a worker of this node runs these handlers in processes. Raises Usage if a process could not import them."""
    return plan(count, "hocket.node.handler_process", runtime.home.path, handlers.served())


@contextmanager
def worker_parts(
    runtime: Runtime, emit: Emit, allow: Iterable[str] | None, allow_any: bool, allow_env: Iterable[str] | None
) -> Iterator[list[WorkerPart]]:
    """What extensions add to a worker of this node. Of the jobs of other nodes they run those that the home's
    configuration or these patterns allow, with variables of these names. Nothing that runs commands, where the system
    cannot.
    """
    with ExitStack() as stack:
        kinds = [each for each in extension_kinds() if has_process_control() or not each.commands]
        places = [each.worker for each in kinds if each.worker]
        yield [stack.enter_context(loaded(each)(runtime, emit, allow, allow_any, allow_env)) for each in places]


def _chain(count: int) -> list[range]:
    """Which of so many jobs each comes after, by their places: the one before it."""
    return [range(max(0, at - 1), at) for at in range(count)]


class Node(LocalNode):
    """The async API."""

    @overload
    async def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> Handle[R]: ...
    @overload
    async def submit(self, job: str | JobRequest, /, **payload: Any) -> Handle[Any]: ...
    async def submit(self, job: JobType[Any, Any] | str | JobRequest, /, *args: Any, **payload: Any) -> Handle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        if not isinstance(job, JobType | str):
            prepared = await self.call(lambda: job.prepared(self.runtime))
            await self._check([prepared.draft])
            job_id = await self.run(lambda tx: prepared.submit(tx, self.runtime))
            self.wrote()
            return Handle(self, job_id, created=True)
        job_type = named_kind(job)
        draft = job_type.draft(payload, args)
        if job_type.policy is not DEFAULT or tracer() is not None:
            return (await self._submit([job_type], [draft], jobs.submit))[0]
        return Handle(self, *await self.submit_draft(draft), job_type.signature)

    async def append_plain(self, draft: Draft) -> bytes:
        """Submits a job without options, in a shorter way unless other submits wait to share a commit."""
        log = self.runtime.log
        submit: Callable[[Transaction], bytes] = lambda tx: jobs.submit(tx, [draft])[0].job_id  # noqa: E731
        alone = lambda: log.append_plain(draft.kind, draft.payload) or log.run(submit, beside=True)  # noqa: E731
        return await self._committer.run(submit, alone=alone, beside=True)

    async def submit_draft(self, draft: Draft) -> Submitted:
        """Submits the draft of one job, with others that wait in one commit."""
        if draft.policy is not DEFAULT or draft.trace is not None or draft.job_id is not None:
            return (await self._written([draft], jobs.submit))[0]
        keep: Callable[[StoreAway], bytes] = lambda error: keep_jobs(self.runtime, error, [draft])[0].job_id  # noqa: E731
        return Submitted(await self._written_or_kept(lambda: self.append_plain(draft), keep), True)

    async def submit_many(self, pairs: "Pairs") -> list[Handle]:
        """Submits many jobs in one transaction: all or none."""
        types, drafts = drafts_of(pairs)
        return await self._submit(types, drafts, jobs.submit)

    async def chain(self, *steps: "Step") -> list[Handle]:
        """Submits jobs that run one after the other, each when the one before it has succeeded: all or none. A step is
        a job with its payload, or without one; `ctx.results` has the result of the step before.
        """
        types, drafts = drafts_of(pairs_of(steps))
        return await self._submit(types, drafts, jobs.submit_chain)

    async def _submit(self, types: list[JobType], drafts: list[Draft], submit: SubmitDrafts) -> list[Handle]:
        made = await self._written(drafts, submit)
        return [Handle(self, *each, type.signature) for type, each in zip(types, made, strict=True)]

    async def _written(self, drafts: list[Draft], submit: SubmitDrafts) -> list[Submitted]:
        async def write() -> list[Submitted]:
            await self._check(drafts)
            return await self.run(lambda tx: submit(tx, drafts), beside=True)

        cited = _chain(len(drafts)) if submit is jobs.submit_chain else ()
        return await self._written_or_kept(write, lambda error: keep_jobs(self.runtime, error, drafts, cited))

    async def _written_or_kept(self, write: Callable[[], Awaitable[T]], keep: Callable[[StoreAway], T]) -> T:
        """Writes, after all that was kept before, and tells the other nodes. If the database is away, calls `keep`."""
        runtime = self.runtime
        try:
            if runtime.spool is not None and runtime.spool.is_waiting:
                await self.call(lambda: send_kept(runtime))
            made = await write()
        except StoreAway as error:
            reason = error
            return await self.call(lambda: keep(reason))
        runtime.kept = None
        self.wrote()
        return made

    async def _check(self, drafts: list[Draft]) -> None:
        if checks := self.runtime.submit_checks(drafts):
            await self.call(lambda: [check() for check in checks])

    async def cost(self, job_id: str) -> Any:
        """What a job used and cost so far, by this node's rate card: a CostRow."""
        return await self.call(lambda: part("node", "cost")(self.runtime, job_id))

    async def costs(self, by: str = "kind", *, since_ms: int = 0) -> Any:
        """What the runs cost that ended since that time, by "kind", "node" or "account": Costs."""
        return await self.call(lambda: part("node", "costs")(self.runtime, by, since_ms))

    async def estimate(self, kind: str) -> Any:
        """What a job of this kind is expected to cost, from those that succeeded: an Estimate, or None without any."""
        return await self.call(lambda: part("node", "estimate")(self.runtime, kind))

    async def gather(self, *waited: Handle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order. Raises JobFailed or JobCancelled when one
        of them ends so, and TimeoutError.
        """
        found = await handles.results(self, [each._id for each in waited], timeout)
        return [handles.typed(each._signature, each._id, value) for each, value in zip(waited, found, strict=True)]

    def parts(self, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]:
        """The parts of a job's result, each once and in order, as they come."""
        from hocket.node.job_stream import job_parts

        return job_parts(self, job_id, news)

    async def events(self, wanted: "EventFilter", allowed: "Allowed", after: int | None) -> "AsyncIterator[LogEvent]":
        """The events of the log after a place, as they come, for ever. Raises PlaceGone."""
        return await self.event_feed.listen(wanted, allowed, after)

    def rows(self, table: str, *, agent: str = "") -> RowTable:
        """The rows of a table, which several agents may write. `agent` is the name under which this one does."""
        return RowTable(self, table, agent)

    def job(self, job_id: str) -> Handle:
        """A handle on an existing job, by its full id."""
        return Handle(self, id_of(job_id), created=False)

    async def claimable(self, kind: str | None = None, *, limit: int = 50) -> list[Handle]:
        """The pending jobs of a kind (`acme.` for all kinds below acme) that this node may claim now, the oldest
        first.
        """
        found = await self.call(lambda: _asked(self.runtime, claimable, kind, limit))
        return [Handle(self, each, created=False) for each in found]

    async def overdue(self, kind: str | None = None, *, limit: int = 50) -> list[Handle]:
        """The claimed jobs of a kind that are past their deadline, the oldest first."""
        found = await self.call(lambda: _asked(self.runtime, overdue, kind, limit))
        return [Handle(self, each, created=False) for each in found]

    async def cancel_many(self, **which: Unpack[Which]) -> Changed:
        """Cancels every job of a `kind` (`acme.` means all kinds below it), in a `state` (`waiting` or `running`; both
        if not given), submitted longer ago than `older_than`. Each transaction writes a bounded number of jobs.
        """
        return await self._change(CANCEL, **which)

    async def retry_many(self, **which: Unpack[Which]) -> Changed:
        """Retries every job that `which` selects, as in `cancel_many`. The state is `failed`, if not given, or
        `cancelled`.
        """
        return await self._change(RETRY, **which)

    async def postpone_many(
        self, until: int | str | datetime | None = None, *, delay: Duration | None = None, **which: Unpack[Which]
    ) -> Changed:
        """Moves the start of every pending job that `which` selects, as in `cancel_many`: to a time, or by a `delay`
        from now; 0 lets it start now.
        """
        return await self._change(postponing(start_time(until, delay)), **which)

    async def _change(self, change: BulkChange, **which: Unpack[Which]) -> Changed:
        try:
            return await bulk.change_which(self, change, **which)
        except Unreachable as error:
            raise kept(error) from error
        finally:
            self.wrote()

    def secret(self, project: str, role: str, **options: int) -> Any:
        """The secret of a project and a role, which changes on each downbeat of the tempo in force. Its tokens are void
        `bars` bars later, 4 by default.
        """
        return part("node", "secret")(self.runtime, project, role, **options)

    def lock(self, *keys: str, agent: str, **options: Unpack[LockOptions]) -> NodeLock:
        """Holds these keys, all at once, in an `async with` block. See `LockOptions`."""
        return NodeLock(self, self.lock_processes, keys, agent, self.runtime.hold_length, **options)

    async def send(
        self, to: str, body: Body, *, attachments: Iterable[Attached] = (), **options: Unpack[MessageOptions]
    ) -> str:
        """Sends a message to an agent (`editor`, `editor@gpu-box`), a group (`team/`) or `all`, and returns its id. The
        body is text, bytes or anything that can be JSON; an attachment is a path, or a name with bytes or a path. See
        `MessageOptions`.
        """
        runtime, attached = self.runtime, list(attachments)

        async def write() -> bytes:
            draft = await self.call(lambda: draft_of(runtime.log, runtime.blobs, to, body, attached, **options))
            message_id = await self.run(lambda tx: messages.send(tx, runtime.blobs, draft))
            self.wrote(node_of(draft))
            return message_id

        keep: Callable[[StoreAway], bytes] = lambda error: keep_message(  # noqa: E731
            runtime, error, to, body, attachments=attached, **options
        )
        return ulid_text(await self._written_or_kept(write, keep))

    def inbox(self, agent: str | None = None) -> Inbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return Inbox(self, agent)

    async def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> ReceivedMessage:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""
        return await ask(self, to, body, wait, agent, options)

    async def work(
        self,
        handlers: Handlers | Iterable[JobType],
        *,
        allow: Iterable[str] | None = None,
        allow_any: bool = False,
        allow_env: Iterable[str] = (),
        processes: int | None = None,
        events: Emit = ignore,
        notice: Callable[[str], None] | None = None,
        signals: bool = True,
        started: Started = lambda worker: None,
        tempo: str | os.PathLike[str] | None = None,
        weighs_promises: bool = False,
        **options: Any,
    ) -> Worker:
        """Runs a worker in this process until SIGTERM or SIGINT; a second signal stops it at once. With `signals=False`
        it leaves the signals to the program. If the task that runs it is cancelled, it hands its jobs back. With
        `allow` or `allow_any` it also runs commands: this node's own, and those of other nodes that match a pattern
        and set only variables in `allow_env`.

        With `processes` the handlers run in that many processes, which import the handlers' modules; a handler that
        does not stop at its timeout is killed with its process.

        `tempo` is the file of a tempo policy; default `tempo.yaml` in the home, if there is one. With a tempo, a worker
        that `weighs_promises` has a lower weight after agents of its node broke promises.

        Options: `concurrency` (how many jobs run at once, 4), `until_idle` (return when no job is left), `grace`
        (seconds that handlers may run after the first signal, 10), `ahead` (how many jobs it claims beyond the running
        ones, 256), `labels` (what jobs may need, like "gpu=a100"), `weight` (its share of the
        jobs that go by rank, 1), `finished` (called with each run and its outcome), `started` (called with the worker
        when it begins; its `stop` does what a signal does).

        `events` is called with every event, `notice` with a sentence about each event that is not routine. Both are
        called in the event loop's thread or in one that talks to other nodes, and must not block. Events also go to the
        logger `hocket`. What handlers print and log is kept for `hocket logs`.

        Raises Failed if as many handlers are stuck as there are slots: then only a new process helps.
        """
        served = handlers if isinstance(handlers, Handlers) else Handlers(handlers)
        if processes is not None:
            if processes < 1:
                raise Usage(f"{processes} processes are too few; give at least 1")
            options = (
                {"concurrency": processes} | options | {"processes": handler_processes(self.runtime, processes, served)}
            )
        emit = logged(events if notice is None else sentences(notice, also=events))
        with ExitStack() as stack:
            parts: list[WorkerPart] = []
            if allow is not None or allow_any:
                # It loads 40 modules, and most programs' workers run no commands.
                parts = stack.enter_context(worker_parts(self.runtime, emit, allow, allow_any, allow_env))
            for each_part in parts:
                served = served.plus(each_part.job_type())
            settings = {"tempo": tempo, "weighs_promises": weighs_promises}
            chosen = WorkerOptions(served, emit=emit, settings=settings, **options)
            async with self.worker(chosen, parts) as worker:
                if signals:
                    stack.enter_context(stopped_by_signals(worker.stop))
                stack.enter_context(catching())
                async with self.in_touch(emit):
                    started(worker)
                    await worker.run()
        if worker.is_spent:
            raise Failed("every slot has a handler that does not end; only a new process is rid of them, so restart it")
        return worker

    @asynccontextmanager
    async def worker(self, options: WorkerOptions, parts: Iterable[WorkerPart] = ()) -> AsyncIterator[Worker]:
        """Puts a worker together: with the messages between nodes, with what it tells others about its handlers and
        these parts, and with what extensions add. Run it inside the block.
        """
        options.messages = options.messages or await self.mesh_messages(options.emit)
        if options.serving is None:
            options.serving = serving(options.handlers.topics(), parts)
        async with AsyncExitStack() as stack:
            for extension in switched_on(self.runtime.home, options.settings):
                if extension.worker:
                    await stack.enter_async_context(loaded(extension.worker)(self, options))
            yield Worker(self, self.environment, options)

    def holding(self, shortest_lease_s: Callable[[], float]) -> AbstractContextManager[None]:
        breaker = self.runtime.store_breaker
        return nullcontext() if breaker is None else breaker.holding(shortest_lease_s)

    def kit(self, kind: str) -> RunServices:
        loop = asyncio.get_running_loop()

        def node(is_async: bool) -> Node | SyncNode:
            return handler_node(self, loop, self._mesh_executor, is_async=is_async)

        kit = run_services(self.runtime, kind, self.environment.monotonic)
        return kit._replace(node=node, stream=self.part_sender().tell)

    def blocking(self) -> "SyncNode":
        """This node for the other threads of the process. What waits is done on the event loop that runs here."""
        return SyncNode(self.runtime, target=DirectNode(self.runtime, owner=(self, asyncio.get_running_loop())))

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractAsyncContextManager[Worker]:
        """Runs a worker beside an `async with` block. At its end the worker stops, as after a first signal; if the
        block is cancelled, it hands its jobs back at once. Signals stay the program's; the other options are those of
        `work`.
        """
        return _beside(lambda started: self.work(handlers, signals=False, started=started, **options))


class DirectNode(Node):
    """The async API without an event loop: store calls are done where the caller is, or on an `executor`, and nothing
    suspends. What needs an event loop is done on that of the `owner`, or else by a node that is opened for it.
    """

    def __init__(
        self,
        runtime: Runtime,
        delivery: Delivery | None = None,
        owner: tuple[Node, asyncio.AbstractEventLoop] | None = None,
        executor: Executor = INLINE,
    ) -> None:
        super().__init__(runtime, executor, None if owner is None else owner[0].environment)
        self.delivery, self._owner = delivery, owner

    async def call(self, work: Callable[[], T]) -> T:
        return work() if self._executor is INLINE else self._executor.submit(work).result()

    async def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        log = self.runtime.log
        return await self.call(lambda: log.run(request, beside=beside))

    async def append_plain(self, draft: Draft) -> bytes:
        log = self.runtime.log
        job_id = await self.call(lambda: log.append_plain(draft.kind, draft.payload))
        if job_id is not None:
            return job_id
        return await self.run(lambda tx: jobs.submit(tx, [draft])[0].job_id, beside=True)

    async def _query(self, view: Callable[[], AbstractContextManager[Session]], query: Callable[[Session], T]) -> T:
        def run() -> T:
            with view() as session:
                return query(session)

        return await self.call(run)

    async def waiting(self, job_id: bytes, here: Sequence[Serving] = ()) -> Waiting | None:
        return await self.call(lambda: self.runtime.waiting_of(job_id, here))

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        return self.on_loop(lambda node: node.consult(offers, is_urgent=is_urgent))

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        deadline = None if timeout is None else time.monotonic() + timeout
        with held_interrupts() as interrupts, closing(self.runtime.bus.subscribe(topics)) as changes:
            if self.delivery is not None:
                self.delivery.start()
            while True:
                found, value = await look()
                if found:
                    await self.call(self.runtime.log.lead.wait_for_all)
                    return value
                left = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                with interrupts.let_in():
                    changes.wait(left)

    async def parts(self, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]:
        with self.entered(lambda node: aclosing(node.parts(job_id, news))) as source:
            while (part := on_loop(self._loop, _next(source))) is not None:
                yield part

    async def close(self) -> None:
        if self._owner is not None:
            raise Usage(OWNED)
        delivery, self.delivery = self.delivery, None
        if delivery is not None:
            delivery.close()
        await super().close()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return process_loop() if self._owner is None else self._owner[1]

    def on_loop(self, act: Callable[[Node], Awaitable[T]], executor: Executor | None = None) -> T:
        """Runs a function on an event loop. Without an owner its node does store calls on the executor, or on threads
        of its own.
        """

        async def run() -> T:
            async with self._looping(executor) as node:
                return await act(node)

        return on_loop(self._loop, run())

    @contextmanager
    def entered(self, make: Callable[[Node], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Enters a block of a node on an event loop."""
        stack = AsyncExitStack()

        async def enter() -> T:
            async with AsyncExitStack() as entering:
                entered = await entering.enter_async_context(make(await entering.enter_async_context(self._looping())))
                stack.push_async_exit(entering.pop_all())
            return entered

        async def leave() -> None:
            await stack.aclose()

        value = on_loop(self._loop, enter())
        try:
            yield value
        finally:
            on_loop(self._loop, leave())

    @asynccontextmanager
    async def _looping(self, executor: Executor | None = None) -> AsyncIterator[Node]:
        if self._owner is not None:
            yield self._owner[0]
            return
        node = Node(self.runtime, executor)
        node.delivery = self.delivery
        try:
            yield node
        finally:
            await node.finish()


class SyncNode:
    """The synchronous API, for scripts. Safe to use from several threads."""

    def __init__(self, runtime: Runtime, delivery: Delivery | None = None, *, target: DirectNode | None = None) -> None:
        self._target = target or DirectNode(runtime, delivery)

    @property
    def runtime(self) -> Runtime:
        return self._target.runtime

    def wrote(self, to: int | None = None) -> None:
        """Something is on the log that others must get, above all node `to`."""
        self._target.wrote(to)

    close = Blocking(Node.close)
    cost = Blocking(Node.cost)
    costs = Blocking(Node.costs)
    estimate = Blocking(Node.estimate)
    cancel_many = Blocking(Node.cancel_many)
    retry_many = Blocking(Node.retry_many)
    postpone_many = Blocking(Node.postpone_many)
    send = Blocking(Node.send)

    @overload
    def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def submit(self, job: str | JobRequest, /, **payload: Any) -> SyncHandle[Any]: ...
    def submit(self, job: JobType[Any, Any] | str | JobRequest, /, *args: Any, **payload: Any) -> SyncHandle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        return SyncHandle(now(self._target.submit(job, *args, **payload)))

    def submit_many(self, pairs: "Pairs") -> list[SyncHandle]:
        """Submits many jobs in one transaction: all or none."""
        return [SyncHandle(handle) for handle in now(self._target.submit_many(pairs))]

    def chain(self, *steps: "Step") -> list[SyncHandle]:
        """Submits jobs that run one after the other, as `Node.chain` does."""
        return [SyncHandle(handle) for handle in now(self._target.chain(*steps))]

    def gather(self, *waited: SyncHandle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order, as `Node.gather` does."""
        return now(self._target.gather(*(handle._target for handle in waited), timeout=timeout))

    def job(self, job_id: str) -> SyncHandle:
        """A handle on an existing job, by its full id."""
        return SyncHandle(self._target.job(job_id))

    def claimable(self, kind: str | None = None, *, limit: int = 50) -> list[SyncHandle]:
        """The jobs that this node may claim now, as `Node.claimable` gives them."""
        return [SyncHandle(handle) for handle in now(self._target.claimable(kind, limit=limit))]

    def overdue(self, kind: str | None = None, *, limit: int = 50) -> list[SyncHandle]:
        """The running jobs that are past their deadline, as `Node.overdue` gives them."""
        return [SyncHandle(handle) for handle in now(self._target.overdue(kind, limit=limit))]

    def rows(self, table: str, *, agent: str = "") -> SyncRowTable:
        """The rows of a table, as `Node.rows` gives them."""
        return SyncRowTable(self._target.rows(table, agent=agent))

    def secret(self, project: str, role: str, **options: int) -> Any:
        """The secret of a project and a role, as `Node.secret` gives it."""
        return self._target.secret(project, role, **options)

    def inbox(self, agent: str | None = None) -> SyncInbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return SyncInbox(self._target.inbox(agent))

    def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> MessageData:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""
        return now(self._target.ask(to, body, wait=wait, agent=agent, **options)).data

    def lock(
        self, *keys: str, agent: str, **options: Unpack[LockOptions]
    ) -> AbstractContextManager[HeldLock[threading.Event]]:
        """Holds these keys, all at once, in a `with` block. See `LockOptions`; such a block cannot be cancelled."""
        if options.get("cancel"):
            raise Usage("a plain block cannot be cancelled; look at `held.lost`")
        return self._target.entered(lambda node: for_threads(node.lock(*keys, agent=agent, **options)))

    def work(self, handlers: Handlers | Iterable[JobType], **options: Any) -> Worker:
        """Runs a worker in this thread until a signal stops it. The options are those of `Node.work`."""

        async def run() -> Worker:
            node = Node(self.runtime)
            node.delivery = self._target.delivery
            try:
                return await node.work(handlers, **options)
            finally:
                await node.finish()

        return asyncio.run(run())

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractContextManager[Worker]:
        """Runs a worker beside a `with` block. At its end the worker stops, as after a first signal. The options are
        those of `Node.work`.
        """
        return self._target.entered(lambda node: node.working(handlers, **options))

    def until(
        self, look: Callable[[Session], tuple[bool, T]], timeout: float | None = None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""
        return now(self._target.until(lambda: self._target.read(look), timeout, topics))

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function that touches the store."""
        return now(self._target.call(work))

    def parts(self, job_id: bytes, news: StreamNews) -> Generator[Part, None, None]:
        """The parts of a job's result, as `Node.parts` gives them."""
        return each(self._target.parts(job_id, news))

    def direct(self, act: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Runs a function of a node that only asks and waits for changes."""
        return now(act(self._target))

    def with_node(self, act: Callable[[Node], Awaitable[T]]) -> T:
        """Runs a function of a node on an event loop. A process without one of its own needs no other thread for it."""
        return self._target.on_loop(act, INLINE)

    def each_of(self, begin: Callable[[Node], Awaitable[AsyncIterator[T]]]) -> Generator[T, None, None]:
        """Yields what an async iterator yields that a function of a node returns, on an event loop."""
        with self._target.entered(lambda node: _begun(begin(node))) as source:
            while (item := on_loop(self._target._loop, _next(source))) is not None:
                yield item


@asynccontextmanager
async def _begun(begin: Awaitable[AsyncIterator[T]]) -> AsyncIterator[AsyncIterator[T]]:
    items = await begin
    try:
        yield items
    finally:
        if hasattr(items, "aclose"):
            await items.aclose()


@asynccontextmanager
async def _beside(work: Callable[[Started], Coroutine[Any, Any, object]]) -> AsyncIterator[Worker]:
    """Runs `work` as a task until the block ends; then stops the worker and waits for it. If the block is cancelled, so
    is the task: the worker hands its jobs back at once.
    """
    begun: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work(begun.set_result))
    try:
        first: list[asyncio.Future[Any]] = [begun, task]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await task  # it has failed
        yield begun.result()
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if begun.done() and not task.cancelling():
            begun.result().stop()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


def _asked(runtime: Runtime, ask: RosterAsk, kind: str | None, limit: int) -> list[bytes]:
    with runtime.read() as session:
        return [entry.job.id for entry in ask(runtime.log, session, kind, limit)]


async def _next(source: AsyncIterator[T]) -> T | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Part, None]) -> None:
    await source.aclose()


def handler_node(node: Node, loop: asyncio.AbstractEventLoop, executor: Executor, *, is_async: bool) -> Node | SyncNode:
    """`ctx.node`: the worker's own node, for its handlers. They run on other threads than the worker, and one that is
    stopped gets an exception at any point. So all work on the store is done on threads that no exception reaches.
    """
    if is_async:
        return AsyncHandlerNode(node, executor, loop)
    return SyncNode(node.runtime, target=DirectNode(node.runtime, owner=(node, loop), executor=executor))


class AsyncHandlerNode(Node):
    """The worker's node for a coroutine. All waiting is done on `loop`, the event loop of the worker's node."""

    def __init__(self, node: Node, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(node.runtime, executor, node.environment)
        self._worker_node = node
        self._loop = loop

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        return await self._there(self._worker_node.consult(offers, is_urgent=is_urgent))

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        return await self._there(self._worker_node.until(look, timeout, topics))

    async def parts(self, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]:
        source = self._worker_node.parts(job_id, news)
        try:
            while (part := await self._there(_next(source))) is not None:
                yield part
        finally:
            await self._there(_close(source))

    async def events(self, wanted: "EventFilter", allowed: "Allowed", after: int | None) -> "AsyncIterator[LogEvent]":
        source = await self._there(self._worker_node.event_feed.listen(wanted, allowed, after))

        async def each() -> "AsyncIterator[LogEvent]":
            try:
                while (event := await self._there(_next(source))) is not None:
                    yield event
            finally:
                await self._there(source.aclose())

        return each()

    async def close(self) -> None:
        raise Usage(OWNED)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
