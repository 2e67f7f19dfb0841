"""The client of one peer: the tokens and headers of every request, the meaning of each status, and which node has
answered. It believes nothing in an answer that the expected node has not signed. `sync` decides what to ask and what to
do with the answers.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from hocket.errors import HocketError, Unreachable
from hocket.families.access import NodeAccess
from hocket.kernel.capabilities import OURS, Knowledge, knowledge_text, read_knowledge
from hocket.kernel.decoding import decode_json
from hocket.kernel.frontier import Frontier, frontier_text, parse_frontier
from hocket.kernel.ids import node_text, parse_node
from hocket.kernel.jws import check_bearer, make_bearer, read_bearer
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import encode_sequence
from hocket.kernel.postcard import Malformed
from hocket.kernel.texts import span
from hocket.kernel.vocabulary import DelegateUcan, number_of
from hocket.mesh import peers, wire
from hocket.mesh.outgoing import PAGE_OPS_MAX
from hocket.mesh.wire import Reply, Request, SecondProof, Transport, look
from hocket.store import OpSession
from hocket.work.environment import Environment

# A token is for one request; this is how long the request may take to arrive.
TOKEN_S = 120
# The most by which a peer may correct the time in this node's tokens.
OFFSET_S_MAX = 600
RETRY_AFTER_S_MAX = 3600.0
RETRY_AFTER_S_DEFAULT = 5.0


class Paused(HocketError):
    """The peer has other rules. Nothing is exchanged until an operator resolves that."""


class Unsigned(NamedTuple):
    """What would prove an answer, once this node knows the key of the answering node."""

    token: str
    nonce: str
    answer: str


class Refused(HocketError):
    """The peer does not admit this node, or is not the expected node."""

    exit_code = 4


class Busy(Unreachable):
    """The peer asks this node to wait."""

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


class LetGo(HocketError):
    """The peer has let go of ops that this node lacks. Its snapshot has what remains."""


class AnswerTooLarge(HocketError):
    """The peer accepts only smaller bodies."""


class PeerAnswer(NamedTuple):
    """The result of a pull. `frontier` is the server's own; it is set if the answer is complete."""

    body: bytes
    following: Frontier
    frontier: Frontier | None


class PushCounts(msgspec.Struct):
    appended: int
    duplicated: int
    rejected: int
    held: int = 0
    unlinked: int = 0
    over_quota: int = 0
    retry_s: int = 0


class _Health(msgspec.Struct):
    node: str
    protocol: int


