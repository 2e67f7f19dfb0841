"""Authority: which delegations are valid, and what they allow a node to write, to read and to revoke at a given time.
It is built from all the delegations and revocations of a log and then only queried; when the log brings new ones, a new
Authority is built. ucan.py reads the tokens behind the delegations, and delegation_graph.py says which of them stand;
capabilities.py defines what a capability admits and needs.py what an op requires; the log asks again about the ops that
a change concerns.

Revocation is transitive and retroactive: whatever relies on a revoked delegation, directly or not, does not count,
whenever it was written. Under bound rules a delegation can be revoked by its issuer or by the issuer of one above it,
and one that the user's key issued by that key alone. So a revocation only ever takes away what leads back to its own
author, and neither the order of revocations nor their dates matter. In a strict mesh every owner revokes everything, as
Likewise defines it; there revocations are judged in the order of time, each by what was still in force after the
earlier ones, so that two nodes that revoke each other do not both disappear.

The quota of a node follows from its delegations: each has the quota that its issuer wrote into it, or the default of
the mesh, a small one if it lets its node only read, a large one if it lets it write; none has more than those that it
relies on. The owner's nodes have none. A node that invites others shares its quota with them, or it could multiply what
it may store by inviting itself.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from hocket.kernel import vocabulary as v
from hocket.kernel.arbitration import Reason
from hocket.kernel.capabilities import DelegationGraph, Grant, Limit, Words, admits, is_narrower, window
from hocket.kernel.clock import U64_MAX, Hlc
from hocket.kernel.family import Judged
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey, parse_did_key, verify
from hocket.kernel.mesh_rules import Bounds
from hocket.kernel.ucan import NO_QUOTA, Delegation, Quota, filled, strictest, widest
from hocket.kernel.vocabulary import ACCEPTED, JUDGED, READING, Payload

_ROOT_REVOCATION = b"hocket node revoke root\0"
_AUDITED = (
    *(("Job", "Claim"), ("Job", "Complete"), ("Claim", "Write")),
    *(("Artifact", "Write"), ("Episode", "Write"), ("Action", "Write")),
)


class Standing(Enum):
    ACTIVE = "active"
    SUSPENDED = "suspended"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


class _Write(NamedTuple):
    """One way to be allowed to write: between two times, with the op's word within a limit, and in some scopes."""

    start: int
    end: int
    limit: Limit
    scopes: Words | None = None


class _Read(NamedTuple):
    start: int
    end: int
    low: int
    high: int
    limit: Limit
    rules: tuple[str, ...]
    scopes: Words | None = None


class _Share(NamedTuple):
    """A store that a node shares between two times, by the id of the node that has founded it."""

    start: int
    end: int
    store: str


class _Writes(NamedTuple):
    """The ways for one node and one payload, by the state of the delegation behind each."""

    judged: Judged
    live: tuple[_Write, ...]
    revoked: tuple[_Write, ...]
    unresolved: tuple[_Write, ...]


def _otherwise(variant: type[Payload]) -> Reason:
    return Reason.OWNER_ONLY if JUDGED[variant].is_owners else Reason.UNAUTHORISED


def _is_in_scope(way: _Write, payload: Payload) -> bool:
    return way.scopes is None or getattr(payload, "scope", None) in way.scopes


def _limit(grant: Grant, judged: Judged) -> Limit:
    """What a grant's caveat requires of the word by which such ops are judged; empty if nothing can satisfy it."""
    if judged.caveat is None:
        return None
    limit: Limit = getattr(grant, judged.caveat)
    return () if limit is not None and judged.field == "" else limit


