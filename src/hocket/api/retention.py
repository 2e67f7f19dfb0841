"""How long the log keeps what has ended: the owner's rules, what they would let go, and the horizon up to which the log
is settled; and snapshots of what remains up to it.
"""

import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import READ, WRITE
from hocket.api.operation import InShell, operation
from hocket.api.views import Line, View, at, moment, table
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.events.nodes import HorizonMoved, OpsPruned
from hocket.families.inbox.facts import MESSAGE
from hocket.families.retention.facts import Retained, SetRetention
from hocket.families.retention.rules import MATCH_CHARS_MAX, WITNESSES_MAX, Retention, RetentionRule, fault, rule_for
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.texts import counted, span
from hocket.kernel.vocabulary import JOB
from hocket.log.retention.horizons import Plan
from hocket.log.snapshots.checking import SnapshotAudit, check_snapshot
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot as put_snapshot
from hocket.log.snapshots.writing import write_snapshot as write_folder
from hocket.mesh.membership import members
from hocket.store import Session

# A forecast, and a horizon, must leave out what comes while they are computed: so often it is tried.
TRIES = 5


class RetainedThing(StrEnum):
    """What a rule is about. The blobs of jobs go with them."""

    jobs = "jobs"
    messages = "messages"
    windows = "windows"


_THINGS = {RetainedThing.jobs: Retained.JOBS, RetainedThing.messages: Retained.MESSAGES}


class RetentionShown(ServiceAnswer, frozen=True):
    """A rule of the owner: what has ended is kept for `keep_ms`, and the newest `keep_count` of each kind are kept in
    any case. `match` is a kind, a prefix of kinds with its dot, or empty for all. Nothing is deleted before it is in an
    archive, unless the rule says `without_archive`, and before so many `witnesses` have cosigned what remains.
    """

    what: str
    match: str
    keep_ms: int | None
    keep_count: int | None
    without_archive: bool
    witnesses: int
    node: str
    set_ms: int


class FreedJobs(ServiceAnswer, frozen=True):
    """How many jobs a rule lets go."""

    match: str
    jobs: int


class RetentionForecast(ServiceAnswer, frozen=True):
    """What would go now: everything is settled up to `at_ms`. `ops` go, and of the log so many `entries` with so many
    `bytes` can be deleted.
    """

    at_ms: int | None
    jobs: list[FreedJobs]
    messages: int
    ops: int
    entries: int
    bytes: int


class HorizonShown(ServiceAnswer, frozen=True):
    """The horizon in force here. Everything up to `at_ms` is settled, and the node moved it at `moved_ms`. What has
    gone is `hidden` as soon as no view has it, and `deleted` when it is no longer in the store; `waits_for` is why it
    is not. `late_ops` are from before the horizon, came after it, and do not count.
    """

    at_ms: int | None
    moved_ms: int | None
    node: str | None
    hidden: bool
    deleted: bool
    waits_for: str | None
    late_ops: int


class Pruned(ServiceAnswer, frozen=True):
    """What pruning now has done: whether the horizon moved, how many ops were let go, and what was deleted."""

    moved: bool
    ops: int
    deleted_ops: int
    deleted_bytes: int
    horizon: HorizonShown


def _retention(service: Service, session: Session) -> Retention | None:
    return service.runtime.log.horizons.retention(session)


def _what(rule: RetentionRule) -> str:
    return next(thing for thing, what in _THINGS.items() if what is rule.what).value


def _shown(rule: RetentionRule) -> RetentionShown:
    keep = rule.keep_ms, rule.keep_count, rule.waives_archive, rule.witnesses
    return RetentionShown(_what(rule), rule.match, *keep, node_text(rule.at.node), rule.at.wall)


def _kept(rule: RetentionShown) -> str:
    parts = [] if rule.keep_ms is None else [span(rule.keep_ms)]
    parts += [] if rule.keep_count is None else [f"the newest {rule.keep_count}"]
    return " and ".join(parts)


