"""The members of a mesh: which nodes are in it, what each may do and why, and what the owner decides about them:
revocations, routes, and the coordinator. Each decision is one transaction of ops on this node's log; as everywhere, the
permissions decide whether they count.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hocket.errors import Conflict, NotAuthorised, NotFound, Usage
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Standing, quota_of, revoke_root
from hocket.kernel.capabilities import grant_of, sharing
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import Bounds
from hocket.kernel.policy import routed_to
from hocket.kernel.ucan import NO_QUOTA, ROOT, Capability, Delegation, Quota, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, Payload, RevokeUcan, RouteKind, SetSuccession
from hocket.log import Log, Transaction
from hocket.log.limits import stored_totals
from hocket.log.permissions import Permissions, founder
from hocket.mesh.names import HERE, ID_DIGITS_MIN, likeness, names
from hocket.store import OpSession, OverQuota, RegisterSession, Session, WrittenTotals
from hocket.work.members import routes_in_force

if TYPE_CHECKING:
    from hocket.kernel.succession.chain import Chain

# A coordinator that was met within this time will soon learn that it was replaced.
RECENT_MS = 60_000
# Each revocation makes every node read the permissions again.
REVOKED_AT_ONCE_MAX = 256


class Member(NamedTuple):
    """A node of the mesh. `standing` is pending (nothing from it has arrived yet), active, suspended (its delegation
    has ended or not begun), forked (it has two histories) or revoked; `seen` is the time of its newest op or of the
    last exchange with it, 0 for never; `expires` is when the last of its delegations ends, in seconds; `inviter` is
    None if the user delegated to it. `quota` is what it may store, `written` what it has stored on this node, the
    outputs of its jobs included, and `over` when ops of it were last refused for its quota.
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
    quota: Quota = NO_QUOTA
    written: WrittenTotals = WrittenTotals()
    over: OverQuota | None = None

    @property
    def id(self) -> str:
        return node_text(self.node)

    @property
    def shown(self) -> str:
        return self.name or self.id


# Queries.


def members(log: Log, session: Session) -> list[Member]:
    """Every node that a delegation on the log admits or once admitted, in the order of admission."""
    permissions = _permissions(log, session)
    now = _now(log, session)
    coordinator = permissions.coordinator(now)
    wrote = {int.from_bytes(node, "big"): unpack(hlc).wall for node, hlc in session.frontier().items()}
    met = {int.from_bytes(peer.node, "big"): peer.seen for peer in session.peers() if peer.node is not None}
    issuers = {did_key(delegation.public): delegation.node for delegation in permissions.delegations}
    called = names(permissions)
    by_cid = {each.cid: each for each in permissions.delegations}
    keys = {each.node: each.node.to_bytes(8, "big") for each in permissions.delegations}
    written, over = stored_totals(session, keys), session.over_quota()
    found = []
    for node in dict.fromkeys(delegation.node for delegation in permissions.delegations):
        standing = permissions.authority.standing(node, now.wall)
        if standing is Standing.UNKNOWN:
            continue
        held = permissions.authority.held(node)
        good = [each for each in held if permissions.authority.fault(each) is None]
        holds = [each for each in good if _in_force(each, now.wall)] or good
        found.append(
            Member(
                node,
                called.get(node),
                _standing(permissions, node, standing, node in wrote),
                _roles(permissions, node, now.wall, coordinator),
                _capabilities(_topmost(by_cid, holds)),
                _end(holds),
                max(wrote.get(node, 0), met.get(node, 0)),
                issuers.get(held[-1].issuer),
                node == log.node,
                NO_QUOTA if permissions.is_trusted(node, now.wall) else _quota(permissions, node, now.wall),
                written[node],
                over.get(keys[node]),
            )
        )
    return found


def _quota(permissions: Permissions, node: int, now: int) -> Quota:
    return quota_of(permissions.authority, node, now, permissions.rules.bounds or Bounds())


def _standing(permissions: Permissions, node: int, standing: Standing, has_written: bool) -> str:
    if standing is not Standing.ACTIVE:
        return str(standing.value)
    if node in permissions.forks:
        return "forked"
    return "active" if has_written else "pending"