class Authority:
    """What the delegations of a log allow, under these revocations. Building it visits every delegation once;
    afterwards a query costs the same however many nodes there are.
    """

    def __init__(
        self, user: str, delegations: Iterable[Delegation], revoked: Collection[bytes], is_bound: bool = True
    ) -> None:
        self._graph = DelegationGraph(user, delegations, is_bound)
        self._revoked: set[bytes] = set()
        self._graph.below(revoked, self._revoked)
        self._writes: dict[tuple[int, type[Payload]], _Writes] = {}
        self._reads: dict[tuple[int, type[Payload]], tuple[_Read, ...]] = {}
        self.shares = {node: shares for node in self._graph.of_node if (shares := tuple(self._shares(node)))}

    @property
    def revoked(self) -> set[bytes]:
        """The delegations that were revoked, by themselves or by one above."""
        return self._revoked

    def fault(self, delegation: Delegation) -> Reason | None:
        """Why a delegation of this log grants nothing at any time; None if it stands. A malformed delegation is
        reported as such even if it was revoked: it never granted anything.
        """
        fault = self._graph.faults.get(delegation.cid, Reason.UNRESOLVED)
        if fault is None and delegation.cid in self._revoked:
            return Reason.REVOKED
        return fault

    def refusal(self, node: int, payload: Payload, wall_ms: int, kind: str | None) -> Reason | None:
        """Why this node may not write this op at this time; None if it may. `kind` is that of the job which an op about
        a job touches. REVOKED and UNRESOLVED mean that a delegation would allow it which was revoked, or of which a
        parent is not here.
        """
        ways = self._writes.get((node, type(payload)))
        if ways is None:
            if isinstance(payload, v.Unknown):
                return Reason.UNKNOWN_VARIANT
            if isinstance(payload, v.Sanitised):
                return self.refusal(node, payload.payload, wall_ms, kind)
            if isinstance(payload, v.DelegateUcan | v.ReportFork | v.RevokeRoot | v.Bundle):
                return None  # each carries its own proof, and the facts of a bundle are judged one by one
            if isinstance(payload, v.RevokeUcan):
                return self._revocation_refusal(node, payload.ucan_cid, wall_ms)
            if node not in self._graph.of_node:
                return _otherwise(type(payload))
            ways = self._ways(node, type(payload))
        field = ways.judged.field
        word = getattr(payload, field) if field else kind
        for start, end, limit, scopes in ways.live:
            is_admitted = start <= wall_ms < end and (limit is None or admits(limit, word))
            if is_admitted and (scopes is None or getattr(payload, "scope", None) in scopes):
                return None
        for other, reason in ((ways.revoked, Reason.REVOKED), (ways.unresolved, Reason.UNRESOLVED)):
            in_scope = (way for way in other if _is_in_scope(way, payload))
            if any(way.start <= wall_ms < way.end and admits(way.limit, word) for way in in_scope):
                return reason
        return _otherwise(type(payload))

    def has_ended(self, node: int, before_ms: int) -> bool:
        """Whether a delegation of this node that stands, or may stand when its parents are here, had ended by then."""
        standing = (None, Reason.UNRESOLVED)
        held = self._graph.of_node.get(node, ())
        return any(self.fault(each) in standing and window(each)[1] <= before_ms for each in held)

    def membership_ended(self, node: int, wall_ms: int, before_ms: int) -> bool:
        """Whether all delegations that made this node a member at that time had ended by `before_ms`."""
        ends = [window(each)[1] for each in self.in_force(node, wall_ms)]
        return bool(ends) and max(ends) <= before_ms

    def relied_on_ended(self, node: int, payload: Payload, wall_ms: int, kind: str | None, before_ms: int) -> bool:
        """Whether the op may rely on a delegation that had ended by `before_ms`: one could allow it, and none that
        ended later, or has not ended, allows it for certain. If the kind of its job is not known (None), it may be any.
        """
        if isinstance(payload, v.Sanitised | v.Unknown | v.ReportFork | v.Bundle):
            return False
        if JUDGED[type(payload)].resource == "Registration":
            return False
        ways = self._ways(node, type(payload))
        word = getattr(payload, ways.judged.field) if ways.judged.field else kind
        live = [way for way in ways.live if _is_in_scope(way, payload)]
        unresolved = [way for way in ways.unresolved if _is_in_scope(way, payload)]
        lasting = [way.limit for way in live if way.start <= wall_ms < way.end and way.end > before_ms]
        ways_ended = [way for way in (*live, *unresolved) if way.start <= wall_ms < way.end <= before_ms]
        ended = [way.limit for way in ways_ended if way.limit is None or way.limit]
        if word is not None:
            return any(admits(limit, word) for limit in ended) and not any(admits(limit, word) for limit in lasting)
        return any(not any(is_narrower(limit, other) for other in lasting) for limit in ended)

    def _ways(self, node: int, variant: type[Payload]) -> _Writes:
        """How this node may write such ops. It is worked out once."""
        known = self._writes.get((node, variant))
        if known is not None:
            return known
        judged = JUDGED[variant]
        by_fate: dict[Reason | None, list[_Write]] = {None: [], Reason.REVOKED: [], Reason.UNRESOLVED: []}
        for delegation in self._graph.of_node.get(node, ()):
            ways = by_fate.get(self.fault(delegation))
            if ways is None:
                continue
            start, end = window(delegation)
            if judged.action is None:
                ways.append(_Write(start, end, None))
            elif judged.is_owners:
                ways += [_Write(start, end, None)] if self._graph.owns(delegation) else []
            else:
                for grant in self._graph.grants[delegation.cid]:
                    if grant.covers(judged.resource, judged.action):
                        low, high = grant.time_range or (start, end)
                        scopes = grant.scopes if judged.scoped else None
                        ways.append(_Write(max(start, low), min(end, high), _limit(grant, judged), scopes))
        found = self._writes[node, variant] = _Writes(
            judged,
            tuple(by_fate[None]),
            tuple(by_fate[Reason.REVOKED]),
            tuple(by_fate[Reason.UNRESOLVED]),
        )
        return found

    def _revocation_refusal(self, node: int, cid: bytes, wall_ms: int) -> Reason | None:
        if self.may_revoke(node, cid, wall_ms):
            return None
        return Reason.REVOKED if self._graph.may_revoke(node, cid, wall_ms, set()) else Reason.UNAUTHORISED

    def reading(
        self, node: int, payload: Payload, wall_ms: int, kind: str | None, now_ms: int
    ) -> tuple[str, ...] | None:
        """The rules by which an op of this time must be sanitised before this node may have it now; empty if it may
        have it as it is, None if it may not have it at all. `kind` is that of the job which the op is about, or which
        an artifact came from. Of several capabilities the one with the fewest rules counts, and always one of them
        whole, since the reader must find the rules in a delegation of its own.
        """
        if isinstance(payload, v.Sanitised):
            return self.reading(node, payload.payload, wall_ms, kind, now_ms)
        variant: type[Payload] = type(payload)
        word: str | tuple[str, ...] | None = kind
        scope: str | None = getattr(payload, "scope", None)
        if isinstance(payload, v.AcceptOffer) and payload.family in ACCEPTED:
            variant, word = ACCEPTED[payload.family], payload.key.decode(errors="replace")
            scope = word
        elif field := READING[variant].field:
            word = getattr(payload, field)
        for start, end, low, high, limit, rules, scopes in self._read_ways(node, variant):
            is_admitted = start <= now_ms < end and low <= wall_ms < high and (limit is None or admits(limit, word))
            if is_admitted and (scopes is None or scope in scopes):
                return rules
        return None

    def reads_by_kind(self, node: int, variant: type[Payload]) -> bool:
        """Whether the kind of a job can decide if this node may read such ops."""
        return READING[variant].caveat == "kind_prefix" and any(
            way.limit is not None for way in self._read_ways(node, variant)
        )

    def _read_ways(self, node: int, variant: type[Payload]) -> tuple[_Read, ...]:
        ways = self._reads.get((node, variant))
        if ways is None:
            if node not in self._graph.of_node:
                return ()
            judged = READING[variant]
            found = [
                _Read(
                    *window(delegation),
                    *(grant.time_range or (0, U64_MAX + 1)),
                    _limit(grant, judged),
                    grant.sanitize,
                    grant.scopes if judged.scoped else None,
                )
                for delegation, grant in self._grants(node)
                if grant.covers(judged.resource, "Read")
            ]
            ways = self._reads[node, variant] = tuple(sorted(found, key=lambda way: len(way.rules)))
        return ways

    def _grants(self, node: int, at_ms: int | None = None) -> Iterator[tuple[Delegation, Grant]]:
        """The grants of a node that stand; with a time, those in force then."""
        for delegation in self._graph.of_node.get(node, ()):
            start, end = window(delegation)
            if self.fault(delegation) is None and (at_ms is None or start <= at_ms < end):
                for grant in self._graph.grants[delegation.cid]:
                    yield delegation, grant

    def grants(self, node: int, at_ms: int) -> list[Grant]:
        """What the node may do at this time, as far as its delegations say."""
        return [grant for _, grant in self._grants(node, at_ms) if _at(grant, at_ms)]

    def breaks_some_locks(self, node: int) -> bool:
        """Whether this node may break the locks on some keys only."""
        return any(grant.covers("Lock", "Break") and grant.key_prefix is not None for _, grant in self._grants(node))

    def reads_everything(self, node: int, now_ms: int) -> bool:
        """Whether this node may now have every op as it is, so that none need be checked."""
        whole = {Grant("Ops", "Read"), Grant("Ops", "*")}
        return any(grant._replace(audit_inference=False) in whole for _, grant in self._grants(node, now_ms))

    @cached_property
    def has_sanitised_readers(self) -> bool:
        """Whether a delegation lets a node read some ops only in part."""
        return any(grant.sanitize for grants in self._graph.grants.values() for grant in grants)

    def sanitizes(self, node: int, rules: tuple[str, ...], now_ms: int) -> bool:
        """Whether a capability to read, in force for this node now, carries exactly these rules."""
        return rules != () and any(
            grant.sanitize == rules and grant.action in ("Read", "*") for _, grant in self._grants(node, now_ms)
        )

    def _shares(self, node: int) -> Iterator[_Share]:
        for delegation, grant in self._grants(node):
            if grant.resource == "Store" and grant.action == "Decide":
                start, end = window(delegation)
                low, high = grant.time_range or (start, end)
                for store in grant.key_prefix or ():
                    yield _Share(max(start, low), min(end, high), store)

    def stores(self, node: int, at_ms: int) -> set[str]:
        """The stores in which a node decides at this time, each by the id of its founder: its own, and those that it
        was told to share.
        """
        shared = {each.store for each in self.shares.get(node, ()) if each.start <= at_ms < each.end}
        return {node_text(node)} | shared

    def share_store(self, one: int, other: int, at_ms: int) -> bool:
        """Whether the two nodes share a store at this time."""
        return bool(self.shares) and not self.stores(one, at_ms).isdisjoint(self.stores(other, at_ms))

    def is_owner(self, node: int, wall_ms: int) -> bool:
        """Whether the node holds a root delegation in force: the user's own, for everything, without caveats."""
        return any(map(self._graph.owns, self._graph.in_force(node, wall_ms, self._revoked)))

    def audited(self, node: int, wall_ms: int, kind: str | None) -> bool:
        """Whether the node must record a snapshot of every model call that it makes in a job of this kind: under the
        root delegation always, else if a capability that its outputs can rely on requires it. Audit is a duty, so if
        the kind is not known (None), it is required if it is for any kind.
        """
        return self.is_owner(node, wall_ms) or any(
            grant.audit_inference
            and (kind is None or grant.resource not in ("Job", "Ops") or admits(grant.kind_prefix, kind))
            and _at(grant, wall_ms)
            and any(grant.covers(*need) for need in _AUDITED)
            for _, grant in self._grants(node, wall_ms)
        )

    def may(self, node: int, resource: str, action: str, kind: str | None, wall_ms: int) -> list[Delegation] | None:
        """The chain of delegations, the user's first, that lets a node do this at this time; None if there is none.
        Caveats that need the op itself (its source type, its predicate) are not checked.
        """
        for delegation, grant in self._grants(node, wall_ms):
            by_kind = resource == "Job" or (resource, action) == ("Artifact", "Read")
            of_kind = not by_kind or admits(grant.kind_prefix, kind)
            if of_kind and grant.covers(resource, action) and _at(grant, wall_ms):
                return self._graph.chain(delegation, grant)
        return None

    def may_revoke(self, node: int, cid: bytes, wall_ms: int) -> bool:
        """Whether the node issued the delegation or one that it relies on. (In a strict mesh also whether it owns the
        mesh; and it must itself be in force.)
        """
        return self._graph.may_revoke(node, cid, wall_ms, self._revoked)

    def standing(self, node: int, now_ms: int) -> Standing:
        """ACTIVE while any delegation is in force; SUSPENDED if one stands that has ended or not begun."""
        if any(self._graph.in_force(node, now_ms, self._revoked)):
            return Standing.ACTIVE
        faults = {self.fault(delegation) for delegation in self.held(node)}
        if None in faults:
            return Standing.SUSPENDED
        return Standing.REVOKED if Reason.REVOKED in faults else Standing.UNKNOWN

    def held(self, node: int) -> list[Delegation]:
        """Every delegation to this node, whether it stands or not."""
        return list(self._graph.of_node.get(node, ()))

    def in_force(self, node: int, at_ms: int) -> list[Delegation]:
        return list(self._graph.in_force(node, at_ms, self._revoked))

    def above(self, delegation: Delegation) -> Iterator[Delegation]:
        """The delegation itself and all that it relies on, as far as they are on the log."""
        return self._graph.above(delegation.cid)

    def passed_on(self, delegation: Delegation) -> tuple[Grant, ...]:
        """What the holder of a delegation may grant others."""
        return self._graph.passed_on(delegation)

    def owns(self, delegation: Delegation) -> bool:
        """Whether it is a root delegation: the user's own, for everything, without caveats."""
        return self._graph.owns(delegation)


