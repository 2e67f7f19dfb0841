"""Connects a program with the other nodes while no other process of its node does. A job that a program submits is on
this node's log at once; from there it must get to the coordinator, and its result must come back. A server or a worker
does that for every process of the node. Without one, this does: a thread that syncs with the peers while the program
waits, and that sends what the program wrote before it ends.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.events.troubles import described
from hocket.families.liveness import ProcessTurn
from hocket.mesh import peers
from hocket.mesh.sync import DirectDelivery
from hocket.mesh.waiting import DELIVERS
from hocket.node.runtime import Runtime
from hocket.node.variables import MESH_ENABLED, is_on
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.mesh.loop import SyncLoop
    from hocket.mesh.peer_exchange import Exchanged
    from hocket.mesh.services import MeshServices

# How long a program waits at its end until the coordinator has what it wrote.
DELIVER_S = 10.0
START_S = 10.0
# How long a command that shows the state of the mesh asks for news before it shows what this node has.
REFRESH_S = 1.0
NOT_ANSWERED = f"no answer within {REFRESH_S:g} second"
# How often a program that waits looks what it waits for.
TELL_S = 1.0
# How long it is remembered that a node has no peers.
ALONE_S = 10.0

KEPT = f"what was written waits here, and {DELIVERS}"

Connect = Callable[[], AbstractAsyncContextManager["MeshServices"]]


class Delivery:
    """`connect` gives the services that connect this process; `warn` is called with a sentence if the peers could not
    be reached. Nothing happens on a node without peers. Safe to use from several threads.
    """

    def __init__(self, runtime: Runtime, connect: Connect, warn: Callable[[str], None]) -> None:
        self._runtime, self._connect, self._warn = runtime, connect, warn
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._failure = ""
        self._alone_until = 0.0
        self._is_owed = False
        self._receivers: set[int] = set()
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event
        self._services: MeshServices
        self._syncing: SyncLoop

    def start(self) -> None:
        """Begins to sync, unless it has begun."""
        if self._thread is not None or time.monotonic() < self._alone_until or not is_on(MESH_ENABLED):
            return
        with self._runtime.store.read() as session:
            if not session.peers():
                self._alone_until = time.monotonic() + ALONE_S
                return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hocket-delivery", daemon=True)
                self._thread.start()

    def wrote(self, to: int | None = None) -> None:
        """Something is on the log that others must get, above all node `to`."""
        self._is_owed = True
        if to is not None:
            self._receivers.add(to)
        self.start()

    def send(self) -> str:
        """Sends what was written, now. Returns why that was not possible; empty if it was."""
        if self._is_owed and not is_on(MESH_ENABLED):
            self._is_owed = False
            return f"{MESH_ENABLED} is off; {KEPT}"
        if self._thread is None or not self._is_owed:
            return ""
        self._is_owed = False
        if not self._is_ready.wait(START_S) or self._failure:
            return self._failure
        return asyncio.run_coroutine_threadsafe(self._deliver(), self._loop).result()

    def refresh(self) -> str:
        """Exchanges ops and presence with the coordinator, for `REFRESH_S` at most, unless another process of this node
        syncs. Returns why that was not possible; empty if it was.
        """
        if ProcessTurn.is_taken(self._runtime.home.processes):
            return self._failing()
        deadline = time.monotonic() + REFRESH_S
        self.start()
        if self._thread is None:
            return "" if is_on(MESH_ENABLED) else f"{MESH_ENABLED} is off"
        if not self._is_ready.wait(REFRESH_S):
            return NOT_ANSWERED
        if self._failure:
            return self._failure
        asking = asyncio.run_coroutine_threadsafe(self._exchange(), self._loop)
        try:
            return asking.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            asking.cancel()
            return NOT_ANSWERED

    def heard_ms(self) -> int:
        """When the coordinator, or any peer if its address is not known, was last heard; 0 for never."""
        with self._runtime.store.read() as session:
            targets = self._targets(session)
            return max((each.seen for each in session.peers() if each.address in targets), default=0)

    def _failing(self) -> str:
        """Why the process that syncs does not reach the coordinator; empty if it does."""
        with self._runtime.store.read() as session:
            targets = self._targets(session)
            known = [each for each in session.peers() if each.address in targets]
        bad = [each for each in known if each.state not in (peers.OK, peers.NEW)]
        return bad[0].detail if bad and len(bad) == len(known) else ""

    async def _exchange(self) -> str:
        with self._runtime.store.read() as session:
            targets = self._targets(session)
        done = await asyncio.gather(*(self._visit(each) for each in targets))
        return "" if any(each.state == peers.OK for each in done) else done[0].detail

    def hear_progress(self) -> None:
        """Asks the coordinator for the progress of jobs on other nodes, without waiting for its answer, unless another
        process of this node syncs. Call it again and again: it asks once in `NOTES_S`.
        """
        if self._thread is not None and self._is_ready.is_set() and not self._failure and self._syncing.is_on:
            asyncio.run_coroutine_threadsafe(self._hear_progress(), self._loop)

    async def _hear_progress(self) -> None:
        from hocket.mesh.presence import NOTES_S

        with self._runtime.store.read() as session:
            targets = self._targets(session)
        for address in targets:
            with suppress(HocketError):
                await self._services.exchanges.share_presence(address, NOTES_S)

    async def _visit(self, address: str) -> "Exchanged":
        done = await self._services.exchanges.visit(address)
        if done.state == peers.OK:
            await self._services.exchanges.share_presence(address)
        return done

    def close(self) -> None:
        """Sends what was written, and ends. Warns if that was not possible."""
        if why_not := self.send():
            self._warn(why_not)
        if self._thread is not None:
            if self._is_ready.wait(START_S) and not self._failure:
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(START_S)
            self._thread = None

    def _run(self) -> None:
        try:
            asyncio.run(self._sync())
        except Exception as error:
            said = str(error) if isinstance(error, HocketError) else described(error)
            self._failure = f"{said}; {KEPT}"
        finally:
            self._is_ready.set()

    async def _sync(self) -> None:
        async with self._connect() as services:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            self._services, self._syncing = services, services.loop()
            task = asyncio.create_task(self._syncing.run())
            self._is_ready.set()
            await self._over.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _deliver(self) -> str:
        """Sends everything to the targets, of which one must take it. Returns why not."""
        runtime, exchanges = self._runtime, self._services.exchanges
        await asyncio.sleep(0)  # the loop may be about to begin
        with runtime.store.read() as session:
            targets, known = self._targets(session), session.peers()
        if not self._syncing.is_on and ProcessTurn.is_taken(runtime.home.processes):
            # Another process of this node syncs, and has seen that there is something to send.
            bad = [each for each in known if each.address in targets and each.state not in (peers.OK, peers.NEW)]
            if len(bad) < len(targets):
                return ""
            return f"{bad[0].detail}; what was written waits here, and is sent when it answers"
        receivers, self._receivers = self._receivers, set()
        messages = DirectDelivery(self._services.access, exchanges)
        delivering = asyncio.create_task(messages.deliver_all(receivers))
        visits = {each: asyncio.create_task(exchanges.visit(each)) for each in targets}
        tasks = [delivering, *visits.values()]
        try:
            _, late = await asyncio.wait(tasks, timeout=DELIVER_S)
        finally:
            await end_tasks(task for task in tasks if not task.done())
        for each in (address for address, visit in visits.items() if visit in late):
            await exchanges.transport.blame(each, f"no answer within {DELIVER_S:g} seconds")
        done = [each.result() for each in visits.values() if each not in late]
        is_delivered = delivering not in late and delivering.result()
        if is_delivered or any(each.state == peers.OK and not each.retry_s for each in done):
            return ""
        why_not = done[0].detail if done else f"{targets[0]} has not taken it within {DELIVER_S:g} seconds"
        return f"{why_not}; {KEPT}"

    def _targets(self, session: Session) -> list[str]:
        """Where to send what was written: to the coordinator, or else to the peers that have answered, or to all."""
        log = self._runtime.log
        awaited = peers.awaited(log, session)
        address = None if awaited in (None, log.node) else peers.address_of(session, awaited)
        if address is not None:
            return [address]
        known = session.peers()
        near = [each for each in known if each.state in (peers.OK, peers.NEW)]
        return [each.address for each in near or known]
