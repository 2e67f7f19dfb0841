"""`hocket artifacts`: lists, reads, stores, evicts and deletes artifacts."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli.declarations import new_app
from hocket.cli.files import write_file
from hocket.cli.output import emit, fields, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.kernel.plurals import counted
from hocket.service import artifacts
from hocket.service.views import moment

app = new_app()

JOB_CHARS = 8

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="An artifact id, or a unique beginning of one.")]


@app.callback()
def artifacts_group() -> None:
    """Outputs of jobs besides their results, and files that people stored. The log holds small content; the home holds
    larger content under its hash.

    \b
      hocket artifacts list --job 01J9ZC
      hocket artifacts get 01J9ZD -o frame.png
    """


@app.command("list")
def list_artifacts(
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only artifacts of this job.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=artifacts.LIMIT_MAX, help="The most to list.")
    ] = 50,
) -> None:
    """List artifacts, oldest first: id, type, size, where the content is, the job, and when it may be evicted.

    \b
      hocket artifacts list
      hocket artifacts list --job 01J9ZC --json
    """
    with open_service() as service:
        shown = artifacts.page(service, job, limit).items
    emit(shown)
    rows = [
        (
            *(each.artifact_id, each.type, each.size, each.content),
            *(_job(each.job_id), moment(each.expires_ms) or "-"),
        )
        for each in shown
    ]
    table(("artifact", "type", "bytes", "content", "job", "expires"), rows, "no artifacts")


def _job(job_id: str | None) -> str:
    """A terminal gets the end of the id, which names the job too."""
    return "-" if job_id is None else job_id[-JOB_CHARS:] if on_terminal() else job_id


@app.command()
def show(id: IdArgument) -> None:
    """Show everything about one artifact except its content.

    \b
      hocket artifacts show 01J9ZD
    """
    with open_service() as service:
        shown = artifacts.show(service, id)
    emit(shown)
    names = ("artifact_id", "type", "job_id", "hash", "size", "content", "author", "model_id", "model_version")
    pairs: list[tuple[str, Any]] = [(name.removesuffix("_id"), getattr(shown, name)) for name in names]
    pairs += [("created", moment(shown.created_ms)), ("expires", moment(shown.expires_ms))]
    pairs += [("inputs", " ".join(shown.inputs)), ("cites", " ".join(shown.cites))]
    fields([(name, value) for name, value in pairs if value not in (None, "")])


@app.command()
def get(
    id: IdArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; default standard output.")
    ] = None,
) -> None:
    """Write the content of an artifact. --json requires -o and reports where the content went.

    \b
      hocket artifacts get 01J9ZD -o frame.png
      hocket artifacts get 01J9ZD | tar x
    """
    from hocket.errors import Usage

    if output is None and (settings.as_json or on_terminal()):
        raise Usage("give -o FILE; a terminal cannot show the content of an artifact")
    with open_service() as service:
        found = artifacts.content(service, id)
    if output is None:
        sys.stdout.buffer.write(found.data)
        return
    write_file(output, found.data)
    emit({"artifact_id": found.artifact_id, "size": len(found.data), "file": str(output)})
    say(f"{counted(len(found.data), 'byte')} written to {output}")


@app.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to store.")],
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="The type of its content, like acme.texture.")],
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="How long before it may be evicted, like 7d.")
    ] = None,
) -> None:
    """Store a file as an artifact that belongs to no job.

    \b
      hocket artifacts put texture.png --type acme.texture --ttl 7d
    """
    with open_service() as service:
        kept = artifacts.put(service, file, type, ttl)
    emit(kept)
    say(f"stored {counted(kept.size, 'byte')} as {kept.artifact_id}")


@app.command()
def evict(id: IdArgument) -> None:
    """Record on the log that an artifact's content is gone, on every node. This cannot be undone.

    \b
      hocket artifacts evict 01J9ZD
    """
    with open_service() as service:
        gone = artifacts.evict(service, id)
    emit(gone)
    say(f"evicted {gone.artifact_id}")


@app.command()
def gc() -> None:
    """Delete unused blobs: those of evicted artifacts, and those that no op has named for an hour.

    \b
      hocket artifacts gc
    """
    with open_service() as service:
        cleared = artifacts.clear(service)
    emit({"blobs": cleared.blobs, "freed_bytes": cleared.bytes})
    say(f"deleted {counted(cleared.blobs, 'blob')}, {counted(cleared.bytes, 'byte')} freed")
