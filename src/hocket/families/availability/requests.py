"""Draining, quarantining and resuming nodes. A draining node finishes what it holds and takes nothing new; a
quarantined one also returns what it holds. The rules are in `families.availability.rules`.
"""

from hocket.errors import NotAuthorised, Usage
from hocket.families.availability.facts import AVAILABILITY, Availability, SetAvailability
from hocket.families.availability.rules import REASON_CHARS_MAX, AvailabilityState
from hocket.kernel.arbitration import Reason
from hocket.log import Transaction
from hocket.log.projectors import availability_of
from hocket.store import Session


def set_availability(tx: Transaction, node: int, availability: Availability, reason: str) -> bool:
    """Writes it, unless that was said last already. Raises NotAuthorised if this node may not."""
    if len(reason) > REASON_CHARS_MAX or not all(each.isprintable() for each in reason):
        raise Usage(f"a reason has at most {REASON_CHARS_MAX} printable characters")
    known = availability_of(tx.session, node)
    before = Availability.ACTIVE if known is None else known.availability
    if before is availability and (known is None or reason in ("", known.reason)):
        return False
    written = tx.author(SetAvailability(node, availability, reason), about=node)
    if written is Reason.STRICT:
        raise Usage(f"no node can be drained or quarantined here: {Reason.STRICT.sentence}")
    if isinstance(written, Reason):
        raise NotAuthorised(f"this node may not drain, quarantine or resume that node: {written.sentence}")
    return True


def unavailable(session: Session) -> dict[int, AvailabilityState]:
    """The nodes that take no new work."""
    nodes = [int.from_bytes(key, "big") for key in session.subjects_with_state(AVAILABILITY)]
    found = {node: state for node in nodes if (state := availability_of(session, node)) is not None}
    return {node: state for node, state in found.items() if state.availability is not Availability.ACTIVE}
