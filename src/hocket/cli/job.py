"""`show`, `cancel` and `retry`: commands on one job, named by its id or a unique beginning or end of it. `cancel` and
`retry` also change many jobs, named by kind, state and age.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.output import emit, fields, on_terminal, progress, say, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, Usage
from hocket.service.views import moment

if TYPE_CHECKING:
    from hocket.service.jobs import JobDetails
    from hocket.service.op_lines import OpLine
    from hocket.work.bulk import BulkChange

show_app, cancel_app, retry_app = new_app(), new_app(), new_app()

JobArgument = Annotated[str, Argument(metavar="JOB", help="A job id, or a unique beginning or end of one.")]
OneJob = Annotated[
    str | None,
    Argument(metavar="JOB", help="A job id, or a unique beginning or end of one.", show_default=False),
]
KindFilter = Annotated[
    str | None,
    Option("--kind", metavar="KIND", help="All jobs of this kind; `acme.` means all kinds below it."),
]
AgeFilter = Annotated[
    str | None, Option("--older-than", metavar="DURATION", help="All jobs submitted longer ago, like 1h.")
]
YesOption = Annotated[bool, Option("--yes", help="Change many jobs without a question.")]
ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Why; recorded on the log.")]


@show_app.command()
def show(job: JobArgument) -> None:
    """Show everything about one job: state, payload, result, error with traceback, and its ops.

    \b
      hocket show 01J9ZC
      hocket show 01J9ZC --json | jq .result
    """
    from hocket.service import jobs

    with open_service() as service:
        service.refresh()
        shown = jobs.show(service, job)
        names = service.names()
    emit(shown)
    fields(_fields(shown, names))
    for name, text in (("error", shown.error), ("traceback", shown.traceback)):
        if text:
            say()
            say(f"{name}:", "bold")
            say(text.rstrip("\n"), lines=True)
    say()
    say("ops:", "bold")
    if on_terminal():
        table(("seq", "time", "node", "op", "detail"), _op_lines(shown, names), "none", is_cut=True)
        return
    rows = [(op.seq, op.hlc, op.author, op.type, op.id, _detail(op)) for op in shown.ops]
    table(("seq", "hlc", "author", "type", "id", "detail"), rows, "none")


def _op_lines(shown: "JobDetails", names: dict[str, str]) -> list[tuple[object, ...]]:
    """A line per op. The day is shown only if the ops are of several days."""
    from hocket.kernel.clock import parse_hlc

    times = [moment(parse_hlc(op.hlc, 0).wall) or "" for op in shown.ops]
    start = len("2026-01-31 ") if len({each[:10] for each in times}) == 1 else 0
    return [
        (op.seq, time[start : len("2026-01-31 12:00:00.000")], names.get(op.author, op.author), op.type, _detail(op))
        for op, time in zip(shown.ops, times, strict=True)
    ]


def _detail(op: "OpLine") -> str:
    return op.detail if op.counts else rejected(op)


def rejected(op: "OpLine") -> str:
    """Why an op does not count, or not yet, or how the coordinator has decided on it."""
    from hocket.kernel.reasons import Reason
    from hocket.work.view import ACCEPTED, REFUSED

    reason = str(op.reason)
    is_told = reason in (Reason.WAITING.sentence, Reason.OFFERED.sentence, ACCEPTED) or reason.startswith(REFUSED)
    return reason if is_told else f"REJECTED: {reason}"


def _fields(shown: "JobDetails", names: dict[str, str]) -> list[tuple[str, object]]:
    import msgspec

    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    stage = "" if shown.stage in (shown.state, "ready") else f" ({shown.stage})"
    pairs: list[tuple[str, object]] = [
        ("job", shown.job_id),
        ("kind", shown.kind),
        ("state", shown.state + stage),
        ("attempts", shown.attempts),
        ("failures", shown.failures),
        ("returns", shown.returns),
        ("fence", shown.fence),
        ("priority", shown.priority),
        ("submitted", moment(shown.scheduled_ms)),
    ]
    optional: list[tuple[str, Any]] = [
        ("not before", moment(shown.ready_at_ms)),
        ("waits for", shown.waits_for),
        ("claimer", None if shown.claimer is None else names.get(shown.claimer, shown.claimer)),
        ("lease until", moment(shown.deadline_ms)),
        ("ended", moment(shown.done_ms)),
        ("after", " ".join(shown.after)),
        ("options", text(shown.options) if shown.options else None),
        ("progress", None if shown.progress is None else text(shown.progress)),
    ]
    pairs += [(name, value) for name, value in optional if value]
    pairs.append(("payload", text(shown.payload)))
    if shown.outcome == "succeeded":
        pairs.append(("result", text(shown.result)))
    pairs += [("degraded", text(each)) for each in shown.degraded]
    return pairs


@cancel_app.command()
def cancel(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[
        str | None, Option("--state", metavar="STATE", help="All jobs in this state: pending or running.")
    ] = None,
    older_than: AgeFilter = None,
    yes: YesOption = False,
    reason: ReasonOption = "cancelled from the command line",
) -> None:
    """Cancel a pending or running job, or all that match. Workers stop their handlers; jobs that come after a cancelled
    one are cancelled too.

    \b
      hocket cancel 01J9ZC --reason "wrong frame"
      hocket cancel --kind acme. --state pending --older-than 1h
    """
    from hocket.service.bulk import CANCEL

    if job is None:
        _change_many(CANCEL, kind, state, older_than, yes, reason)
    else:
        _refuse_filters(kind, state, older_than)
        _change("cancel", job, reason)


@retry_app.command()
def retry(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[
        str | None,
        Option("--state", metavar="STATE", help="All jobs in this state: failed (the default) or cancelled."),
    ] = None,
    older_than: AgeFilter = None,
    yes: YesOption = False,
    reason: ReasonOption = "retried from the command line",
) -> None:
    """Retry a failed or cancelled job, or all that match, with all their retries. Fences keep counting.

    \b
      hocket retry 01J9ZC --reason "disk replaced"
      hocket retry --kind acme.render --yes
    """
    from hocket.service.bulk import RETRY

    if job is None:
        _change_many(RETRY, kind, state, older_than, yes, reason)
    else:
        _refuse_filters(kind, state, older_than)
        _change("retry", job, reason)


def _refuse_filters(*filters: str | None) -> None:
    if any(each is not None for each in filters):
        raise Usage("give either a job, or --kind, --state and --older-than to name many")


def _change(verb: Literal["cancel", "retry"], prefix: str, reason: str) -> None:
    from hocket.service import jobs

    with open_service() as service:
        changed = (jobs.cancel if verb == "cancel" else jobs.retry)(service, prefix, reason)
    emit(changed)
    say(f"{'cancelled' if verb == 'cancel' else 'retried'} {changed.job_id}")


def _change_many(
    change: "BulkChange", kind: str | None, state: str | None, older_than: str | None, yes: bool, reason: str
) -> None:
    """Asks before it changes many jobs, unless `yes`."""
    from hocket.service import bulk

    with open_service() as service:
        wanted = bulk.select(service, change, state, kind, older_than)
        found = bulk.count(service, wanted)
        if found and not yes and not _confirmed(f"{change.verb} {_counted(found)}?", found):
            raise Conflict("nothing was changed")
        with progress(change.verb) as bar:
            done = bulk.change_all(service, change, wanted, reason, lambda visited: bar(visited, found))
    emit({"matched": found, **done._asdict()})
    say(f"{change.done} {_counted(done.changed)}" if found else "no job matches")
    if done.refused:
        raise Conflict(f"{_counted(done.refused)} could not be {change.done}: {done.why}")


def _confirmed(question: str, found: int) -> bool:
    if settings.as_json or not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
        raise Usage(f"{_counted(found)} match; give --yes to go on without a question")
    import typer

    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        raise KeyboardInterrupt from None


def _counted(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"
