"""Introductions: a node that is not known here brings the delegation that lets it in, in an op of its own and without a
token. It is the one way to write on a log without being known there, so it is judged before anything is written: by the
permissions in force, by the time, and by how much its issuer has brought in already. Here it is also decided when a log
has so many authors that ops of new ones are no longer taken.
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

# So many delegations of one issuer; introductions beyond that are refused. The user's own are not counted.
DELEGATIONS_PER_ISSUER_MAX = 256


def read(op: Op | Malformed) -> Delegation | None:
    """The delegation by which an op introduces its own author."""
    if isinstance(op, Malformed) or not isinstance(op.payload, DelegateUcan):
        return None
    try:
        delegation = read_ucan(op.payload.ucan_bytes)
    except Malformed:
        return None
    return delegation if delegation.node == op.node_id else None


def is_known(log: Log, delegation: Delegation) -> bool:
    """Whether the node needs no introduction: it shows with a token who it is."""
    with log.store.read() as session:
        return delegation.node.to_bytes(8, "big") in session.nodes()


def fault(log: Log, delegation: Delegation, now_s: int) -> str | None:
    """Why an introduction is not written down, in words for the operator; None when it may be."""
    with log.store.read() as session:
        permissions = log.permissions(session)
        count = len(session.nodes())
        is_revoked = any(each.cid == delegation.cid for each in session.revocations())
    if count >= AUTHORS_MAX:
        return f"an introduction to a mesh of {AUTHORS_MAX} nodes, which is the limit"
    if now_s + LEEWAY_S < delegation.not_before or not (delegation.expires is None or now_s < delegation.expires):
        return "an introduction by a delegation that is not in force"
    by_cid = {each.cid: each for each in permissions.delegations}
    above = _above(delegation, by_cid)
    if is_revoked or any(permissions.authority.fault(each) is not None for each in above):
        return "an introduction by a delegation that was revoked, or that leans on one that does not count"
    if Authority(log.user, [*above, delegation], ()).fault(delegation) is not None:
        return "an introduction by a delegation that does not lead back to the user"
    issued = sum(each.issuer == delegation.issuer for each in permissions.delegations)
    if delegation.issuer != log.user and issued >= DELEGATIONS_PER_ISSUER_MAX:
        return f"an introduction by an issuer of {DELEGATIONS_PER_ISSUER_MAX} delegations, which is the limit"
    return None


def all_authors(log: Log) -> set[int] | None:
    """The authors on a log that has as many as an exchange can name; None when there is room for more."""
    with log.store.read() as session:
        # An author is a known node, so there are no more authors than that.
        if len(session.nodes()) < AUTHORS_MAX:
            return None
        authors = {int.from_bytes(node, "big") for node in session.frontier()}
    return authors if len(authors) >= AUTHORS_MAX else None


def _above(delegation: Delegation, by_cid: dict[bytes, Delegation]) -> list[Delegation]:
    """What a delegation leans on, so far as it is here."""
    found: dict[bytes, Delegation] = {}
    waiting = list(delegation.proofs)
    while waiting:
        each = by_cid.get(waiting.pop())
        if each is not None and each.cid not in found:
            found[each.cid] = each
            waiting += each.proofs
    return list(found.values())
