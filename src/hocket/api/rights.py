"""What the nodes of the mesh may do, and what the owner decides about that: routes, the coordinator, revocations, root
delegations, and the late ops that wait for a decision.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from msgspec.structs import replace

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import READ, WRITE, NodeName, NodeText, alike, listing, members_of
from hocket.api.operation import operation
from hocket.api.views import Line, Table, View, moment, seen, table
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import hash_text, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.texts import counted, span
from hocket.mesh import membership
from hocket.mesh.grants import parse_action, words
from hocket.mesh.membership import Member, Revocation
from hocket.mesh.names import why_not
from hocket.node.home import Ask
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.kernel.succession.chain import Chain

AFTER_MS = 30_000


class DelegationShown(ServiceAnswer, frozen=True):
    delegation: str
    to: str
    by: str
    may: list[str]
    expires_ms: int | None


class MayShown(ServiceAnswer, frozen=True):
    """`may` is the answer; `chain` has the delegations that grant it, the user's first; it is empty if none does."""

    may: bool
    node: str
    routed_to: str | None
    chain: list[DelegationShown]


class Route(ServiceAnswer, frozen=True):
    kind: str
    node: str
    name: str | None


class RouteSet(ServiceAnswer, frozen=True):
    """`node` is None if the kind has no route; `able` is whether the node may claim jobs of the kind."""

    kind: str
    node: str | None
    able: bool


class CoordinatorShown(ServiceAnswer, frozen=True):
    node: str | None
    name: str | None


class CoordinatorSet(ServiceAnswer, frozen=True):
    """`previous_hears` is whether the previous coordinator is known to learn of the change; `reads_every_kind` is
    whether the new one sees the jobs of all kinds.
    """

    node: str
    name: str | None
    previous: str | None
    previous_hears: bool
    reads_every_kind: bool


class SuccessionShown(ServiceAnswer, frozen=True):
    """`coordinator` is the node that decides now, in its `term`: 0 for one that the owner has designated. `nodes` may
    follow it, in this order, after a silence of `after_ms`, with the votes of `quorum` of them; none if no succession
    is in force. `fault` says why this node, the coordinator, decides nothing now, and `unconfirmed` counts its ops that
    too few of the nodes have yet. Of `double_voters` each has voted for two nodes in one term, which none does whose
    store is whole.
    """

    coordinator: NodeName | None
    term: int
    nodes: list[NodeName]
    quorum: int
    after_ms: int
    double_voters: list[NodeName]
    fault: str | None = None
    unconfirmed: int = 0


class LateOps(ServiceAnswer, frozen=True):
    """Ops of a node that arrived long after the delegation they rely on had ended, `received_ms` the first. Those
    `behind` came after a horizon had passed their time: they are on the log, and never count.
    """

    node: str
    name: str
    ops: int
    received_ms: int
    behind: int = 0


class LateDecided(ServiceAnswer, frozen=True):
    node: str
    ops: int
    accepted: bool


class Revoking(NodeName, frozen=True):
    """`cascade` has the nodes that lose the rights they hold through it."""

    delegations: int
    cascade: list[NodeName]
    roles: list[str]


class DelegationMade(ServiceAnswer, frozen=True):
    node: str
    delegation: str


def _show_may(answer: MayShown) -> Iterator[View]:
    if answer.may:
        yield Line("yes")
    elif answer.chain:
        yield Line(f"no: a delegation grants it, but the kind is routed to {answer.routed_to}")
    else:
        yield Line("no: no delegation in force grants it")
    yield Table(
        ("to", "by", "delegation", "until", "may"),
        [
            (each.to, each.by, each.delegation, moment(each.expires_ms) or "-", "; ".join(each.may))
            for each in answer.chain
        ],
        "",
    )