def find(roll: Iterable[Member], text: str) -> Member:
    """The one node with this name, or whose id starts with this text; `here` is always this node. A text that could
    mean two nodes is refused, even if it is the exact name of one. A revoked node gives way to others of its name.
    """
    roll = list(roll)
    if text.lower() == HERE:
        found = [each for each in roll if each.is_here]
    else:
        alike = [each for each in roll if each.name is not None and likeness(each.name) == likeness(text)]
        if len(alike) > 1:
            alike = [each for each in alike if each.standing != "revoked"] or alike
        if len(alike) == 1 and str(alike[0].name).lower() != text.lower():
            alike = []
        is_id = len(text) >= ID_DIGITS_MIN
        found = alike + [each for each in roll if is_id and each.id.startswith(text.lower()) and each not in alike]
    if not found:
        raise NotFound(f"no node {text!r} in this mesh; `hocket mesh nodes` lists them, by name and id")
    if len(found) > 1:
        raise Usage(f"{text!r} could be {' or '.join(map(_described, found))}; name it by its id")
    return found[0]


def _described(member: Member) -> str:
    return member.id if member.name is None else f"{member.id} ({member.name})"


class MayAnswer(NamedTuple):
    """Whether a node may do something: the chain of delegations that grants it, the user's first (None: it may not),
    and the node that the kind is routed to, if another.
    """

    chain: list[Delegation] | None
    routed: int | None


def may(log: Log, session: Session, node: int, resource: str, action: str, kind: str | None) -> MayAnswer:
    permissions = _permissions(log, session)
    now = _now(log, session)
    chain = permissions.authority.may(node, resource, action, kind, now.wall)
    if (resource, action) == ("Mesh", "Write") and not permissions.authority.is_owner(node, now.wall):
        chain = None
    routed = None
    if kind is not None and (resource, action) == ("Job", "Claim"):
        target = route_of(session, kind)
        routed = None if target == node else target
    return MayAnswer(chain, routed)


def route_of(session: RegisterSession, kind: str) -> int | None:
    return routed_to(kind, routes_in_force(session))


def is_owner(log: Log) -> bool:
    with log.store.read() as session:
        return _permissions(log, session).authority.is_owner(log.node, _now(log, session).wall)


def _permissions(log: Log, session: Session) -> Permissions:
    return log.permissions(session)


def _now(log: Log, session: OpSession) -> Hlc:
    """The current time, later than everything on the log."""
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


def _roles(permissions: Permissions, node: int, now: int, coordinator: int | None) -> tuple[str, ...]:
    roles = []
    if permissions.authority.is_owner(node, now):
        roles.append("owner")
    if node == coordinator:
        roles.append("coordinator")
    elif coordinator is not None and permissions.authority.share_store(coordinator, node, now):
        roles.append("sharer")
    in_force = [
        each
        for each in permissions.authority.held(node)
        if permissions.authority.fault(each) is None and _in_force(each, now)
    ]
    grants = [grant_of(capability) for each in in_force for capability in each.capabilities]
    if any(grant is not None and grant.covers("Job", "Claim") for grant in grants):
        roles.append("worker")
    return tuple(roles) or ("peer",)


# Decisions.


class Revocation(NamedTuple):
    """The effect of a revocation: how many delegations of the node it revokes, and which other nodes lose rights by it.
    Delegations that rely on these fall with them and are not counted.
    """

    member: Member
    delegations: int
    cascade: list[Member]
    cids: tuple[bytes, ...] = ()


def revocable(log: Log, text: str, has_user_key: bool = False) -> Revocation:
    """What a revocation would do. Raises what `revoke` would raise. `has_user_key` is whether the user's key is
    here.
    """
    with log.store.read() as session:
        roll = members(log, session)
        member = find(roll, text)
        permissions = _permissions(log, session)
        cids = _revocable(permissions, member, log.node, _now(log, session).wall, has_user_key)
    below = _below(permissions, cids)
    others = [each for each in roll if each.node in below and each.node != member.node]
    return Revocation(member, len(cids), others, tuple(cids))


def revoke(log: Log, text: str, user_key: Callable[[], SigningKey] | None = None) -> Revocation:
    """Revokes every delegation of a node, all or none. Delegations that this node may not revoke itself, such as
    another owner's, need the user's key.
    """
    done = revocable(log, text, user_key is not None)
    permissions = log.permissions()
    is_own = all(permissions.authority.may_revoke(log.node, cid, log.physical()) for cid in done.cids)
    user = None if is_own or user_key is None else user_key()

    def request(tx: Transaction) -> None:
        for cid in _revocable(tx.projection.permissions, done.member, tx.node, tx.now, user is not None):
            word: Payload = RevokeUcan(cid)
            if user is not None and not tx.projection.permissions.authority.may_revoke(tx.node, cid, tx.now):
                word = revoke_root(user, cid)
            _author(tx, word, f"this node may not revoke {done.member.shown}", done.member.node)

    log.run(request)
    return done


