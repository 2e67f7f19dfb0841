"""A node as the parts of one process use it: requests and queries that do not block the event loop, the exchange with
other nodes, and the periodic tasks. `node.Node` adds the API for programs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from hocket.bus.hints import ANYTHING, Changes, Subscription
from hocket.bus.listener import Listener
from hocket.bus.memory import MemoryBus
from hocket.errors import StoreAway, Unreachable, Usage
from hocket.events import Emit, Event, ignore
from hocket.events.nodes import StoreRestored, StoreRowRefused
from hocket.events.workers import StepFailed, StoreUnavailable
from hocket.families.blobs import Blobs
from hocket.families.jobs.apart import payload_of
from hocket.families.jobs.requests import Decision, Offer, Result
from hocket.families.jobs.rules import Job
from hocket.families.locks.processes import LockProcesses, LockSweep
from hocket.kernel.extension import extensions, loaded, named_parts
from hocket.kernel.retrying import STORE_RETRIES
from hocket.log import Log, Transaction
from hocket.log.committer import Committer
from hocket.log.limits import output_room
from hocket.mesh.waiting import Waiting
from hocket.node.calls import accepted, kept
from hocket.node.delivery import Delivery
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from hocket.node.variables import MESH_ENABLED, is_on
from hocket.store import Session
from hocket.work.environment import Environment, MachineEnvironment, supervising
from hocket.work.maintenance import ClockWatch, Maintenance, SharedPresence, SweepLoop
from hocket.work.pending_decisions import decisions
from hocket.work.presence import Serving
from hocket.work.run_outputs import RunServices

if TYPE_CHECKING:
    from hocket.families.artifacts import Fetch
    from hocket.mesh.services import MeshServices
    from hocket.mesh.wire import SecondProof
    from hocket.node.event_feed import EventFeed
    from hocket.node.job_stream import PartSender
    from hocket.node.message_bus import BusSettings, NodeMessages
    from hocket.work.remote.remote_workers import RemoteWorkers


T = TypeVar("T")

# A hint can be lost, so every waiter looks again after this long.
LOOK_AGAIN_S = 2.0
# How often a process looks for requests that were kept while the database was away.
KEPT_LOOK_S = 1.0
# The most queries that run at once.
READ_THREADS = 4


@contextmanager
def _store_told(log: Log, loop: asyncio.AbstractEventLoop, emit: Emit) -> Iterator[None]:
    """Reports bad rows of a shared store, and ops that it had lost, on that event loop while the block runs, whichever
    thread has found them.
    """
    check, written = log.store_check, log.written
    if check is None or written is None:
        yield
        return

    def tell(event: Event) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(emit, event)

    rows_before, check.report = check.report, lambda finding: tell(StoreRowRefused(*finding))
    lost_before, written.report = written.report, lambda lost: tell(StoreRestored(str(lost)))
    try:
        yield
    finally:
        check.report, written.report = rows_before, lost_before


def still_open(runtime: Runtime | None) -> Runtime:
    if runtime is None:
        raise Usage("this node is closed; open it again with hocket.open()")
    return runtime


def fetch_for(runtime: Runtime) -> "Fetch":
    """Fetches blobs from other nodes, for a caller that blocks; None if this node knows no other. Uses a runtime of its
    own for each, because the caller may be inside a read.
    """

    def fetch(hash: bytes, size: int) -> bytes | None:
        async def run(node: LocalNode) -> bytes | None:
            try:
                return await node.services().exchanges.fetch(hash, size)
            finally:
                await node.finish()

        with Runtime.open(runtime.home.path) as own:
            with own.store.read() as session:
                if not session.peers():
                    return None
            return asyncio.run(run(LocalNode(own)))

    return fetch


def ask_for_checkpoints(runtime: Runtime) -> int:
    """Asks every peer for the checkpoints that it has, for a caller that blocks. Returns how many answered."""

    async def run(node: LocalNode) -> int:
        try:
            return await node.services().exchanges.ask_for_checkpoints()
        finally:
            await node.finish()

    with Runtime.open(runtime.home.path) as own:
        return asyncio.run(run(LocalNode(own)))


def second_proof(home: Home, mesh: str) -> "SecondProof | None":
    """What requests between nodes carry beside a bearer token, if a file of an extension in the home asks for it."""
    for extension in extensions():
        for file, place in extension.request_proofs.items():
            if (home.path / file).exists():
                proof: SecondProof | None = loaded(place)(home, mesh)
                return proof
    return None


class LocalNode:
    """Store calls run on an executor, so they never block the event loop."""

    def __init__(
        self, runtime: Runtime, executor: Executor | None = None, environment: Environment | None = None
    ) -> None:
        self._runtime: Runtime | None = runtime
        self.environment: Environment = environment or MachineEnvironment(
            runtime.home.processes, runtime.bus, runtime.time_of_day
        )
        self._executor = executor or ThreadPoolExecutor(1, "hocket-store")
        self._read_executor = executor or ThreadPoolExecutor(READ_THREADS, "hocket-read")
        # Admitting a peer's ops takes long, so it has threads of its own and delays nothing else.
        self._mesh_executor = executor or ThreadPoolExecutor(4, "hocket-mesh")
        self._committer = Committer(runtime.log, self._executor)
        self.reach: Callable[[bool], Awaitable[None]] | None = None
        """Syncs with the coordinator, if this process is connected to other nodes. Raises Unreachable."""
        self.delivery: Delivery | None = None
        """Connects a node that only submits with the others; None if this process does that in another way."""
        # All waiters of this object share one subscription and one bus.
        self._hints: Subscription | None = None
        self._waiters = MemoryBus()
        self._services: MeshServices | None = None
        self._messages: asyncio.Task[NodeMessages] | None = None
        self._part_sender: PartSender | None = None
        self._remote_workers: RemoteWorkers | None = None
        self.lock_processes: LockProcesses = LockProcesses(self.environment)

    @property
    def runtime(self) -> Runtime:
        return still_open(self._runtime)

    async def finish(self) -> None:
        """Ends everything that this object started. The runtime stays open."""
        self.lock_processes.close()
        if self._remote_workers is not None:
            await self._remote_workers.close()
        if self._part_sender is not None:
            await self._part_sender.close()
        if self._messages is not None:
            await asyncio.wait([self._messages])
            if not self._messages.cancelled() and self._messages.exception() is None:
                await self._messages.result().close()
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
                second_proof(home, self.log.user),
            )
        return self._services

    async def message_bus(self, emit: Emit = ignore, settings: "BusSettings | None" = None) -> "NodeMessages":
        """The signed messages of this node, over the servers in its settings or those given; opened on first use."""
        if self._messages is None:
            from hocket.node.message_bus import bus_settings, open_message_bus

            home = self.runtime.home
            chosen = (settings or bus_settings(home)) if is_on(MESH_ENABLED) else None
            self._messages = asyncio.create_task(open_message_bus(self, home, chosen, self.environment, emit))
        return await asyncio.shield(self._messages)

    @property
    def open_bus(self) -> "NodeMessages | None":
        """The signed messages of this node, if this process has opened them."""
        task = self._messages
        is_open = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task is not None and is_open else None

    async def relay_messages(self, emit: Emit, settings: "BusSettings | None" = None) -> None:
        """Opens the message bus. Without a server for it, the connections to other nodes carry it; call this before
        they are made. Work goes on without a bus that cannot be opened.
        """
        from hocket.mesh.bus_sharing import MessageRelay

        try:
            bus = await self.message_bus(emit, settings)
        except OSError as error:
            emit(StepFailed("opening the bus", str(error)))
            return
        services = self.services(emit)
        if bus.is_local:
            services.relay = MessageRelay(bus, self.log.node)
        else:
            services.messages = bus

    def part_sender(self) -> "PartSender":
        """Sends the parts of results from this process."""
        if self._part_sender is None:
            from hocket.node.job_stream import PartSender

            self._part_sender = PartSender(self.message_bus, self.log.user)
        return self._part_sender

    @cached_property
    def event_feed(self) -> "EventFeed":
        """Follows the log for all listeners of this process."""
        from hocket.node.event_feed import EventFeed

        return EventFeed(self, self.environment)

    @property
    def remote_workers(self) -> "RemoteWorkers":
        """The workers in other programs, which claim jobs by requests to this process."""
        if self._remote_workers is None:
            from hocket.work.remote.remote_workers import RemoteWorkers

            def services(kind: str) -> RunServices:
                made = run_services(self.runtime, kind, self.environment.monotonic)
                return made._replace(stream=self.part_sender().tell)

            self._remote_workers = RemoteWorkers(self, self.environment, services)
        return self._remote_workers

    @property
    def fetch(self) -> "Fetch":
        """Fetches blobs from other nodes, for a caller that blocks."""
        return fetch_for(self.runtime)

    async def mesh_messages(self, emit: Emit = ignore) -> "NodeMessages | None":
        """The messages between nodes, opened on first use; None if this node keeps to itself. A node without peers has
        them, too: its server carries them to the nodes that connect to it, now or later.
        """
        if not is_on(MESH_ENABLED):
            return None
        try:
            return await self.message_bus(emit)
        except OSError as error:
            emit(StepFailed("opening the bus", str(error)))
            return None

    @asynccontextmanager
    async def kept_up(self, emit: Emit) -> AsyncIterator[None]:
        """Runs the periodic tasks of the node until the block ends."""
        breaker, loop = self.runtime.store_breaker, asyncio.get_running_loop()
        with nullcontext() if breaker is None else breaker.told(loop, emit), _store_told(self.log, loop, emit):
            async with self._tasks(emit):
                yield

    @asynccontextmanager
    async def _tasks(self, emit: Emit) -> AsyncIterator[None]:
        maintenance = Maintenance(self, self.environment, emit)
        sweep = SweepLoop(self, self.environment, emit)
        clock = ClockWatch(self, self.environment, self.runtime.machine_clock, emit)
        locks = LockSweep(self, self.environment, emit)
        presence = SharedPresence(self, self.environment)
        await sweep.look()
        tasks = {
            "the sweep of leases and schedules": sweep.run,
            "the maintenance of this node": maintenance.run,
            "comparing clocks": clock.run,
            "the sweep of locks": locks.run,
            "telling nodes that share the store": presence.run,
            "sending kept requests": self._send_kept,
        } | {name: make(self, emit) for name, make in named_parts("tasks").items()}
        async with AsyncExitStack() as stack:
            for name, run in tasks.items():
                await stack.enter_async_context(supervising(name, run, emit, self.environment))
            yield

    async def _send_kept(self) -> None:
        """Sends what this home kept while its database server was away."""
        spool = self.runtime.spool
        while spool is not None:
            if spool.is_waiting:
                from hocket.node.kept_requests import send_kept_if_in_touch

                await self.call(lambda: send_kept_if_in_touch(self.runtime))
            await asyncio.sleep(KEPT_LOOK_S)

    @asynccontextmanager
    async def in_touch(self, emit: Emit) -> AsyncIterator[None]:
        """Syncs with the peers until the block ends, if there are any and no other process of this node does."""
        async with self.kept_up(emit):
            if not is_on(MESH_ENABLED) or not await self._has_peers(emit):
                yield
                return
            services = self.services(emit)
            await self.relay_messages(emit)
            self.reach = services.exchanges.consult
            async with supervising("the exchange with peers", lambda: services.loop().run(), emit, self.environment):
                yield
            self.reach = None

    async def _has_peers(self, emit: Emit) -> bool:
        """Waits for a database that is away: a process that starts just then stays."""
        failures = 0
        while True:
            try:
                return bool(await self.peek(lambda session: session.peers()))
            except StoreAway as error:
                emit(StoreUnavailable(str(error)))
            failures += 1
            await asyncio.sleep(STORE_RETRIES.delay_s(failures, self.environment.chance.random()))

    async def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """Runs a request in a transaction of the log, together with other waiting requests. `beside` is as in
        `Log.run`.
        """
        still_open(self._runtime)
        return await self._committer.run(request, beside=beside)

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view that includes every submitted job."""
        return await self._query(self.runtime.read, query)

    async def peek(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view, without waiting until the roster has the newest submits."""
        return await self._query(self.runtime.store.read, query)

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        """Sends offers to the coordinator. Returns for each the job if accepted, else the reason."""
        await (self.reach or self.services().exchanges.consult)(is_urgent)
        return await self.peek(lambda session: decisions(session, offers))

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        result = await self.run(request)
        if not isinstance(result, Offer):
            self.wrote()
            return accepted(result)
        try:
            (decision,) = await self.consult([result])
        except Unreachable as error:
            raise kept(error) from error
        return accepted(decision)

    async def waiting(self, job_id: bytes, here: Sequence[Serving] = ()) -> Waiting | None:
        """What a job waits for, as far as this node knows. `here` are workers that others are not told about."""
        return await self.call(lambda: self.runtime.waiting_of(job_id, here, is_connected=True))

    async def _query(self, view: Callable[[], AbstractContextManager[Session]], query: Callable[[Session], T]) -> T:
        def run() -> T:
            with view() as session:
                return query(session)

        return await asyncio.get_running_loop().run_in_executor(self._read_executor, run)

    def listen(self, topics: Changes) -> Listener:
        """Listens for every change of this node that matches the topics, from now on."""
        still_open(self._runtime)
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
                        await self._committer.all_confirmed()
                        return value
                    await changes.wait(LOOK_AGAIN_S)


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

    def payload(job: Job, inline: bytes) -> bytes:
        if job.policy.content is None:
            return inline
        found: bytes = read(lambda session: payload_of(session, runtime.blobs, job, inline, fetch_for(runtime)))
        return found

    return RunServices(
        runtime.blobs,
        runtime.log.reading,
        runtime.log.new_id,
        monotonic,
        audited,
        read,
        output=runtime.output,
        room=room,
        payload=payload,
        fetch=fetch_for(runtime),
        clock_ms=runtime.log.physical,
        pacers=runtime.pacers,
        beat_ms=lambda: None if runtime.beat_ms is None else runtime.beat_ms(),
    )
