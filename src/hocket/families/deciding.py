"""How a request about a lock, a message or a row gets its decision. A node that is the arbiter itself, or needs none,
decides in its own transaction. Any other node writes an offer and exchanges ops with the arbiter, which accepts it or
not.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.kernel.clock import pack
from hocket.kernel.ops import Op, decode
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import ACCEPTANCES, number_of, subject_of
from hocket.log import Transaction
from hocket.store import Session
from hocket.work.node_access import NodeAccess

_ACCEPTANCES = tuple(number_of(payload) for payload in ACCEPTANCES)


class Written(NamedTuple):
    """An op that this node wrote, and whether it only counts if the arbiter accepts it."""

    op: Op
    is_offer: bool


def written(tx: Transaction, op: Op | Reason) -> Written | Reason:
    return op if isinstance(op, Reason) else Written(op, tx.is_offer(op))


async def decide(access: NodeAccess, request: Callable[[Transaction], Op | Reason]) -> bytes | Reason:
    """Writes the op of the request and has it decided. Returns the id under which it counts: its own, or that of the
    arbiter's acceptance. Raises Unreachable if the arbiter cannot be asked: the offer then waits here, and is decided
    when the arbiter can be reached.
    """
    said = await access.run(lambda tx: written(tx, request(tx)))
    if isinstance(said, Reason):
        return said
    if not said.is_offer:
        return said.op.id
    await access.consult(())
    found = await access.peek(lambda session: acceptance(session, said.op))
    return found or Reason.NOT_ACCEPTED


def acceptance(session: Session, offered: Op) -> bytes | None:
    """The op by which the arbiter has accepted an offer, if it has."""
    subject = subject_of(offered.payload)
    assert subject is not None
    for row in session.ops_about(subject, after=pack(offered.timestamp)):
        if row.variant in _ACCEPTANCES and not row.reason and decode(row.body).payload.offer == offered.id:  # type: ignore[union-attr]
            return row.id
    return None