def _revocable(permissions: Permissions, member: Member, author: int, now: int, has_user_key: bool) -> list[bytes]:
    """The topmost of a node's delegations: revoking these revokes all that it holds."""
    if member.node == author:
        raise Usage("a node cannot revoke itself; run this on another node of the owner")
    held = [each for each in permissions.authority.held(member.node) if permissions.authority.fault(each) is None]
    if not held:
        raise Conflict(f"{member.shown} has no rights left; it was revoked")
    topmost = _topmost({each.cid: each for each in permissions.delegations}, held)
    is_bound = permissions.rules.bounds is not None
    if not all(permissions.authority.may_revoke(author, each.cid, now) for each in topmost) and not (
        is_bound and has_user_key
    ):
        raise NotAuthorised(
            f"only the node that invited {member.shown}, one above that node, or the user's key may revoke it"
            if is_bound
            else f"only the owner, or the node that invited it, may revoke {member.shown}"
        )
    if len(topmost) > REVOKED_AT_ONCE_MAX:
        raise Conflict(_too_many(permissions, member, topmost))
    return [each.cid for each in topmost]


def _topmost(by_cid: Mapping[bytes, Delegation], held: list[Delegation]) -> list[Delegation]:
    """The delegations of a node that rely on no other of them. A node that may delegate can issue any number to itself,
    so each delegation is visited once.
    """
    own = {each.cid for each in held}
    leaning: dict[bytes, bool] = {}

    def leans(cid: bytes) -> bool:
        # A valid chain is short and has no cycle.
        if cid not in leaning:
            leaning[cid] = any(parent in own or leans(parent) for parent in by_cid[cid].proofs)
        return leaning[cid]

    return [each for each in held if not leans(each.cid)]


def _too_many(permissions: Permissions, member: Member, topmost: list[Delegation]) -> str:
    called = names(permissions)
    nodes = {did_key(each.public): each.node for each in permissions.delegations}
    counts = Counter(nodes.get(each.issuer) for each in topmost)
    issuer, count = max(counts.items(), key=lambda item: item[1])
    by = "the user" if issuer is None else called.get(issuer) or node_text(issuer)
    return (
        f"{member.shown} holds {len(topmost)} delegations, {count} of them by {by}; revoke that node first,"
        f" which revokes all that it issued"
    )


def _below(permissions: Permissions, cids: Iterable[bytes]) -> set[int]:
    """The nodes that hold something which relies on these delegations."""
    children: dict[bytes, list[Delegation]] = {}
    for each in permissions.delegations:
        for parent in each.proofs:
            children.setdefault(parent, []).append(each)
    reached = set(cids)
    waiting = list(reached)
    nodes: set[int] = set()
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.cid not in reached:
                reached.add(child.cid)
                waiting.append(child.cid)
                nodes.add(child.node)
    return nodes


def route(log: Log, kind: str, node: int | None) -> None:
    """Sends all jobs of a kind, or of the kinds below a prefix that ends with a dot, to one node; None removes the
    route.
    """
    if not 0 < len(kind) <= KIND_LENGTH_MAX or not kind.isprintable():
        raise Usage(f"a kind has 1 to {KIND_LENGTH_MAX} printable characters")
    log.run(lambda tx: _author(tx, RouteKind(kind, node), "only the owner's node may route a kind"))


class Designation(NamedTuple):
    """The previous coordinator, and whether it knows of the change or will soon."""

    previous: int | None
    hears: bool


def designate(log: Log, node: int) -> Designation:
    """Makes a node the coordinator from now on."""

    def request(tx: Transaction) -> Designation:
        previous = tx.projection.permissions.coordinator(tx.latest)
        if previous == node:
            raise Conflict(f"{node_text(node)} is already the coordinator")
        if tx.projection.permissions.chain.succession is not None:
            raise Conflict(
                "nodes are named that may follow the coordinator; end that first, with `hocket mesh succession --none`"
            )
        otherwise = "only the owner's node may designate the coordinator"
        _author(tx, DesignateCoordinator(node), otherwise, previous)
        met = [each.seen for each in tx.session.peers() if each.node is not None and _is(each.node, previous)]
        recently = bool(met) and tx.physical - max(met) < RECENT_MS
        return Designation(previous, previous in (None, tx.node) or recently)

    return log.run(request)