class Client:
    """`node` is the proven identity of the peer; `claims` is the identity that it claims. `is_hocket` is whether it
    knows Hocket's additions to the protocol. `knows` is what its program knows, once it has said so.
    """

    def __init__(
        self,
        access: NodeAccess,
        key: SigningKey,
        transport: Transport,
        environment: Environment,
        address: str,
        node: int | None,
        randomness: Callable[[int], bytes] = os.urandom,
        second_proof: SecondProof | None = None,
    ) -> None:
        self._second_proof = second_proof
        self._access, self._key, self._transport, self._environment = access, key, transport, environment
        self._randomness = randomness
        self.address = address
        self._expected = node
        self.claims: int | None = None
        self.node: int | None = None
        self.is_hocket = False
        self._has_met = self._has_introduced = False
        self._offset_s = 0
        self._public: bytes | None = None
        self._unsigned: Unsigned | None = None
        self.knows: Knowledge | None = None
        # By how many milliseconds the peer's clock was ahead of this machine's in its last signed answer.
        self.offset_ms = 0
        self._sent_ms = 0

    # Requests.

    async def meet(self) -> None:
        """Finds out, once, which node answers at the address."""
        if self._has_met:
            return
        reply = await self._transport.send(self.address, Request("GET", wire.HEALTH))
        if reply.status == 200:
            try:
                health = decode_json(reply.body, _Health)
                self.claims, self.is_hocket = parse_node(health.node), health.protocol == wire.PROTOCOL
            except (msgspec.MsgspecError, ValueError):
                pass  # not a Hocket server; keep strictly to Likewise
        if self.claims is None and self._expected is not None:
            raise Unreachable(
                f"{self.address} does not identify itself; node {node_text(self._expected)} should answer there"
            )
        if self.claims is not None and self._expected not in (None, self.claims):
            raise Refused(
                f"node {node_text(self.claims)} answers at {self.address} where {node_text(self._expected or 0)} did;"
                " if that is intended, remove the peer and add it again"
            )
        if self.is_hocket and self._expected is None:
            # It may not know this node yet.
            await self._introduce()
        self._has_met = True

    async def pull(self, since: Frontier, limit: int = PAGE_OPS_MAX) -> PeerAnswer:
        reply = await self._ask("GET", wire.OPS, _query(since, limit))
        return self._answer(reply)

    async def push(self, bodies: list[bytes]) -> PushCounts:
        return await self._push(wire.OPS, bodies)

    async def _push(self, path: str, bodies: list[bytes]) -> PushCounts:
        reply = await self._ask("POST", path, body=encode_sequence(bodies))
        try:
            return decode_json(reply.body, PushCounts)
        except msgspec.MsgspecError:
            raise Unreachable(f"{self.address} answered a push without counts") from None

    async def deliver(self, bodies: list[bytes]) -> PushCounts:
        """A push that brings messages to the agents of the peer."""
        return await self._push(wire.DELIVER, bodies)

    async def exchange(self, bodies: list[bytes], since: Frontier) -> tuple[PushCounts, PeerAnswer]:
        """A push and a pull in one round trip, if the peer supports it."""
        reply = await self._ask("POST", wire.EXCHANGE, _query(since, PAGE_OPS_MAX), encode_sequence(bodies))
        numbers = [reply.headers.get(name, "0" if name in wire.LATER_COUNTS else "") for name in wire.COUNTS]
        if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
            raise Unreachable(f"{self.address} answered an exchange without counts")
        return PushCounts(*map(int, numbers)), self._answer(reply)

    async def blob(self, hash: bytes, start: int) -> bytes | None:
        """The next part of a blob from this position; None if the peer does not have it or does not give it."""
        reply, nonce = await self._send("GET", wire.BLOBS, f"hash={hash.hex()}&from={start}", b"")
        if reply.status == 404:
            return None
        # The content's hash proves that it is right, so it needs no signature.
        await self._check(reply, nonce)
        return reply.body

    async def share_presence(self, body: bytes) -> bytes | None:
        """Tells the peer about this node and returns what it knows about others; None if an earlier version
        answers.
        """
        reply, nonce = await self._send("POST", wire.PRESENCE, "", body)
        if reply.status in (404, 405):
            return None
        await self._check(reply, nonce)
        await self._believe(reply, nonce)
        return reply.body

    async def share_checkpoints(self, body: bytes) -> bytes | None:
        """Tells the peer of checkpoints and returns its answer; None if an earlier version answers."""
        reply, nonce = await self._send("POST", wire.CHECKPOINTS, "", body)
        if reply.status in (404, 405):
            return None
        await self._check(reply, nonce)
        await self._believe(reply, nonce)
        return reply.body

    async def ask_named(self, path: str, body: bytes) -> bytes:
        """Asks a named node as the coordinator or as a successor."""
        reply = await self._ask("POST", path, body=body)
        if self.node is None:
            raise Unreachable(f"{self.address} did not prove which node it is")
        return reply.body

    async def snapshot(self, query: str = "") -> bytes:
        """The manifest of the peer's snapshot, or a chunk. Raises Unreachable if the peer has none."""
        reply, nonce = await self._send("GET", wire.SNAPSHOT, query, b"")
        if reply.status in (404, 405):
            raise Unreachable(f"{self.address} has no snapshot to give")
        # The signed horizon proves that it is right, so it needs no signature.
        await self._check(reply, nonce)
        return reply.body

    async def output(self, query: str) -> bytes | None:
        """The output of a job; None if the peer does not know the job or does not give its output."""
        reply, nonce = await self._send("GET", wire.OUTPUT, query, b"")
        if reply.status == 404:
            return None
        await self._check(reply, nonce)
        await self._believe(reply, nonce)
        return reply.body

    async def push_output(self, query: str, body: bytes) -> bytes:
        return (await self._ask("POST", wire.OUTPUT, query, body)).body

    async def send_messages(self, body: bytes) -> None:
        """Hands sealed messages of the bus to the peer. Its answer says nothing, so it is not checked for a proof."""
        reply, nonce = await self._send("POST", wire.BUS, "", body)
        await self._check(reply, nonce)

    def hint_headers(self) -> Mapping[str, str]:
        """The headers of a request for hints."""
        return self._headers(self._nonce())

    async def prove(self) -> int | None:
        """The node that gave the last answer, if its key is known here by now. Raises Refused if it is another node
        than it claims.
        """
        if self.node is None and self._unsigned is not None:
            await self._hold_against(self._unsigned)
        return self.node

    async def _believe(self, reply: Reply, nonce: str) -> None:
        """Raises Refused if the expected node has not signed an answer. A server that never identified itself signs
        nothing, and the key of a node may arrive with its first ops.
        """
        if self.claims is not None:
            await self._hold_against(Unsigned(reply.headers.get(wire.NODE, ""), nonce, wire.answer_hash(reply)))

    async def _hold_against(self, proof: Unsigned) -> None:
        assert self.claims is not None
        claims = self.claims
        if self._public is None:
            known = await look(self._access, lambda session: session.nodes().get(claims.to_bytes(8, "big")))
            self._public = None if known is None else known[0]
        self._unsigned = proof if self._public is None else None
        if self._public is None:
            return
        if not self._is_signed(proof, self._public):
            self.node = None
            raise Refused(
                f"the answer from {self.address} is not signed by node {node_text(claims)}, which should answer there;"
                " it was discarded"
            )
        self.node = claims

    def _is_signed(self, proof: Unsigned, public: bytes) -> bool:
        try:
            bearer = read_bearer(proof.token)
        except Malformed:
            return False
        if (bearer.node, bearer.nonce, bearer.answer) != (self.claims, proof.nonce, proof.answer):
            return False
        if check_bearer(proof.token, bearer, public, (str(self._access.log.node),), self._now_s()) is not None:
            return False
        # The answer was signed between the request and now, and its time has whole seconds.
        self.offset_ms = bearer.issued * 1000 + 500 - (self._sent_ms + self._environment.physical_ms()) // 2
        return True

    # How requests are sent.

    async def _ask(self, method: str, path: str, query: str = "", body: bytes = b"") -> Reply:
        reply, nonce = await self._send(method, path, query, body)
        if reply.status == 401 and self._learn_time(reply):
            reply, nonce = await self._send(method, path, query, body)
        if reply.status == 401 and self.is_hocket and await self._introduce():
            reply, nonce = await self._send(method, path, query, body)
        await self._check(reply, nonce)
        await self._believe(reply, nonce)
        if wire.KNOWS in reply.headers:
            self.knows = read_knowledge(reply.headers[wire.KNOWS])
        return reply

    async def _send(self, method: str, path: str, query: str, body: bytes) -> tuple[Reply, str]:
        """The reply, and the nonce that its token must repeat."""
        nonce = self._nonce()
        headers = dict(self._headers(nonce))
        if body:
            headers["content-type"] = wire.OCTETS
        self._sent_ms = self._environment.physical_ms()
        return await self._transport.send(self.address, Request(method, path, query, headers, body)), nonce

    def _headers(self, nonce: str) -> Mapping[str, str]:
        audience = _origin(self.address) if self.claims is None else str(self.claims)
        token = make_bearer(self._key, audience, self._now_s(), nonce, TOKEN_S)
        rules = rules_hash(self._access.log.rules).hex()
        headers = {"authorization": f"Bearer {token}", wire.RULES_HASH: rules, wire.KNOWS: knowledge_text(OURS)}
        if self._second_proof is not None:
            headers[wire.WINDOW] = self._second_proof.stamp(token, self._now_s() * 1000)
        return headers

    def _nonce(self) -> str:
        return self._randomness(16).hex()

    def _now_s(self) -> int:
        return self._environment.physical_ms() // 1000 + self._offset_s

    def _learn_time(self, reply: Reply) -> bool:
        """Adopts the server's time for this peer's tokens, if it differs but not by much."""
        offset = self._offset(reply)
        if offset is None or abs(offset) > OFFSET_S_MAX or abs(offset - self._offset_s) < 1:
            return False
        self._offset_s = offset
        return True

    def _offset(self, reply: Reply) -> int | None:
        """How many seconds the server's clock is ahead of this machine's, if the server says its time."""
        said = reply.headers.get(wire.TIME, "")
        if not (said.isascii() and said.isdigit() and len(said) < 16):
            return None
        return int(said) - self._environment.physical_ms() // 1000

    async def _introduce(self) -> bool:
        """Sends the op by which this node introduced itself, once. False if that did not help."""
        if self._has_introduced:
            return False
        self._has_introduced = True
        op = await look(self._access, lambda session: _introduction(session, self._access.log.node))
        if op is None:
            return False
        headers = {"content-type": wire.OCTETS, wire.RULES_HASH: rules_hash(self._access.log.rules).hex()}
        request = Request("POST", wire.INTRODUCE, "", headers, encode_sequence([self._access.log.signed(op)]))
        return (await self._transport.send(self.address, request)).status == 204

    async def _check(self, reply: Reply, nonce: str) -> None:
        """Returns if the reply can be used; else raises what its status means."""
        status = reply.status
        if status == 401 and abs(offset := self._offset(reply) or 0) > OFFSET_S_MAX:
            behind = "behind" if offset > 0 else "ahead of"
            raise Refused(
                f"{self.address} refuses this node: the clock here is {span(abs(offset) * 1000)} {behind} the clock"
                " there; set the one that is wrong"
            )
        if status in (401, 403):
            refuses = peers.NO_RIGHTS if status == 403 else f"refuses this node ({status})"
            raise Refused(f"{self.address} {refuses}; check there that it was invited and not revoked")
        ours = rules_hash(self._access.log.rules).hex()
        theirs = reply.headers.get(wire.RULES_HASH)
        if status == 409 or (status < 300 and (theirs is None or theirs.lower() != ours)):
            raise Paused(paused(ours, theirs, await self._is_certain(reply, nonce)))
        if status in (429, 503):
            seconds = _retry_after(reply)
            raise Busy(f"{self.address} asks this node to wait {seconds:.0f} seconds", seconds)
        if status == 410:
            raise LetGo(f"{self.address} has deleted ops that this node lacks")
        if status == 413:
            raise AnswerTooLarge(f"{self.address} accepts only smaller bodies")
        if status == 507:
            raise Unreachable(f"{self.address} has more authors on its log than a request can name")
        if status != 200:
            raise Unreachable(f"{self.address} answered with status {status}")

    async def _is_certain(self, reply: Reply, nonce: str) -> bool:
        """Whether the identity of the answering node is proven."""
        try:
            await self._believe(reply, nonce)
        except Refused:
            return False
        return self.node is not None and self._unsigned is None

    def _answer(self, reply: Reply) -> PeerAnswer:
        try:
            following = parse_frontier(reply.headers.get(wire.NEXT_FRONTIER, ""))
            said = reply.headers.get(wire.FRONTIER)
            return PeerAnswer(reply.body, following, None if said is None else parse_frontier(said))
        except Malformed:
            raise Unreachable(f"{self.address} answered without a readable frontier") from None