@operation("may", "GET", show=_show_may)
def may(service: Service, node: str, action: str, kind: str | None) -> MayShown:
    """Whether a node may do something now, and which delegations grant it."""
    resource, wanted = parse_action(action)
    with service.read() as session:
        members = members_of(service, session)
        names = {each.node: each.shown for each in members}
        member = membership.find(members, node)
        answer = membership.may(service.runtime.log, session, member.node, resource, wanted, kind)
    chain = [
        DelegationShown(
            hash_text(each.cid),
            names.get(each.node, node_text(each.node)),
            each.issuer,
            words(each.capabilities),
            None if each.expires is None else each.expires * 1000,
        )
        for each in answer.chain or ()
    ]
    routed = None if answer.routed is None else names.get(answer.routed, node_text(answer.routed))
    return MayShown(answer.chain is not None and routed is None, member.id, routed, chain)


def not_claimable(service: Service, kinds: Iterable[str]) -> list[str]:
    """Those of the kinds whose jobs this node may not claim and complete now, or that are routed to another node. A
    kind that ends with a dot is not among them: the node may be allowed some of the kinds below it.
    """
    log = service.runtime.log

    def may_not(session: Session, kind: str, action: str) -> bool:
        answer = membership.may(log, session, log.node, "Job", action, kind)
        return answer.chain is None or answer.routed is not None

    with service.runtime.store.read() as session:
        whole = [kind for kind in kinds if not kind.endswith(".")]
        return [kind for kind in whole if may_not(session, kind, "Claim") or may_not(session, kind, "Complete")]


@operation(
    "list_routes",
    "GET /v1/routes",
    READ,
    key=lambda each: each.kind,
    show=table(Route, "no routes", {"kind": "kind", "node": lambda each: each.name or "-", "id": "node"}),
)
def routes(service: Service) -> list[Route]:
    """List the routes in force: kinds whose jobs all go to one node."""
    with service.read() as session:
        names = {each.node: each.shown for each in members_of(service, session)}
        found = [(kind, int.from_bytes(node, "big")) for kind, _, node in session.routes() if node is not None]
    return [Route(kind, node_text(node), names.get(node)) for kind, node in found]


def _show_route(done: RouteSet, names: dict[str, str]) -> Iterator[View]:
    where = "any node that may claim it" if done.node is None else names.get(done.node, done.node)
    yield Line(f"{done.kind} goes to {where}")
    if not done.able:
        yield Line("but that node may not claim jobs of this kind, so none will run", "warn")


@operation("set_route", "PUT /v1/routes/{kind}", WRITE, show=_show_route)
def route(
    service: Service,
    kind: Annotated[
        str,
        Meta(min_length=1, max_length=KIND_LENGTH_MAX, description="The full kind, or a prefix with its dot: acme."),
    ],
    node: NodeText | None = None,
) -> RouteSet:
    """Send all jobs of a kind, or of all kinds below a prefix like `acme.`, to one node; without a node, remove the
    route. Only the owner's nodes may.
    """
    service.check_writer()
    log = service.runtime.log
    with service.read() as session:
        member = None if node is None else membership.find(members_of(service, session), node)
        able = member is None or membership.may(log, session, member.node, "Job", "Claim", kind).chain is not None
    membership.route(log, kind, None if member is None else member.node)
    return RouteSet(kind, None if member is None else member.id, able)


def _show_coordinator(current: CoordinatorShown) -> Iterator[View]:
    yield Line("there is no coordinator" if current.node is None else f"{current.name or '-'} {current.node}")


@operation("show_coordinator", "GET /v1/coordinator", READ, show=_show_coordinator)
def coordinator(service: Service) -> CoordinatorShown:
    """Show the node that decides claims. `node` is null if there is none."""
    with service.read() as session:
        names = {each.node: each.shown for each in members_of(service, session)}
        current = membership.coordinator(service.runtime.log, session)
    return CoordinatorShown(None if current is None else node_text(current), names.get(current or 0))


