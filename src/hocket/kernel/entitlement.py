"""Which quota a node has by its delegations. A delegation has the quota that its issuer wrote into it, or the default
of the mesh: a small one if it lets its node only read, a large one if it lets it write. No delegation has more than
those that it relies on, and a node has the most that one of its delegations gives it. The owner's nodes have no quota.

A node that invites others shares its quota with them, or it could multiply what it may store by inviting itself.
"""

from collections.abc import Iterable, Iterator

from hocket.kernel.authority import Authority
from hocket.kernel.quota import NO_QUOTA, Quota, filled, strictest, widest
from hocket.kernel.reasons import Reason
from hocket.kernel.rules import Bounds
from hocket.kernel.ucan import Delegation


def quota_of(authority: Authority, node: int, now_ms: int, bounds: Bounds) -> Quota:
    """What a node may store by the delegations that are in force now; as little as a reader, if there are none."""
    return _widest(authority, authority.in_force(node, now_ms), bounds)


def ceiling(authority: Authority, node: int, bounds: Bounds) -> Quota:
    """The most that a node was ever entitled to, whatever was revoked or has ended since."""
    held = (each for each in authority.held(node) if authority.fault(each) in (None, Reason.REVOKED))
    return _widest(authority, held, bounds)


def payers(authority: Authority, node: int, now_ms: int) -> tuple[int, ...]:
    """The nodes whose quota this node's ops use: its own, and those of the nodes that invited it."""
    above = (up for each in authority.in_force(node, now_ms) for up in authority.above(each))
    return tuple(dict.fromkeys((node, *(each.node for each in above if not authority.owns(each)))))


def sharing(authority: Authority, delegations: Iterable[Delegation]) -> dict[int, set[int]]:
    """For each node, itself and all the nodes that it has invited, directly or not."""
    found: dict[int, set[int]] = {}
    for each in delegations:
        for up in authority.above(each):
            found.setdefault(up.node, set()).add(each.node)
    return found


def _widest(authority: Authority, delegations: Iterable[Delegation], bounds: Bounds) -> Quota:
    quotas = [strictest(_chain(authority, each, bounds)) for each in delegations]
    return widest(quotas) if quotas else bounds.readers


def _chain(authority: Authority, delegation: Delegation, bounds: Bounds) -> Iterator[Quota]:
    for each in authority.above(delegation):
        if authority.owns(each):
            yield NO_QUOTA
        else:
            yield filled(each.quota, bounds.writers if _writes(each) else bounds.readers)


def _writes(delegation: Delegation) -> bool:
    return any(each.action != "Read" for each in delegation.capabilities)