@operation(
    "list_retention",
    "GET /v1/retention",
    READ,
    key=lambda each: f"{each.what} {each.match}",
    show=table(
        RetentionShown,
        "everything is kept",
        {
            "what": "what",
            "kinds": lambda each: each.match or "all",
            "keeps": _kept,
            "archive": lambda each: "-" if each.without_archive else "needed",
            "witnesses": "witnesses",
            "since": at("set_ms"),
        },
    ),
)
def listing(service: Service) -> list[RetentionShown]:
    """List the rules of how long what has ended is kept. Without a rule everything is kept."""
    with service.read() as session:
        retention = _retention(service, session)
    rules = () if retention is None else retention.rules
    return [_shown(each) for each in rules if not each.is_removed and each.what in _THINGS.values()]


def checked_rule(
    what: RetainedThing,
    match: str,
    keep_ms: int | None,
    keep_count: int | None,
    *,
    without_archive: bool = False,
    witnesses: int = 0,
) -> SetRetention:
    """Raises Usage."""
    if what is RetainedThing.windows:
        raise Usage("windows have no retention of their own yet: those of a job go with the job")
    match = match[:-1] if match.endswith(".*") else match
    if "*" in match:
        raise Usage(f"bad pattern {match!r}: give a kind, or a prefix of kinds with its dot, like acme. or acme.*")
    made = SetRetention(_THINGS[what], match, keep_ms, keep_count, without_archive, witnesses)
    if (wrong := fault(made)) is not None:
        raise Usage(f"bad rule: {wrong}")
    return made


@operation(
    "set_retention",
    "PUT /v1/retention",
    WRITE,
    show=lambda rules: [Line(counted(len(rules), "rule") + " in force")],
)
def retain(
    service: Service,
    *,
    what: RetainedThing = RetainedThing.jobs,
    match: Annotated[
        str, Meta(max_length=MATCH_CHARS_MAX, description="A kind, or a prefix with its dot: acme. Empty: all kinds.")
    ] = "",
    keep_ms: Annotated[int, Meta(ge=0), InShell("--for", metavar="DURATION", form="duration")] | None = None,
    keep_count: Annotated[int, Meta(ge=0)] | None = None,
    without_archive: bool = False,
    witnesses: Annotated[int, Meta(ge=0, le=WITNESSES_MAX)] = 0,
) -> list[RetentionShown]:
    """Say how long ended jobs of these kinds, or messages, are kept; with neither a time nor a number, keep everything
    again. Returns the rules in force. Only the owner's nodes may.
    """
    service.check_writer()
    log = service.runtime.log
    payload = checked_rule(what, match, keep_ms, keep_count, without_archive=without_archive, witnesses=witnesses)
    with service.read() as session:
        if log.rules.bounds is None:
            raise Conflict("this mesh was created without bound ids, so it keeps everything")
        other_members = len(members(log, session)) - 1
        if witnesses > other_members:
            raise Usage(f"bad --witnesses {witnesses}: the mesh has {counted(max(other_members, 0), 'other node')}")
    written = log.run(lambda tx: tx.author(payload))
    if isinstance(written, Reason):
        if written in UNAUTHORISED:
            raise NotAuthorised(f"the rule was not set: {written.sentence}; do this on a node of the owner")
        raise Conflict(f"the rule was not set: {written.sentence}")
    service.wrote()
    return listing(service)


def _forecast(plan: Plan | None) -> RetentionForecast:
    if plan is None:
        return RetentionForecast(None, [], 0, 0, 0, 0)
    remains = plan.settlement.remains
    gone = [each.subject for each in remains.pruning if each.state is None]
    jobs: dict[str, int] = {}
    for subject in gone:
        if subject.family == JOB:
            rule = rule_for(plan.rules, Retained.JOBS, remains.kinds[subject.key])
            match = "" if rule is None else rule.match
            jobs[match] = jobs.get(match, 0) + 1
    messages = sum(subject.family == MESSAGE for subject in gone)
    settled = plan.settlement
    freed = [FreedJobs(match, count) for match, count in sorted(jobs.items())]
    return RetentionForecast(plan.at_ms, freed, messages, settled.gone_ops, settled.entries, settled.bytes)