_UNCERTAIN = "; the peer did not prove who it is, so it is asked again after a while"


def paused(ours: str, theirs: str | None, is_certain: bool) -> str:
    there = "not said" if theirs is None else f"blake3:{theirs[:64]}"
    return (
        f"the mesh rules here are blake3:{ours}, those there {there}; give both nodes the same rules,"
        f" then `hocket mesh peers resume` the peer{'' if is_certain else _UNCERTAIN}"
    )


def is_paused_by(detail: str, ours: str) -> bool:
    """Whether a peer was paused because of this node's current rules. If the rules have changed since, another try is
    due. So it is if the peer has not proved its identity: one answer of an impostor must not stop the exchange for
    good.
    """
    return f"here are blake3:{ours}" in detail and not detail.endswith(_UNCERTAIN)


def _introduction(session: OpSession, node: int) -> bytes | None:
    """The op by which a node introduced itself: its first one."""
    rows = session.ops_of_author(node.to_bytes(8, "big"), bytes(20), 1)
    return rows[0].body if rows and rows[0].variant == number_of(DelegateUcan) else None


def _query(since: Frontier, limit: int) -> str:
    return urlencode({"since": frontier_text(since), "limit": limit})


def _origin(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def _retry_after(reply: Reply) -> float:
    said = reply.headers.get("retry-after", "")
    if not (said.isascii() and said.isdigit() and len(said) < 9):
        return RETRY_AFTER_S_DEFAULT
    return min(RETRY_AFTER_S_MAX, float(said))