def set_succession(log: Log, named: Sequence[Member], quorum: int, after_ms: int) -> "Chain":
    """Says which nodes may follow the coordinator, in this order; without any, none may. Returns what is in force."""
    from hocket.kernel.succession.chain import shape_fault  # few commands say that

    def request(tx: Transaction) -> "Chain":
        permissions = tx.projection.permissions
        if permissions.rules.is_strict:
            raise Usage("this is a strict mesh, which keeps to Likewise v0.1 and knows no successions")
        if permissions.rules.bounds is None:
            raise Usage("the rules of this mesh bind no ids to content, which a succession relies on")
        head, now = permissions.chain.head, permissions.chain.succession
        if head is None:
            raise Conflict("the mesh has no coordinator; designate one first with `hocket mesh coordinator NODE`")
        nodes = tuple(each.node for each in named)
        if (fault := shape_fault(nodes, quorum, after_ms, head.node)) is not None:
            raise Usage(fault)
        if not nodes and now is None:
            raise Conflict("no succession is in force")
        if now is not None and (nodes, quorum, after_ms) == (now.nodes, now.quorum, now.after_ms):
            raise Conflict("this succession is in force already")
        for each in named:
            _check_successor(log, tx, permissions, each)
        payload = SetSuccession(head.op_id, nodes, quorum, after_ms)
        _author(tx, payload, "only the owner's node may say who follows the coordinator")
        return tx.projection.permissions.chain

    return log.run(request)


def _check_successor(log: Log, tx: Transaction, permissions: Permissions, member: Member) -> None:
    """Raises Conflict if a node could not decide in the place of the coordinator."""
    authority, wall, shown = permissions.authority, tx.latest.wall, member.shown
    if member.standing not in ("active", "pending"):
        raise Conflict(f"{shown} is {member.standing}; name nodes in force")
    if authority.may(member.node, "Job", "Read", "", wall) is None:
        raise Conflict(
            f"{shown} may not read the jobs of every kind, so it could not decide about all of them; invite it again"
            " with `--may all`"
        )
    others = {each.node for each in permissions.delegations} - {member.node}
    if (log.is_shared and member.is_here) or any(authority.share_store(member.node, each, wall) for each in others):
        raise Conflict(
            f"{shown} shares its store with other nodes, which decide by that store's word and not by a quorum's;"
            " the database server's own failover serves such a store"
        )


def coordinator(log: Log, session: Session) -> int | None:
    return _permissions(log, session).coordinator(_now(log, session))


def reads_every_kind(log: Log, session: Session, node: int) -> bool:
    """Whether a node sees the jobs of all kinds. A coordinator that does not cannot decide about the others."""
    # No prefix of a kind but the empty one admits this.
    return _permissions(log, session).authority.may(node, "Job", "Read", "", _now(log, session).wall) is not None


def reissue(log: Log, user: SigningKey, public: bytes, name: str | None) -> Delegation:
    """Issues a new root delegation for this node with the user's own key."""
    if did_key(user.public) != log.user:
        raise NotAuthorised("the user's key is another user's")

    def request(tx: Transaction) -> bytes:
        began = founder(tx.session) if log.is_shared else None
        grants = ROOT if began is None or began == tx.node else (*ROOT, sharing(began))
        known = {each.cid for each in tx.projection.permissions.delegations}
        # Delegations count seconds. One that was made in this second may be revoked: another begins a second earlier.
        tokens = (issue(user, public, grants, since, None, name=name) for since in itertools.count(tx.now // 1000, -1))
        token = next(each for each in tokens if content_hash(each) not in known)
        _author(tx, DelegateUcan(content_hash(token), token), "the delegation does not count")
        return content_hash(token)

    cid = log.run(request)
    return next(each for each in log.permissions().delegations if each.cid == cid)


def _is(packed: bytes, node: int | None) -> bool:
    return node is not None and int.from_bytes(packed, "big") == node


def _author(tx: Transaction, payload: Payload, otherwise: str, about: int | None = None) -> None:
    written = tx.author(payload, about=about)
    if isinstance(written, Reason):
        raise NotAuthorised(otherwise if written is Reason.OWNER_ONLY else f"{otherwise}: {written.sentence}")
