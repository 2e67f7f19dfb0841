"""Authority once more, as the rules say it and as slowly as they say it: every question walks every chain from the
delegation up to the user and holds the op against each capability on the way, in its JSON form. Nothing is remembered,
and no code is shared with the kernel but the shapes. Random delegation graphs and ops to judge are made here
too.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.inbox.facts import AcknowledgeMessage, ClaimMessage, RetryMessage, ReturnMessage, SendMessage
from hocket.families.kinds.facts import DefineKind
from hocket.families.locks.facts import AcquireLocks, BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.families.retention.facts import MoveHorizon, Retained, SetRetention
from hocket.families.rows.facts import PutRow, ResolveConflict, Strategy
from hocket.kernel import vocabulary as v
from hocket.kernel.clock import Hlc
from hocket.kernel.ucan import Capability, Delegation

ID = bytes(16)
TELEMETRY = v.Telemetry(1)
USER = "did:user"
FOREIGN = "did:foreign"
NODES = range(1, 6)
_OWNERS_ALONE = (v.DesignateCoordinator, v.RouteKind, v.SetSuccession, SetRetention)
RESOURCES = [
    *("Ops", "Evidence", "Entity", "Claim", "Job", "Episode", "Artifact", "Action", "Mesh", "UserAssertion"),
    "Registration",
]
V01_ACTIONS = ["*", "Read", "Write", "Schedule", "Claim", "Complete"]
# What names an action beyond v0.1 is emptied, not void, when it is too wide; random graphs have none by name.
ACTIONS = [*V01_ACTIONS, "Define", "Approve", "Erase", "Acquire", "Break"]
OWN_RESOURCES = ["Lock", "Inbox", "Row"]
KNOWN = ["source_types", "predicates", "kind_prefix", "time_range", "sanitize", "audit_inference"]
SANITIZE = ["StripGeo", "RedactParticipants", "StripCustomMetadata", "TruncateContent(0)", "TruncateContent(70)"]


def did(node: int) -> str:
    return f"did:node-{node}"


def cid(number: int) -> bytes:
    return number.to_bytes(32, "big")


# One capability.


def well_typed(name: str, value: Any) -> bool:
    if name == "audit_inference":
        return value is True or value is False
    if not isinstance(value, list):
        return False
    if name == "time_range":
        return len(value) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if name == "sanitize":
        return all(rule in SANITIZE for rule in value)
    return all(isinstance(word, str) for word in value)


def understood(capability: Capability) -> bool:
    if capability.resource not in RESOURCES or capability.action not in ACTIONS:
        return False
    return all(name in KNOWN and well_typed(name, value) for name, value in capability.caveats.items())


def covers(capability: Capability, resource: str, action: str) -> bool:
    resources = [*RESOURCES, *OWN_RESOURCES] if capability.resource == "Ops" else [capability.resource]
    actions = ACTIONS if capability.action == "*" else [capability.action]
    if (capability.resource, capability.action) == ("Ops", "Write"):
        more = {"Job": ["Schedule", "Claim", "Complete"], "Lock": ["Acquire"], "Inbox": ["Claim"]}
        actions = ["Write", *more.get(resource, [])]
    return resource in resources and action in actions


def narrowed(child: Capability, parent: Capability) -> bool:
    if not covers(parent, child.resource, child.action):
        return False
    for name, above in parent.caveats.items():
        own: Any = child.caveats.get(name)
        wide: Any = above
        if name == "audit_inference":
            good = wide is False or own is True
        elif name == "sanitize":
            good = all(rule in (own or []) for rule in wide)
        elif own is None:
            good = False
        elif name == "time_range":
            good = wide[0] <= own[0] and own[1] <= wide[1]
        elif name == "kind_prefix":
            good = all(any(prefix[: len(wider)] == wider for wider in wide) for prefix in own)
        else:
            good = all(word in wide for word in own)
        if not good:
            return False
    return True


def passes_on(capability: Capability, d: Delegation) -> bool:
    """Whether by this capability a delegation of these times may be issued."""
    if not covers(capability, "Registration", "Write"):
        return False
    allowed: Any = capability.caveats.get("time_range")
    window = [d.not_before * 1000, float("inf") if d.expires is None else d.expires * 1000]
    used: Any = [c.caveats.get("time_range", window) for c in d.capabilities if understood(c)]
    return allowed is None or all(allowed[0] <= start and end <= allowed[1] for start, end in used)


# Delegations.


class Naive:
    def __init__(self, delegations: list[Delegation], revoked: set[bytes], is_bound: bool = True) -> None:
        self.all = {d.cid: d for d in delegations}
        self.revoked = revoked
        self.is_bound = is_bound

    def fault(self, d: Delegation, path: tuple[bytes, ...] = ()) -> str | None:
        return self.badly_made(d) or ("REVOKED" if self.was_revoked(d) else None)

    def unresolved(self, d: Delegation, path: tuple[bytes, ...] = ()) -> bool:
        path = (*path, d.cid)
        if len(path) > 16:
            return True
        return any(cid in path or cid not in self.all or self.unresolved(self.all[cid], path) for cid in d.proofs)

    def badly_made(self, d: Delegation) -> str | None:
        if self.unresolved(d):
            return "UNRESOLVED"
        parents = [self.all[cid] for cid in d.proofs]
        for parent in parents:
            if inherited := self.badly_made(parent):
                return inherited
        if d.issuer != USER and not parents:
            return "FOREIGN_USER"
        if d.issuer != USER and any(parent.audience != d.issuer for parent in parents):
            return "UNAUTHORISED"
        for parent in parents:
            if d.not_before < parent.not_before:
                return "WIDENED"
            if parent.expires is not None and (d.expires is None or d.expires > parent.expires):
                return "WIDENED"
        above = [c for parent in parents for c in parent.capabilities if understood(c)]
        for c in d.capabilities:
            if parents and understood(c) and not any(narrowed(c, wider) for wider in above):
                return "WIDENED"
        if d.issuer != USER and not any(passes_on(c, d) for c in above):
            return "UNAUTHORISED"
        return None

    def was_revoked(self, d: Delegation) -> bool:
        return d.cid in self.revoked or any(self.was_revoked(self.all[cid]) for cid in d.proofs)

    def active(self, d: Delegation, at_ms: int) -> bool:
        """In force itself, and so is everything above it."""
        inside = d.not_before <= at_ms / 1000 and (d.expires is None or at_ms / 1000 < d.expires)
        return inside and all(self.active(self.all[cid], at_ms) for cid in d.proofs if cid in self.all)

    def held(self, node: int) -> list[Delegation]:
        return [d for d in self.all.values() if d.node == node]

    def good(self, node: int, at_ms: int) -> list[Delegation]:
        return [d for d in self.held(node) if self.fault(d) is None and self.active(d, at_ms)]

    def owner(self, d: Delegation) -> bool:
        return d.issuer == USER and any((c.resource, c.action, c.caveats) == ("Ops", "*", {}) for c in d.capabilities)

    def chains(self, d: Delegation, c: Capability) -> list[list[Capability]]:
        """Every way in which this capability was handed down from the user."""
        if not understood(c):
            return []
        if d.issuer == USER:
            return [[c]]
        return [
            [*chain, c]
            for parent in (self.all[cid] for cid in d.proofs)
            for wider in parent.capabilities
            if understood(wider) and narrowed(c, wider)
            for chain in self.chains(parent, wider)
        ]

    # Ops.

    def allows(self, d: Delegation, payload: Any, wall_ms: int, kind: str | None, action: str) -> list[Capability]:
        """The capabilities of a delegation that admit the op, every capability above them included."""
        return [
            c
            for c in d.capabilities
            if any(all(admits(each, payload, wall_ms, kind, action) for each in chain) for chain in self.chains(d, c))
        ]

    def refusal(self, node: int, payload: Any, wall_ms: int, kind: str | None) -> str | None:
        if isinstance(payload, v.Sanitised):
            payload = payload.payload
        if isinstance(payload, v.DelegateUcan | v.ReportFork | v.RevokeRoot | v.Bundle):
            return None
        if isinstance(payload, v.RevokeUcan):
            if self.may_revoke(node, payload.ucan_cid, wall_ms):
                return None
            unrevoked = Naive(list(self.all.values()), set(), self.is_bound).may_revoke(node, payload.ucan_cid, wall_ms)
            return "REVOKED" if unrevoked else "UNAUTHORISED"
        found = set()
        for d in self.held(node):
            inside = d.not_before <= wall_ms / 1000 and (d.expires is None or wall_ms / 1000 < d.expires)
            fault = self.fault(d)
            if not inside or fault not in (None, "REVOKED", "UNRESOLVED"):
                continue
            if isinstance(payload, v.AcceptWork | v.AcceptOffer | MoveHorizon | v.TakeOver):
                allowed = True
            elif isinstance(payload, _OWNERS_ALONE):
                allowed = self.owner(d)
            elif fault == "UNRESOLVED":  # there is no chain to walk
                needed = written_as(payload)
                allowed = any(understood(c) and admits(c, payload, wall_ms, kind, needed) for c in d.capabilities)
            else:
                allowed = bool(self.allows(d, payload, wall_ms, kind, written_as(payload)))
            if allowed:
                found.add(fault)
        for fault in (None, "REVOKED", "UNRESOLVED"):
            if fault in found:
                return fault
        return "OWNER_ONLY" if isinstance(payload, _OWNERS_ALONE) else "UNAUTHORISED"

    def relied_on_ended(self, node: int, payload: Any, wall_ms: int, kind: str | None, before_ms: int) -> bool:
        """Whether, for that kind or for any, only delegations that had ended by then allow the op."""
        if isinstance(payload, v.ReportFork | v.Bundle) or PLACE[type(payload).__name__][0] == "Registration":
            return False
        prefixes = [c.caveats.get("kind_prefix") for d in self.held(node) for c in d.capabilities]
        named = {word for each in prefixes if isinstance(each, list) for word in each if isinstance(word, str)}
        for each in [kind] if kind is not None else [*named, "", "zz"]:
            ends = list(self.ends(node, payload, wall_ms, each))
            if any(end <= before_ms for end, _ in ends) and not any(
                end > before_ms for end, is_certain in ends if is_certain
            ):
                return True
        return False

    def ends(self, node: int, payload: Any, wall_ms: int, kind: str) -> Iterator[tuple[float, bool]]:
        """Until when each delegation that allows the op does so, and whether its parents are here."""
        for d in self.held(node):
            inside = d.not_before <= wall_ms / 1000 and (d.expires is None or wall_ms / 1000 < d.expires)
            fault = self.fault(d)
            if not inside or fault not in (None, "UNRESOLVED"):
                continue
            end = float("inf") if d.expires is None else d.expires * 1000
            if isinstance(payload, v.AcceptWork | v.AcceptOffer | MoveHorizon | v.TakeOver):
                yield end, fault is None
            elif isinstance(payload, _OWNERS_ALONE):
                if self.owner(d):
                    yield end, fault is None
            elif fault is None:
                for c in self.allows(d, payload, wall_ms, kind, written_as(payload)):
                    yield min(end, c.caveats.get("time_range", [0, end])[1]), True  # type: ignore[index]
            else:
                for c in d.capabilities:
                    if understood(c) and admits(c, payload, wall_ms, kind, written_as(payload)):
                        yield min(end, c.caveats.get("time_range", [0, end])[1]), False  # type: ignore[index]

    def readings(self, node: int, payload: Any, wall_ms: int, kind: str | None, now_ms: int) -> list[tuple[str, ...]]:
        if isinstance(payload, v.Sanitised):
            payload = payload.payload
        return [
            tuple(c.caveats.get("sanitize", []))  # type: ignore[arg-type]
            for d in self.good(node, now_ms)
            for c in self.allows(d, payload, wall_ms, kind, "Read")
        ]

    def above(self, cid: bytes) -> set[bytes]:
        found: set[bytes] = set()
        more = {cid} & self.all.keys()
        while more:
            found |= more
            more = {p for c in more for p in self.all[c].proofs if p in self.all} - found
        return found

    def may_revoke(self, node: int, cid: bytes, wall_ms: int) -> bool:
        if self.is_bound:
            if cid not in self.all or self.all[cid].issuer == USER:
                return False
            return any(d.audience in {self.all[c].issuer for c in self.above(cid)} for d in self.held(node))
        good = self.good(node, wall_ms)
        issued = {self.all[c].issuer for c in self.above(cid)}
        return any(self.owner(d) or d.audience in issued for d in good)


def counting(delegations: list[Delegation], revocations: list[tuple[Hlc, int, bytes]], is_bound: bool) -> set[bytes]:
    revoked: set[bytes] = set()
    for when, node, cid in sorted(revocations):
        if Naive(delegations, revoked, is_bound).may_revoke(node, cid, when.wall):
            revoked = revoked | {cid}
    return revoked


WRITTEN = {
    "Job": {
        "Schedule": ["ScheduleJob", "CancelJob", "RetryJob", "PostponeJob", "SetSchedule", "ClearSchedule"],
        "Claim": ["ClaimWork"],
        "Complete": [
            *("CompleteJob", "YieldWork", "ExpireWork", "FailWork", "ReportProgress", "PostponeWork", "SaveCheckpoint"),
        ],
        "Define": ["DefineKind"],
        "Approve": ["ApproveJob", "RefuseJob"],
        "Erase": ["EraseContent"],
        "": ["AcceptWork"],
    },
    "Evidence": {"Write": ["IngestEvidence", "TombstoneEvidence", "CascadeTombstone"]},
    "Entity": {"Write": ["CreateEntity", "AddEntityAlias", "MergeEntities", "SplitEntity"]},
    "Claim": {"Write": ["CreateClaim", "UpdateClaimStatus", "UpdateClaimConfidence", "SupersedeClaim"]},
    "Episode": {"Write": ["CreateEpisode", "UpdateEpisode"]},
    "Artifact": {"Write": ["CreateArtifact", "EvictArtifact"]},
    "Action": {"Write": ["CreateSuggestedAction", "UpdateActionStatus"]},
    "UserAssertion": {"Write": ["UserAssert"]},
    "Mesh": {
        "Write": ["DesignateCoordinator", "RouteKind", "SetAvailability", "SetRetention", "SetSuccession"],
        "": ["TakeOver"],
    },
    "Lock": {"Acquire": ["AcquireLocks", "RenewLocks", "ReleaseLocks", "LeaveQueue"], "Break": ["BreakLock"]},
    "Inbox": {
        "Write": ["SendMessage"],
        "Claim": ["ClaimMessage", "AcknowledgeMessage", "ReturnMessage", "RetryMessage"],
    },
    "Row": {"Write": ["PutRow", "ResolveConflict"]},
    "Registration": {"": ["DelegateUcan", "RevokeUcan", "RevokeRoot"]},
    "Ops": {"": ["ReportFork", "AcceptOffer", "Bundle", "MoveHorizon"]},
}
PLACE = {
    name: (resource, action)
    for resource, actions in WRITTEN.items()
    for action, names in actions.items()
    for name in names
}


def written_as(payload: Any) -> str:
    return PLACE[type(payload).__name__][1]


def admits(c: Capability, payload: Any, wall_ms: int, kind: str | None, action: str) -> bool:
    resource = PLACE[type(payload).__name__][0]
    caveats: dict[str, Any] = c.caveats
    if not covers(c, resource, action):
        return False
    if "time_range" in caveats and not caveats["time_range"][0] <= wall_ms < caveats["time_range"][1]:
        return False
    if resource == "Evidence" and "source_types" in caveats:
        return getattr(payload, "source_type", None) in caveats["source_types"]
    if resource == "Claim" and "predicates" in caveats:
        return getattr(payload, "predicate", None) in caveats["predicates"]
    if resource == "Job" and "kind_prefix" in caveats and not isinstance(payload, v.ClearSchedule):
        kind = getattr(payload, "kind", kind)
        return kind is not None and any(kind.startswith(prefix) for prefix in caveats["kind_prefix"])
    if resource == "Artifact" and action == "Read" and "kind_prefix" in caveats:
        return kind is not None and any(kind.startswith(prefix) for prefix in caveats["kind_prefix"])
    return True


# Random graphs. Times are small, so that bounds meet; most children are made by narrowing something of a parent,
# because random ones would hardly ever stand.

WORDS = ["", "a", "a.", "a.b", "a.b.c", "b"]
STRANGE = [None, 7, "a", ["a", 7], [True, 5], [0, 1, 2], {}, ["Blur"]]


def value(r: Random, name: str) -> Any:
    if name == "audit_inference":
        return r.random() < 0.7
    if name == "time_range":
        return sorted(r.choices(range(0, 6500, 500), k=2))
    return r.choices(SANITIZE if name == "sanitize" else WORDS, k=r.randint(0, 2))


def caveats(r: Random) -> dict[str, Any]:
    made = {name: value(r, name) for name in r.sample(KNOWN, r.choice([0, 0, 1, 2]))}
    for name in ("audit_inference", "sanitize"):
        if r.random() < 0.15:
            made[name] = value(r, name)
    if r.random() < 0.05:
        made["x.unknown"] = True
    if r.random() < 0.05:
        made[r.choice(KNOWN)] = r.choice(STRANGE)
    return made


def capability(r: Random) -> Capability:
    resource = r.choice([*RESOURCES, *["Ops", "Job", "Evidence", "Claim"] * 4])
    action = r.choice([*V01_ACTIONS, *["*", "Read", "Write", "Claim", "Complete"] * 3])
    if r.random() < 0.03:
        resource, action = r.choice([("Moon", action), (resource, "Fly")])
    return Capability(resource, action, caveats(r))


def narrower(r: Random, parent: Capability) -> Capability:
    """Usually something within the parent, with now and then one step too far."""
    resource, action = parent.resource, parent.action
    if resource == "Ops":
        resource = r.choice(["Ops", "Ops", "Job", "Evidence", "Claim", "Mesh"])
    if action == "*":
        action = r.choice(["*", "*", "Read", "Write", "Claim", "Complete"])
    elif action == "Write" and resource == "Job" and parent.resource == "Ops":
        action = r.choice(["Write", "Schedule", "Claim", "Complete"])
    made: dict[str, Any] = dict(parent.caveats)
    if r.random() < 0.3:
        made = caveats(r) | (made if r.random() < 0.8 else {})
    for name, own in list(made.items()):
        if name in parent.caveats and isinstance(own, list) and own and r.random() < 0.4:
            if name == "kind_prefix" and all(isinstance(word, str) for word in own):
                made[name] = [own[0] + r.choice(["", ".", "b.c"])]
            elif name in ("source_types", "predicates"):
                made[name] = own[:1]
            elif name == "sanitize":
                made[name] = [*own, r.choice(SANITIZE)]
            elif name == "time_range" and well_typed(name, own):
                made[name] = [own[0] + r.choice([0, 500]), own[1] - r.choice([0, 500])]
    if made and r.random() < 0.1:
        del made[r.choice(sorted(made))]
    return Capability(resource, action, made)


def graph(r: Random) -> list[Delegation]:
    """Up to twelve delegations among five nodes, in any order; the first is usually the user's for everything."""
    made: list[Delegation] = []
    for index in range(r.randint(1, 12)):
        parents: list[Delegation] = []
        if made and r.random() < 0.75:
            parents = [r.choice(made)]
            again = [d for d in made if d.audience == parents[0].audience or r.random() < 0.05]
            parents += r.sample(again, r.choice([0, 0, 0, 1]))
        issuer = USER if r.random() < 0.95 else FOREIGN
        if parents and r.random() < 0.95:
            issuer = parents[0].audience
        above = [c for parent in parents for c in parent.capabilities]
        if above and r.random() < 0.95:
            granted = [narrower(r, r.choice(above)) for _ in range(r.randint(0, 3))]
            # Often with the right to pass on, or there would hardly be chains.
            rights = [c for c in above if covers(c, "Registration", "Write")]
            granted += [Capability("Registration", "Write", c.caveats) for c in rights if r.random() < 0.7]
        elif r.random() < 0.6:
            granted = [Capability("Ops", "*", {})]
        else:
            granted = [capability(r) for _ in range(r.randint(0, 3))]
        start = max((parent.not_before for parent in parents), default=0) + r.choice([0, 0, 0, 1])
        ends = [parent.expires for parent in parents if parent.expires is not None]
        ends += [r.randint(0, 6)] if r.random() < 0.2 else []
        end = min(ends, default=None)
        if r.random() < 0.05:
            start, end = r.randint(0, 2), r.choice([None, 5, 6])
        proofs = [parent.cid for parent in parents]
        if r.random() < 0.03:
            proofs.append(cid(r.randint(0, 14)))  # a later one, itself, or none
        node = r.choice(NODES)
        made.append(
            Delegation(cid(index), issuer, did(node), tuple(granted), start, end, tuple(proofs), node, bytes(32))
        )
    r.shuffle(made)
    return made


