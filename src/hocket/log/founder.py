"""Which nodes write a log: its founder, whose delegation is the first op, and those that share the founder's store."""

from hocket.kernel.ids import node_text
from hocket.kernel.ops import decode
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log.permissions import Permissions
from hocket.store import Session


def founder(session: Session) -> int | None:
    """The node with which the log begins, which may be one of another user's mesh; None if the log is empty."""
    first = session.stored_entries(0, 1)
    if not first or first[0].seq != 1:
        return None
    payload = decode(first[0].body).payload
    return read_ucan(payload.ucan_bytes).node if isinstance(payload, DelegateUcan) else 0


def writers(session: Session, permissions: Permissions) -> set[int]:
    """The founder, and every node that was ever told to share its store."""
    began = founder(session)
    if began is None:
        return set()
    shares = permissions.authority.shares.items()
    return {began} | {node for node, each in shares if node_text(began) in {share.store for share in each}}
