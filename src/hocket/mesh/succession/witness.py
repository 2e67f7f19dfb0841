"""A named node's part: it keeps the coordinator's entries beside its log, promises with each answer not to vote for a
while, and gives one vote a term. Votes and entries are durable before they are answered. What it decides, the kernel
says (`kernel.succession`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from hocket.kernel.bundles import last_time
from hocket.kernel.clock import pack
from hocket.kernel.decoding import decode_json
from hocket.kernel.frontier import encode_frontier
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, link_to, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.succession.chain import Candidacy, Chain
from hocket.kernel.succession.quorums import RATE_MARGIN, confirm_fault, highest_term, vote_fault
from hocket.kernel.vocabulary import SetSuccession, TakeOver
from hocket.log import Log
from hocket.mesh.outgoing import own_frontier
from hocket.mesh.succession.words import (
    KEPT_BYTES,
    KEPT_ROWS_MAX,
    Settled,
    VoteAnswer,
    WitnessAnswer,
    WitnessAsk,
    WitnessedAnswer,
    WitnessedAsk,
    entries_of,
    sequence_of,
)
from hocket.store import Session
from hocket.store.witness_rows import WitnessedRow

# The store's key of what this node has promised.
WITNESS = "witness"
# What it keeps of settled successions: the last ones.
SETTLED_MAX = 16


class Promised(msgspec.Struct, frozen=True):
    """The last vote: its candidacy, in hexadecimal. `heard` is when the coordinator was last answered, by the machine's
    monotonic clock, and `heard_ms` by its clock; the coordinator's was at `clock_ms` then, or later. `law` are the kept
    entries about who follows the coordinator.
    """

    root: str = ""
    succession: str = ""
    follows: str = ""
    term: int = 0
    node: int = 0
    heard: float | None = None
    heard_ms: int = 0
    clock_ms: int = 0
    settled: tuple[tuple[str, str, str], ...] = ()
    law: tuple[tuple[str, str], ...] = ()

    @property
    def vote(self) -> Candidacy | None:
        if not self.term:
            return None
        root, succession, follows = map(bytes.fromhex, (self.root, self.succession, self.follows))
        return Candidacy(root, succession, follows, self.term, self.node)

    def with_vote(self, vote: Candidacy) -> "Promised":
        return msgspec.structs.replace(
            self,
            root=vote.root.hex(),
            succession=vote.succession.hex(),
            follows=vote.follows.hex(),
            term=vote.term,
            node=vote.node,
        )

    @property
    def words(self) -> tuple[Settled, ...]:
        return tuple(Settled(*(bytes.fromhex(part) for part in each)) for each in self.settled)

    def with_settled(self, word: Settled) -> "Promised":
        kept = (word.tenure.hex(), word.succession.hex(), word.signature.hex())
        others = tuple(each for each in self.settled if each[:2] != kept[:2])
        return msgspec.structs.replace(self, settled=(*others, kept)[-SETTLED_MAX:])


def read_promised(session: Session) -> Promised:
    kept = session.own_meta(WITNESS)
    return Promised() if kept is None else decode_json(kept, Promised)


def put_promised(session: Session, promised: Promised) -> None:
    session.set_own_meta(WITNESS, msgspec.json.encode(promised))


def known_chain(log: Log, session: Session, more: Iterable[Op] = ()) -> Chain:
    """Which ops about the coordinator are in force by what this node knows: by its log, by what it keeps beside it, and
    by these ops.
    """
    permissions = log.permissions(session)
    chain = permissions.chain
    places = (tuple(map(bytes.fromhex, each)) for each in read_promised(session).law)
    kept = [decode(row.body) for author, hlc in places if (row := session.witnessed_at(author, hlc)) is not None]
    known = {each.op_id for each in chain.tenures} | {each.op_id for each in chain.successions} | set(chain.faults)
    found = {op.id: op for op in (*kept, *more) if _is_law(op)}
    new = [op for op in found.values() if op.id not in known and permissions.refusal(op) is None]
    return permissions.successions.chain_with(new) if new else chain


def _is_law(op: Op) -> bool:
    return isinstance(op.payload, SetSuccession | TakeOver)


class CheckedEntries(NamedTuple):
    """Entries that may be kept beside the log, as ops and rows. `fault` says why no more can be."""

    ops: list[Op]
    rows: list[WitnessedRow]
    fault: str = ""


def checked(session: Session, entries: Sequence[tuple[bytes, Op]]) -> CheckedEntries:
    """Those of the entries that are new here and that their authors have signed, each linked to the one before it."""
    keys, ends = session.nodes(), dict[bytes, tuple[bytes, bytes]]()
    kept = CheckedEntries([], [])
    for raw, op in entries:
        author = op.node_id.to_bytes(8, "big")
        if author not in ends:
            last = session.last_witnessed(author)
            ends[author] = max(session.latest_of(author), (b"", b"") if last is None else (last.hlc, last.body[:16]))
        try:
            at = pack(last_time(op))
        except Malformed as error:
            return kept._replace(fault=f"an entry cannot be read: {error}")
        end, last_id = ends[author]
        if at <= end:
            continue
        if author not in keys or not verify_op(raw, op, keys[author][0]):
            return kept._replace(fault=f"an entry of {node_text(op.node_id)} is not signed by it")
        if op.link != link_to(last_id):
            return kept._replace(fault=f"entries of {node_text(op.node_id)} are missing before it")
        ends[author] = at, op.id
        kept.ops.append(op)
        kept.rows.append(WitnessedRow(author, at, raw))
    return kept


def keep(session: Session, kept: CheckedEntries) -> None:
    """Keeps entries, and forgets those of their authors that are on the log by now."""
    session.put_witnessed(kept.rows)
    for author in {row.author for row in kept.rows}:
        session.drop_witnessed(author, session.latest_of(author)[0])
    if new := [row for row, op in zip(kept.rows, kept.ops, strict=True) if _is_law(op)]:
        promised = read_promised(session)
        still = [each for each in promised.law if session.witnessed_at(*map(bytes.fromhex, each)) is not None]
        law = (*still, *((row.author.hex(), row.hlc.hex()) for row in new))
        put_promised(session, msgspec.structs.replace(promised, law=law))


class NamedWitness:
    """What one process of a named node answers. `started` is when it could have begun to forget a promise."""

    def __init__(self, log: Log, key: SigningKey, monotonic: Callable[[], float]) -> None:
        self._log, self._key, self._monotonic = log, key, monotonic
        self._started = monotonic()

    def confirm(self, node: int, ask: WitnessAsk) -> WitnessAnswer:
        """Keeps the entries of a node that asks as the coordinator. Those of others are on the log by now. Raises
        Malformed.
        """
        entries = entries_of(ask.aside)
        with self._log.store.write() as session:
            kept = checked(session, entries)
            promised = read_promised(session)
            chain = known_chain(self._log, session, [*kept.ops, *self._takeover(session, ask)])
            head, newest = chain.head, chain.in_question[-1:]
            fault = self._fault(session, chain, node, ask, promised) or kept.fault
            if fault:
                return WitnessAnswer(fault, succession=newest[0].op_id if newest else b"")
            assert head is not None
            keep(session, kept)
            promised, author = read_promised(session), node.to_bytes(8, "big")
            session.drop_witnessed(author, session.latest_of(author)[0])
            if ask.settled is not None:
                promised = promised.with_settled(ask.settled)
            now_s, now_ms = self._monotonic(), self._log.physical()
            put_promised(
                session, msgspec.structs.replace(promised, heard=now_s, heard_ms=now_ms, clock_ms=ask.clock_ms)
            )
            has = self._end_of(session, node)
            frontier = encode_frontier(own_frontier(session))
        return WitnessAnswer("", has, frontier, newest[0].op_id, max(each.after_ms for each in newest))

    @staticmethod
    def _takeover(session: Session, ask: WitnessAsk) -> list[Op]:
        """The op that began the tenure, which may come before the entries of its author that it follows."""
        if not ask.takeover:
            return []
        op = decode(ask.takeover)
        public, _ = session.nodes().get(op.node_id.to_bytes(8, "big"), (b"", ""))
        return [op] if public and verify_op(ask.takeover, op, public) else []

    def _fault(self, session: Session, chain: Chain, node: int, ask: WitnessAsk, promised: Promised) -> str | None:
        if self._log.is_shared:
            return "its store is one that nodes can share"
        newest = chain.in_question
        if not newest or not any(self._log.node in each.nodes for each in newest):
            return "it knows of no succession that names it"
        if chain.head is None or chain.head.node != node:
            return "it knows of another coordinator"
        if ask.settled is not None:
            public, _ = session.nodes().get(node.to_bytes(8, "big"), (b"", ""))
            if not public or not ask.settled.is_signed(public):
                return "the word about the succession is not signed by the coordinator"
        return confirm_fault(chain, ask.tenure, promised.vote)

    def _end_of(self, session: Session, node: int) -> bytes:
        author = node.to_bytes(8, "big")
        last = session.last_witnessed(author)
        return max(session.latest_of(author)[0], b"" if last is None else last.hlc)

    def vote(self, candidacy: Candidacy) -> VoteAnswer:
        """A vote for a node, once it is durable."""
        with self._log.store.write() as session:
            promised, chain = read_promised(session), known_chain(self._log, session)
            term = highest_term(chain, (promised.vote,))
            fault = vote_fault(chain, candidacy, promised.vote, self._is_leased(session, promised, chain))
            if fault is None and self._log.is_shared:
                fault = "its store is one that nodes can share"
            if fault is None and chain.succession is not None and self._log.node not in chain.succession.nodes:
                fault = "it is not named"
            if fault is not None:
                return VoteAnswer(fault, term=term)
            put_promised(session, promised.with_vote(candidacy))
        return VoteAnswer("", self._key.sign(candidacy.text), candidacy.term)

    def _is_leased(self, session: Session, promised: Promised, chain: Chain) -> bool:
        """Whether this node has promised the coordinator not to vote yet, or is the coordinator and has the lead. A
        process that has just started does not know what an earlier one promised before the machine was restarted.
        """
        after_ms = max((each.after_ms for each in chain.in_question), default=0)
        if self.silent_s(promised) < after_ms / 1000:
            return True
        permissions, lead = self._log.permissions(session), self._log.lead
        return lead.is_shared_out(permissions) and lead.fault(session, permissions) is None

    def silent_s(self, promised: Promised) -> float:
        """For how long the coordinator has not asked, as far as this process knows. A later time is one from before the
        machine was restarted.
        """
        now = self._monotonic()
        heard = self._started if promised.heard is None or promised.heard > now else promised.heard
        return now - max(self._started, heard)

    def clock_ms(self, promised: Promised) -> int:
        """A time that the coordinator's clock has passed; 0 if it has told this node none."""
        if not promised.clock_ms:
            return 0
        since_s = 0.0 if promised.heard is None else max(0.0, self._monotonic() - promised.heard)
        return promised.clock_ms + int(since_s * 1000 * (1 - RATE_MARGIN))

    def kept(self, ask: WitnessedAsk) -> WitnessedAnswer:
        """The next of the entries that this node keeps beside its log."""
        with self._log.store.read() as session:
            rows = session.witnessed((ask.author, ask.hlc), KEPT_ROWS_MAX) + self._untold(session, ask)
            rows = sorted(rows, key=lambda row: (row.author, row.hlc))[:KEPT_ROWS_MAX]
            promised = read_promised(session)
            term = highest_term(known_chain(self._log, session), (promised.vote,))
        bodies: list[bytes] = []
        size = 0
        for row in rows:
            if bodies and size + len(row.body) > KEPT_BYTES:
                break
            bodies.append(row.body)
            size += len(row.body)
        is_whole = len(bodies) == len(rows) and len(rows) < KEPT_ROWS_MAX
        last = None if is_whole or not bodies else rows[len(bodies) - 1]
        following = None if last is None else WitnessedAsk(last.author, last.hlc)
        return WitnessedAnswer(sequence_of(bodies), following, promised.words, term, self.clock_ms(promised))

    def _untold(self, session: Session, ask: WitnessedAsk) -> list[WitnessedRow]:
        """If this node is the coordinator: its own entries that it has told no other node."""
        log = self._log
        permissions = log.permissions(session)
        limit = log.lead.served_to(session, permissions)
        if limit is None or log.author < ask.author:
            return []
        after = max(limit, ask.hlc) if log.author == ask.author else limit
        rows = session.entries_of_author(log.author, after, KEPT_ROWS_MAX)
        return [WitnessedRow(log.author, pack(last_time(decode(row.body))), log.signed(row.body)) for row in rows]
