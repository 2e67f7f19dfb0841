"""`show`, `cancel` and `retry`: commands on one job, named by its id or a unique beginning of it."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, fields, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service

if TYPE_CHECKING:
    from hocket.service.jobs import JobDetails
    from hocket.service.ops import OpLine

show_app, cancel_app, retry_app = new_app(), new_app(), new_app()

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job id, or a unique beginning of one.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; recorded on the log.")]


@show_app.command()
def show(job: JobArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show everything about one job: state, payload, result, error with traceback, and its ops.

    \b
      hocket show 01J9ZC
      hocket show 01J9ZC --json | jq .result
    """
    from hocket.service import jobs

    with open_service() as service:
        shown = jobs.show(service, job)
    emit(shown)
    fields(_fields(shown))
    for name, text in (("error", shown.error), ("traceback", shown.traceback)):
        if text:
            say()
            say(f"{name}:", "bold")
            say(text.rstrip("\n"), lines=True)
    say()
    say("ops:", "bold")
    rows = [(op.seq, op.hlc, op.author, op.type, op.id, op.detail if op.counts else rejected(op)) for op in shown.ops]
    table(("seq", "hlc", "author", "type", "id", "detail"), rows, "none")


def rejected(op: "OpLine") -> str:
    """Why an op does not count, or not yet. An op that waits or is offered was not rejected."""
    from hocket.kernel.reasons import Reason

    is_open = op.reason in (Reason.WAITING.sentence, Reason.OFFERED.sentence)
    return str(op.reason) if is_open else f"REJECTED: {op.reason}"


def _fields(shown: "JobDetails") -> list[tuple[str, object]]:
    import msgspec

    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    stage = "" if shown.stage in (shown.state, "ready", "done") else f" ({shown.stage})"
    pairs: list[tuple[str, object]] = [
        ("job", shown.job_id),
        ("kind", shown.kind),
        ("state", shown.state + stage),
        ("outcome", shown.outcome or "-"),
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
        ("claimer", shown.claimer),
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
    return pairs


def moment(ms: int | None) -> str | None:
    """A time in the user's zone."""
    from datetime import datetime

    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


@cancel_app.command()
def cancel(
    job: JobArgument,
    reason: ReasonOption = "cancelled from the command line",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a pending or running job. A worker stops its handler; jobs that come after it are cancelled too.

    \b
      hocket cancel 01J9ZC --reason "wrong frame"
    """
    _change("cancel", job, reason)


@retry_app.command()
def retry(
    job: JobArgument,
    reason: ReasonOption = "retried from the command line",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry a failed or cancelled job, with all its retries. Its fence keeps counting.

    \b
      hocket retry 01J9ZC --reason "disk replaced"
    """
    _change("retry", job, reason)


def _change(verb: Literal["cancel", "retry"], prefix: str, reason: str) -> None:
    from hocket.service import jobs

    with open_service() as service:
        changed = (jobs.cancel if verb == "cancel" else jobs.retry)(service, prefix, reason)
    emit(changed)
    say(f"{'cancelled' if verb == 'cancel' else 'retried'} {changed.job_id}")
