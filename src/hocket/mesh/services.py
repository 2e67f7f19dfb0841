"""Everything that one process of a node needs to talk to other nodes: the transport, the exchanges, the sync loop, and
the gate with all its paths.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from hocket.bus.messages import MessageBus
from hocket.events import Emit, ignore
from hocket.events.nodes import JoinRefused
from hocket.families.access import NodeAccess
from hocket.families.blobs import Blobs
from hocket.families.liveness import ProcessTurn
from hocket.kernel.keys import SigningKey
from hocket.mesh import enrolment, peers, tickets
from hocket.mesh.bus_sharing import MessageRelay
from hocket.mesh.gate import Gate
from hocket.mesh.gate_requests import UsedTokens
from hocket.mesh.http import HttpTransport
from hocket.mesh.loop import SyncLoop
from hocket.mesh.output import OutputPushes
from hocket.mesh.peers import Trust
from hocket.mesh.quotas import Buckets, Quotas
from hocket.mesh.snapshots.fetching import FETCHED
from hocket.mesh.snapshots.serving import SERVED, ServedSnapshots
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import Reply, Request, SecondProof, look, note
from hocket.work.environment import Environment
from hocket.work.output_files import OutputFiles

# How long the settings for checking peers' certificates are cached.
TRUST_S = 2.0
# Requests to join, from one address and from all together.
JOIN_RATE_PER_S, JOIN_BURST = 2.0, 20.0
ALL_JOINS_RATE_PER_S, ALL_JOINS_BURST = 50.0, 200.0


class MeshServices:
    """`processes` is the home's directory for files that processes share. Use it on one event loop; close it when
    done.
    """

    def __init__(
        self,
        access: NodeAccess,
        key: SigningKey,
        environment: Environment,
        processes: Path,
        emit: Emit = ignore,
        blobs: Blobs | None = None,
        output: OutputFiles | None = None,
        second_proof: SecondProof | None = None,
    ) -> None:
        self._second_proof = second_proof
        self._blobs, self._output = blobs, output
        self.messages: MessageBus | None = None
        """The bus between nodes, if there is one."""
        self.access, self._key, self._environment, self._processes = access, key, environment, processes
        self._emit = emit
        self._join_limits = Buckets(JOIN_RATE_PER_S, JOIN_BURST, environment.monotonic)
        self._all_join_limits = Buckets(ALL_JOINS_RATE_PER_S, ALL_JOINS_BURST, environment.monotonic)
        self._trusts: dict[str, Trust] = {}
        self._trusts_until = 0.0
        self.transport = HttpTransport(self._trust)
        # Ops that a node pushes and ops that are pulled from it count together.
        self._quotas = Quotas(environment.monotonic, emit)
        self.exchanges = Exchanges(
            *(access, key, self.transport, environment),
            emit=emit,
            quotas=self._quotas,
            second_proof=second_proof,
            fetched_snapshot=processes / FETCHED,
        )
        self.relay: MessageRelay | None = None
        """Set it before the loop and the gate are made, to carry messages of the bus between the nodes."""
        self._pushes: OutputPushes | None = None
        if output is not None:
            self._pushes = OutputPushes(access, output, self.exchanges.client, environment.monotonic)

    async def close(self) -> None:
        if self._pushes is not None:
            await self._pushes.close()
        await self.transport.close()

    def loop(self) -> SyncLoop:
        """The loop that syncs with the peers."""
        return SyncLoop(
            self.access,
            self.exchanges,
            self._environment,
            lambda: ProcessTurn.take(self._processes),
            emit=self._emit,
            wanted=self._wanted,
            carry=None if self.relay is None else self._carry,
            messages=self.messages,
        )

    async def _carry(self, address: str) -> None:
        if self.relay is not None:
            headers = await self.exchanges.hint_headers(address)
            client = await self.exchanges.client(address)
            await self.relay.carry(address, client.send_messages, self.transport.messages(address, headers))

    def _wanted(self, address: str, job_ids: frozenset[bytes]) -> None:
        if self._pushes is not None:
            self._pushes.wanted(address, job_ids)

    def gate(self, origins: Callable[[], Collection[str]] = tuple) -> Gate:
        """The gate for a server, including the path for joining."""
        return Gate(
            self.access,
            self._key,
            self._environment,
            origins=origins,
            routes={("POST", enrolment.JOIN): self._join},
            emit=self._emit,
            met=self._met,
            blobs=self._blobs,
            output=self._output,
            quotas=self._quotas,
            relay=self.relay,
            second_proof=self._second_proof,
            used_tokens=UsedTokens(self._processes),
            served_snapshots=ServedSnapshots(self.access.log, self._processes / SERVED),
        )

    async def _join(self, request: Request) -> Reply:
        """Any address may ask to join, so each is rate-limited; refusals are reported to the operator."""
        if wait := self._join_limits.take(request.address) or self._all_join_limits.take(None):
            return Reply(429, {"retry-after": str(max(1, round(wait)))})
        request = await request.whole(tickets.MESSAGE_BYTES_MAX)
        reply = await self.access.call(lambda: enrolment.answer(self.access.log, self._key, request))
        if reply.status != 200:
            self._emit(JoinRefused(reply.status, enrolment.refusal_of(reply)))
        return reply

    async def _met(self, node: int) -> None:
        """A node that came in has this node's rules: if it was paused for its rules, it is resumed."""
        key = node.to_bytes(8, "big")
        known = await look(self.access, lambda session: session.peers())
        if any(peer.state == peers.PAUSED and peer.node == key for peer in known):
            await note(self.access, lambda session: peers.resume_node(session, node))

    def _trust(self, address: str) -> Trust:
        now = self._environment.monotonic()
        if now >= self._trusts_until:
            with self.access.log.store.read() as session:
                self._trusts = peers.trusts(session)
            self._trusts_until = now + TRUST_S
        return self._trusts.get(address, Trust())
