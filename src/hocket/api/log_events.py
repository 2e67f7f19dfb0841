"""Follow what happens: the events of the log, filtered, from any place on."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from hocket.api import Service, nodes
from hocket.api.jobs import JobText
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, View, moment
from hocket.errors import Usage
from hocket.node.log_events import EventFilter, EventNeed, LogEvent

if TYPE_CHECKING:
    from hocket.node.node import Node

TYPES_MAX = 32

# A token sees the events that it may read. Which these are is judged for each.
READ = TokenNeed("Job", "Read", is_judged_later=True, is_any=True)

EventKind = Annotated[
    str,
    Meta(min_length=1, max_length=255, description="Only jobs of this kind; `acme.` for all below acme."),
    InShell(metavar="KIND"),
]
EventTypes = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        description="Only what happened so: `job.failed`, `job.` for all about jobs, or several with commas.",
    ),
    InShell("--type", metavar="TYPE"),
]
EventSubmitter = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="Only jobs that this node has submitted: its name or id."),
    InShell(metavar="NODE"),
]


def filter_of(
    service: Service, job: str | None, kind: str | None, type: str | None, submitter: str | None
) -> EventFilter:
    """Raises Usage for a job or a node that is not known."""
    types = () if type is None else tuple(each.strip() for each in type.split(","))
    if not all(types) or len(types) > TYPES_MAX:
        raise Usage(f"bad type {type!r}: name 1 to {TYPES_MAX} types with commas between them, like job.failed")
    from hocket.api.jobs import find

    return EventFilter(
        None if job is None else find(service, job),
        kind,
        types,
        None if submitter is None else nodes.find(service, submitter).node,
    )


def allowed(service: Service, need: EventNeed) -> bool:
    return service.may(need.resource, "Read", *need.words, scope=need.scope)


def _show(event: LogEvent) -> Iterator[View]:
    fence = "" if event.fence is None else f" fence {event.fence}"
    subject = "-" if event.subject is None else event.subject
    detail = event.detail if event.detail != event.kind else ""
    about = " ".join(each for each in (event.kind or event.agent or "", detail) if each)
    yield Line(f"{event.seq} {moment(event.time_ms)} {event.type} {subject}{fence} {about}".rstrip())


@operation("follow_events", "GET /v1/events", READ, command="log events", key=lambda event: str(event.seq), show=_show)
async def events(
    service: Service,
    node: "Node",
    *,
    job: Annotated[JobText, InShell("--job", metavar="JOB")] | None = None,
    kind: EventKind | None = None,
    type: EventTypes | None = None,
    submitter: EventSubmitter | None = None,
    after: Annotated[int, Meta(ge=0, le=2**53, description="Begin after this place, 0 for the first; default: now.")]
    | None = None,
) -> AsyncIterator[LogEvent]:
    """Follow what happens, as it happens: jobs submitted, claimed, ended, locks, messages, rows, nodes. It never ends.
    An op that does not count makes no event.

    The `seq` of an event is its place in this node's log. Give the last one that you have as `after` to go on where you
    were, whenever that was. If the log no longer has what comes then, that is an error.

    \b
      hocket log events --kind acme. --type job.failed,job.cancelled
      hocket log events --after 4711 --json
    """
    wanted = await node.call(lambda: filter_of(service, job, kind, type, submitter))
    return await node.events(wanted, lambda need: allowed(service, need), after)
