"""Exchanges with every peer, by address, and what else is asked of peers: the coordinator's decisions, contents and
output. `peer_exchange` is the exchange with one peer; `loop` decides when to sync with which.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import closing, suppress
from pathlib import Path

from hocket.breakers import refusal, transition
from hocket.bus.hints import Changes, about
from hocket.errors import CircuitOpen, HocketError, StoreError, Unreachable
from hocket.events import Emit, ignore
from hocket.events.nodes import PeerChanged, PeerPaused
from hocket.families.access import NodeAccess
from hocket.families.inbox.facts import MESSAGE, SendMessage
from hocket.families.inbox.rules import read_address
from hocket.families.liveness import BEAT_S
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.kernel.retrying import Breaker, BreakerState
from hocket.kernel.vocabulary import number_of
from hocket.log import Log
from hocket.log.checkpoints.sharing import CheckpointSharing, last_op
from hocket.mesh import peers
from hocket.mesh.client import Busy, Client, Paused, Refused
from hocket.mesh.output import AskedOutput, FarOutput, fetch_blob, fetch_output
from hocket.mesh.peer_exchange import Exchanged, PeerExchange
from hocket.mesh.presence import PresenceSharing
from hocket.mesh.quotas import Quotas
from hocket.mesh.wire import HEALTH, Reply, Request, SecondProof, Transport, look, note
from hocket.store import OpSession, Peer, Session
from hocket.work.environment import Environment

# How long a worker waits for the arbiter's answer.
CONSULT_S = 5.0
# A successful exchange is recorded again after this long, if there is nothing else to write.
SEEN_AGAIN_MS = 10_000


class Exchanges:
    """Exchanges with any peer, by address. `fetched_snapshot` is the folder for a snapshot while it is fetched. Use it
    on one event loop.
    """

    def __init__(
        self,
        access: NodeAccess,
        key: SigningKey,
        transport: Transport,
        environment: Environment,
        *,
        randomness: Callable[[int], bytes] = os.urandom,
        emit: Emit = ignore,
        quotas: Quotas | None = None,
        second_proof: SecondProof | None = None,
        fetched_snapshot: Path | None = None,
    ) -> None:
        self._second_proof = second_proof
        self._fetched_snapshot = fetched_snapshot
        self._quotas = quotas or Quotas(environment.monotonic, emit)
        self._access, self.key, self._environment = access, key, environment
        self.transport = GuardedTransport(transport, access, environment, emit)
        self._randomness = randomness
        self._emit = emit
        self._told: dict[str, tuple[str, str]] = {}
        self._peers: dict[str, PeerExchange] = {}
        self.presence = PresenceSharing(access, environment)
        self.checkpoints = CheckpointSharing(access.log)
        self._shared_at: dict[str, float] = {}

    async def visit(self, address: str, *, unless_idle: bool = False) -> Exchanged:
        """One exchange; its outcome is stored for the operator. `unless_idle`: only if there is something to push."""
        try:
            done = await self.exchange(address, unless_idle=unless_idle)
        except StoreError:
            raise
        except CircuitOpen as error:
            # Nothing was asked, so nothing new is known about the peer.
            return Exchanged(address, None, peers.UNREACHABLE, str(error), retry_s=error.wait_s)
        except Paused as error:
            done = Exchanged(address, None, peers.PAUSED, str(error))
        except Refused as error:
            done = Exchanged(address, None, peers.REFUSED, str(error))
        except Busy as error:
            done = Exchanged(address, None, peers.OK, str(error), retry_s=error.seconds)
        except HocketError as error:
            done = Exchanged(address, None, peers.UNREACHABLE, str(error))
        except Malformed as error:
            # The question does not fit into a request.
            done = Exchanged(address, None, peers.UNREACHABLE, f"this node cannot ask it: {error}")
        if done.state != peers.OK:
            # Another node may answer next time.
            self._peers.pop(address, None)
        await self._record(done)
        return done

    async def visit_fully(self, address: str) -> Exchanged:
        """One exchange, after which the two also share checkpoints."""
        done = await self.visit(address)
        if done.state == peers.OK:
            await self.share_checkpoints(address, 0.0)
        return done

    async def share_presence(self, address: str, every_s: float = BEAT_S) -> None:
        """Tells a peer that has just answered what this node says about itself, and stores what it knows of others."""
        await self.presence.share((await self._exchange_with(address)).client, every_s)

    async def share_checkpoints(self, address: str, every_s: float = BEAT_S) -> None:
        """Shares checkpoints with a peer that has just answered, if that was last done so long ago. A peer that does
        not know how is left alone.
        """
        at, now_s = await self._exchange_with(address), self._environment.monotonic()
        if now_s - self._shared_at.get(address, -every_s) < every_s:
            return
        self._shared_at[address] = now_s
        peer = at.client.node or at.client.claims
        if peer is None or not at.client.is_hocket or self.transport.is_failing(address):
            return
        has, peer_has = await look(self._access, lambda session: last_op(session, peer)), at.peer_has
        body = await self._access.call(lambda: self.checkpoints.question(address, has, peer_has))
        try:
            answer = None if body is None else await at.client.share_checkpoints(body)
        except HocketError:
            self.checkpoints.forget(address)
            return
        if answer is not None:
            for event in await self._access.call(lambda: self.checkpoints.take(address, answer)):
                self._emit(event)

    async def ask_for_checkpoints(self) -> int:
        """Asks every peer for the checkpoints that it has, and exchanges nothing else. Returns how many answered."""

        async def ask(address: str) -> bool:
            try:
                async with asyncio.timeout(CONSULT_S):
                    await self.client(address)
                    await self.share_checkpoints(address, 0.0)
            except (HocketError, TimeoutError):
                return False
            return True

        known = await look(self._access, lambda session: session.peers())
        asked = [each.address for each in known if each.state != peers.PAUSED]
        return sum(await asyncio.gather(*map(ask, asked)))

    async def exchange(self, address: str, *, unless_idle: bool = False) -> Exchanged:
        """Pulls everything and pushes everything. Raises Paused, Refused or Unreachable."""
        return await (await self._exchange_with(address)).exchange(unless_idle=unless_idle)

    async def deliver(self, address: str) -> None:
        """Pushes what a peer lacks, so that messages for its agents are stored there. Each try goes out, also while the
        peer's breaker is open. Raises Unreachable and others.
        """
        await self.transport.hasten(address)
        at = await self._exchange_with(address)
        try:
            await at.deliver()
        except HocketError:
            # Another node may answer next time.
            self._peers.pop(address, None)
            raise

    async def hint_headers(self, address: str) -> dict[str, str]:
        return dict((await self.client(address)).hint_headers())

    async def consult(self, is_urgent: bool = False) -> None:
        """Exchanges with the coordinator, so that it decides on offers and its decisions arrive here. Raises
        Unreachable if it cannot be reached now. If it is urgent, an open breaker lets one request out.
        """
        log = self._access.log
        node, address = await look(self._access, lambda session: _coordinator(log, session))
        if node is None:
            # A node that has just joined learns from any peer which node decides.
            for peer in await look(self._access, lambda session: session.peers()):
                await self.visit(peer.address)
            node, address = await look(self._access, lambda session: _coordinator(log, session))
        if node is None or node == log.node:
            return
        if address is None:
            raise Unreachable(
                f"no address of the coordinator {node_text(node)} is known; add it with `hocket mesh peers add`"
            )
        if is_urgent:
            await self.transport.hasten(address)
        try:
            async with asyncio.timeout(CONSULT_S):
                done = await self.visit(address)
                while not done.answered:
                    done = await self.visit(address)
        except TimeoutError:
            await self.transport.blame(address, f"no answer within {CONSULT_S:g} seconds")
            silent = f"the coordinator at {address} does not answer"
            await self._record(Exchanged(address, None, peers.UNREACHABLE, silent))
            raise Unreachable(silent) from None
        if done.state != peers.OK or done.retry_s:
            raise Unreachable(done.detail)

    async def fetch(self, hash: bytes, size: int) -> bytes:
        """Fetches a blob from any peer that has it. Raises Unreachable if no reachable peer does."""
        return await fetch_blob(await self._clients(), hash, size)

    async def output(self, asked: AskedOutput) -> FarOutput | None:
        """The next part of a job's output, as far as a peer has it. None if no peer can be reached or knows the job."""
        return await fetch_output(await self._clients(), asked)

    async def client(self, address: str) -> Client:
        client = (await self._exchange_with(address)).client
        await client.meet()
        return client

    async def _clients(self) -> list[Client]:
        log = self._access.log
        known = await look(self._access, lambda session: session.peers())
        authority = await self._access.call(log.authority)
        return [
            (await self._exchange_with(peer.address)).client
            for peer in known
            if peer.state != peers.PAUSED and not peers.is_revoked(authority, peer.node, log.physical())
        ]

    async def _exchange_with(self, address: str) -> PeerExchange:
        if address not in self._peers:
            peer = await look(self._access, lambda session: peers.find(session, address))
            known = None if peer is None or peer.node is None else int.from_bytes(peer.node, "big")
            client = Client(
                *(self._access, self.key, self.transport, self._environment, address, known, self._randomness),
                self._second_proof,
            )
            # Another task may have been faster.
            self._peers.setdefault(
                address,
                PeerExchange(
                    *(client, self._access, self._environment, self._quotas, self._emit), self._fetched_snapshot
                ),
            )
        return self._peers[address]

    # What the operator sees.

    async def _record(self, done: Exchanged) -> None:
        now = self._environment.physical_ms()

        def edit(peer: Peer) -> Peer:
            node = peer.node if done.node is None else done.node.to_bytes(8, "big")
            is_due = done.state == peers.OK and now - peer.seen >= SEEN_AGAIN_MS
            return peer._replace(node=node, state=done.state, detail=done.detail, seen=now if is_due else peer.seen)

        found = await look(self._access, lambda session: peers.find(session, done.address))
        if found is None:
            return
        if edit(found) != found:
            await note(self._access, lambda session: peers.change(session, done.address, edit))
        # Another process may have written the same state. This one tells its own listeners of a failure all the same.
        is_ok = done.state == peers.OK
        before = self._told.get(done.address, (found.state, found.detail) if is_ok else (peers.NEW, ""))
        self._told[done.address] = (done.state, done.detail)
        if before != (done.state, done.detail) and (done.detail or before[0] != peers.NEW):
            if done.state == peers.PAUSED:
                self._emit(PeerPaused(done.address, done.detail))
            else:
                self._emit(PeerChanged(done.address, done.state, done.detail))