def _at(grant: Grant, wall_ms: int) -> bool:
    return grant.time_range is None or grant.time_range[0] <= wall_ms < grant.time_range[1]


Revocation = tuple[Hlc, int, bytes]


def counting_revocations(
    user: str, delegations: Iterable[Delegation], revocations: Iterable[Revocation], is_bound: bool = True
) -> list[Revocation]:
    """Those of the revocations (when, by which node, of which delegation) that count, in the order of time. In a strict
    mesh each is judged with the earlier ones in force, so one by a node that had lost its authority by then does not
    count.
    """
    ordered = sorted(revocations)
    if not ordered:
        return []
    graph = DelegationGraph(user, delegations, is_bound)
    revoked: set[bytes] = set()
    counting = []
    for revocation in ordered:
        when, node, cid = revocation
        if graph.may_revoke(node, cid, when.wall, revoked):
            counting.append(revocation)
            graph.below((cid,), revoked)
    return counting


def revoke_root(user: SigningKey, cid: bytes) -> v.RevokeRoot:
    """The revocation of a delegation, signed with the user's own key."""
    return v.RevokeRoot(cid, user.sign(_ROOT_REVOCATION + cid))


def is_root_revocation(user: str, payload: v.RevokeRoot) -> bool:
    return verify(parse_did_key(user), payload.signature, _ROOT_REVOCATION + payload.ucan_cid)


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