def show_forecast(found: RetentionForecast) -> Iterator[View]:
    for each in found.jobs:
        yield Line(f"{each.match or 'all kinds'}: {counted(each.jobs, 'job')}")
    if found.messages:
        yield Line(counted(found.messages, "message"))
    if found.at_ms is None:
        yield Line("nothing would go now")
    else:
        size = f"{counted(found.ops, 'op')} would go, and {found.bytes} bytes of the log could be deleted"
        yield Line(f"up to {moment(found.at_ms)}: {size}")


@operation("forecast_retention", "GET /v1/retention/forecast", READ, show=show_forecast)
def forecast(service: Service) -> RetentionForecast:
    """Compute what the rules would let go now. This reads the whole log and changes nothing."""
    return forecast_with(service, None)


def forecast_with(service: Service, rule: SetRetention | None) -> RetentionForecast:
    """What the rules would let go now, with another one besides."""
    keeper = service.runtime.log.horizons
    with service.read() as session:
        retention = keeper.retention(session)
        rules = () if retention is None else retention.rules
        if rule is not None:
            fields = rule.what, rule.match, rule.keep_ms, rule.keep_count, rule.waives_archive, rule.witnesses
            latest = session.head()
            made = RetentionRule(*fields, bytes(16), Hlc(latest.wall, latest.logical, service.runtime.log.node))
            rules = (*(each for each in rules if (each.what, each.match) != (rule.what, rule.match)), made)
        return _forecast(keeper.plan(session, rules=tuple(rules)) if rules else None)


def _horizon(service: Service, session: Session) -> HorizonShown:
    row, keeper = session.horizon(), service.runtime.log.horizons
    late = session.refusal_counts().get(int(Reason.BEHIND_HORIZON), 0)
    if row is None:
        return HorizonShown(None, None, None, False, False, None, late)
    op = session.op(row.op)
    moved = None if op is None else int.from_bytes(op.hlc[:8], "big")
    node = None if op is None else node_text(int.from_bytes(op.hlc[12:], "big"))
    waits = None if row.is_deleted else keeper.missing(session, row)
    return HorizonShown(row.at_ms, moved, node, row.is_denied, row.is_deleted, waits, late)


def _show_horizon(found: HorizonShown) -> Iterator[View]:
    if found.at_ms is None:
        yield Line("there is no horizon: nothing was let go")
        return
    state = "deleted" if found.deleted else "hidden" if found.hidden else "being hidden"
    yield Line(f"settled up to {moment(found.at_ms)}; what was let go is {state}")
    if found.waits_for is not None:
        yield Line(f"deleting it waits for {found.waits_for}", "warn")
    if found.late_ops:
        yield Line(f"{counted(found.late_ops, 'op')} came too late and do not count")


@operation("show_horizon", "GET /v1/horizon", READ, show=_show_horizon)
def horizon(service: Service) -> HorizonShown:
    """Show up to where the log is settled here."""
    with service.read() as session:
        return _horizon(service, session)


def _show_pruned(done: Pruned) -> Iterator[View]:
    yield Line(f"{counted(done.ops, 'op')} let go, {done.deleted_ops} deleted with {done.deleted_bytes} bytes")
    yield from _show_horizon(done.horizon)


