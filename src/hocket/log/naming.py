"""Which op an id means. Where ids are bound, an id means one op. In a strict mesh any node can use any id, so an op is
known by its author and its id: the first op to arrive is stored under its id, and another author's op with the same id
under a longer key, the id and the author. A key has 16 or 24 bytes; the first 16 are always the id. The order of
arrival decides only the key.

If several ops have a cited id, the citation means the citing author's own op, or the earliest by HLC if the author has
none. So no other node can come between an author and its own ops.
"""

from typing import NamedTuple

from msgspec.structs import replace

from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.ops import Op, decode
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import Subject, subject_of
from hocket.log.unstored_ops import UnstoredOps
from hocket.store import OpRow, Session

ID_BYTES = 16


def long_key(op: Op) -> bytes:
    return op.id + op.node_id.to_bytes(8, "big")


def keyed(row: OpRow) -> Op:
    """The op of a row, under its key."""
    if row.bundle is not None and row.place is not None and row.body:
        return read_facts(row.bundle)[row.place].op
    op = decode(row.body)
    return op if len(row.id) == ID_BYTES else replace(op, id=row.id)


def is_taken(session: Session, op_id: bytes) -> bool:
    """Whether an op on the log has this id, or is about a job that has it."""
    return bool(session.ops_named(op_id) or session.jobs_written_of((op_id,)))


class Namesake(NamedTuple):
    """One of several ops with the same id."""

    at: Hlc
    key: bytes
    subject: Subject | None
    reason: int


class Naming:
    """`fresh` are the ops of the transaction that are not stored yet."""

    def __init__(self, session: Session, fresh: UnstoredOps, is_strict: bool) -> None:
        self._session, self._fresh, self._is_strict = session, fresh, is_strict

    def namesakes(self, op_id: bytes) -> list[Namesake]:
        """The ops with this id."""
        found = {
            row.id: Namesake(unpack(row.hlc), row.id, row.subject, row.reason) for row in self._session.ops_named(op_id)
        }
        for op, reason in self._fresh.named(op_id):
            found[op.id] = Namesake(op.timestamp, op.id, subject_of(op.payload), reason)
        return list(found.values())

    def key(self, name: bytes, citing: Op) -> bytes:
        """The key of the op that `citing` means by a name; the name itself if no op has it."""
        if not self._is_strict:
            return name
        name = name[:ID_BYTES]
        found = self.namesakes(name)
        earlier = [each for each in found if each.at < citing.timestamp and each.reason != Reason.INTEGRITY] or found
        own = [each for each in earlier if each.at.node == citing.node_id]
        meant = min(own or earlier, default=None)
        return name if meant is None else meant.key

    def resolved(self, op: Op) -> Op:
        """The op with the keys of the ops that it cites."""
        if not self._is_strict or not op.causal_deps:
            return op
        return replace(op, causal_deps=tuple(self.key(dep, op) for dep in op.causal_deps))
