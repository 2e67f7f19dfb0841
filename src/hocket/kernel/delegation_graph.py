"""The graph of the delegations of a log: which of them lead back to the user, and who may revoke them. It knows nothing
of ops; `authority` says what the delegations that stand allow.

A delegation stands if it leads back to the user: it is the user's own, or all the delegations that it cites stand, were
given to its issuer, contain its times, each of its capabilities is within one of theirs, and one of them lets the
issuer write registrations. A capability that names something beyond Likewise v0.1 and is within none of theirs admits
nothing, with no other effect. If a delegation of the user cites others, they must hold too. Because a standing
delegation is inside its parents in every respect, an op need only be checked against the delegation itself and not
against the chain above it.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from hocket.kernel.capabilities import Grant, grant_of, is_v01
from hocket.kernel.clock import U64_MAX
from hocket.kernel.reasons import Reason
from hocket.kernel.ucan import ROOT, Delegation

CHAIN_MAX = 16
_ANY_STORE = Grant("Store", "Decide")


class DelegationGraph:
    """The delegations of a log and what is wrong with each, apart from revocations."""

    def __init__(self, user: str, delegations: Iterable[Delegation], is_bound: bool) -> None:
        self.user = user
        self.is_bound = is_bound
        self.by_cid = {delegation.cid: delegation for delegation in delegations}
        self.of_node: dict[int, list[Delegation]] = {}
        self.children: dict[bytes, list[Delegation]] = {}
        self.grants: dict[bytes, tuple[Grant, ...]] = {}
        self._v01: dict[bytes, set[Grant]] = {}
        self._depths: dict[bytes, int] = {}
        # A delegation that is not reached from above relies on one that is not here, or on itself.
        self.faults: dict[bytes, Reason | None] = dict.fromkeys(self.by_cid, Reason.UNRESOLVED)
        missing: dict[bytes, int] = {}
        ready: deque[Delegation] = deque()
        for delegation in self.by_cid.values():
            self.of_node.setdefault(delegation.node, []).append(delegation)
            grants = [(grant_of(capability), is_v01(capability)) for capability in delegation.capabilities]
            self.grants[delegation.cid] = tuple(grant for grant, _ in grants if grant is not None)
            self._v01[delegation.cid] = {grant for grant, is_plain in grants if grant is not None and is_plain}
            parents = set(delegation.proofs)
            missing[delegation.cid] = len(parents)
            for parent in parents:
                self.children.setdefault(parent, []).append(delegation)
            if not parents:
                ready.append(delegation)
        while ready:
            delegation = ready.popleft()
            self.faults[delegation.cid] = self._fault(delegation)
            for child in self.children.get(delegation.cid, ()):
                missing[child.cid] -= 1
                if not missing[child.cid]:
                    ready.append(child)

    def _fault(self, delegation: Delegation) -> Reason | None:
        """What is wrong with a delegation whose parents are all here and judged."""
        parents = [self.by_cid[cid] for cid in delegation.proofs]
        depth = 1 + max((self._depths[parent.cid] for parent in parents), default=0)
        self._depths[delegation.cid] = depth
        if depth > CHAIN_MAX:
            return Reason.UNRESOLVED
        for parent in parents:
            if fault := self.faults[parent.cid]:
                return fault
        if delegation.issuer != self.user:
            if not parents:
                return Reason.FOREIGN_USER
            if any(parent.audience != delegation.issuer for parent in parents):
                return Reason.UNAUTHORISED
        if parents:
            if not all(_in_time(delegation, parent) for parent in parents):
                return Reason.WIDENED
            above = [grant for parent in parents for grant in self.passed_on(parent)]
            granted = tuple(grant for grant in self.grants[delegation.cid] if any(map(grant.within, above)))
            plain = self._v01[delegation.cid]
            if not plain <= set(granted):
                return Reason.WIDENED
            self.grants[delegation.cid] = granted
            if delegation.issuer != self.user and not any(_passes_on(grant, delegation, plain) for grant in above):
                return Reason.UNAUTHORISED
        return None

    def passed_on(self, delegation: Delegation) -> tuple[Grant, ...]:
        """What its holder may grant others. The owner's nodes say who shares a store, wherever their own is."""
        grants = self.grants[delegation.cid]
        return (*grants, _ANY_STORE) if self.owns(delegation) else grants

    def below(self, cids: Iterable[bytes], reached: set[bytes]) -> None:
        """Adds to reached these delegations and all that rely on them."""
        waiting = [cid for cid in cids if cid not in reached]
        reached.update(waiting)
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child.cid not in reached:
                    reached.add(child.cid)
                    waiting.append(child.cid)

    def above(self, cid: bytes) -> Iterator[Delegation]:
        """The delegation itself and all that it relies on, as far as they are here."""
        seen = {cid}
        waiting = [cid]
        while waiting:
            delegation = self.by_cid.get(waiting.pop())
            if delegation is not None:
                yield delegation
                waiting += [parent for parent in delegation.proofs if parent not in seen]
                seen.update(delegation.proofs)

    def chain(self, delegation: Delegation, grant: Grant) -> list[Delegation]:
        """A way from the user down to this delegation, along which the grant was passed on."""
        chain = [delegation]
        while chain[-1].issuer != self.user:
            parent, grant = next(
                (self.by_cid[cid], wider)
                for cid in chain[-1].proofs
                for wider in self.passed_on(self.by_cid[cid])
                if grant.within(wider)
            )
            chain.append(parent)
        return chain[::-1]

    def in_force(self, node: int, at_ms: int, revoked: set[bytes]) -> Iterator[Delegation]:
        for delegation in self.of_node.get(node, ()):
            if self.faults[delegation.cid] is None and delegation.cid not in revoked:
                start, end = window(delegation)
                if start <= at_ms < end:
                    yield delegation

    def owns(self, delegation: Delegation) -> bool:
        return delegation.issuer == self.user and any(capability in ROOT for capability in delegation.capabilities)

    def may_revoke(self, node: int, cid: bytes, at_ms: int, revoked: set[bytes]) -> bool:
        if self.is_bound:
            target = self.by_cid.get(cid)
            if target is None or target.issuer == self.user:
                return False
            keys = {delegation.audience for delegation in self.of_node.get(node, ())}
            return any(delegation.issuer in keys for delegation in self.above(cid))
        held = list(self.in_force(node, at_ms, revoked))
        if any(map(self.owns, held)):
            return True
        names = {delegation.audience for delegation in held}
        return bool(names) and any(delegation.issuer in names for delegation in self.above(cid))


def window(delegation: Delegation) -> tuple[int, int]:
    """The milliseconds in which a delegation is in force; the end is exclusive."""
    end = U64_MAX + 1 if delegation.expires is None else delegation.expires * 1000
    return delegation.not_before * 1000, end


def _passes_on(grant: Grant, child: Delegation, granted: Iterable[Grant]) -> bool:
    """Whether the holder of this grant may issue such a delegation. With a time_range, it may issue only delegations
    that are of use within it.
    """
    if not grant.covers("Registration", "Write"):
        return False
    if grant.time_range is None:
        return True
    low, high = grant.time_range
    for each in granted:
        start, end = each.time_range or window(child)
        if start < low or end > high:
            return False
    return True


def _in_time(child: Delegation, parent: Delegation) -> bool:
    if parent.expires is not None and (child.expires is None or child.expires > parent.expires):
        return False
    return child.not_before >= parent.not_before
