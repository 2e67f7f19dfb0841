"""The roll of a mesh: which nodes are in it, what each may do and why, and what its owner decides about them: who is
revoked, which node a kind is routed to, and who is the coordinator. Each decision is one transaction of ops on this
node's log; whether they count is decided, here as everywhere, by the law.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.kernel.authority import Standing
from hocket.kernel.capabilities import grant_of
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import KIND_LENGTH_MAX
from hocket.kernel.ucan import ROOT, Capability, Delegation, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, Payload, RevokeUcan, RouteKind
from hocket.log import Log, Transaction
from hocket.log.law import Law
from hocket.store import Session

ID_DIGITS_MIN = 4
HERE = "here"
# A coordinator that was met within this time will soon hear that it is no longer the one.
RECENT_MS = 60_000


class Member(NamedTuple):
    """A node of the mesh. `standing` is pending (nothing of it was seen yet), active, suspended (its time is past or
    has not come) or revoked; `seen` is the time of its newest op or of the last exchange with it, 0 for never;
    `expires` is when the last of its delegations ends, in seconds; `inviter` is None when the user delegated to it.
    """

    node: int
    name: str | None
    standing: str
    roles: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    expires: int | None
    seen: int
    inviter: int | None
    is_here: bool

    @property
    def id(self) -> str:
        return node_text(self.node)

    @property
    def shown(self) -> str:
        return self.name or self.id


# Looking.


def members(log: Log, session: Session) -> list[Member]:
    """Every node that a delegation on the log lets in or once let in, in the order in which they came."""
    law = _law(log, session)
    now = _now(log, session)
    coordinator = law.coordinator(now)
    wrote = {int.from_bytes(node, "big"): unpack(hlc).wall for node, hlc in session.frontier().items()}
    met = {int.from_bytes(peer.node, "big"): peer.seen for peer in session.peers() if peer.node is not None}
    issuers = {did_key(delegation.public): delegation.node for delegation in law.delegations}
    found = []
    for node in dict.fromkeys(delegation.node for delegation in law.delegations):
        standing = law.authority.standing(node, now.wall)
        if standing is Standing.UNKNOWN:
            continue
        held = law.authority.held(node)
        good = [each for each in held if law.authority.fault(each) is None]
        holds = [each for each in good if _in_force(each, now.wall)] or good
        found.append(
            Member(
                node,
                next((each.name for each in reversed(held) if each.name is not None), None),
                "pending" if standing is Standing.ACTIVE and node not in wrote else standing.value,
                _roles(law, node, now.wall, coordinator),
                _capabilities(holds),
                _end(holds),
                max(wrote.get(node, 0), met.get(node, 0)),
                issuers.get(held[-1].issuer),
                node == log.node,
            )
        )
    return found


def find(roll: Iterable[Member], text: str) -> Member:
    """The one node of that name, or whose id begins so; `here` is this one, unless another is called that. Of those
    with one name the revoked are left out, if they can be.
    """
    roll = list(roll)
    named = [each for each in roll if each.name == text] or [each for each in roll if text == HERE and each.is_here]
    if len(named) > 1:
        named = [each for each in named if each.standing != "revoked"] or named
    if not named and len(text) >= ID_DIGITS_MIN:
        named = [each for each in roll if each.id.startswith(text.lower())]
    if not named:
        raise Usage(f"no node {text!r} in this mesh; `hocket nodes` lists them, by name and id")
    if len(named) > 1:
        raise Usage(f"{text!r} could be {' or '.join(each.id for each in named)}; say which by its id")
    return named[0]


class Answer(NamedTuple):
    """Whether a node may do something: by which chain of delegations, the user's first (None: it may not), and where
    the kind is routed, if that is elsewhere.
    """

    chain: list[Delegation] | None
    routed: int | None


def may(log: Log, session: Session, node: int, resource: str, action: str, kind: str | None) -> Answer:
    law = _law(log, session)
    now = _now(log, session)
    chain = law.authority.may(node, resource, action, kind, now.wall)
    if (resource, action) == ("Mesh", "Write") and not law.authority.is_owner(node, now.wall):
        chain = None
    routed = None
    if kind is not None and (resource, action) == ("Job", "Claim"):
        target = route_of(session, kind)
        routed = None if target == node else target
    return Answer(chain, routed)


def route_of(session: Session, kind: str) -> int | None:
    found = {known: node for known, _, node in session.routes()}.get(kind)
    return None if found is None else int.from_bytes(found, "big")


def is_owner(log: Log) -> bool:
    with log.store.read() as session:
        return _law(log, session).authority.is_owner(log.node, _now(log, session).wall)


def _law(log: Log, session: Session) -> Law:
    return log.laws.read(session, session.head().law)


def _now(log: Log, session: Session) -> Hlc:
    """Now, after everything that is on the log."""
    return Hlc(max(session.head().wall, log.physical()), U32_MAX, log.node)


def _in_force(delegation: Delegation, now: int) -> bool:
    return delegation.not_before * 1000 <= now and (delegation.expires is None or now < delegation.expires * 1000)


def _capabilities(delegations: Iterable[Delegation]) -> tuple[Capability, ...]:
    found: list[Capability] = []
    for delegation in delegations:
        found += [each for each in delegation.capabilities if each not in found]
    return tuple(found)


def _end(delegations: list[Delegation]) -> int | None:
    ends = [each.expires for each in delegations if each.expires is not None]
    return max(ends) if ends and len(ends) == len(delegations) else None


def _roles(law: Law, node: int, now: int, coordinator: int | None) -> tuple[str, ...]:
    roles = []
    if law.authority.is_owner(node, now):
        roles.append("owner")
    if node == coordinator:
        roles.append("coordinator")
    in_force = [each for each in law.authority.held(node) if law.authority.fault(each) is None and _in_force(each, now)]
    grants = [grant_of(capability) for each in in_force for capability in each.capabilities]
    if any(grant is not None and grant.covers("Job", "Claim") for grant in grants):
        roles.append("worker")
    return tuple(roles) or ("peer",)


# Deciding.


class Revocation(NamedTuple):
    """What a revocation did: to how many delegations of the node, and which others hold less than before by it."""

    member: Member
    delegations: int
    cascade: list[Member]


def revocable(log: Log, text: str) -> Revocation:
    """What a revocation would do. Raises what `revoke` would raise."""
    with log.store.read() as session:
        roll = members(log, session)
        member = find(roll, text)
        law = _law(log, session)
        cids = _revocable(law, member, log.node, _now(log, session).wall)
    below = _below(law, cids)
    others = [each for each in roll if each.node in below and each.node != member.node]
    return Revocation(member, len(cids), others)


def revoke(log: Log, text: str) -> Revocation:
    """Revokes every delegation by which a node holds anything, all or none."""
    done = revocable(log, text)

    def request(tx: Transaction) -> None:
        for cid in _revocable(tx.projection.law, done.member, tx.node, tx.now):
            _author(tx, RevokeUcan(cid), f"this node may not revoke {done.member.shown}")

    log.run(request)
    return done


def _revocable(law: Law, member: Member, author: int, now: int) -> list[bytes]:
    if member.node == author:
        raise Usage("a node does not revoke itself; do it on another of the owner's nodes")
    cids = [each.cid for each in law.authority.held(member.node) if law.authority.fault(each) is None]
    if not cids:
        raise Conflict(f"{member.shown} holds nothing any more; it was revoked")
    if not all(law.authority.may_revoke(author, cid, now) for cid in cids):
        raise NotAuthorised(f"only the owner, or the node that invited it, may revoke {member.shown}")
    return cids


def _below(law: Law, cids: Iterable[bytes]) -> set[int]:
    """The nodes that hold something which leans on these delegations."""
    reached = set(cids)
    nodes: set[int] = set()
    grows = True
    while grows:
        grows = False
        for each in law.delegations:
            if each.cid not in reached and not reached.isdisjoint(each.proofs):
                reached.add(each.cid)
                nodes.add(each.node)
                grows = True
    return nodes


def route(log: Log, kind: str, node: int | None) -> None:
    """Sends all jobs of a kind to one node; to whoever may do them, without one."""
    if not 0 < len(kind) <= KIND_LENGTH_MAX or not kind.isprintable():
        raise Usage(f"a kind has 1 to {KIND_LENGTH_MAX} printable characters")
    log.run(lambda tx: _author(tx, RouteKind(kind, node), "only the owner's node may route a kind"))


class Designation(NamedTuple):
    """Who was the coordinator before, and whether it has heard of the change or is likely to, soon."""

    previous: int | None
    hears: bool


def designate(log: Log, node: int) -> Designation:
    """Makes a node the coordinator from now on."""

    def request(tx: Transaction) -> Designation:
        previous = tx.projection.law.coordinator(tx.latest)
        if previous == node:
            raise Conflict(f"{node_text(node)} is the coordinator already")
        _author(tx, DesignateCoordinator(node), "only the owner's node may designate the coordinator")
        met = [each.seen for each in tx.session.peers() if each.node is not None and _is(each.node, previous)]
        recently = bool(met) and tx.physical - max(met) < RECENT_MS
        return Designation(previous, previous in (None, tx.node) or recently)

    return log.run(request)


def coordinator(log: Log, session: Session) -> int | None:
    return _law(log, session).coordinator(_now(log, session))


def reissue(log: Log, user: SigningKey, public: bytes, name: str | None) -> Delegation:
    """A new root delegation for this node, by the user's own key."""
    if did_key(user.public) != log.user:
        raise NotAuthorised("that is the key of another user")

    def request(tx: Transaction) -> bytes:
        token = issue(user, public, ROOT, tx.now // 1000, None, name=name)
        if any(each.cid == content_hash(token) for each in tx.projection.law.delegations):
            raise Conflict("this very delegation was made within the last second; wait for the next one")
        _author(tx, DelegateUcan(content_hash(token), token), "the delegation does not count")
        return content_hash(token)

    cid = log.run(request)
    return next(each for each in log.law().delegations if each.cid == cid)


def _is(packed: bytes, node: int | None) -> bool:
    return node is not None and int.from_bytes(packed, "big") == node


def _author(tx: Transaction, payload: Payload, otherwise: str) -> None:
    written = tx.author(payload)
    if isinstance(written, Reason):
        raise NotAuthorised(otherwise if written is Reason.OWNER_ONLY else f"{otherwise}: {written.sentence}")
