"""The nodes of the mesh: who they are, how alive, and whether they take new work."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, Pairs, View, ago, moment, now_ms, seen, table
from hocket.errors import Conflict, NotAuthorised
from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability, unavailable
from hocket.families.availability.rules import REASON_CHARS_MAX
from hocket.families.liveness import Grade
from hocket.kernel.decoding import convert
from hocket.kernel.ids import EXACT_MAX, node_text
from hocket.kernel.texts import counted
from hocket.kernel.ucan import Quota
from hocket.mesh import membership
from hocket.mesh.grants import quota_words, size_words, words
from hocket.mesh.membership import Member
from hocket.mesh.names import likeness
from hocket.store import Session
from hocket.work.presence import NodePresence, NodeSaid, known_nodes, this_machine

NodeText = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="A node's name, the beginning of its id, or `here`."),
    InShell(metavar="NODE"),
]
AvailabilityReason = Annotated[
    str, Meta(max_length=REASON_CHARS_MAX, description="The reason that others see."), InShell(metavar="TEXT")
]
Within = Annotated[
    int, Meta(ge=1, le=EXACT_MAX, description="Only those that were heard within this time, in milliseconds.")
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


class NodeName(ServiceAnswer, frozen=True):
    node: str
    name: str | None

    @property
    def called(self) -> str:
        return self.name or self.node


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
            " `hocket mesh coordinator NODE` designates another"
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
    groups = {likeness(each.name): alike(known, each.name) for each in known if each.name is not None}
    return [group for group in groups.values() if len(group) > 1]


def alike(known: list[NodeShown], name: str) -> list[NodeShown]:
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
        member = membership.find(members_of(service, session), node)
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
      hocket node whoami
    """
    home, log = service.runtime.home, service.runtime.log
    here = next((each for each in listing(service) if each.here), None)
    if here is None:
        raise NotAuthorised("no delegation on the log admits this node; run `hocket node doctor`")
    more = {"user": log.user, "home": str(home.path), "holds_user_key": home.has_user_key()}
    return convert(msgspec.to_builtins(here) | more, Identity)


@operation("drain_node", "POST /v1/nodes/{node}/drain", WRITE, command="drain", show=_show_drained)
def drain(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Let a node finish the jobs that it runs and take no new ones, until it is resumed. The owner may drain every
    node, and each node itself. A coordinator that drains goes on deciding claims.

    \b
      hocket node drain gpu-box --reason "new disk"
      hocket node drain here
    """
    return _set_availability(service, node, Availability.DRAINING, reason)


@operation("quarantine_node", "POST /v1/nodes/{node}/quarantine", WRITE, command="quarantine", show=_show_quarantined)
def quarantine(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Take all work from a node: it returns the jobs that it runs and gets no new ones, until it is resumed. If it
    does not hear of it, its leases end and are not renewed; its results no longer count. Only the owner may.

    \b
      hocket node quarantine gpu-box --reason "wrong results"
    """
    return _set_availability(service, node, Availability.QUARANTINED, reason)


@operation("resume_node", "POST /v1/nodes/{node}/resume", WRITE, command="resume", show=_show_resumed)
def resume(service: Service, node: NodeText, reason: AvailabilityReason = "") -> AvailabilitySet:
    """Let a node take new jobs again that was drained or quarantined. A node that another one has drained or
    quarantined cannot resume itself, unless it is the owner's.

    \b
      hocket node resume gpu-box
    """
    return _set_availability(service, node, Availability.ACTIVE, reason)


def _set_availability(service: Service, node: str, availability: Availability, reason: str) -> AvailabilitySet:
    service.check_writer()
    with service.read() as session:
        member = membership.find(members_of(service, session), node)
    if member.standing == "revoked" and availability is not Availability.ACTIVE:
        raise Conflict(f"{member.shown} is revoked, so it takes no work anyway")
    changed = service.runtime.log.run(lambda tx: set_availability(tx, member.node, availability, reason))
    service.wrote()
    with service.read() as session:
        shown = availability_of_all(service, session).get(member.node, AvailabilityShown())
        running = sum(entry.job.claimer == member.node for entry in session.claimed())
        is_coordinator = membership.coordinator(service.runtime.log, session) == member.node
    return AvailabilitySet(member.id, member.name, shown, running, changed, is_coordinator)


def members_of(service: Service, session: Session) -> list[Member]:
    return membership.members(service.runtime.log, session)


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
    return [_shown(each, availability.get(each.node, AvailabilityShown())) for each in members_of(service, session)]


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