def _show_designated(done: CoordinatorSet, names: dict[str, str]) -> Iterator[View]:
    called = done.name or done.node
    yield Line(f"{called} is the coordinator")
    if not done.reads_every_kind:
        yield Line(
            f"{called} may not read the jobs of every kind, and cannot decide about those that it does"
            " not see: their claims wait; designate another node, or invite this one again with `--may all`",
            "warn",
        )
    if not done.previous_hears and done.previous is not None:
        yield Line(
            f"the previous coordinator, {names.get(done.previous, done.previous)}, was not seen lately and cannot"
            " confirm; until it learns of this change it keeps deciding claims, and those decisions will not count",
            "warn",
        )


@operation("designate_coordinator", "POST", show=_show_designated)
def designate(service: Service, node: str) -> CoordinatorSet:
    """Makes a node the coordinator."""
    service.check_writer()
    with service.read() as session:
        member = membership.find(members_of(service, session), node)
        reads_every_kind = membership.reads_every_kind(service.runtime.log, session, member.node)
    if member.standing in ("revoked", "suspended"):
        raise Conflict(f"{member.shown} is {member.standing}; choose a node in force")
    done = membership.designate(service.runtime.log, member.node)
    previous = None if done.previous is None else node_text(done.previous)
    return CoordinatorSet(member.id, member.name, previous, done.hears, reads_every_kind)


def _shown_chain(chain: "Chain", roll: Iterable[Member]) -> SuccessionShown:
    called = {each.node: NodeName(each.id, each.name) for each in roll}

    def named(nodes: Iterable[int]) -> list[NodeName]:
        return [called.get(node) or NodeName(node_text(node), None) for node in nodes]

    head, now = chain.head, chain.succession
    return SuccessionShown(
        None if head is None else named([head.node])[0],
        0 if head is None else head.term,
        [] if now is None else named(now.nodes),
        0 if now is None else now.quorum,
        0 if now is None else now.after_ms,
        named(sorted(chain.double_voters)),
    )


def _show_succession(shown: SuccessionShown) -> Iterator[View]:
    for each in shown.double_voters:
        yield Line(
            f"{each.called} has voted for two nodes in one term; revoke it, and invite its machine again", "warn"
        )
    leader = shown.coordinator
    if leader is None:
        yield Line("there is no coordinator")
    elif not shown.nodes:
        yield Line(f"no node may follow the coordinator {leader.called}")
    else:
        others = [each.called for each in shown.nodes if each != leader]
        yield Line(f"{leader.called} is the coordinator, in term {shown.term}")
        yield Line(
            f"after {span(shown.after_ms)} of silence {' or '.join(others)} follows it, if {shown.quorum} of the"
            f" {len(shown.nodes)} nodes vote for that"
        )
    if shown.fault is not None:
        yield Line(f"this node decides nothing now: {shown.fault}", "warn")
    if shown.unconfirmed:
        yield Line(f"{counted(shown.unconfirmed, 'op')} of this node wait until {shown.quorum - 1} others have them")


@operation("show_succession", "GET /v1/succession", READ, show=_show_succession)
def succession(service: Service) -> SuccessionShown:
    """Show which nodes may follow the coordinator if it falls silent. `nodes` is empty if none may."""
    with service.read() as session:
        log = service.runtime.log
        permissions, lead = log.permissions(session), log.lead
        shown = _shown_chain(permissions.chain, members_of(service, session))
        if (told := lead.served_to(session, permissions)) is None:
            return shown
        behind, _ = session.ops_written_after(log.author, told)
        return replace(shown, fault=lead.fault(session, permissions), unconfirmed=behind)


