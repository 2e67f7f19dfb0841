"""The API of a node for programs. `async with hocket.open() as node` gives a `Node`, `with hocket.open() as node` a
`SyncNode`. Both submit jobs, return handles and run workers, over the same runtime.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
)
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from hocket.bus import Subscription
from hocket.bus.changes import ANYTHING, Changes
from hocket.bus.listener import Listener
from hocket.bus.memory import MemoryBus
from hocket.coordination import inbox as messages
from hocket.coordination.lock_processes import LockProcesses, LockSweep
from hocket.errors import Failed, Unreachable, Usage
from hocket.events import AllowanceIsRisky, Emit, ignore, sentences
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.kernel.roster import Job
from hocket.log import LockTransaction, Log, Transaction
from hocket.log.committer import Committer
from hocket.mesh.waiting import Waiting
from hocket.node import handles
from hocket.node.delivery import Delivery, waiting_of
from hocket.node.embedded import Started, beside, on_a_thread
from hocket.node.handles import Handle, SyncHandle
from hocket.node.inbox import (
    Attached,
    Body,
    Duration,
    Inbox,
    MessageData,
    ReceivedMessage,
    SyncInbox,
    ask,
    draft_of,
    node_of,
)
from hocket.node.locks import HeldLock, LockOptions, NodeLock, locked_on_a_thread
from hocket.node.requests import Pairs, Step, accepted, drafts_of, id_of, kept, pairs_of
from hocket.node.rows import RowTable, SyncRowTable
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.node.variables import MESH_ENABLED, is_on
from hocket.store import Session
from hocket.work import bulk, chains, jobs
from hocket.work.arbiter import decided
from hocket.work.blobs import Blobs
from hocket.work.bulk import CANCEL, RETRY, BulkChange, Changed, Which
from hocket.work.clock_watch import ClockWatch
from hocket.work.command import request
from hocket.work.command.request import CommandRequest
from hocket.work.command.secret_handover import HandOver
from hocket.work.environment import Environment, MachineEnvironment
from hocket.work.event_logging import logged
from hocket.work.handler_processes import ProcessPlan, plan
from hocket.work.handlers import Handlers, JobType, named_kind
from hocket.work.jobs import Offer, Result, Submitted
from hocket.work.maintenance import Maintenance
from hocket.work.output_capture import catching
from hocket.work.pending_decisions import Decision, decisions
from hocket.work.run_outputs import RunServices
from hocket.work.serving import Serving, serving
from hocket.work.supervision import supervised
from hocket.work.sweep import SweepLoop
from hocket.work.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from hocket.mesh.services import MeshServices

T = TypeVar("T")

WORKERS_OWN = "this node belongs to the worker, which closes it"

P = ParamSpec("P")
R = TypeVar("R")

# A hint can be lost, so every waiter looks again after this long.
LOOK_AGAIN_S = 2.0
# The most queries that run at once.
READ_THREADS = 4


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _still_open(runtime: Runtime | None) -> Runtime:
    if runtime is None:
        raise Usage("this node is closed; open it again with hocket.open()")
    return runtime


def handler_processes(runtime: Runtime, count: int, handlers: Handlers) -> ProcessPlan:
    """How a worker of this node runs these handlers in processes. Raises Usage if a process could not import them."""
    return plan(count, "hocket.node.handler_process", runtime.home.path, handlers.served())


class Node:
    """The async API. Store calls run on an executor, so they never block the event loop."""

    def __init__(
        self, runtime: Runtime, executor: Executor | None = None, environment: Environment | None = None
    ) -> None:
        self._runtime: Runtime | None = runtime
        self.environment: Environment = environment or MachineEnvironment(
            runtime.home.processes, runtime.bus, runtime.machine_clock
        )
        self._executor = executor or ThreadPoolExecutor(1, "hocket-store")
        self._read_executor = executor or ThreadPoolExecutor(READ_THREADS, "hocket-read")
        # Admitting a peer's ops takes long, so it has threads of its own and delays nothing else.
        self._mesh_executor = executor or ThreadPoolExecutor(4, "hocket-mesh")
        self._committer = Committer(runtime.log, self._executor)
        self.reach: Callable[[bool], Awaitable[None]] | None = None
        """Syncs with the arbiter, if this process is connected to other nodes. Raises Unreachable."""
        self.delivery: Delivery | None = None
        """Connects a node that only submits with the others; None if this process does that in another way."""
        # All waiters of this object share one subscription and one bus.
        self._hints: Subscription | None = None
        self._waiters = MemoryBus()
        self._services: MeshServices | None = None
        self.lock_processes = LockProcesses(self.environment)

    @property
    def runtime(self) -> Runtime:
        return _still_open(self._runtime)

    async def finish(self) -> None:
        """Ends everything that this object started. The runtime stays open."""
        self.lock_processes.close()
        if self._services is not None:
            await self._services.close()
        await self._committer.close()
        if self._hints is not None:
            self._hints.close()
        self._executor.shutdown()
        self._read_executor.shutdown()
        self._mesh_executor.shutdown()

    async def close(self) -> None:
        """Closes the node. A node that is closed already stays as it is."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self.delivery is not None:
                await asyncio.get_running_loop().run_in_executor(None, self.delivery.close)
            await self.finish()
            runtime.close()

    def wrote(self, to: int | None = None) -> None:
        """Something is on the log that others must get, above all node `to`."""
        if self.delivery is not None:
            self.delivery.wrote(to)

    @overload
    async def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> Handle[R]: ...
    @overload
    async def submit(self, job: str | CommandRequest, /, **payload: Any) -> Handle[Any]: ...
    async def submit(self, job: JobType[Any, Any] | str | CommandRequest, /, *args: Any, **payload: Any) -> Handle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        if not isinstance(job, JobType | str):
            blobs, secrets = self.runtime.blobs, self.runtime.secrets
            packed = await self.call(lambda: request.pack(job, blobs))
            job_id = await self.run(lambda tx: request.submit(tx, blobs, secrets, packed))
            self.wrote()
            return Handle(self, job_id, created=True)
        job_type, log = named_kind(job), self.runtime.log
        draft = job_type.draft(payload, args)
        if job_type.policy is not DEFAULT:
            return (await self._submit([job_type], lambda tx: jobs.submit(tx, [draft])))[0]
        # The job has no special options, so it takes the fast path, unless other submits wait to share a commit.
        request: Callable[[Transaction], bytes] = lambda tx: jobs.submit(tx, [draft])[0].job_id  # noqa: E731
        made = await self._committer.run(
            request, alone=lambda: log.append_plain(draft.kind, draft.payload) or log.run(request)
        )
        self.wrote()
        return Handle(self, made, created=True, signature=job_type.signature)

    async def submit_many(self, pairs: Pairs) -> list[Handle]:
        """Submits many jobs in one transaction: all or none."""
        types, drafts = drafts_of(pairs)
        return await self._submit(types, lambda tx: jobs.submit(tx, drafts))

    async def chain(self, *steps: Step) -> list[Handle]:
        """Submits jobs that run one after the other, each when the one before it has succeeded: all or none. A step is
        a job with its payload, or without one; `ctx.results` has the result of the step before.
        """
        types, drafts = drafts_of(pairs_of(steps))
        return await self._submit(types, lambda tx: chains.submit(tx, drafts))

    async def _submit(self, types: list[JobType], request: Callable[[Transaction], list[Submitted]]) -> list[Handle]:
        made = await self.run(request)
        self.wrote()
        return [Handle(self, *each, type.signature) for type, each in zip(types, made, strict=True)]

    async def gather(self, *waited: Handle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order. Raises JobFailed or JobCancelled when one
        of them ends so, and TimeoutError.
        """
        found = await handles.results(self, [each._id for each in waited], timeout)
        return [handles.typed(each._signature, each._id, value) for each, value in zip(waited, found, strict=True)]

    def rows(self, table: str, *, agent: str = "") -> RowTable:
        """The rows of a table, which several agents may write. `agent` is the name under which this one does."""
        return RowTable(self, table, agent)

    def job(self, job_id: str) -> Handle:
        """A handle on an existing job, by its full id."""
        return Handle(self, id_of(job_id), created=False)

    async def cancel_many(self, **which: Unpack[Which]) -> Changed:
        """Cancels every job of a `kind` (`acme.` means all kinds below it), in a `state` (`waiting` or `running`; both
        if not given), submitted longer ago than `older_than`. Each transaction writes a bounded number of jobs.
        """
        return await self._change(CANCEL, **which)

    async def retry_many(self, **which: Unpack[Which]) -> Changed:
        """The same for a retry. The state is `failed`, if not given, or `cancelled`."""
        return await self._change(RETRY, **which)

    async def _change(self, change: BulkChange, **which: Unpack[Which]) -> Changed:
        try:
            return await bulk.change_which(self, change, **which)
        except Unreachable as error:
            raise kept(error) from error
        finally:
            self.wrote()

    def lock(self, *keys: str, agent: str, **options: Unpack[LockOptions]) -> NodeLock:
        """Holds these keys, all at once, in an `async with` block. See `LockOptions`."""
        return NodeLock(self, self.lock_processes, keys, agent, **options)

    async def send(
        self,
        to: str,
        body: Body,
        *,
        agent: str | None = None,
        type: str = "",
        thread: str | None = None,
        reply_to: str | None = None,
        priority: int = 0,
        ttl: Duration | None = None,
        attachments: Iterable[Attached] = (),
    ) -> str:
        """Sends a message to an agent (`editor`, `editor@gpu-box`), a group (`team/`) or `all`, and returns its id. The
        body is text, bytes or anything that can be JSON; an attachment is a path, or a name with bytes or a path.
        """
        log, blobs = self.runtime.log, self.runtime.blobs
        given = {"type": type, "thread": thread, "reply_to": reply_to, "priority": priority, "ttl": ttl}
        draft = await self.call(
            lambda: draft_of(log, blobs, to, body, agent=agent, attachments=attachments, **given)  # type: ignore[arg-type]
        )
        message_id = await self.run(lambda tx: messages.send(tx, blobs, draft))
        self.wrote(node_of(draft))
        return ulid_text(message_id)

    def inbox(self, agent: str | None = None) -> Inbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return Inbox(self, agent)

    async def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> ReceivedMessage:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""
        return await ask(self, to, body, wait, agent, options)

    @property
    def log(self) -> Log:
        return self.runtime.log

    @property
    def blobs(self) -> Blobs:
        return self.runtime.blobs

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a blocking function off the event loop, in parallel with requests and queries."""
        return await asyncio.get_running_loop().run_in_executor(self._mesh_executor, work)

    def services(self, emit: Emit = ignore) -> "MeshServices":
        """The services that connect this process with other nodes; created on first use."""
        if self._services is None:
            if not is_on(MESH_ENABLED):
                raise Unreachable(f"this process talks to no other node: {MESH_ENABLED} is off")
            try:
                from hocket.mesh.services import MeshServices
            except ImportError as error:
                raise Usage(f"talking to other nodes needs {error.name}; install hocket[server]") from None
            home = self.runtime.home
            self._services = MeshServices(
                self,
                home.node_key(),
                self.environment,
                home.processes,
                emit,
                self.runtime.blobs,
                self.runtime.output,
            )
        return self._services

    @asynccontextmanager
    async def kept_up(self, emit: Emit) -> AsyncIterator[None]:
        """Runs the periodic tasks of the node until the block ends."""
        maintenance = Maintenance(self, self.environment, emit)
        hand_over = HandOver(self, self.runtime.secrets, emit)
        sweep = SweepLoop(self, self.environment, emit)
        clock = ClockWatch(self, self.environment, self.runtime.machine_clock, emit)
        locks = LockSweep(self, self.environment, emit)
        await sweep.look()
        breaker = self.runtime.store_breaker
        async with (
            nullcontext() if breaker is None else breaker.told(emit),
            _beside(supervised("the sweep of leases and schedules", sweep.run, emit, self.environment)),
            _beside(supervised("the maintenance of this node", maintenance.run, emit, self.environment)),
            _beside(supervised("handing over secrets", hand_over.run, emit, self.environment)),
            _beside(supervised("comparing clocks", clock.run, emit, self.environment)),
            _beside(supervised("the sweep of locks", locks.run, emit, self.environment)),
        ):
            yield

    @asynccontextmanager
    async def in_touch(self, emit: Emit) -> AsyncIterator[None]:
        """Syncs with the peers until the block ends, if there are any and no other process of this node does."""
        async with self.kept_up(emit):
            if not is_on(MESH_ENABLED) or not await self.peek(lambda session: session.peers()):
                yield
                return
            services = self.services(emit)
            self.reach = services.exchanges.consult
            async with _beside(
                supervised("the exchange with peers", lambda: services.loop().run(), emit, self.environment)
            ):
                yield
            self.reach = None

    def kit(self, kind: str) -> RunServices:
        loop = asyncio.get_running_loop()

        def node(is_async: bool) -> Node | SyncNode:
            executor = self._mesh_executor
            return AsyncHandlerNode(self, executor, loop) if is_async else PlainHandlerNode(self.runtime, executor)

        return self.runtime.kit(kind, self.environment.monotonic)._replace(node=node)

    async def run(self, request: Callable[[Transaction], T]) -> T:
        """Runs a request in a transaction of the log, together with other waiting requests."""
        _still_open(self._runtime)
        return await self._committer.run(request)

    async def run_short(self, request: Callable[[LockTransaction], T]) -> T:
        """The same for a request about locks, which runs in a short transaction unless other requests wait."""
        log = self.runtime.log
        return await self._committer.run(request, alone=lambda: log.run_short(request))

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view that includes every submitted job."""
        return await self._query(self.runtime.read, query)

    async def peek(self, query: Callable[[Session], T]) -> T:
        """The same, without waiting until the roster has the newest submits."""
        return await self._query(self.runtime.store.read, query)

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        """Sends offers to the arbiter. Returns for each the job if accepted, else the reason."""
        await (self.reach or self.services().exchanges.consult)(is_urgent)
        return await self.peek(lambda session: decisions(session, offers))

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        try:
            (decision,) = await decided(self, lambda tx: [request(tx)])
        except Unreachable as error:
            raise kept(error) from error
        self.wrote()
        return accepted(decision)

    async def waiting(self, job_id: bytes, here: Sequence[Serving] = ()) -> Waiting | None:
        """What a job waits for, as far as this node knows. `here` are workers that others are not told about."""
        return await self.call(lambda: waiting_of(self.runtime, job_id, here, is_connected=True))

    async def _query(self, view: Callable[[], AbstractContextManager[Session]], query: Callable[[Session], T]) -> T:
        def run() -> T:
            with view() as session:
                return query(session)

        return await asyncio.get_running_loop().run_in_executor(self._read_executor, run)

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
        **options: Any,
    ) -> Worker:
        """Runs a worker in this process until SIGTERM or SIGINT; a second signal stops it at once. With `signals=False`
        it leaves the signals to the program. If the task that runs it is cancelled, it hands its jobs back. With
        `allow` or `allow_any` it also runs commands: this node's own, and those of other nodes that match a pattern
        and set only variables in `allow_env`.

        With `processes` the handlers run in that many processes, which import the handlers' modules; a handler that
        does not stop at its timeout is killed with its process.

        Options: `concurrency` (how many jobs run at once, 4), `until_idle` (return when no job is left), `grace`
        (seconds that handlers may run after the first signal, 10), `ahead` (how many jobs it claims beyond the running
        ones; by default up to 32 in all), `labels` (what jobs may need, like "gpu=a100"), `finished` (called with each
        run and its outcome), `started` (called with the worker when it begins; its `stop` does what a signal does).

        `events` is called with every event, `notice` with a sentence about each event that is not routine. Both are
        called in the event loop's thread or in one that talks to other nodes, and must not block. Events also go to the
        logger `hocket`. What handlers print and log is kept for `hocket logs`.

        Raises Failed if as many handlers are stuck as there are slots: then only a new process helps.
        """
        served = handlers if isinstance(handlers, Handlers) else Handlers(handlers)
        if processes is not None:
            options = (
                {"concurrency": processes} | options | {"processes": handler_processes(self.runtime, processes, served)}
            )
        commands = None
        with ExitStack() as stack:
            if allow is not None or allow_any:
                commands = self.runtime.commands(SyncNode(self.runtime).fetch, allow or (), allow_any, allow_env)
                stack.callback(commands.close)
                served = served.plus(commands.job_type())
            emit = logged(events if notice is None else sentences(notice, also=events))
            told = serving(served.topics(), None if commands is None else commands.allowance)
            chosen = WorkerOptions(served, emit=emit, serving=told, **options)
            if commands is not None:
                for warning in commands.allowance.warnings():
                    emit(AllowanceIsRisky(warning))
            worker = Worker(self, self.environment, chosen)
            if signals:
                stack.enter_context(stopped_by_signals(worker.stop))
            stack.enter_context(catching())
            async with self.in_touch(emit):
                started(worker)
                await worker.run()
        if worker.is_spent:
            raise Failed("every slot has a handler that does not end; only a new process is rid of them, so restart it")
        return worker

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractAsyncContextManager[Worker]:
        """Runs a worker beside an `async with` block. At its end the worker stops, as after a first signal; if the
        block is cancelled, it hands its jobs back at once. Signals stay the program's; the other options are those of
        `work`.
        """
        return beside(lambda started: self.work(handlers, signals=False, started=started, **options))

    def listen(self, topics: Changes) -> Listener:
        """Listens for every change of this node that matches the topics, from now on."""
        _still_open(self._runtime)
        if self._hints is None:
            self._hints = self.environment.bus.subscribe(ANYTHING)
            self._hints.attach(asyncio.get_running_loop(), self._waiters.publish)
        return Listener(self._waiters.subscribe(topics))

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""
        if self.delivery is not None:
            self.delivery.start()
        with closing(self.listen(topics)) as changes:
            async with asyncio.timeout(timeout):
                while True:
                    found, value = await look()
                    if found:
                        return value
                    await changes.wait(LOOK_AGAIN_S)


class SyncNode:
    """The synchronous API, for scripts. Safe to use from several threads."""

    def __init__(self, runtime: Runtime, delivery: Delivery | None = None) -> None:
        self._runtime: Runtime | None = runtime
        self._delivery = delivery

    @property
    def runtime(self) -> Runtime:
        return _still_open(self._runtime)

    def close(self) -> None:
        """Closes the node. A node that is closed already stays as it is."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self._delivery is not None:
                self._delivery.close()
            runtime.close()

    def wrote(self, to: int | None = None) -> None:
        """Something is on the log that others must get, above all node `to`."""
        if self._delivery is not None:
            self._delivery.wrote(to)

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function that touches the store."""
        return work()

    @overload
    def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def submit(self, job: str | CommandRequest, /, **payload: Any) -> SyncHandle[Any]: ...
    def submit(self, job: JobType[Any, Any] | str | CommandRequest, /, *args: Any, **payload: Any) -> SyncHandle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        runtime = self.runtime
        if not isinstance(job, JobType | str):
            packed = request.pack(job, runtime.blobs)
            submit = lambda tx: request.submit(tx, runtime.blobs, runtime.secrets, packed)  # noqa: E731
            job_id = self.call(lambda: runtime.log.run(submit))
            self.wrote()
            return SyncHandle(self, job_id, True)
        job_type = named_kind(job)
        draft = job_type.draft(payload, args)
        if job_type.policy is DEFAULT:
            # The job has no special options, so it takes the fast path, unless its kind has some.
            plain = self.call(lambda: runtime.log.append_plain(draft.kind, draft.payload))
            if plain is not None:
                self.wrote()
                return SyncHandle(self, plain, True, job_type.signature)
        return self._submit([job_type], lambda tx: jobs.submit(tx, [draft]))[0]

    def submit_many(self, pairs: Pairs) -> list[SyncHandle]:
        """Submits many jobs in one transaction: all or none."""
        types, drafts = drafts_of(pairs)
        return self._submit(types, lambda tx: jobs.submit(tx, drafts))

    def chain(self, *steps: Step) -> list[SyncHandle]:
        """Submits jobs that run one after the other, each when the one before it has succeeded: all or none. A step is
        a job with its payload, or without one; `ctx.results` has the result of the step before.
        """
        types, drafts = drafts_of(pairs_of(steps))
        return self._submit(types, lambda tx: chains.submit(tx, drafts))

    def _submit(self, types: list[JobType], request: Callable[[Transaction], list[Submitted]]) -> list[SyncHandle]:
        log = self.runtime.log
        made = self.call(lambda: log.run(request))
        self.wrote()
        return [SyncHandle(self, *each, type.signature) for type, each in zip(types, made, strict=True)]

    def gather(self, *waited: SyncHandle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order. Raises JobFailed or JobCancelled when one
        of them ends so, and TimeoutError.
        """
        found = handles.sync_results(self, [each._id for each in waited], timeout)
        return [handles.typed(each._signature, each._id, value) for each, value in zip(waited, found, strict=True)]

    def rows(self, table: str, *, agent: str = "") -> SyncRowTable:
        """The rows of a table, as `Node.rows` gives them."""
        return SyncRowTable(self, table, agent)

    def job(self, job_id: str) -> SyncHandle:
        """A handle on an existing job, by its full id."""
        return SyncHandle(self, id_of(job_id), created=False)

    def cancel_many(self, **which: Unpack[Which]) -> Changed:
        """Cancels every job that matches, as `Node.cancel_many` does."""
        return self._change(lambda node: node.cancel_many(**which))

    def retry_many(self, **which: Unpack[Which]) -> Changed:
        """Retries every job that matches, as `Node.retry_many` does."""
        return self._change(lambda node: node.retry_many(**which))

    def _change(self, act: Callable[[Node], Awaitable[Changed]]) -> Changed:
        try:
            return self.with_node(act)
        finally:
            self.wrote()

    def work(self, handlers: Handlers | Iterable[JobType], **options: Any) -> Worker:
        """Runs a worker in this thread until a signal stops it. The options are those of `Node.work`."""
        return self.with_node(lambda node: node.work(handlers, **options))

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractContextManager[Worker]:
        """Runs a worker on a thread of its own beside a `with` block. At its end the worker stops, as after a first
        signal. The options are those of `Node.work`.
        """
        return on_a_thread(lambda started: self.work(handlers, signals=False, started=started, **options))

    def lock(
        self, *keys: str, agent: str, **options: Unpack[LockOptions]
    ) -> AbstractContextManager[HeldLock[threading.Event]]:
        """Holds these keys, all at once, in a `with` block. See `LockOptions`; such a block cannot be cancelled."""
        if options.get("cancel"):
            raise Usage("a plain block cannot be cancelled; look at `held.lost`")

        @asynccontextmanager
        async def held() -> AsyncIterator[HeldLock[asyncio.Event]]:
            node = self._new_node()
            try:
                async with node.lock(*keys, agent=agent, **options) as lock:
                    yield lock
            finally:
                await node.finish()

        return locked_on_a_thread(held())

    def _new_node(self) -> Node:
        node = Node(self.runtime)
        node.delivery = self._delivery
        return node

    def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        log = self.runtime.log
        result = self.call(lambda: log.run(request))
        if isinstance(result, Offer):
            offer = result
            try:
                (result,) = self.call(lambda: self.with_node(lambda node: node.consult([offer])))
            except Unreachable as error:
                raise kept(error) from error
        else:
            self.wrote()
        return accepted(result)

    def consult(self) -> None:
        """Exchanges ops with the arbiter, so that it decides on what was offered. Raises Unreachable."""
        self.with_node(lambda node: node.consult(()))

    def send(self, to: str, body: Body, **options: Any) -> str:
        """Sends a message, as `Node.send` does."""
        log, blobs = self.runtime.log, self.runtime.blobs
        draft = self.call(lambda: draft_of(log, blobs, to, body, **options))
        message_id = self.call(lambda: log.run(lambda tx: messages.send(tx, blobs, draft)))
        self.wrote(node_of(draft))
        return ulid_text(message_id)

    def inbox(self, agent: str | None = None) -> SyncInbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return SyncInbox(self, agent)

    def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> MessageData:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""

        async def asked(node: Node) -> MessageData:
            node.delivery = self._delivery
            return (await node.ask(to, body, wait=wait, agent=agent, **options)).data

        return self.with_node(asked)

    def fetch(self, hash: bytes, size: int) -> bytes | None:
        """Fetches a blob from another node; None if this node knows no other. Uses a runtime of its own, because the
        caller may be inside a read.
        """
        with Runtime.open(self.runtime.home.path) as runtime:
            with runtime.store.read() as session:
                if not session.peers():
                    return None
            return SyncNode(runtime).with_node(lambda node: node.services().exchanges.fetch(hash, size))

    def with_node(self, act: Callable[[Node], Awaitable[T]]) -> T:
        """Runs a function on an event loop of its own."""

        async def run() -> T:
            node = self._new_node()
            try:
                return await act(node)
            finally:
                await node.finish()

        return asyncio.run(run())

    def until(
        self, look: Callable[[Session], tuple[bool, T]], timeout: float | None = None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""
        if self._delivery is not None:
            self._delivery.start()
        deadline = None if timeout is None else time.monotonic() + timeout

        def read() -> tuple[bool, T]:
            with self.runtime.read() as session:
                return look(session)

        with closing(self.runtime.bus.subscribe(topics)) as changes:
            while True:
                found, value = self.call(read)
                if found:
                    return value
                left = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                changes.wait(left)


# `ctx.node`: the worker's own node, for its handlers. They run on other threads than the worker, and one that is
# stopped gets an exception at any point. So all work on the store is done on threads that no exception reaches.


class PlainHandlerNode(SyncNode):
    """The worker's node for a plain handler."""

    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        super().__init__(runtime)
        self._executor = executor

    def call(self, work: Callable[[], T]) -> T:
        return self._executor.submit(work).result()

    def close(self) -> None:
        raise Usage(WORKERS_OWN)


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

    async def close(self) -> None:
        raise Usage(WORKERS_OWN)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
