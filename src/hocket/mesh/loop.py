"""When to sync with which peer: with every peer at intervals, at once when a peer hints at something new, and at once
when there is something new here. A peer that does not answer is tried less and less often; a peer with other rules is
paused until the rules change or the operator resumes it. One process of a node does this for all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Protocol

from hocket.bus.hints import ANYTHING, LOG, NOTHING, OUTPUT, PEER, about
from hocket.bus.messages import MessageBus
from hocket.errors import HocketError, StoreError
from hocket.events import Emit, ignore
from hocket.events.nodes import CoordinatorSilent, NodeGraded, OpsDelivered, OpsWaiting
from hocket.events.workers import StoreUnavailable
from hocket.families.access import NodeAccess
from hocket.families.jobs.progress import own_notes
from hocket.families.liveness import Grade, grade
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.retrying import PEER_RETRIES, STORE_RETRIES
from hocket.log.succession.leading import CONFIRMED
from hocket.mesh import peers
from hocket.mesh.bus_sharing import BusSharing
from hocket.mesh.client import is_paused_by
from hocket.mesh.outgoing import order_ops
from hocket.mesh.output import wanted_in
from hocket.mesh.peer_exchange import Exchanged
from hocket.mesh.peers import WaitingOps
from hocket.mesh.succession.roles import SuccessionRoles
from hocket.mesh.sync import DirectDelivery, Exchanges
from hocket.mesh.wire import look
from hocket.store import Peer
from hocket.work.environment import Environment, supervised
from hocket.work.presence import own_workers

# How often a peer is visited if nothing is known to have happened, minus a random part each time.
CADENCE_S = 30.0
# A connection that lasted this long was good: the next one is tried soon.
STEADY_S = 10.0
JITTER = 0.3
# How often the loop checks whether the syncing process has died, and whether the list of peers has changed.
TURN_S = 1.0
ROUND_S = 2.0
# Changes here within this time of a push go into the next push.
GAP_S = 0.02

_PEERS = about(PEER)
_CONFIRMED = about(CONFIRMED)


class Turn(Protocol):
    """The right to sync: one process of a node has it."""

    def close(self) -> None: ...


class _Visitor:
    """Syncs with one peer."""

    def __init__(self, loop: "SyncLoop", address: str) -> None:
        self._loop, self._address = loop, address
        self._wake = asyncio.Event()
        self._hinted = NOTHING
        self._is_changed = self._is_forced = False
        self._is_resting = False
        self._is_welcome = asyncio.Event()
        self._failures = 0
        self.task = asyncio.create_task(
            supervised(f"the exchange with {address}", self._run, loop.emit, loop.environment),
        )

    def changed(self) -> None:
        self._is_changed = True
        self._wake.set()

    def hinted(self) -> None:
        """The peer, or another one, has said that there is something to fetch."""
        self._hinted = ANYTHING
        self._wake.set()

    def forced(self) -> None:
        """Ends the wait, whatever its reason."""
        self._is_forced = self._is_resting
        self._wake.set()

    async def _run(self) -> None:
        listening = asyncio.create_task(
            supervised(f"listening for hints of {self._address}", self._listen, self._loop.emit, self._loop.environment)
        )
        carrying: asyncio.Task[None] | None = None
        if (carry := self._loop.carry) is not None:
            work = supervised(
                f"messages to and from {self._address}",
                lambda: self._while_welcome(lambda: carry(self._address)),
                self._loop.emit,
                self._loop.environment,
            )
            carrying = asyncio.create_task(work)
        try:
            idle = False
            while True:
                self._hinted = NOTHING
                self._is_changed = self._is_forced = False
                try:
                    done = await self._loop.exchanges.visit(self._address, unless_idle=idle)
                except StoreError as error:
                    # An error of this node itself. It is retried as if the peer had not answered.
                    done = Exchanged(self._address, None, peers.UNREACHABLE, str(error))
                if done.state == peers.OK:
                    self._is_welcome.set()
                    await self._loop.exchanges.share_presence(self._address)
                    await self._loop.exchanges.share_checkpoints(self._address)
                else:
                    self._is_welcome.clear()
                self._is_resting = True
                idle = await self._rest(done)
                self._is_resting = False
        finally:
            if carrying is not None:
                carrying.cancel()
                await asyncio.wait([carrying])
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _rest(self, done: Exchanged) -> bool:
        """Waits until the next visit is due. True if the only reason is a change here."""
        environment = self._loop.environment
        is_well = done.state == peers.OK and not done.retry_s
        self._failures = 0 if done.state == peers.OK else self._failures + 1
        if is_well:
            wait = CADENCE_S * environment.chance.uniform(1.0 - JITTER, 1.0)
            await asyncio.sleep(GAP_S)
        elif done.retry_s:
            # The peer has said when. An open breaker knows it by the last try, and that is not put off any longer.
            late = environment.chance.uniform(0.0, JITTER) if done.state == peers.OK else 0.0
            wait = done.retry_s * (1.0 + late)
        else:
            wait = PEER_RETRIES.delay_s(self._failures, environment.chance.random())
        until = environment.monotonic() + wait
        is_paused = done.state == peers.PAUSED and self._loop.is_paused_by(done.detail)
        while (left := until - environment.monotonic()) > 0 or is_paused:
            if self._is_forced or (is_well and (self._hinted or self._is_changed)):
                break
            self._wake.clear()
            beat_s = self._loop.exchanges.presence.due_s(self._address) if done.state == peers.OK else left
            with suppress(TimeoutError):
                async with asyncio.timeout(None if is_paused else max(0.0, min(left, beat_s))):
                    await self._wake.wait()
            if done.state == peers.OK and self._loop.exchanges.presence.due_s(self._address) <= 0:
                await self._loop.exchanges.share_presence(self._address)
                await self._loop.exchanges.share_checkpoints(self._address)
        if self._is_forced:
            self._failures = 0
        idle = is_well and self._is_changed and not self._hinted and not self._is_forced and left > 0
        return idle

    async def _while_welcome(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Connects to a peer that admits this node, and again when the connection has ended."""
        environment, failures = self._loop.environment, 0
        while True:
            await self._is_welcome.wait()
            began = environment.monotonic()
            with suppress(HocketError):  # the visits report the peer's state
                await connect()
            failures = 1 if environment.monotonic() - began > STEADY_S else failures + 1
            await asyncio.sleep(PEER_RETRIES.delay_s(failures, environment.chance.random()))

    async def _listen(self) -> None:
        """Listens for the hints of a peer that admits this node, and reconnects when the connection breaks."""
        failures = 0
        while True:
            await self._is_welcome.wait()
            try:
                headers = await self._loop.exchanges.hint_headers(self._address)
                async for changes in self._loop.exchanges.transport.hints(self._address, headers):
                    failures = 0
                    if wanted := wanted_in(changes):
                        self._loop.wanted(self._address, wanted)
                    if changes.kinds or any(family != OUTPUT for family, _ in changes.subjects):
                        self._hinted |= changes
                        self._wake.set()
            except HocketError:
                pass  # the visits report the peer's state
            failures += 1
            await asyncio.sleep(PEER_RETRIES.delay_s(failures, self._loop.environment.chance.random()))


