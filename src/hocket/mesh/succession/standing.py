"""A named node's other part: when the coordinator has been silent for long enough, it asks the others for their votes.
With those of a quorum it takes over: it follows the last entry that any of its voters keeps, so that nothing is lost
which anybody was told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from hocket.errors import Conflict, HocketError, Unreachable
from hocket.events import Emit
from hocket.events.nodes import TakeoverFailed
from hocket.families.access import NodeAccess
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import just_before, pack, unpack
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.ops import NO_ID, decode, pin_to
from hocket.kernel.policy import LEASE_MS_MAX
from hocket.kernel.postcard import Malformed
from hocket.kernel.succession.chain import Candidacy, Chain, Succession, TenureStart
from hocket.kernel.succession.quorums import highest_term, is_elected, is_quorum, stands_after_ms
from hocket.kernel.vocabulary import TakeOver
from hocket.log import Log, Transaction
from hocket.log.succession.leading import LeadRow, put_lead
from hocket.mesh import peers
from hocket.mesh.client import Client
from hocket.mesh.succession.witness import NamedWitness, Promised, checked, keep, known_chain, read_promised
from hocket.mesh.succession.words import (
    KEPT,
    VOTE,
    Settled,
    VoteAnswer,
    VoteAsk,
    WitnessedAnswer,
    WitnessedAsk,
    entries_of,
    read,
    write,
)
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import look
from hocket.store import Session
from hocket.work.environment import Environment

T = TypeVar("T")
# A named node must answer a successor within this time.
ASK_S = 5.0
# How many pages of kept entries are read from one node.
PAGES_MAX = 10_000


class _Knowledge(NamedTuple):
    """What this node knows now: by its log and by what it keeps."""

    chain: Chain
    promised: Promised


class Candidate:
    """A named node while another one is the coordinator. Run it in the process that syncs."""

    def __init__(
        self, access: NodeAccess, exchanges: Exchanges, environment: Environment, key: SigningKey, emit: Emit
    ) -> None:
        self._access, self._exchanges, self._environment, self._emit = access, exchanges, environment, emit
        self._log: Log = access.log
        self._witness = NamedWitness(self._log, key, environment.monotonic)
        self._settled: dict[tuple[bytes, bytes], Settled] = {}
        self._term = 0
        # A time that the coordinator's clock has passed, as a voter has said.
        self._clock_ms = 0
        self._told = ""

    async def run(self) -> None:
        """Returns when this node has taken over."""
        pause_s = 0.0
        while True:
            known = await look(self._access, self._known)
            succession, head = known.chain.succession, known.chain.head
            if succession is None or head is None or self._log.node not in succession.nodes:
                return
            if head.node == self._log.node and head.op_id == self._on_log_head:
                return
            due_s = stands_after_ms(succession, head.node, self._log.node) / 1000 if head.node != self._log.node else 0
            left = due_s - self._witness.silent_s(known.promised)
            if left > 0:
                self._told = ""
                await asyncio.sleep(max(0.05, min(left, succession.after_ms / 4000)))
                continue
            try:
                await self._stand()
                return
            except (HocketError, Malformed) as error:
                if str(error) != self._told:
                    self._emit(TakeoverFailed(node_text(head.node), str(error)))
                self._told = str(error)
            pause_s = succession.after_ms / 1000 * self._environment.chance.uniform(0.1, 0.5)
            await asyncio.sleep(pause_s)

    _on_log_head: bytes | None = None

    def _known(self, session: Session) -> _Knowledge:
        head = self._log.permissions(session).chain.head
        self._on_log_head = None if head is None else head.op_id
        return _Knowledge(known_chain(self._log, session), read_promised(session))

    async def _stand(self) -> None:
        """One try to take over. Raises Unreachable or Conflict."""
        chain = (await look(self._access, self._known)).chain
        named = {node for each in chain.in_question[-2:] for node in each.nodes} - {self._log.node}
        heard = await self._each(named, self._hear)
        known = await look(self._access, self._known)
        chain, head, succession = known.chain, known.chain.head, known.chain.succession
        if head is None or succession is None or chain.root is None:
            raise Conflict("the succession has ended")
        if not is_quorum((succession,), [*heard, self._log.node]):
            raise Unreachable(f"only {len(heard)} of {len(named)} other named nodes answer: {self._silent}")
        if not is_elected(chain, [*named, self._log.node], self._newest_settled(chain)):
            # Votes would only keep the coordinator from being confirmed.
            raise Conflict("the coordinator has not acted under this succession yet")
        self._term = max(self._term, highest_term(chain, (known.promised.vote,)), *heard.values()) + 1
        candidacy = Candidacy(chain.root.op_id, succession.op_id, head.op_id, self._term, self._log.node)
        own = await self._access.call(lambda: self._witness.vote(candidacy))
        if own.fault:
            raise Conflict(f"this node does not vote for itself: {own.fault}")
        votes = {self._log.node: own.signature} | await self._votes(named, candidacy)
        # What a voter keeps changes no more: it confirms nothing of lower terms.
        told = await self._each(set(votes) - {self._log.node}, self._hear)
        votes = {node: votes[node] for node in (self._log.node, *told)}
        settled = self._newest_settled(chain)
        if not is_elected(chain, votes, settled):
            raise Conflict(f"only {len(votes)} of {len(named) + 1} named nodes vote for it: {self._silent}")
        await self._access.call(lambda: self._take_over(candidacy, head, succession, votes))

    _silent = ""

    async def _each(self, nodes: set[int], ask: Callable[[int], Awaitable[T]]) -> dict[int, T]:
        """The answers of those that answer. Notes why the others do not."""
        in_order = sorted(nodes)

        async def one(node: int) -> T | str:
            try:
                async with asyncio.timeout(ASK_S):
                    return await ask(node)
            except (HocketError, Malformed) as error:
                return str(error)
            except TimeoutError:
                return "no answer in time"

        found = dict(zip(in_order, await asyncio.gather(*map(one, in_order)), strict=True))
        self._silent = "; ".join(f"{node_text(node)}: {each}" for node, each in found.items() if isinstance(each, str))
        return {node: each for node, each in found.items() if not isinstance(each, str)}

    async def _client(self, node: int) -> Client:
        address = await look(self._access, lambda session: peers.address_of(session, node))
        if address is None:
            raise Unreachable("no address of it is known; add it with `hocket mesh peers add`")
        await self._exchanges.transport.revive(address)
        done = await self._exchanges.visit(address)
        if done.state != peers.OK or done.node != node:
            raise Unreachable(done.detail or "another node answers at its address")
        return await self._exchanges.client(address)

    async def _hear(self, node: int) -> int:
        """Keeps what another named node keeps, with everything that it rests on. Returns the highest term there."""
        client = await self._client(node)
        ask: WitnessedAsk | None = WitnessedAsk()
        term = 0
        for _ in range(PAGES_MAX):
            if ask is None:
                break
            answer = read(await client.ask_named(KEPT, write(ask)), WitnessedAnswer)
            await self._access.call(partial(self._keep, answer))
            ask, term = answer.following, max(term, answer.term)
            self._clock_ms = max(self._clock_ms, answer.clock_ms)
        return term

    def _keep(self, answer: WitnessedAnswer) -> None:
        entries = entries_of(answer.entries)
        with self._log.store.write() as session:
            kept = checked(session, entries)
            keep(session, kept)
            nodes = session.nodes()
            tenures = {each.op_id: each.node for each in known_chain(self._log, session).tenures}
        if kept.fault:
            raise Unreachable(kept.fault)
        for word in answer.settled:
            node = tenures.get(word.tenure)
            public, _ = nodes.get((node or 0).to_bytes(8, "big"), (b"", ""))
            if public and word.is_signed(public):
                self._settled[word.tenure, word.succession] = word

    def _newest_settled(self, chain: Chain) -> bytes | None:
        """The newest succession that the silent coordinator is known to have acted under."""
        with self._log.store.read() as session:
            for word in read_promised(session).words:
                self._settled[word.tenure, word.succession] = word
        known = {succession for _, succession in self._settled}
        return next((each.op_id for each in reversed(chain.in_question) if each.op_id in known), None)

    async def _votes(self, named: set[int], candidacy: Candidacy) -> dict[int, bytes]:
        ask = VoteAsk(candidacy.root, candidacy.succession, candidacy.follows, candidacy.term)
        with_key = await look(self._access, lambda session: session.nodes())

        async def vote(node: int) -> bytes:
            answer = read(await (await self._client(node)).ask_named(VOTE, write(ask)), VoteAnswer)
            self._term = max(self._term, answer.term)
            if answer.fault:
                raise Conflict(answer.fault)
            public, _ = with_key.get(node.to_bytes(8, "big"), (b"", ""))
            if not public or not verify(public, answer.signature, candidacy.text):
                raise Conflict("its vote is not signed by it")
            return answer.signature

        return await self._each(named, vote)

    def _take_over(
        self, candidacy: Candidacy, head: TenureStart, succession: Succession, votes: dict[int, bytes]
    ) -> None:
        log, silent = self._log, head.node.to_bytes(8, "big")
        if head.op_id != self._on_log_head:
            self._admit_takeovers(head)

        def write_it(tx: Transaction) -> None:
            last = tx.session.last_witnessed(silent)
            on_log, on_log_id = tx.latest_of(head.node)
            end, end_id = (on_log, on_log_id) if last is None else max((on_log, on_log_id), (last.hlc, last.body[:16]))
            if end_id == NO_ID:
                raise Conflict("nothing of the silent coordinator is known here")
            tx.hear(unpack(end))
            chosen = tuple(sorted(votes.items()))
            payload = TakeOver(candidacy.term, succession.op_id, head.op_id, chosen)
            op = tx.author(payload, pin=pin_to(unpack(end), end_id), at_once=True)
            if isinstance(op, Reason):
                raise Conflict(f"the takeover would not count: {op.sentence}")
            now_ms = log.physical()
            known_ms = max(self._clock_ms, self._witness.clock_ms(read_promised(tx.session)))
            behind_ms = max(0, now_ms - known_ms)
            told = pack(just_before(op.timestamp)).hex()
            put_lead(
                tx.session,
                LeadRow(op.id.hex(), told, behind_ms=behind_ms, behind_until_ms=now_ms + behind_ms + LEASE_MS_MAX),
            )

        log.run_unconfirmed(write_it)

    def _admit_takeovers(self, head: TenureStart) -> None:
        """The takeover that this one follows may be kept only beside the log. It and the entries before it say nothing
        that its author decided in that term.
        """
        with self._log.store.read() as session:
            rows = session.witnessed_of(head.node.to_bytes(8, "big"))
        bodies = [row.body for row in rows if row.hlc <= pack(head.at)]
        self._log.admit([(body, decode(body)) for body in bodies])