def _coordinator(log: Log, session: Session) -> tuple[int | None, str | None]:
    node = peers.coordinator(log, session)
    return node, None if node is None else peers.address_of(session, node)


# A circuit breaker for each peer, around every request to it. The processes of a node share it through their store:
# when one of them has found that a peer does not answer, the others do not wait for it, and only one of them probes.
# A failure is a request without an answer, or an answer that says that the server or a proxy before it is broken.
# Every other answer is a success, refusals included.

BROKEN = frozenset((500, 502, 504))


class GuardedTransport:
    """A transport that asks the breaker of an address before each request. Streams of hints are not guarded: a node
    listens only to a peer that has just answered. Use it on one event loop.
    """

    def __init__(self, transport: Transport, access: NodeAccess, environment: Environment, emit: Emit) -> None:
        self._transport, self._access, self._environment, self._emit = transport, access, environment, emit
        self._known: dict[str, Breaker] = {}

    async def send(self, address: str, request: Request) -> Reply:
        """Raises CircuitOpen if no request may go out now."""
        call = await self._admit(address)
        try:
            reply = await self._transport.send(address, request)
        except Unreachable as error:
            await self._fail(address, call, str(error))
            raise
        except BaseException:
            if self._known[address].probe_ms is not None:
                await self._change(address, lambda breaker: breaker.abandoned(call))
            raise
        if reply.status in BROKEN:
            await self._fail(address, call, f"{address} answered with status {reply.status}")
        elif self._known[address].failures:
            await self._change(address, lambda breaker: breaker.succeeded(call))
        return reply

    def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        return self._transport.hints(address, headers)

    def is_failing(self, address: str) -> bool:
        """Whether the last request to the address has failed, as far as this process knows."""
        known = self._known.get(address)
        return known is not None and known.failures > 0

    async def blame(self, address: str, error: str) -> None:
        """Counts a failure of a peer that the caller has stopped waiting for."""
        await self._change(address, lambda breaker: breaker.failed(breaker.call, self._now_ms(), error))

    async def hasten(self, address: str) -> None:
        """Lets the next request out, whatever came before."""
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = await look(self._access, lambda session: peers.breaker(session, address))
        if known.state is BreakerState.CLOSED:
            return
        await self._change(address, lambda breaker: breaker.hastened(self._now_ms()))

    async def revive(self, address: str) -> None:
        """If the last requests to the address have failed: lets the next one out if a server answers there again.
        Raises Unreachable.
        """
        known = self._known.get(address)
        if known is not None and known.state is not BreakerState.CLOSED:
            await self._transport.send(address, Request("GET", HEALTH))
            await self.hasten(address)

    async def _admit(self, address: str) -> int:
        known = self._known.get(address)
        if known is None or known.state is not BreakerState.CLOSED:
            known = await look(self._access, lambda session: peers.breaker(session, address))
            self._known[address] = known
        if known.wait_ms(self._now_ms()):
            raise refusal(_named(address), known, self._now_ms())
        if known.state is BreakerState.CLOSED:
            return known.call
        now_ms = self._now_ms()
        call: int | None = None

        def admit(breaker: Breaker) -> Breaker:
            nonlocal call
            admitted = breaker.admit(now_ms)
            call = admitted.call
            return admitted.breaker

        await self._change(address, admit)
        if call is None:  # another process was faster
            raise refusal(_named(address), self._known[address], now_ms)
        return call

    async def _fail(self, address: str, call: int, error: str) -> None:
        await self._change(address, lambda breaker: breaker.failed(call, self._now_ms(), error))

    async def _change(self, address: str, change: Callable[[Breaker], Breaker]) -> None:
        def changed(session: Session) -> tuple[Breaker, Breaker]:
            before = peers.breaker(session, address)
            after = change(before)
            if after != before:
                peers.set_breaker(session, address, after)
            return before, after

        before = self._known.get(address, Breaker())
        after = change(before)
        with suppress(StoreError):  # then this process alone knows
            before, after = await note(self._access, changed)
        self._known[address] = after
        if (event := transition(_named(address), before, after)) is not None:
            self._emit(event)

    def _now_ms(self) -> int:
        return self._environment.physical_ms()


