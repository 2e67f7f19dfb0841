"""`hocket submit`: submits one job from the command line, or a batch from a file, and can wait for the result."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

from hocket.cli.declarations import Argument, Option
from hocket.cli.options import JobOptions, job_options, payload, seconds
from hocket.cli.output import emit, emit_line, say
from hocket.cli.settings import open_service, spool_for
from hocket.errors import HocketError, StoreAway, Usage

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.cli.streaming import WaitLine
    from hocket.families.jobs.requests import Draft


def submit(
    kind: Annotated[str | None, Argument("KIND", "Like acme.render.", show_default=False)] = None,
    data: Annotated[
        str | None, Argument("[JSON|@FILE|-]", "A JSON object: the handler's arguments.", show_default=False)
    ] = None,
    *,
    options: JobOptions,
    wait: Annotated[bool, Option("--wait", help="Wait for the job and print its result as JSON.")] = False,
    wait_for: Annotated[
        str | None, Option("--wait-for", "DURATION", "Wait at most this long, then exit with code 5.")
    ] = None,
    stream: Annotated[
        bool, Option("--stream", help="Print the parts of the result and the progress as they come.")
    ] = False,
    batch: Annotated[
        str | None, Option("--batch", "FILE|-", "Submit every line of a JSON Lines file, all or none.")
    ] = None,
) -> None:
    """Submit a job. The last word of the printed line is its id.

    \b
      hocket submit acme.render '{"frame": 7}' --priority 5 --retries 3
      hocket submit acme.report @args.json --after 01J9Z --not-before +10m
      hocket submit acme.render '{"frame": 8}' --timeout 10m --wait-for 1m
      hocket submit acme.chat '{"prompt": "hello"}' --stream
      hocket submit acme.answer @question.json --score score.yaml
      hocket submit --batch jobs.jsonl

    A line of a batch is {"kind": "acme.render", "payload": {"frame": 7}, "priority": 5, ...}; the options are those
    above, with _ for -. The "after" of a line can cite the "name" of any other line.
    """
    options = job_options(options)
    patience = seconds(wait_for, "--wait-for")
    if stream and patience is not None:
        raise Usage("--stream follows the job to its end; leave out --wait-for, or give the job a --timeout")
    wait = wait or wait_for is not None
    if batch is not None:
        if kind is not None or options or wait or stream:
            raise Usage("a batch names its kinds and options line by line; give --batch alone")
        from hocket.cli.batch import submit_batch

        submit_batch(batch)
    elif kind is None:
        raise Usage("name a kind, like `hocket submit acme.render`, or a file with --batch")
    else:
        _submit_one(kind, data, options, wait, patience, stream)


def _submit_one(
    kind: str, data: str | None, options: dict[str, Any], wait: bool, patience: float | None, stream: bool
) -> None:
    from hocket.api import jobs
    from hocket.families.jobs.drafts import draft
    from hocket.families.jobs.requests import check_kind
    from hocket.kernel.ids import ulid_text

    check_kind(kind)
    arguments = payload(data)
    try:
        service = open_service()
    except StoreAway as error:
        _keep_one(error, kind, draft(kind, arguments, options), wait or stream)
        return
    with service:
        if "after" in options:
            options["after"] = [jobs.find(service, each) for each in options["after"]]
        made = jobs.submit(service, [draft(kind, arguments, options)])[0]
        job_id = ulid_text(made.job_id)
        answer = {"job_id": job_id, "kind": kind, "created": made.created}
        say(f"submitted {kind} {job_id}" if made.created else f"already there {job_id}")
        if service.runtime.kept is not None and (wait or stream):
            raise StoreAway(service.runtime.kept)
        if not wait and not stream:
            emit(answer | {"waits_here": service.deliver()})
            return
        sys.stdout.flush()
        from hocket.cli.streaming import WaitLine

        tell = emit_line if stream else emit
        try:
            with WaitLine(job_id) as line:
                printed = _print_parts(service, job_id, line) if stream else 0
                result = jobs.result(service, job_id, patience, line.show)
        except HocketError:
            shown = jobs.brief(service, job_id)
            tell(answer | {"outcome": shown.outcome, "result": None, "error": shown.error})
            raise
        tell(answer | {"outcome": "succeeded", "result": result, "error": None})
        if not printed:
            _say_json(result)


def _keep_one(error: StoreAway, kind: str, draft: "Draft", waits: bool) -> None:
    """Keeps the job in the home while the database is away."""
    from hocket.kernel.ids import ulid_text
    from hocket.node.kept_requests import kept_jobs
    from hocket.node.spool import sentence

    job_id = ulid_text(kept_jobs(spool_for(error), error, [draft])[0].job_id)
    emit({"job_id": job_id, "kind": kind, "created": True, "waits_here": sentence(error)})
    say(f"submitted {kind} {job_id}")
    if waits:
        raise error


def _print_parts(service: "Service", job_id: str, line: "WaitLine") -> int:
    """Returns how many there were."""
    from contextlib import closing

    from hocket.api import jobs
    from hocket.cli.streaming import PartsPrinter
    from hocket.node.requests import StreamNews

    printer = PartsPrinter()

    def progress(note: Any) -> None:
        line.clear()
        printer.progress(note)

    try:
        with closing(jobs.stream(service, job_id, StreamNews(progress, line.show))) as parts:
            for part in parts:
                line.clear()
                printer.part(part)
    finally:
        printer.end_line()
    return printer.count


def _say_json(value: Any) -> None:
    import msgspec

    say(msgspec.json.encode(value).decode())
