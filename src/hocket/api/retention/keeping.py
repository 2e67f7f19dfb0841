"""How long the log keeps what has ended: the owner's rules, and what they would let go."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import READ, WRITE
from hocket.api.operation import InShell, operation
from hocket.api.views import Line, View, at, moment, table
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.inbox.facts import MESSAGE
from hocket.families.retention.facts import Retained, SetRetention
from hocket.families.retention.rules import MATCH_CHARS_MAX, WITNESSES_MAX, Retention, RetentionRule, fault, rule_for
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.texts import counted, span
from hocket.kernel.vocabulary import JOB
from hocket.log.retention.horizons import Plan
from hocket.mesh.membership import members
from hocket.store import Session


class RetainedThing(StrEnum):
    """What a rule is about. The blobs of jobs go with them."""

    jobs = "jobs"
    messages = "messages"
    windows = "windows"


_THINGS = {
    RetainedThing.jobs: Retained.JOBS,
    RetainedThing.messages: Retained.MESSAGES,
    RetainedThing.windows: Retained.WINDOWS,
}


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
    windows: int
    ops: int
    entries: int
    bytes: int


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
    return [_shown(each) for each in rules if not each.is_removed]


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
    """Say how long ended jobs of these kinds, messages, or windows of the tempo are kept; with neither a time nor a
    number, keep everything again. Returns the rules in force. Only the owner's nodes may.
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
        return RetentionForecast(None, [], 0, 0, 0, 0, 0)
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
    counts = messages, len(remains.windows), settled.gone_ops, settled.entries, settled.bytes
    return RetentionForecast(plan.at_ms, freed, *counts)


def show_forecast(found: RetentionForecast) -> Iterator[View]:
    for each in found.jobs:
        yield Line(f"{each.match or 'all kinds'}: {counted(each.jobs, 'job')}")
    if found.messages:
        yield Line(counted(found.messages, "message"))
    if found.windows:
        yield Line(counted(found.windows, "window"))
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