def _named(address: str) -> str:
    return f"peer {address}"


# Brings messages to the nodes that they are for, as soon as they are on the log: a push to the receiver's node, three
# times at most. A message that could not be delivered so is on the log all the same, and the next exchange brings it.

# How long to wait after each try that failed. After the last one the exchange takes over.
RETRY_S = (0.5, 1.0, 2.0)
# A hint can be lost, so the log is looked at again after this long.
LOOK_AGAIN_S = 2.0
STEP_OPS = 1_000
_SEND = number_of(SendMessage)


class DirectDelivery:
    """Cancel `run` to end it."""

    def __init__(self, access: NodeAccess, exchanges: "Exchanges") -> None:
        self._access, self._exchanges = access, exchanges
        self._wanted: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delivers every message of this node for another one that is written from now on, by any of its processes."""
        try:
            with closing(self._access.listen(about(MESSAGE))) as changes:
                seq = await look(self._access, lambda session: session.head().seq)
                while True:
                    await changes.wait(LOOK_AGAIN_S)
                    found, seq = await look(self._access, lambda session, seq=seq: self._receivers(session, seq))  # type: ignore[misc]
                    for node in found:
                        self._wanted.add(node)
                        if node not in self._tasks:
                            self._tasks[node] = asyncio.create_task(self._deliver(node))
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def deliver_all(self, nodes: Collection[int]) -> bool:
        """Whether there were messages for some nodes, and each of these has them now."""
        return bool(nodes) and all(await asyncio.gather(*map(self.deliver, nodes)))

    async def deliver(self, node: int) -> bool:
        """Whether the node has every message for it that is on the log. False also if its address is not known."""
        address = await look(self._access, lambda session: peers.address_of(session, node))
        if address is None:
            return False
        for wait in RETRY_S:
            try:
                await self._exchanges.deliver(address)
            except HocketError:
                await asyncio.sleep(wait)
            else:
                return True
        return False

    async def _deliver(self, node: int) -> None:
        try:
            while node in self._wanted:
                self._wanted.discard(node)
                await self.deliver(node)
        finally:
            del self._tasks[node]

    def _receivers(self, session: OpSession, seq: int) -> tuple[set[int], int]:
        """The nodes that messages on the log after this number are for, and the log's last number."""
        own, found = self._access.log.node, set[int]()
        while rows := session.entries_after(seq, STEP_OPS):
            seq = rows[-1].seq
            mine = [row for row in rows if row.variant == _SEND and row.hlc[12:] == own.to_bytes(8, "big")]
            found.update(node for row in mine if (node := _receiver(decode(row.body))) not in (None, own))
        return found, seq


def _receiver(op: Op) -> int | None:
    assert isinstance(op.payload, SendMessage)
    address = read_address(op.payload.to)
    return None if address is None else address.node


def stored_messages(log: Log, body: bytes) -> list[str]:
    """Which messages of a push are on this node's log."""
    ops = [op for _, op in read_sequence(body) if isinstance(op, Op)]
    sent = [(op.id, op.payload.message_id) for op in ops if isinstance(op.payload, SendMessage)]
    with log.store.read() as session:
        return [ulid_text(message_id) for op_id, message_id in sent if session.op(op_id) is not None]
