"""Until when a request is good that another node decides. Its author waits for the decision for a few seconds. The
request carries the end of that time, and the arbiter accepts it only until then. So a request that its author has given
up, or whose process is dead, is not granted later, however long it waits in the outbox.

The deadline is a time of the arbiter's own clock, because only that clock judges it. Each answer of a peer has the
peer's time, so a node knows by how much the arbiter's clock differs from its own.
"""

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op
from hocket.store import PEER_NEW, PEER_OK, Session

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