@operation("prune_log", "POST /v1/prune", WRITE, show=_show_pruned)
def prune(service: Service) -> Pruned:
    """Let go now what the rules say. The node that decides moves the horizon; every other one follows the horizon that
    it knows. Servers and workers do this by themselves from time to time.
    """
    service.check_writer()
    log = service.runtime.log
    keeper = log.horizons
    with service.read() as session:
        if (why := keeper.obstacle(session)) is not None:
            raise Conflict(f"nothing is pruned here: {why}")
    let_go = deleted = size = 0
    # Only entries that the trees of their authors have are deleted.
    log.checkpoints.make()
    before = keeper.follow()
    moved = _move(service)
    for event in (*before, *keeper.follow()):
        if isinstance(event, HorizonMoved):
            let_go += event.ops
        elif isinstance(event, OpsPruned):
            deleted, size = deleted + event.ops, size + event.bytes
        else:
            service.warn(str(event))
    if moved:
        service.wrote()
    with service.read() as session:
        return Pruned(moved, let_go, deleted, size, _horizon(service, session))


def _move(service: Service) -> bool:
    keeper = service.runtime.log.horizons
    for _ in range(TRIES):
        with service.read() as session:
            if not keeper.may_move(session):
                return False
            plan = keeper.plan(session)
        if plan is None or not plan.settlement.gone_ops:
            return False
        if keeper.move(plan):
            return True
    raise Conflict("ops about what would go came while it was computed; try again")


# Snapshots: what remains up to the horizon, in a folder.


class SnapshotShown(ServiceAnswer, frozen=True):
    """What a snapshot has: the authors whose settled ops it stands for, the states in place of ops that have gone, and
    the entries that were kept. `witnesses` are the nodes that have cosigned it beside `moved_by`.
    """

    mesh: str
    horizon: str
    horizon_ms: int
    moved_by: str
    authors: int
    states: int
    entries: int
    ops: int
    witnesses: list[str]


class SnapshotLoaded(ServiceAnswer, frozen=True):
    """What came in with a snapshot, and how many settled ops of this log went. `rewritten` counts late ops of this node
    that were written again, `dropped` those of them that would not count any more.
    """

    horizon_ms: int
    added: int
    deleted: int
    rewritten: int
    dropped: int


def _snapshot_shown(mesh: str, audit: SnapshotAudit) -> SnapshotShown:
    op, at_ms = audit.horizon.op, audit.horizon.payload.at_ms
    counts = audit.heads, audit.bases, audit.entries, audit.ops
    witnesses = [node_text(each) for each in audit.witnesses]
    return SnapshotShown(mesh, ulid_text(op.id), at_ms, node_text(op.node_id), *counts, witnesses)


def write_snapshot(service: Service, path: str | Path) -> SnapshotShown:
    """Writes what remains up to the horizon into a new folder, from which another node can begin."""
    write_folder(service.runtime.log, Path(path))
    return verify_snapshot(service, path)


def verify_snapshot(service: Service, path: str | Path) -> SnapshotShown:
    """Proves a snapshot of this node's mesh, or of any mesh without a node."""
    return prove_snapshot(service, Path(path))


def prove_snapshot(service: Service | None, path: Path) -> SnapshotShown:
    """Proves a snapshot from its own bytes. With a node, it must be of its mesh. Raises Failed if it does not hold
    good.
    """
    folder, now_ms = SnapshotFolder(path), round(time.time() * 1000)
    if service is None:
        mesh = folder.mesh()
        return _snapshot_shown(mesh, check_snapshot(folder, mesh, HOCKET, now_ms))
    log = service.runtime.log
    return _snapshot_shown(log.user, check_snapshot(folder, log.user, log.rules, now_ms, log.helpers))


def load_snapshot(service: Service, path: str | Path) -> SnapshotLoaded:
    """Begins this log anew from a snapshot: what is settled is then what the snapshot has."""
    service.check_writer()
    done = put_snapshot(service.runtime.log, SnapshotFolder(Path(path)))
    counts = done.added, done.deleted, done.rewritten, done.dropped
    return SnapshotLoaded(done.audit.horizon.payload.at_ms, *counts)
