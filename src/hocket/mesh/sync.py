"""Exchanges with every peer, by address, and what else is asked of peers: the coordinator's decisions, contents and
output. `peer_exchange` is the exchange with one peer; `loop` decides when to sync with which.
"""

import asyncio
import os
from collections.abc import Callable

from hocket.errors import CircuitOpen, HocketError, StoreError, Unreachable
from hocket.events import Emit, ignore
from hocket.events.nodes import PeerChanged, PeerPaused
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.postcard import Malformed
from hocket.log import Log
from hocket.mesh import blobs, peers
from hocket.mesh.breakers import GuardedTransport
from hocket.mesh.client import Busy, Client, Paused, Refused
from hocket.mesh.output import AskedOutput, FarOutput, fetch_output
from hocket.mesh.peer_exchange import Exchanged, PeerExchange
from hocket.mesh.presence import PresenceSharing
from hocket.mesh.quotas import Quotas
from hocket.mesh.window_tokens import WindowTokens
from hocket.mesh.wire import Transport, look, note
from hocket.store import Peer, Session
from hocket.work.environment import Environment
from hocket.work.liveness import BEAT_S
from hocket.work.node_access import NodeAccess

# How long a worker waits for the arbiter's answer.
CONSULT_S = 5.0
# A successful exchange is recorded again after this long, if there is nothing else to write.
SEEN_AGAIN_MS = 10_000


class Exchanges:
    """Exchanges with any peer, by address. Use it on one event loop."""

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
        window_tokens: WindowTokens | None = None,
    ) -> None:
        self._window_tokens = window_tokens
        self._quotas = quotas or Quotas(environment.monotonic, emit)
        self._access, self._key, self._environment = access, key, environment
        self.transport = GuardedTransport(transport, access, environment, emit)
        self._randomness = randomness
        self._emit = emit
        self._told: dict[str, tuple[str, str]] = {}
        self._peers: dict[str, PeerExchange] = {}
        self.presence = PresenceSharing(access, environment)

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

    async def share_presence(self, address: str, every_s: float = BEAT_S) -> None:
        """Tells a peer that has just answered what this node says about itself, and stores what it knows of others."""
        await self.presence.share((await self._exchange_with(address)).client, every_s)

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
                f"no address of the coordinator {node_text(node)} is known; add it with `hocket peers add`"
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
        return await blobs.fetch_blob(await self._clients(), hash, size)

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
                *(self._access, self._key, self.transport, self._environment, address, known, self._randomness),
                self._window_tokens,
            )
            # Another task may have been faster.
            self._peers.setdefault(
                address, PeerExchange(client, self._access, self._environment, self._quotas, self._emit)
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
