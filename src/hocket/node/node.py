"""The API of a node for programs. `async with hocket.open() as node` gives a `Node`, `with hocket.open() as node` a
`SyncNode`. Both submit jobs, return handles and run workers, over the same runtime.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hocket.bus import Subscription
from hocket.bus.changes import ANYTHING, Changes, about
from hocket.bus.listener import Listener
from hocket.bus.memory import MemoryBus
from hocket.errors import Conflict, HocketError, Unreachable, Usage
from hocket.events import AllowanceIsRisky, Emit, ignore, sentences
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job
from hocket.kernel.subjects import JOB
from hocket.log import Log, Transaction
from hocket.log.committer import Committer
from hocket.mesh.waiting import DELIVERS, Waiting
from hocket.node import handles
from hocket.node.delivery import Delivery, waiting_of
from hocket.node.handles import Handle, JobCancelled, JobFailed
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.store import Session
from hocket.work import jobs
from hocket.work.arbiter import decided
from hocket.work.blobs import Blobs
from hocket.work.command import request
from hocket.work.command.request import CommandRequest
from hocket.work.command.secret_handover import HandOver
from hocket.work.environment import Environment, MachineEnvironment
from hocket.work.handlers import Handlers, JobType, encode_payload, kind
from hocket.work.jobs import Draft, Offer, Result, Submitted
from hocket.work.maintenance import Maintenance
from hocket.work.pending_decisions import Decision, decisions
from hocket.work.run_outputs import RunServices
from hocket.work.serving import Serving, serving
from hocket.work.supervision import supervised
from hocket.work.sweep import SweepLoop
from hocket.work.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from hocket.mesh.services import MeshServices

T = TypeVar("T")

_LOG = logging.getLogger("hocket")

# A hint can be lost, so every waiter looks again after this long.
LOOK_AGAIN_S = 2.0
# The most queries that run at once.
READ_THREADS = 4


class Opening:
    """The result of `open`: enter it with `async with` or with `with`."""

    def __init__(self, home: Path | str | None) -> None:
        self._home = home
        self._async: Node | None = None
        self._sync: SyncNode | None = None

    async def __aenter__(self) -> "Node":
        runtime = await asyncio.get_running_loop().run_in_executor(None, Runtime.open, self._home)
        self._async = Node(runtime)
        self._async.delivery = delivery(runtime)
        return self._async

    async def __aexit__(self, *_: object) -> None:
        if self._async is not None:
            await self._async.close()

    def __enter__(self) -> "SyncNode":
        runtime = Runtime.open(self._home)
        self._sync = SyncNode(runtime, delivery(runtime))
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.close()


def init(home: Path | str | None = None, user_key: Path | None = None, *, strict: bool = False) -> None:
    """Creates a home: the user's key, the node's key, and the user's root delegation to the node as the first op. With
    a `user_key` from another home, this node belongs to the same user. Raises Conflict if the home exists. A `strict`
    home keeps to Likewise v0.1: no node writes a Hocket extension op in its mesh.
    """
    Runtime.init(home, user_key, strict=strict).close()


def open(home: Path | str | None = None) -> Opening:
    """Opens the node of this home (default: $HOCKET_HOME, else ~/.hocket)."""
    return Opening(home)


def delivery(runtime: Runtime, warn: Callable[[str], None] = _LOG.warning) -> Delivery:
    """What connects a program that only submits and waits with the other nodes."""

    @asynccontextmanager
    async def connected() -> "AsyncIterator[MeshServices]":
        node = Node(runtime)
        try:
            yield node.services()
        finally:
            await node.finish()

    return Delivery(runtime, connected, warn)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a task until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _drafts(pairs: Iterable[tuple[JobType | str, dict[str, Any]]]) -> list[Draft]:
    return [(_named(job) if isinstance(job, str) else job).draft(payload) for job, payload in pairs]


# Building a job type takes a tenth of the time of a submit, not counting the commit.
_named = lru_cache(maxsize=1_024)(kind)


def _accepted(decision: Decision) -> Job:
    if isinstance(decision, Reason):
        raise Conflict(f"not accepted: {decision.sentence}")
    return decision


def _kept(error: Unreachable) -> Unreachable:
    return Unreachable(f"{error}; the request is kept here, and {DELIVERS}")


def _id(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not a job id: {error}") from None


class Node:
    """The async API. Store calls run on an executor, so they never block the event loop."""

    def __init__(
        self, runtime: Runtime, executor: Executor | None = None, environment: Environment | None = None
    ) -> None:
        self.runtime = runtime
        self.environment: Environment = environment or MachineEnvironment(runtime.home.processes, runtime.bus)
        self._executor = executor or ThreadPoolExecutor(1, "hocket-store")
        self._read_executor = executor or ThreadPoolExecutor(READ_THREADS, "hocket-read")
        # Admitting a peer's ops takes long, so it has threads of its own and delays nothing else.
        self._mesh_executor = executor or ThreadPoolExecutor(4, "hocket-mesh")
        self._committer = Committer(runtime.log, self._executor)
        self.reach: Callable[[], Awaitable[None]] | None = None
        """Syncs with the arbiter, if this process is connected to other nodes. Raises Unreachable."""
        self.delivery: Delivery | None = None
        """Connects a node that only submits with the others; None if this process does that in another way."""
        # All waiters of this object share one subscription and one bus.
        self._hints: Subscription | None = None
        self._waiters = MemoryBus()
        self._services: MeshServices | None = None

    async def finish(self) -> None:
        """Ends everything that this object started. The runtime stays open."""
        if self._services is not None:
            await self._services.close()
        await self._committer.close()
        if self._hints is not None:
            self._hints.close()
        self._executor.shutdown()
        self._read_executor.shutdown()
        self._mesh_executor.shutdown()

    async def close(self) -> None:
        if self.delivery is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.delivery.close)
        await self.finish()
        self.runtime.close()

    def _wrote(self) -> None:
        if self.delivery is not None:
            self.delivery.wrote()

    async def submit(self, job: JobType | str | CommandRequest, /, **payload: Any) -> Handle:
        """Submits one job. The members of its payload are the handler's keyword arguments. A `command` has none."""
        if not isinstance(job, JobType | str):
            blobs, secrets = self.runtime.blobs, self.runtime.secrets
            packed = await self.call(lambda: request.pack(job, blobs))
            job_id = await self.run(lambda tx: request.submit(tx, blobs, secrets, packed))
            self._wrote()
            return Handle(self, job_id, created=True)
        job_type = _named(job) if isinstance(job, str) else job
        if job_type.policy is not DEFAULT:
            return (await self.submit_many([(job, payload)]))[0]
        # The job has no special options, so it takes the fast path, unless other submits wait to share a commit.
        log, draft = self.runtime.log, job_type.draft(payload)
        made = await self._committer.run(
            lambda tx: jobs.submit(tx, [draft])[0].job_id, alone=lambda: log.append_plain(draft.kind, draft.payload)
        )
        self._wrote()
        return Handle(self, made, created=True)

    async def submit_many(self, pairs: Iterable[tuple[JobType | str, dict[str, Any]]]) -> list[Handle]:
        """Submits many jobs in one transaction: all or none."""
        drafts = _drafts(pairs)
        made: list[Submitted] = await self.run(lambda tx: jobs.submit(tx, drafts))
        self._wrote()
        return [Handle(self, each.job_id, each.created) for each in made]

    def job(self, job_id: str) -> Handle:
        """A handle on an existing job, by its full id."""
        return Handle(self, _id(job_id), created=False)

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
            try:
                from hocket.mesh.services import MeshServices
            except ImportError as error:
                raise Usage(f"talking to other nodes needs {error.name}; install hocket[server]") from None
            home = self.runtime.home
            self._services = MeshServices(
                self, home.node_key(), self.environment, home.processes, emit, self.runtime.blobs
            )
        return self._services

    @asynccontextmanager
    async def kept_up(self, emit: Emit) -> AsyncIterator[None]:
        """Runs the periodic tasks of the node until the block ends."""
        maintenance = Maintenance(self, self.environment, emit)
        hand_over = HandOver(self, self.runtime.secrets, emit)
        sweep = SweepLoop(self, self.environment, emit)
        await sweep.look()
        async with (
            _beside(supervised("the sweep of leases and schedules", sweep.run, emit, self.environment)),
            _beside(supervised("the maintenance of this node", maintenance.run, emit, self.environment)),
            _beside(supervised("handing over secrets", hand_over.run, emit, self.environment)),
        ):
            yield

    @asynccontextmanager
    async def in_touch(self, emit: Emit) -> AsyncIterator[None]:
        """Syncs with the peers until the block ends, if there are any and no other process of this node does."""
        async with self.kept_up(emit):
            if not await self.peek(lambda session: session.peers()):
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
        return self.runtime.kit(kind, self.environment.monotonic)

    async def run(self, request: Callable[[Transaction], T]) -> T:
        """Runs a request in a transaction of the log, together with other waiting requests."""
        return await self._committer.run(request)

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view that includes every submitted job."""
        return await self._query(self.runtime.read, query)

    async def peek(self, query: Callable[[Session], T]) -> T:
        """The same, without waiting until the roster has the newest submits."""
        return await self._query(self.runtime.store.read, query)

    async def consult(self, offers: Sequence[Offer]) -> list[Decision]:
        """Sends offers to the arbiter. Returns for each the job if accepted, else the reason."""
        await (self.reach or self.services().exchanges.consult)()
        return await self.peek(lambda session: decisions(session, offers))

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        try:
            (decision,) = await decided(self, lambda tx: [request(tx)])
        except Unreachable as error:
            raise _kept(error) from error
        self._wrote()
        return _accepted(decision)

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
        events: Emit = ignore,
        notice: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Worker:
        """Runs a worker in this process until SIGTERM or SIGINT; a second signal stops it at once. With `allow` or
        `allow_any` it also runs commands: this node's own, and those of other nodes that match a pattern and set only
        variables in `allow_env`.

        Options: `concurrency` (how many jobs run at once, 4), `until_idle` (return when no job is left), `grace`
        (seconds that handlers may run after the first signal, 10), `ahead` (how many jobs it claims beyond the running
        ones; by default up to 32 in all), `finished` (called with each run and its outcome).

        `events` is called with every event, `notice` with a sentence about each event that is not routine. Both are
        called in the event loop's thread or in one that talks to other nodes, and must not block.
        """
        served = handlers if isinstance(handlers, Handlers) else Handlers(handlers)
        commands = None
        with ExitStack() as stack:
            if allow is not None or allow_any:
                commands = self.runtime.commands(SyncNode(self.runtime).fetch, allow or (), allow_any, allow_env)
                stack.callback(commands.close)
                served = served.plus(commands.job_type())
            emit = events if notice is None else sentences(notice, also=events)
            told = serving(served.topics(), None if commands is None else commands.allowance)
            chosen = WorkerOptions(served, emit=emit, serving=told, **options)
            if commands is not None:
                for warning in commands.allowance.warnings():
                    emit(AllowanceIsRisky(warning))
            worker = Worker(self, self.environment, chosen)
            stack.enter_context(stopped_by_signals(worker.stop))
            async with self.in_touch(emit):
                await worker.run()
        return worker

    def listen(self, topics: Changes) -> Listener:
        """Listens for every change of this node that matches the topics, from now on."""
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


class SyncHandle:
    """A submitted job. `created` is False if a unique key led to an existing job."""

    __slots__ = ("_id", "_node", "created")

    def __init__(self, node: "SyncNode", job_id: bytes, created: bool) -> None:
        self._node = node
        self._id = job_id
        self.created = created

    @property
    def job_id(self) -> str:
        return ulid_text(self._id)

    def status(self) -> dict[str, Any]:
        """The current state of the job."""
        runtime = self._node.runtime
        waiting = waiting_of(runtime, self._id)
        return runtime.show(self.job_id) | {"waits_for": None if waiting is None else waiting.sentence}

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the job and returns its result. Raises JobFailed, JobCancelled or TimeoutError."""
        try:
            return self._node.until(lambda session: handles.ending_of(session, self._id), timeout, about(JOB, self._id))
        except TimeoutError as error:
            waiting = waiting_of(self._node.runtime, self._id, is_connected=True)
            raise handles.overdue(error, self._id, timeout, waiting) from None

    def proof(self) -> bytes:
        """The proof of a command, in the format that `hocket proof verify` reads. Raises Failed if there is none."""
        runtime = self._node.runtime
        with runtime.read() as session:
            return handles.proof_of(session, runtime.blobs, self._id)

    def cancel(self, reason: str = "cancelled by its submitter") -> None:
        """Cancels the job, pending or running. Raises Conflict if it is completed."""
        self._node.decide(lambda tx: jobs.cancel(tx, self._id, reason))

    def retry(self, reason: str = "retried by its submitter") -> None:
        """Retries a failed or cancelled job."""
        self._node.decide(lambda tx: jobs.retry(tx, self._id, reason))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the job's ops from the first on, each as it arrives, until the job ends."""
        seen, ended = 0, False

        def look(session: Session) -> tuple[bool, tuple[list[dict[str, Any]], bool]]:
            lines, ended = handles.news_of(session, self._id, seen)
            return bool(lines) or ended, (lines, ended)

        while not ended:
            lines, ended = self._node.until(look, None, about(JOB, self._id))
            for line in lines:
                seen = line["seq"]
                yield line


