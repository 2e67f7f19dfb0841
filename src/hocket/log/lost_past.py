"""A node that has lost the end of its own history: its home was restored from a backup, or its machine from a snapshot.
Other nodes have the lost ops and give them back. Ops that the node wrote before it noticed do not follow the lost ones,
and would be a second history. If no other node is known to have them, the node takes them off its log, admits the lost
ones, and writes its own again behind them.

The proof is always an op with this node's own signature. A peer's mere word changes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import Hlc, just_after, pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import NO_ID, SELF_NAMED, Op, decode, encode_sequence, read_sequence
from hocket.kernel.vocabulary import Bundle
from hocket.log import Log, Transaction
from hocket.log.intake import BEHIND
from hocket.log.limits import SHARED
from hocket.log.rebuild import START, rebuild
from hocket.store import OpRow, Session

# The store's key of the ops that were taken off the log and are to be written again.
SET_ASIDE = "set_aside"
_ID_BYTES = 16


class OwnHistory(NamedTuple):
    """`is_behind`: an op of this node is known to exist that does not follow its ops here, so that what it writes would
    be a second history. `has_set_aside`: ops wait to be written again.
    """

    is_behind: bool
    has_set_aside: bool


class Rewritten(NamedTuple):
    """How many of the ops that were set aside have been written again, and how many would not count any more."""

    ops: int
    dropped: int


def ops_there(session: Session, at: Hlc) -> list[OpRow]:
    """The author's op of that time. A peer that asks for an op once more names the time just before it."""
    return session.entries_at(pack(at)) + session.entries_at(pack(just_after(at)))


def own_history(session: Session, node: int) -> OwnHistory:
    lost = session.node_meta(node.to_bytes(8, "big"), BEHIND)
    return OwnHistory(bool(lost) and not session.entries_at(lost or b""), bool(session.own_meta(SET_ASIDE)))


def note_shared(session: Session, at: Hlc) -> None:
    """Notes that another node has its author's op of that time. What others have is never taken off the log."""
    author = at.node.to_bytes(8, "big")
    if pack(at) > (session.node_meta(author, SHARED) or b""):
        session.set_node_meta(author, SHARED, pack(at))


def rewind(log: Log, branch: bytes) -> None:
    """Takes this node's op `branch` and everything after it off the log, and keeps it aside. Derives the rest anew.
    Does nothing if another process has done so. From a log that nodes share nothing is taken, since ops of the others
    may rely on it. Then the node stays behind its past.
    """
    with log.store.write() as session:
        session.lock_author(log.node.to_bytes(8, "big"))
        session.lock_permissions(exclusive=True)
        session.lock_all()
        first, head = session.op(branch), session.head()
        if first is None or log.sharers(session):
            return
        aside = [raw for raw, _ in read_sequence(session.own_meta(SET_ASIDE) or b"\0")]
        aside += [row.body for row in session.entries_after(first.seq - 1, head.seq)]
        session.set_own_meta(SET_ASIDE, encode_sequence(aside))
        session.drop_ops(first.seq)
        session.drop_trees(log.author)
        end = first.seq - 1
        _, last = session.latest_of(log.author)
        _, chain, seal = log.end_at(end, link_at(session, end))
        session.put_head(
            head._replace(
                seq=end,
                chain=chain,
                seal=seal,
                settled=min(head.settled, end),
                unsettled=0,
                rebuilding=START,
                last=last,
            )
        )
    rebuild(log.store, log.permissions_reader, log.reading().wall)


def link_at(session: Session, end: int) -> bytes:
    """The link of the chain at the entry with this number, or at the one that was deleted there."""
    gap, entry = session.gap_at(end), session.entry(end)
    return gap.chain if gap is not None else bytes(32) if entry is None else entry.chain


def rewrite(log: Log) -> Rewritten:
    """Writes the ops that were set aside again, behind what came back. They get new times and new ids; ids of jobs and
    other ops in them change with them. Ops of other nodes among them are admitted again.
    """
    with log.store.read() as session:
        aside = list(read_sequence(session.own_meta(SET_ASIDE) or b"\0"))
    if not aside:
        return Rewritten(0, 0)
    log.admit([(raw, op) for raw, op in aside if isinstance(op, Op) and op.node_id != log.node])
    own = [raw for raw, op in aside if isinstance(op, Op) and op.node_id == log.node]
    return log.run(lambda tx: _rewrite(tx, own))


def _rewrite(tx: Transaction, own: Collection[bytes]) -> Rewritten:
    if not tx.session.own_meta(SET_ASIDE):
        return Rewritten(0, 0)  # another process was faster
    tx.session.set_own_meta(SET_ASIDE, b"")
    return author_again(tx, own)


def _facts(entry: bytes) -> Sequence[bytes]:
    return [each.body for each in read_facts(entry)] if isinstance(decode(entry).payload, Bundle) else [entry]


def author_again(tx: Transaction, own: Collection[bytes]) -> Rewritten:
    """Writes entries of this node again, with new times and ids."""
    names: dict[bytes, bytes] = {}
    facts = [fact for entry in own for fact in _facts(entry)]
    for raw in facts:
        op = decode(_renamed(raw, names))
        payload = op.payload
        field = SELF_NAMED.get(type(payload))
        if field is not None and getattr(payload, field) == op.id:
            payload = replace(payload, **{field: NO_ID})
        made = tx.author(payload, op.cited)
        if isinstance(made, Op):
            names[op.id] = made.id
    return Rewritten(len(names), len(facts) - len(names))


def _renamed(raw: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """An op with other ids in it: as bytes, and as the text that a job's policy has. Both forms keep their length."""
    if not names:
        return raw
    text = {ulid_text(old).encode(): ulid_text(new).encode() for old, new in names.items()}
    return _replaced(_replaced(raw, names, _ID_BYTES), text, len(next(iter(text))))


def _replaced(raw: bytes, names: Mapping[bytes, bytes], size: int) -> bytes:
    parts, done, at = [], 0, 0
    while at + size <= len(raw):
        new = names.get(raw[at : at + size])
        if new is None:
            at += 1
        else:
            parts += [raw[done:at], new]
            done = at = at + size
    return b"".join((*parts, raw[done:]))
