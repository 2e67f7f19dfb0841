"""The nodes of the mesh: who they are, what they may do, where jobs are routed, which node coordinates, and which late
ops wait for a decision.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, Pairs, Table, View, ago, moment, now_ms, seen, table
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability, unavailable
from hocket.families.availability.rules import REASON_CHARS_MAX
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.families.liveness import Grade
from hocket.kernel.decoding import convert
from hocket.kernel.ids import hash_text, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.texts import counted
from hocket.kernel.ucan import Quota
from hocket.mesh import membership
from hocket.mesh.grants import parse_action, quota_words, size_words, words
from hocket.mesh.membership import Member, Revocation
from hocket.mesh.names import likeness, why_not
from hocket.node.home import Ask
from hocket.store import Session
from hocket.work.hardware import this_machine
from hocket.work.presence import NodePresence, NodeSaid, known_nodes

NodeText = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="A node's name, the beginning of its id, or `here`."),
    InShell(metavar="NODE"),
]
AvailabilityReason = Annotated[
    str, Meta(max_length=REASON_CHARS_MAX, description="The reason that others see."), InShell(metavar="TEXT")
]
Within = Annotated[
    int, Meta(ge=1, le=2**53, description="Only those that were heard within this time, in milliseconds.")
]


class Stored(ServiceAnswer, frozen=True):
    """How much a node has stored here."""

    ops: int
    bytes: int


class OverQuotaShown(ServiceAnswer, frozen=True):
    last_ms: int
    ops: int


class AvailabilityShown(ServiceAnswer, frozen=True):
    """Whether a node takes new work: active, draining or quarantined; by whom and since when, if it does not."""

    state: str = "active"
    reason: str = ""
    by: str | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        return self.state + (f": {self.reason}" if self.reason else "")


class NodeShown(ServiceAnswer, frozen=True):
    node: str
    name: str | None
    standing: str
    roles: list[str]
    may: list[str]
    expires_ms: int | None
    seen_ms: int | None
    inviter: str | None
    here: bool
    stored: Stored
    quota: Quota
    over_quota: OverQuotaShown | None
    availability: AvailabilityShown

    @property
    def called(self) -> str:
        return self.name or self.node


class Identity(NodeShown, frozen=True):
    """This node, as the mesh sees it."""

    user: str
    home: str
    holds_user_key: bool


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


class LateOps(ServiceAnswer, frozen=True):
    """Ops of a node that arrived long after the delegation they rely on had ended."""

    node: str
    name: str
    ops: int
    received_ms: int


class LateDecided(ServiceAnswer, frozen=True):
    node: str
    ops: int
    accepted: bool


class NodeName(ServiceAnswer, frozen=True):
    node: str
    name: str | None

    @property
    def called(self) -> str:
        return self.name or self.node


class Revoking(NodeName, frozen=True):
    """`cascade` has the nodes that lose the rights they hold through it."""

    delegations: int
    cascade: list[NodeName]
    roles: list[str]


class CapabilitiesShown(ServiceAnswer, frozen=True):
    """What a node's machine has, as it says; zero and none mean unknown, too. `models` are those that its workers name
    with the label `model=…`.
    """

    cpus: int
    memory_bytes: int
    gpus: list[str]
    models: list[str]


class LiveNode(NodeName, frozen=True):
    """`grade` is live, warn, alert, critical or dead, by the heartbeats that the node has missed; unknown if it was
    never heard here. `last_seen_ms` is its last heartbeat.
    """

    grade: str
    last_seen_ms: int | None
    labels: list[str]
    capabilities: CapabilitiesShown
    availability: AvailabilityShown
    running: int
    here: bool


class AvailabilitySet(NodeName, frozen=True):
    """`running` is how many jobs the node holds, as far as is known here; `changed` is whether it was available in
    another way before.
    """

    availability: AvailabilityShown
    running: int
    changed: bool
    is_coordinator: bool


class DelegationMade(ServiceAnswer, frozen=True):
    node: str
    delegation: str


READ = TokenNeed("Mesh", "Read")
WRITE = TokenNeed("Mesh", "Write")


def _show_drained(done: AvailabilitySet) -> Iterator[View]:
    left = f"it still runs {counted(done.running, 'job')}" if done.running else "it runs none"
    yield Line(f"{done.called} {'drains' if done.changed else 'drains already'}: it takes no new jobs; {left}")
    yield from _coordinator_note(done)


def _show_quarantined(done: AvailabilitySet) -> Iterator[View]:
    left = f"; it returns {counted(done.running, 'job')} to the queue" if done.running else ""
    word = "is quarantined" if done.changed else "is quarantined already"
    yield Line(f"{done.called} {word}: it gets no jobs{left}")
    yield from _coordinator_note(done)


def _coordinator_note(done: AvailabilitySet) -> Iterator[View]:
    if done.is_coordinator:
        yield Line(
            f"{done.called} is the coordinator: it goes on deciding claims of other nodes;"
            " `hocket coordinator NODE` designates another"
        )


def _show_resumed(done: AvailabilitySet) -> Iterator[View]:
    yield Line(f"{done.called} takes new jobs{' again' if done.changed else '; it was not drained'}")


_show_nodes = table(
    NodeShown,
    "no nodes",
    {
        "name": lambda each: (each.name or "-") + (" (here)" if each.here else ""),
        "id": "node",
        "standing": lambda each: (
            each.standing + (f" ({each.availability})" if each.availability.state != "active" else "")
        ),
        "roles": lambda each: ", ".join(each.roles),
        "seen": seen("seen_ms"),
        "expires": lambda each: ago(each.expires_ms, now_ms()) if each.expires_ms else "-",
        "may": lambda each: "; ".join(each.may),
        "stored": lambda each: _stored(each, now_ms()),
    },
)


def _stored(shown: NodeShown, now: int) -> str:
    if shown.here:
        return "-"
    stored = f"{shown.stored.ops:,} ops and {size_words(shown.stored.bytes)}"
    if words := quota_words(shown.quota):
        stored += f" (may: {words})"
    over = shown.over_quota
    return stored + (f"; over its quota {ago(over.last_ms, now)}, {over.ops:,} ops refused" if over else "")


_show_live = table(
    LiveNode,
    "no nodes",
    {
        "name": lambda each: (each.name or "-") + (" (here)" if each.here else ""),
        "id": "node",
        "grade": "grade",
        "heard": seen("last_seen_ms"),
        "work": lambda each: "-" if each.availability.state == "active" else each.availability,
        "runs": lambda each: counted(each.running, "job") if each.running else "-",
        "cpus": lambda each: each.capabilities.cpus or "-",
        "memory": lambda each: size_words(each.capabilities.memory_bytes) if each.capabilities.memory_bytes else "-",
        "gpus": lambda each: ", ".join(each.capabilities.gpus),
        "models": lambda each: ", ".join(each.capabilities.models),
        "labels": lambda each: ", ".join(each.labels),
    },
)


@operation("list_nodes", "GET /v1/nodes", READ, key=lambda each: each.node, show=_show_nodes)
def listing(service: Service) -> list[NodeShown]:
    """List the nodes of the mesh, by id, and what each may do."""
    with service.read() as session:
        return _all_shown(service, session)


@operation("list_live_nodes", "GET /v1/nodes/live", READ, key=lambda each: each.node, show=_show_live)
def live(service: Service, within_ms: Within | None = None) -> list[LiveNode]:
    """List the nodes in force by how alive each is, with what its machine has."""
    log = service.runtime.log
    with service.read() as session:
        shown = [each for each in _all_shown(service, session) if each.standing != "revoked"]
        known = known_nodes(session, service.runtime.liveness(), log, this_machine())
        running = Counter(entry.job.claimer for entry in session.claimed())
    now_ms = log.physical()
    heard = {node_text(each.node): each for each in known}
    found = [_live(each, heard.get(each.node), running[int(each.node, 16)], now_ms) for each in shown]
    if within_ms is None:
        return found
    return [each for each in found if each.last_seen_ms is not None and now_ms - each.last_seen_ms <= within_ms]


def _live(shown: NodeShown, known: NodePresence | None, running: int, now_ms: int) -> LiveNode:
    said = NodeSaid() if known is None else known.said
    labels = sorted({label for worker in said.workers for label in worker.labels})
    named = {
        name: [each.partition("=")[2] for each in labels if each.startswith(f"{name}=")] for name in ("model", "gpu")
    }
    hardware = said.hardware
    return LiveNode(
        node=shown.node,
        name=shown.name,
        grade=(Grade.UNKNOWN if known is None else known.grade(now_ms)).value,
        last_seen_ms=None if known is None else known.heard_ms,
        labels=labels,
        capabilities=CapabilitiesShown(
            hardware.cpus, hardware.memory_bytes, list(hardware.gpus) or named["gpu"], named["model"]
        ),
        availability=shown.availability,
        running=running,
        here=shown.here,
    )


def namesakes(service: Service) -> list[list[NodeShown]]:
    """The nodes that have the same name as another, or one that looks like it."""
    known = listing(service)
    groups = {likeness(each.name): _alike(known, each.name) for each in known if each.name is not None}
    return [group for group in groups.values() if len(group) > 1]


def _alike(known: list[NodeShown], name: str) -> list[NodeShown]:
    """The nodes in force whose names look like this one."""
    return [
        each
        for each in known
        if each.name is not None and likeness(each.name) == likeness(name) and each.standing != "revoked"
    ]


@operation("show_node", "GET /v1/nodes/{node}", READ)
def find(service: Service, node: NodeText) -> NodeShown:
    """Show one node: the one with this name, or whose id begins with this text; `here` is this node."""
    with service.read() as session:
        member = membership.find(_members(service, session), node)
        return next(each for each in _all_shown(service, session) if each.node == member.id)


def _show_identity(shown: Identity) -> Iterator[View]:
    yield Pairs(
        [
            ("node", shown.node),
            ("name", shown.name or "-"),
            ("user", shown.user),
            ("home", shown.home),
            ("standing", shown.standing),
            ("roles", ", ".join(shown.roles)),
            ("may", "; ".join(shown.may)),
            ("until", moment(shown.expires_ms) or "it is revoked"),
            ("invited by", shown.inviter or "the user"),
            ("user's key", "here" if shown.holds_user_key else "not here"),
        ]
    )


@operation("whoami", "GET", command="whoami", show=_show_identity)
def identity(service: Service) -> Identity:
    """Show this node, its user, its standing, and what it may do.

    \b
      hocket whoami
    """
    home, log = service.runtime.home, service.runtime.log
    here = next((each for each in listing(service) if each.here), None)
    if here is None:
        raise NotAuthorised("no delegation on the log admits this node; run `hocket doctor`")
    more = {"user": log.user, "home": str(home.path), "holds_user_key": home.has_user_key()}
    return convert(msgspec.to_builtins(here) | more, Identity)


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
        members = _members(service, session)
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
        names = {each.node: each.shown for each in _members(service, session)}
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
        member = None if node is None else membership.find(_members(service, session), node)
        able = member is None or membership.may(log, session, member.node, "Job", "Claim", kind).chain is not None
    membership.route(log, kind, None if member is None else member.node)
    return RouteSet(kind, None if member is None else member.id, able)


def _show_coordinator(current: CoordinatorShown) -> Iterator[View]:
    yield Line("there is no coordinator" if current.node is None else f"{current.name or '-'} {current.node}")


@operation("show_coordinator", "GET /v1/coordinator", READ, show=_show_coordinator)
def coordinator(service: Service) -> CoordinatorShown:
    """Show the node that decides claims. `node` is null if there is none."""
    with service.read() as session:
        names = {each.node: each.shown for each in _members(service, session)}
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
        member = membership.find(_members(service, session), node)
        reads_every_kind = membership.reads_every_kind(service.runtime.log, session, member.node)
    if member.standing in ("revoked", "suspended"):
        raise Conflict(f"{member.shown} is {member.standing}; choose a node in force")
    done = membership.designate(service.runtime.log, member.node)
    previous = None if done.previous is None else node_text(done.previous)
    return CoordinatorSet(member.id, member.name, previous, done.hears, reads_every_kind)


@operation("drain_node", "POST /v1/nodes/{node}/drain", WRITE, command="drain", show=_show_drained)
def drain(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Let a node finish the jobs that it runs and take no new ones, until it is resumed. The owner may drain every
    node, and each node itself. A coordinator that drains goes on deciding claims.

    \b
      hocket drain gpu-box --reason "new disk"
      hocket drain here
    """
    return _set_availability(service, node, Availability.DRAINING, reason)


