"""Schedules: set, list, remove."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hocket.api import Service, ServiceAnswer
from hocket.api.job_operations.job_submits import KindName, NewJob, NewJobOptions, Payload, drafted
from hocket.api.operation import InShell, OperationGroup, OverHttp, TokenNeed, operation
from hocket.api.views import Line, View, at, moment, now_ms, table
from hocket.families.jobs import cron, view
from hocket.families.jobs.cron import NewSchedule
from hocket.families.jobs.rules import CRON_LENGTH_MAX, NAME_LENGTH_MAX
from hocket.kernel.ids import node_text
from hocket.kernel.policy import decode_policy
from hocket.log import Transaction
from hocket.mesh import membership
from hocket.store import Session


class ScheduleShown(ServiceAnswer, frozen=True):
    """A schedule in force. `allowed` is whether its author may still schedule such jobs; if not, it submits none."""

    name: str
    cron: str | None
    timezone: str
    kind: str
    payload: Any
    options: dict[str, Any]
    next_ms: int | None
    last_ms: int | None
    author: str
    author_name: str | None
    allowed: bool


class ScheduleRemoved(ServiceAnswer, frozen=True):
    name: str
    removed: bool = True


_show = table(
    ScheduleShown,
    "no schedules",
    {
        "name": "name",
        "cron": "cron",
        "timezone": "timezone",
        "kind": "kind",
        "next tick": at("next_ms"),
        "last tick": at("last_ms"),
        "author": lambda each: each.author_name or each.author,
        "allowed": lambda each: "yes" if each.allowed else "no",
    },
)


@operation(
    "list_schedules",
    "GET /v1/schedules",
    TokenNeed("Job", "Read", is_judged_later=True),
    command="cron list",
    key=lambda each: each.name,
    show=_show,
)
def listing(service: Service) -> list[ScheduleShown]:
    """List the schedules: when they tick, who set them, and whether that node may still schedule such jobs. If not, the
    schedule submits no jobs.

    \b
      hocket cron list
    """
    with service.read() as session:
        return [each for each in _shown(service, session) if service.may("Job", "Read", each.kind)]


def put(service: Service, plan: NewSchedule) -> ScheduleShown | None:
    """Sets a schedule; returns None if it is not in force afterwards."""
    service.check_writer()
    checked = cron.check(plan)

    def added(tx: Transaction) -> None:
        _check_changes(service, tx, plan.name)
        cron.add(tx, checked)

    service.runtime.log.run(added)
    return next((each for each in listing(service) if each.name == plan.name), None)


def _show_added(added: ScheduleShown | None) -> Iterator[View]:
    if added is not None:
        yield Line(f"schedule {added.name} set; next tick {moment(added.next_ms) or 'never'}")


@operation(
    "add_schedule",
    "PUT /v1/schedules/{name}",
    TokenNeed("Job", "Schedule", lambda service, asked: [asked["kind"]]),
    command="cron add",
    show=_show_added,
)
def add(
    service: Service,
    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=NAME_LENGTH_MAX,
            description="The schedule's name; replaces a schedule of that name.",
        ),
    ],
    expression: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=CRON_LENGTH_MAX,
            description="Five fields: minute hour day month weekday; or @daily and the like.",
        ),
        InShell(metavar="'EXPR'"),
    ],
    kind: Annotated[str, OverHttp(KindName), Meta(description="The kind of its jobs.")],
    payload: Annotated[
        Any | UnsetType,
        OverHttp(Payload | UnsetType),
        Meta(description="Their payload."),
        InShell(metavar="[JSON|@FILE|-]", form="json", is_argument=True),
    ] = UNSET,
    timezone: Annotated[
        str, Meta(min_length=1, max_length=128, description="Like Europe/Vienna."), InShell(metavar="NAME")
    ] = "UTC",
    overlap: Annotated[
        Literal["skip", "queue"],
        Meta(description="If the last job has not ended at a tick: skip the tick, or queue a job."),
    ] = "skip",
    options: Annotated[
        Mapping[str, Any] | NewJobOptions, OverHttp(NewJobOptions), InShell(options_of="schedules")
    ] = NewJobOptions(),  # noqa: B008
) -> ScheduleShown | None:
    """Set a schedule. It submits its first job at the next tick. Setting the same again changes nothing.

    Its jobs run with this node's authority, whichever node submits them. To replace or remove another node's schedule,
    a node must itself be allowed to schedule jobs of that kind.

    \b
      hocket cron add nightly '30 2 * * *' acme.backup '{"full": true}' --timezone Europe/Vienna
      hocket cron add pulse '*/5 * * * *' acme.ping --retries 2 --overlap queue
      hocket cron add report @daily acme.report
    """
    from hocket.families.jobs.drafts import draft

    given = {} if payload is UNSET else payload
    if isinstance(options, NewJobOptions):
        made = drafted(NewJob(kind=kind, payload=given, **msgspec.structs.asdict(options)))
    else:
        made = draft(kind, given, dict(options))
    return put(service, NewSchedule(name, expression, timezone, made, overlap))


@operation(
    "remove_schedule",
    "DELETE /v1/schedules/{name}",
    TokenNeed("Job", "Schedule", is_judged_later=True),
    command="cron remove",
    show=lambda done: [Line(f"schedule {done.name} removed")],
)
def remove(
    service: Service,
    name: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="The schedule's name.")],
) -> ScheduleRemoved:
    """Remove a schedule. Jobs that it submitted stay.

    \b
      hocket cron remove nightly
    """
    service.check_writer()

    def removed(tx: Transaction) -> None:
        _check_changes(service, tx, name)
        cron.remove(tx, name)

    service.runtime.log.run(removed)
    return ScheduleRemoved(name)


def _check_changes(service: Service, tx: Transaction, name: str) -> None:
    """Whether the program that asks may change the schedule of this name."""
    for each in tx.session.schedules():
        if each.name == name:
            service.check("Job", "Schedule", each.kind)


def _shown(service: Service, session: Session) -> list[ScheduleShown]:
    log = service.runtime.log
    permissions = log.permissions(session)
    now = max(session.head().wall, log.physical())
    names = {member.node: member.name for member in membership.members(log, session)}
    return [
        ScheduleShown(
            each.name,
            each.cron,
            each.timezone,
            each.kind,
            view.readable(each.payload),
            msgspec.to_builtins(decode_policy(each.policy)),
            cron.next_tick(each, now_ms()),
            each.last_tick,
            node_text(each.author),
            names.get(each.author),
            permissions.may_schedule(each.author, each.kind, now),
        )
        for each in session.schedules()
    ]


commands = OperationGroup(
    """Submit jobs on a schedule. If no worker ran at a tick, the next worker makes it up, once.

    \b
      hocket cron add nightly '30 2 * * *' acme.backup
      hocket cron list
    """,
    *(add, listing, remove),
)