def revoked(r: Random) -> set[bytes]:
    return {cid(r.randint(0, 12)) for _ in range(r.choice([0, 0, 1, 1, 2]))}


def kind(r: Random) -> str | None:
    return r.choice([None, "", "a", "a.b", "a.b.c.d", "b", "x"])


def moment(r: Random) -> int:
    return r.choice([r.randrange(0, 6500, 500), r.randint(0, 7000)])


def op(r: Random) -> v.Payload:
    return r.choice([*payloads(r.choice(["a", "a.b.c", "b", "x"])), v.RevokeUcan(cid(r.randint(0, 12)))])


def payloads(word: str) -> list[v.Payload]:
    """One op of each payload, with the word wherever a caveat looks for one."""
    claim = v.CreateClaim(ID, v.ClaimType.ATTRIBUTE, ID, word, v.TextObject(""), v.ClaimStatus.HINT, (), v.Provenance())
    return [
        v.IngestEvidence(ID, bytes(32), word, ""),
        v.TombstoneEvidence(ID, ""),
        v.CascadeTombstone(ID),
        v.CreateEntity(ID, "", ""),
        v.AddEntityAlias(ID, ""),
        v.MergeEntities(ID, (), ""),
        v.SplitEntity(ID, (), ""),
        claim,
        v.UpdateClaimStatus(ID, v.ClaimStatus.FACT),
        v.UpdateClaimConfidence(ID, ()),
        v.SupersedeClaim(ID, ID, ""),
        v.ScheduleJob(ID, word, b"", b""),
        v.ClaimWork(ID, 1, 1),
        v.CompleteJob(ID, (), (), TELEMETRY),
        v.YieldWork(ID, 1, ""),
        v.ExpireWork(ID, 1, ""),
        v.UserAssert(v.AssertionType.PIN, v.ClaimTarget(ID)),
        v.CreateArtifact(ID, "", None, (), bytes(32), None, None, None, 0),
        v.EvictArtifact(ID),
        v.CreateEpisode(ID, "", None, 0, None, (), (), (), 0.5),
        v.UpdateEpisode(ID),
        v.CreateSuggestedAction(ID, "", "", "", ID, (), (), None, 0.5),
        v.UpdateActionStatus(ID, v.ActionStatus.FAILED),
        v.DesignateCoordinator(1),
        v.DelegateUcan(bytes(32), b""),
        v.RevokeUcan(bytes(32)),
        v.RevokeRoot(bytes(32), bytes(64)),
        v.ReportFork(bytes(32), b"", b""),
        v.RouteKind(word),
        v.FailWork(ID, 1, "", "", False),
        v.CancelJob(ID, ""),
        v.RetryJob(ID, ""),
        v.PostponeJob(ID, 0, ""),
        v.ApproveJob(ID, "", ""),
        v.RefuseJob(ID, "", ""),
        v.EraseContent(ID, word, ""),
        v.SetSuccession(ID),
        v.TakeOver(1, ID, ID, ()),
        v.ReportProgress(ID, 1, b""),
        v.SaveCheckpoint(ID, 1, b""),
        v.SetSchedule("", "", "", word, b"", b""),
        v.ClearSchedule(""),
        v.AcceptWork(ID, ID),
        v.AcceptOffer("", b"", ID),
        v.PostponeWork(ID, 1, 1, ""),
        DefineKind(word, b""),
        AcquireLocks("", (word,), "", LockMode.SHARED, 1, 0),
        RenewLocks("", "", 1, 1),
        ReleaseLocks("", "", 1),
        LeaveQueue("", "", ID),
        BreakLock("", word, ""),
        SendMessage(ID, word, "", "", None, None, 0, 1, 1, b""),
        ClaimMessage(ID, "", 1),
        AcknowledgeMessage(ID, ""),
        ReturnMessage(ID, "", 0, ""),
        RetryMessage(ID, ""),
        PutRow(word, "", None, None, Strategy.MANUAL),
        ResolveConflict(word, "", ID, ID, None),
        SetAvailability(1, Availability.ACTIVE, ""),
        SetRetention(Retained.JOBS, word, 1, None, False, 0),
        MoveHorizon(1, None, (), (), bytes(32), False),
        v.Sanitised(("StripGeo",), claim),
        v.Bundle(11, b""),
    ]
