"""Whether a node takes new work. `Availabilities` holds the rules of this family: the latest word about a node counts.
Nodes that may change the mesh decide about every node. Any node may also drain itself, and resume if it was the one
that drained. The arbiter and the node's own workers act on it; nothing here ends a claim.
"""

import msgspec

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.kernel.arbitration import Citing, FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import ClaimWork, Payload, by_payload

# A longer reason is cut.
REASON_CHARS_MAX = 500
# What a quarantined node may still have accepted: giving back what it holds.
_GIVES_BACK = by_payload(lambda each: each.gives_back or None)


class AvailabilityState(msgspec.Struct, frozen=True):
    """What was last said about a node: by the op of that time, which names its author. `last` is the time of the latest
    op about the node.
    """

    availability: Availability
    reason: str
    at: Hlc
    last: Hlc


class Availabilities(SubjectRules[AvailabilityState]):
    """The family of nodes' availability."""

    def refusal(self, state: AvailabilityState | None, op: Op, context: FoldContext, citing: Citing) -> Reason | None:
        refused = context.refusal(op, "")
        if refused is Reason.UNAUTHORISED and _is_own(op):
            refused = None if _may_say_itself(state, op) else Reason.NOT_ITS_TO_RESUME
        return refused or citing()

    def is_certain(self, state: AvailabilityState | None, op: Op) -> bool:
        return not _is_own(op)

    def is_open(self, state: AvailabilityState | None) -> bool:
        return True

    def apply(self, state: AvailabilityState | None, op: Op, context: FoldContext) -> AvailabilityState | Reason:
        assert isinstance(op.payload, SetAvailability)
        reason = op.payload.reason[:REASON_CHARS_MAX]
        return AvailabilityState(op.payload.availability, reason, op.timestamp, op.timestamp)


AVAILABILITIES = Availabilities(AvailabilityState)


def _is_own(op: Op) -> bool:
    return isinstance(op.payload, SetAvailability) and op.payload.node == op.node_id


def _may_say_itself(state: AvailabilityState | None, op: Op) -> bool:
    """Whether a node without further rights may say this about itself."""
    assert isinstance(op.payload, SetAvailability)
    if op.payload.availability is Availability.QUARANTINED:
        return False
    return state is None or state.availability is Availability.ACTIVE or state.at.node == op.node_id


def allows(availability: Availability, payload: Payload, *, is_held: bool) -> bool:
    """Whether a node of this availability may have this accepted. `is_held` is whether the node holds the job already,
    so that a claim only renews.
    """
    match availability:
        case Availability.ACTIVE:
            return True
        case Availability.DRAINING:
            return is_held or not isinstance(payload, ClaimWork)
        case Availability.QUARANTINED:
            return type(payload) in _GIVES_BACK
