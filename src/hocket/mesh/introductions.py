"""Introductions: an unknown node sends the delegation that admits it, in an op of its own and without a token. This is
the only way to write to a log without being known there, so it is checked before anything is written: against the
permissions in force, the time, and how many nodes its issuer has already introduced. This module also decides when a
log has too many authors to accept new ones.
"""

from hocket.kernel.authority import Authority
from hocket.kernel.bearer import LEEWAY_S
from hocket.kernel.frontier import AUTHORS_MAX
from hocket.kernel.ops import Op
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Log

# The most delegations of one issuer; further introductions are refused. The user's own are not counted.
DELEGATIONS_PER_ISSUER_MAX = 256


def introduction_in(op: Op | Malformed) -> Delegation | None:
    """The delegation by which an op introduces its own author."""
    if isinstance(op, Malformed) or not isinstance(op.payload, DelegateUcan):
        return None
    try:
        delegation = read_ucan(op.payload.ucan_bytes)
    except Malformed:
        return None
    return delegation if delegation.node == op.node_id else None


def is_introduced(log: Log, delegation: Delegation) -> bool:
    """Whether the node needs no introduction, because it can identify itself with a token."""
    with log.store.read() as session:
        return delegation.node.to_bytes(8, "big") in session.nodes()


def introduction_fault(log: Log, delegation: Delegation, now_s: int) -> str | None:
    """Why an introduction is not accepted, in words for the operator; None if it is."""
    with log.store.read() as session:
        permissions = log.permissions(session)
        count = len(session.nodes())
        is_revoked = any(each.cid == delegation.cid for each in session.revocations())
    if count >= AUTHORS_MAX:
        return f"an introduction to a mesh that has {AUTHORS_MAX} nodes, the limit"
    if now_s + LEEWAY_S < delegation.not_before or not (delegation.expires is None or now_s < delegation.expires):
        return "an introduction by a delegation that is not in force"
    by_cid = {each.cid: each for each in permissions.delegations}
    above = _above(delegation, by_cid)
    if is_revoked or any(permissions.authority.fault(each) is not None for each in above):
        return "an introduction by a delegation that was revoked, or that relies on one that does not count"
    if Authority(log.user, [*above, delegation], ()).fault(delegation) is not None:
        return "an introduction by a delegation that does not lead back to the user"
    issued = sum(each.issuer == delegation.issuer for each in permissions.delegations)
    if delegation.issuer != log.user and issued >= DELEGATIONS_PER_ISSUER_MAX:
        return f"an introduction by an issuer that has {DELEGATIONS_PER_ISSUER_MAX} delegations, the limit"
    return None


def all_authors(log: Log) -> set[int] | None:
    """The authors on a log that has reached the limit of authors; None if there is room for more."""
    with log.store.read() as session:
        # Every author is a known node, so there cannot be more authors than nodes.
        if len(session.nodes()) < AUTHORS_MAX:
            return None
        authors = {int.from_bytes(node, "big") for node in session.frontier()}
    return authors if len(authors) >= AUTHORS_MAX else None


def _above(delegation: Delegation, by_cid: dict[bytes, Delegation]) -> list[Delegation]:
    """The delegations that a delegation relies on, as far as they are here."""
    found: dict[bytes, Delegation] = {}
    waiting = list(delegation.proofs)
    while waiting:
        each = by_cid.get(waiting.pop())
        if each is not None and each.cid not in found:
            found[each.cid] = each
            waiting += each.proofs
    return list(found.values())