@operation("quarantine_node", "POST /v1/nodes/{node}/quarantine", WRITE, command="quarantine", show=_show_quarantined)
def quarantine(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Take all work from a node: it returns the jobs that it runs and gets no new ones, until it is resumed. If it
    does not hear of it, its leases end and are not renewed; its results no longer count. Only the owner may.

    \b
      hocket quarantine gpu-box --reason "wrong results"
    """
    return _set_availability(service, node, Availability.QUARANTINED, reason)


@operation("resume_node", "POST /v1/nodes/{node}/resume", WRITE, command="resume", show=_show_resumed)
def resume(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Let a node take new jobs again that was drained or quarantined. A node that another one has drained or
    quarantined cannot resume itself, unless it is the owner's.

    \b
      hocket resume gpu-box
    """
    return _set_availability(service, node, Availability.ACTIVE, reason)


def _set_availability(service: Service, node: str, availability: Availability, reason: str) -> AvailabilitySet:
    service.check_writer()
    with service.read() as session:
        member = membership.find(_members(service, session), node)
    if member.standing == "revoked" and availability is not Availability.ACTIVE:
        raise Conflict(f"{member.shown} is revoked, so it takes no work anyway")
    changed = service.runtime.log.run(lambda tx: set_availability(tx, member.node, availability, reason))
    service.wrote()
    with service.read() as session:
        shown = availability_of_all(service, session).get(member.node, AvailabilityShown())
        running = sum(entry.job.claimer == member.node for entry in session.claimed())
        is_coordinator = membership.coordinator(service.runtime.log, session) == member.node
    return AvailabilitySet(member.id, member.name, shown, running, changed, is_coordinator)


_show_late = table(LateOps, "no ops wait for a decision", {"node": "name", "ops": "ops", "came": seen("received_ms")})


@operation("list_late_ops", "GET", show=_show_late)
def late(service: Service) -> list[LateOps]:
    """The late ops that wait, by author."""
    with service.read() as session:
        names = {each.node: each.shown for each in _members(service, session)}
        waiting = session.late_ops()
    found = []
    for author in dict.fromkeys(each.author for each in waiting):
        held = [each for each in waiting if each.author == author]
        shown = names.get(int.from_bytes(author, "big"), author.hex())
        found.append(LateOps(author.hex(), shown, len(held), held[0].received))
    return found


def _show_decided(done: LateDecided, names: dict[str, str]) -> Iterator[View]:
    done_so = "put on the log" if done.accepted else "dropped"
    yield Line(f"{counted(done.ops, 'op')} of {names.get(done.node, done.node)} {done_so}")


@operation("decide_late_ops", "POST", show=_show_decided)
def decide_late(service: Service, node: str, accept: bool) -> LateDecided:
    """Puts the late ops of a node on the log, or deletes them."""
    service.check_writer()
    with service.read() as session:
        member = membership.find(_members(service, session), node)
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
    elif taken := next((each for each in _alike(known, name) if not each.here), None):
        raise Conflict(f"{name} looks too much like {taken.name}, node {taken.node}; choose another name")
    made = membership.reissue(log, user_key, home.node_key().public, name)
    if not membership.is_owner(log):
        raise NotAuthorised("the new delegation does not make this node the owner's")
    return DelegationMade(node_text(made.node), hash_text(made.cid))


def _members(service: Service, session: Session) -> list[Member]:
    return membership.members(service.runtime.log, session)


def _revoking(done: Revocation) -> Revoking:
    member = done.member
    cascade = [NodeName(each.id, each.name) for each in done.cascade]
    return Revoking(member.id, member.name, done.delegations, cascade, list(member.roles))


def availability_of_all(service: Service, session: Session) -> dict[int, AvailabilityShown]:
    """Of the nodes that take no new work."""
    called = service.names(session)
    return {
        node: AvailabilityShown(
            state.availability.name.lower(),
            state.reason,
            called.get(by := node_text(state.at.node), by),
            state.at.wall,
        )
        for node, state in unavailable(session).items()
    }


def _all_shown(service: Service, session: Session) -> list[NodeShown]:
    availability = availability_of_all(service, session)
    return [_shown(each, availability.get(each.node, AvailabilityShown())) for each in _members(service, session)]


def _shown(member: Member, availability: AvailabilityShown) -> NodeShown:
    over = member.over
    return NodeShown(
        node=member.id,
        name=member.name,
        standing=member.standing,
        roles=list(member.roles),
        may=words(member.capabilities),
        expires_ms=None if member.expires is None else member.expires * 1000,
        seen_ms=member.seen or None,
        inviter=None if member.inviter is None else node_text(member.inviter),
        here=member.is_here,
        stored=Stored(*member.written),
        quota=member.quota,
        over_quota=None if over is None else OverQuotaShown(over.wall, over.ops),
        availability=availability,
    )