class SyncLoop:
    """Run it in every long-running process of a node: `turn` lets only one of them sync. Cancel it to end it. An error
    with one peer is reported and retried, and does not affect the others. `wanted` is called with the address of a peer
    and the jobs whose output it wants. With `messages`, nodes also tell each other of jobs and workers over the bus.
    """

    def __init__(
        self,
        access: NodeAccess,
        exchanges: Exchanges,
        environment: Environment,
        turn: Callable[[], Turn | None],
        emit: Emit = ignore,
        wanted: Callable[[str, frozenset[bytes]], None] = lambda address, job_ids: None,
        carry: Callable[[str], Awaitable[None]] | None = None,
        messages: MessageBus | None = None,
    ) -> None:
        self.wanted, self.carry, self._messages = wanted, carry, messages
        self._peer_nodes: dict[str, int | None] = {}
        self._access, self.exchanges, self.environment = access, exchanges, environment
        self._turn, self.emit = turn, emit
        self._visitors: dict[str, _Visitor] = {}
        self._seq = -1
        self._next_round = 0.0
        self._is_silent = self._is_waiting = False
        self._grades: dict[bytes, Grade] = {}
        self._roles = SuccessionRoles(access, exchanges, environment, emit)
        self.is_on = False

    async def run(self) -> None:
        await supervised("the exchange with the peers", self._run, self.emit, self.environment)

    async def _run(self) -> None:
        while (mine := self._turn()) is None:
            await asyncio.sleep(TURN_S)
        self.is_on = True
        messages = DirectDelivery(self._access, self.exchanges)
        tasks = [supervised("delivering messages", messages.run, self.emit, self.environment)]
        if self._messages is not None:
            sharing = BusSharing(self._access, self.environment, self._messages, self._hinted_by)
            tasks.append(supervised("sharing over the bus", sharing.run, self.emit, self.environment))
        beside = [asyncio.create_task(each) for each in tasks]
        try:
            await self._access.call(lambda: order_ops(self._access.log.store))
            failures = 0
            with closing(self._access.listen(about(LOG) | _PEERS | _CONFIRMED)) as changes:
                while True:
                    try:
                        if self.environment.monotonic() >= self._next_round:
                            await self._round()
                        await self._tell()
                        await self._roles.follow(self._access.log.permissions_reader.latest)
                        failures = 0
                    except StoreError as error:
                        self.emit(StoreUnavailable(str(error)))
                        failures += 1
                        await asyncio.sleep(STORE_RETRIES.delay_s(failures, self.environment.chance.random()))
                    await asyncio.sleep(GAP_S)
                    came = await changes.wait(ROUND_S)
                    if came.matches(_PEERS):
                        self._next_round = 0.0
                    if came.matches(_CONFIRMED):
                        self._seq = -1
        finally:
            self.is_on = False
            await self._roles.close()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._end(list(self._visitors))
            mine.close()

    def _hinted_by(self, node: int) -> None:
        """Wakes the visitor of a node; of one that is no peer, all: the coordinator will have what it announces."""
        found = [each for address, each in self._visitors.items() if self._peer_nodes.get(address) == node]
        for visitor in found or self._visitors.values():
            visitor.hinted()

    async def _tell(self) -> None:
        """Wakes the visitors that have to push."""
        seq = await look(self._access, lambda session: session.head().seq)
        if seq != self._seq:
            self._seq = seq
            for visitor in self._visitors.values():
                visitor.changed()

    async def _round(self) -> None:
        """Follows the list of peers and the workers of this node, and watches for nodes that fall silent."""
        self._next_round = self.environment.monotonic() + ROUND_S
        log, liveness, now_ms = self._access.log, self.environment.liveness, self.environment.physical_ms()
        known, silence, outbox, workers, notes, heard = await look(
            self._access,
            lambda session: (
                session.peers(),
                peers.silence(log, session),
                peers.outbox(log, session),
                workers := own_workers(session, liveness, log.node, now_ms),
                own_notes(session, log.node) if workers else (),
                {each.node: each.heard for each in session.presence()},
            ),
        )
        await self._follow({peer.address: peer for peer in known})
        for address, visitor in self._visitors.items():
            if not self.exchanges.presence.has_told(address, workers, notes):
                visitor.changed()
        if silence is not None and not self._is_silent:
            self.emit(CoordinatorSilent(node_text(silence.node)))
        self._is_silent = silence is not None
        self._tell_outbox(outbox)
        before, self._grades = self._grades, {node: grade(now_ms - at) for node, at in heard.items()}
        for node, found in self._grades.items():
            if before.get(node, found) is not found:
                silent_ms = max(0, now_ms - heard[node])
                self.emit(NodeGraded(node_text(int.from_bytes(node, "big")), found.value, silent_ms))

    def _tell_outbox(self, outbox: WaitingOps) -> None:
        if outbox.is_away and outbox.since_ms is not None and not self._is_waiting:
            self._is_waiting = True
            self.emit(OpsWaiting(outbox.ops, outbox.since_ms))
        elif self._is_waiting and not outbox.ops:
            self._is_waiting = False
            self.emit(OpsDelivered())

    async def _follow(self, known: dict[str, Peer]) -> None:
        self._peer_nodes = {
            address: None if peer.node is None else int.from_bytes(peer.node, "big") for address, peer in known.items()
        }
        await self._end([address for address in self._visitors if address not in known])
        for address, peer in known.items():
            is_paused = peer.state == peers.PAUSED and self.is_paused_by(peer.detail)
            if address not in self._visitors:
                if not is_paused:
                    self._visitors[address] = _Visitor(self, address)
            elif peer.state == peers.NEW:
                self._visitors[address].forced()

    def is_paused_by(self, detail: str) -> bool:
        return is_paused_by(detail, rules_hash(self._access.log.rules).hex())

    async def _end(self, addresses: list[str]) -> None:
        leaving = [self._visitors.pop(address).task for address in addresses]
        for task in leaving:
            task.cancel()
        for task in leaving:
            await asyncio.wait([task])