@operation("set_succession", "PUT /v1/succession", WRITE, show=_show_succession)
def succeed(service: Service, nodes: list[str], quorum: int | None = None, after_ms: int = AFTER_MS) -> SuccessionShown:
    """Say which nodes may follow the coordinator if it falls silent, in this order; the coordinator is one of them.
    Without nodes none may. The quorum is more than half of them if none is given. Only the owner's nodes may.
    """
    service.check_writer()
    with service.read() as session:
        roll = members_of(service, session)
    named = [membership.find(roll, each) for each in nodes]
    if not named:
        chain = membership.set_succession(service.runtime.log, (), 0, 0)
    else:
        majority = len(named) // 2 + 1
        chain = membership.set_succession(service.runtime.log, named, majority if quorum is None else quorum, after_ms)
    return _shown_chain(chain, roll)


_show_late = table(
    LateOps,
    "no ops wait for a decision",
    {"node": "name", "ops": "ops", "came": seen("received_ms"), "behind the horizon": "behind"},
)


@operation("list_late_ops", "GET", show=_show_late)
def late(service: Service) -> list[LateOps]:
    """The late ops that wait, and those that a horizon had passed, by author."""
    with service.read() as session:
        names = {each.node: each.shown for each in members_of(service, session)}
        waiting = session.late_ops()
        behind = Counter(row.hlc[12:] for row in session.ops_refused_for((Reason.BEHIND_HORIZON,)))
    found = []
    for author in dict.fromkeys((*(each.author for each in waiting), *sorted(behind))):
        received = [each.received for each in waiting if each.author == author]
        shown = names.get(int.from_bytes(author, "big"), author.hex())
        found.append(LateOps(author.hex(), shown, len(received), min(received, default=0), behind[author]))
    return found


def _show_decided(done: LateDecided, names: dict[str, str]) -> Iterator[View]:
    done_so = "put on the log" if done.accepted else "dropped"
    yield Line(f"{counted(done.ops, 'op')} of {names.get(done.node, done.node)} {done_so}")


@operation("decide_late_ops", "POST", show=_show_decided)
def decide_late(service: Service, node: str, accept: bool) -> LateDecided:
    """Puts the late ops of a node on the log, or deletes them."""
    service.check_writer()
    with service.read() as session:
        member = membership.find(members_of(service, session), node)
    count = service.runtime.log.decide_late(member.node, accept)
    return LateDecided(member.id, count, accept)


def revocable(service: Service, node: str) -> Revoking:
    """What revoking a node would take away. Raises NotAuthorised if this node may not revoke it."""
    holds_key = service.runtime.home.holds_user_key()
    return _revoking(membership.revocable(service.runtime.log, node, holds_key))


def revoke(service: Service, node: str, ask: Ask | None) -> Revoking:
    """Revokes all rights of a node. `ask` returns the passphrase of the user's key, if needed."""
    service.check_writer()
    home = service.runtime.home
    user_key = (lambda: home.user_key(ask)) if home.holds_user_key() else None
    return _revoking(membership.revoke(service.runtime.log, node, user_key))


def reissue(service: Service, user_key: SigningKey, name: str | None = None) -> DelegationMade:
    """Issues this node a new root delegation with the user's key, and perhaps a new name. Raises Conflict if another
    node has that name or a similar one.
    """
    service.check_writer()
    log, home = service.runtime.log, service.runtime.home
    known = listing(service)
    if name is None:
        name = next((each.name for each in known if each.here), None)
    elif problem := why_not(name):
        raise Usage(f"bad name {name!r}: {problem}")
    elif taken := next((each for each in alike(known, name) if not each.here), None):
        raise Conflict(f"{name} looks too much like {taken.name}, node {taken.node}; choose another name")
    made = membership.reissue(log, user_key, home.node_key().public, name)
    if not membership.is_owner(log):
        raise NotAuthorised("the new delegation does not make this node the owner's")
    return DelegationMade(node_text(made.node), hash_text(made.cid))


def _revoking(done: Revocation) -> Revoking:
    member = done.member
    cascade = [NodeName(each.id, each.name) for each in done.cascade]
    return Revoking(member.id, member.name, done.delegations, cascade, list(member.roles))