class SyncNode:
    """The synchronous API, for scripts. Safe to use from several threads."""

    def __init__(self, runtime: Runtime, delivery: Delivery | None = None) -> None:
        self.runtime = runtime
        self._delivery = delivery

    def close(self) -> None:
        if self._delivery is not None:
            self._delivery.close()
        self.runtime.close()

    def _wrote(self) -> None:
        if self._delivery is not None:
            self._delivery.wrote()

    def submit(self, job: JobType | str | CommandRequest, /, **payload: Any) -> SyncHandle:
        """Submits one job. The members of its payload are the handler's keyword arguments. A `command` has none."""
        if not isinstance(job, JobType | str):
            packed = request.pack(job, self.runtime.blobs)
            runtime = self.runtime
            job_id = runtime.log.run(lambda tx: request.submit(tx, runtime.blobs, runtime.secrets, packed))
            self._wrote()
            return SyncHandle(self, job_id, True)
        job_type = _named(job) if isinstance(job, str) else job
        if job_type.policy is DEFAULT:
            # The job has no special options, so it takes the fast path.
            encoded = encode_payload(job_type.kind, payload)
            job_id, created = self.runtime.log.append_plain(job_type.kind, encoded), True
        else:
            job_id, created = self.runtime.submit([job_type.draft(payload)])[0]
        self._wrote()
        return SyncHandle(self, job_id, created)

    def submit_many(self, pairs: Iterable[tuple[JobType | str, dict[str, Any]]]) -> list[SyncHandle]:
        """Submits many jobs in one transaction: all or none."""
        made = self.runtime.submit(_drafts(pairs))
        self._wrote()
        return [SyncHandle(self, each.job_id, each.created) for each in made]

    def job(self, job_id: str) -> SyncHandle:
        """A handle on an existing job, by its full id."""
        return SyncHandle(self, _id(job_id), created=False)

    def work(self, handlers: Handlers | Iterable[JobType], **options: Any) -> Worker:
        """Runs a worker in this thread until a signal stops it. The options are those of `Node.work`."""

        return self._with_node(lambda node: node.work(handlers, **options))

    def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        result = self.runtime.log.run(request)
        if isinstance(result, Offer):
            offer = result
            try:
                (result,) = self._with_node(lambda node: node.consult([offer]))
            except Unreachable as error:
                raise _kept(error) from error
        else:
            self._wrote()
        return _accepted(result)

    def fetch(self, hash: bytes, size: int) -> bytes | None:
        """Fetches a blob from another node; None if this node knows no other. Uses a runtime of its own, because the
        caller may be inside a read.
        """
        with Runtime.open(self.runtime.home.path) as runtime:
            with runtime.store.read() as session:
                if not session.peers():
                    return None
            return SyncNode(runtime)._with_node(lambda node: node.services().exchanges.fetch(hash, size))

    def _with_node(self, act: Callable[[Node], Awaitable[T]]) -> T:
        """Runs a function on an event loop of its own."""

        async def run() -> T:
            node = Node(self.runtime)
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
        with closing(self.runtime.bus.subscribe(topics)) as changes:
            while True:
                with self.runtime.read() as session:
                    found, value = look(session)
                if found:
                    return value
                left = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                changes.wait(left)


__all__ = ["Handle", "HocketError", "JobCancelled", "JobFailed", "Node", "SyncHandle", "SyncNode", "init", "open"]
