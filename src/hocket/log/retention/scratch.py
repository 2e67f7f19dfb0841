"""A store of its own in which the settled part of a log is folded: exactly the entries up to the heads, with the
permissions that these entries make, whatever has come since. So every node that has these entries gets the same states.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hocket.kernel.keys import RowMac, SigningKey
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.vocabulary import Subject
from hocket.log.permissions import PermissionsReader
from hocket.log.rebuild import rebuild
from hocket.store import MEMORY, NewOp, OpRow, Session, Store
from hocket.store.op_rows import NO_LINK, PRUNED

STEP = 2_000
# A longer log is folded in a file.
MEMORY_ROWS = 200_000


@contextmanager
def settled_fold(source: Session, heads: Mapping[bytes, bytes], user: str, rules: Rules, at_ms: int) -> Iterator[Store]:
    """A store with the entries up to these packed times of authors, and the states that they make."""
    from hocket import store as stores

    with tempfile.TemporaryDirectory(prefix="hocket-horizon-") as directory:
        is_small = source.head().seq <= MEMORY_ROWS
        scratch = stores.open(MEMORY if is_small else f"sqlite://{Path(directory) / 'log.db'}", create=True)
        try:
            scratch.mac_rows(RowMac(SigningKey(bytes(32))))
            _copy(source, scratch, heads)
            rebuild(scratch, PermissionsReader(user, rules), at_ms)
            yield scratch
        finally:
            scratch.close()


def _copy(source: Session, scratch: Store, heads: Mapping[bytes, bytes]) -> None:
    with scratch.write() as session:
        before = source.horizon()
        if before is not None:
            session.set_horizon(before)
            session.put_heads(list(source.heads().values()))
            after = Subject("", b"")
            while bases := source.bases(after, STEP):
                for base in bases:
                    session.put_base(base)
                after = bases[-1].subject
        count = 0
        for rows in _settled(source, heads):
            count = session.add_ops([_new(row) for row in rows], [NO_LINK] * len(rows))
        session.put_head(session.head()._replace(seq=count, settled=count))


def _settled(source: Session, heads: Mapping[bytes, bytes]) -> Iterator[list[OpRow]]:
    """The rows of the entries up to the heads, in the order of arrival. The facts of a bundle follow it."""
    seq, is_settled = 0, False
    while rows := source.stored_rows(seq, STEP):
        chosen: list[OpRow] = []
        for row in rows:
            if row.place is None:
                is_settled = row.hlc <= heads.get(row.hlc[12:], b"")
            if is_settled:
                chosen.append(row)
        if chosen:
            yield chosen
        seq = rows[-1].seq


def _new(row: OpRow) -> NewOp:
    reason = row.reason if row.reason == PRUNED else 0
    return NewOp(row.id, row.hlc, row.variant, row.family, row.key, reason, 1, row.body, row.place)
