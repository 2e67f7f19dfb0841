"""The outbox: ops of this node that the coordinator does not have yet. It is no copy and no queue. The ops are on the
log, in order, and each is counted once by its id; so the coordinator gets them in order and exactly once, however often
they are sent and whichever process dies meanwhile. This knows how far the coordinator has them, and bounds the rest.

A request that another node decides is good for a few seconds, in which its author waits for the decision. The request
carries the end of that time, and the arbiter accepts it only until then. So a request that its author has given up, or
whose process is dead, is not granted later, however long it waits in the outbox. The deadline is a time of the
arbiter's own clock, because only that clock judges it. Each answer of a peer has the peer's time, so a node knows by
how much the arbiter's clock differs from its own.
"""

from typing import NamedTuple

import msgspec

from hocket.errors import OutboxFull
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op
from hocket.store import PEER_NEW, PEER_OK, Session

# The most ops that may wait for the coordinator. Then nothing more is submitted, sent or put. The longest batch fits.
OUTBOX_OPS_MAX = 1_000_000
# The store's key of the last op of this node that any other node is known to have.
SHARED = "shared"
# The store's key of how far other nodes have this node's ops: the packed time of the last one, by node.
_DELIVERED = "delivered"


class Outbox(NamedTuple):
    """`since_ms` is the time of the oldest op that waits."""

    ops: int
    since_ms: int | None


def waiting(session: Session, node: int, coordinator: int | None) -> Outbox:
    """The ops of this node that the coordinator is not known to have. If it is not known, or was never met, those that
    no other node has: the others pass them on.
    """
    if _is_alone(session, node, coordinator):
        return Outbox(0, None)
    reached = _delivered(session, node)
    author = node.to_bytes(8, "big")
    met = None if coordinator is None else reached.get(node_text(coordinator))
    last = met or max(reached.values(), default=b"") or session.node_meta(author, SHARED) or b""
    ops, first = session.ops_written_after(author, last)
    return Outbox(ops, None if first is None else unpack(first).wall)


def _is_alone(session: Session, node: int, coordinator: int | None) -> bool:
    """Whether this node's ops wait for no other node."""
    return coordinator == node or (coordinator is None and not session.peers())


def note_delivered(session: Session, node: int, at: Hlc) -> None:
    """Notes that a node has the ops of another, the author of the op of that time, up to then."""
    reached = _delivered(session, at.node) | {node_text(node): pack(at)}
    session.set_node_meta(at.node.to_bytes(8, "big"), _DELIVERED, msgspec.json.encode(reached))


def _delivered(session: Session, author: int) -> dict[str, bytes]:
    kept = session.node_meta(author.to_bytes(8, "big"), _DELIVERED)
    return decode_json(kept or b"{}", dict[str, bytes])


class OutboxBound:
    """Remembers up to which op of the log there is room, so that few transactions have to count."""

    def __init__(self) -> None:
        self._room_until = 0

    def has_room(self, seq: int) -> bool:
        """Whether there is room, as far as is known, for one more op, which would get this number on the log."""
        return seq <= self._room_until

    def check(self, session: Session, node: int, coordinator: int | None, seq: int, unwritten: int) -> None:
        """Raises OutboxFull if this node may not write one more op, which would get this number on the log. `unwritten`
        ops of the same transaction come before it.
        """
        ops = waiting(session, node, coordinator).ops
        room = OUTBOX_OPS_MAX - ops - unwritten
        if _is_alone(session, node, coordinator):
            room = OUTBOX_OPS_MAX
        if room <= 0:
            whom = "other nodes" if coordinator is None else f"the coordinator {node_text(coordinator)}"
            raise OutboxFull(
                f"{ops:,} ops wait here for {whom}, and at most {OUTBOX_OPS_MAX:,} may; nothing was written. Bring back"
                " the connection, or designate another coordinator with `hocket coordinator NODE`"
            )
        self._room_until = seq + room - 1


# How long an author waits for a decision. An exchange with the arbiter takes no longer: its author gives up first.
DECIDED_MS = 5_000
# A difference between two clocks that is smaller than this is not corrected: answers have whole seconds.
OFFSET_MS_MIN = 2_000
# The store's key of by how many milliseconds the clocks of other nodes are ahead of this node's clock, by node.
_OFFSETS = "clock_offsets"


def request_deadline(session: Session, node: int, arbiter: int, physical: int) -> int:
    """The deadline of a request that is written now."""
    return max(0, physical + _offsets(session, node).get(node_text(arbiter), 0) + DECIDED_MS)


def note_offset(session: Session, node: int, other: int, offset_ms: int) -> None:
    """Notes by how much the clock of another node is ahead of this node's clock."""
    offsets = _offsets(session, node) | {node_text(other): offset_ms}
    session.set_node_meta(node.to_bytes(8, "big"), _OFFSETS, msgspec.json.encode(offsets))


def known_offset(session: Session, node: int, other: int) -> int:
    return _offsets(session, node).get(node_text(other), 0)


def _offsets(session: Session, node: int) -> dict[str, int]:
    return decode_json(session.node_meta(node.to_bytes(8, "big"), _OFFSETS) or b"{}", dict[str, int])


def is_out_of_touch(session: Session, arbiter: int) -> bool:
    """Whether the last exchange with the arbiter failed. Then it is asked before a request is written, so that requests
    which cannot be decided leave nothing on the log.
    """
    states = [peer.state for peer in session.peers() if peer.node == arbiter.to_bytes(8, "big")]
    return bool(states) and not {PEER_OK, PEER_NEW} & set(states)


def is_given_up(offered: Op, good_for_ms: int, physical: int, now: int) -> bool:
    """Whether the author of a request no longer waits for it. A request of a program that knows no deadlines is good
    for as long as what it asks for.
    """
    if offered.deadline is None:
        return offered.timestamp.wall + good_for_ms < now
    return offered.deadline < physical
