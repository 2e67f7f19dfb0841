"""`hocket artifacts`: what jobs made and people put, listed, read, evicted and cleared away."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli.app import new_app
from hocket.cli.files import write_file
from hocket.cli.job import moment
from hocket.cli.output import emit, fields, on_terminal, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk, settings

LIMIT_MAX = 100_000

app = new_app()

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="An artifact id, or a unique beginning of one.")]


@app.callback()
def artifacts_group(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """What jobs made besides their results, and files that people put on the log. Small content is on the log itself,
    larger content in the home under its hash.

    \b
      hocket artifacts list --job 01J9ZC
      hocket artifacts get 01J9ZD -o frame.png
    """


@app.command("list")
def list_artifacts(
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only those of this job.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LIMIT_MAX, help="At most so many.")] = 50,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List artifacts, the oldest first: id, type, size, where the content is, the job, and when it may be evicted.

    \b
      hocket artifacts list
      hocket artifacts list --job 01J9ZC --json
    """
    from itertools import islice

    from hocket.work import artifacts

    with open_desk() as runtime:
        job_id = None if job is None else runtime.find(job)
        with runtime.read() as session:
            found = artifacts.every(session) if job_id is None else iter(session.artifacts_of_job(job_id))
            shown = [artifacts.brief(session, runtime.blobs, each) for each in islice(found, limit)]
    emit(shown)
    rows = [
        (
            *(each["artifact_id"], each["type"], each["size"], each["content"]),
            *(each["job_id"] or "-", moment(each["expires_ms"]) or "-"),
        )
        for each in shown
    ]
    table(("artifact", "type", "bytes", "content", "job", "expires"), rows, "no artifacts")


@app.command()
def show(id: IdArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show everything about one artifact but its content.

    \b
      hocket artifacts show 01J9ZD
    """
    from hocket.work import artifacts

    with open_desk() as runtime, runtime.read() as session:
        shown = artifacts.full(session, runtime.blobs, artifacts.find(session, id))
    emit(shown)
    names = ("artifact_id", "type", "job_id", "hash", "size", "content", "author", "model_id", "model_version")
    pairs: list[tuple[str, Any]] = [
        (name.removesuffix("_id"), shown[name]) for name in names if shown[name] is not None
    ]
    pairs += [("created", moment(shown["created_ms"])), ("expires", moment(shown["expires_ms"]))]
    pairs += [("inputs", " ".join(shown["inputs"])), ("cites", " ".join(shown["cites"]))]
    fields([(name, value) for name, value in pairs if value not in (None, "")])


@app.command()
def get(
    id: IdArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there; default standard output.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the content of an artifact. With --json, which needs -o, where it went.

    \b
      hocket artifacts get 01J9ZD -o frame.png
      hocket artifacts get 01J9ZD | tar x
    """
    from hocket.errors import Usage
    from hocket.kernel.ids import ulid_text
    from hocket.node.node import SyncNode
    from hocket.work import artifacts

    if output is None and (settings.as_json or on_terminal()):
        raise Usage("give -o FILE; the content of an artifact is no text for a terminal")
    with open_desk() as runtime, runtime.read() as session:
        found = artifacts.find(session, id)
        data = artifacts.content(session, runtime.blobs, found, SyncNode(runtime).fetch)
    if output is None:
        sys.stdout.buffer.write(data)
        return
    write_file(output, data)
    emit({"artifact_id": ulid_text(found.id), "size": len(data), "file": str(output)})
    say(f"{len(data)} bytes written to {output}")


@app.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to keep.")],
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="What it is, like acme.texture.")],
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="DURATION", help="It may be evicted after so long, like 7d.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a file as an artifact of no job.

    \b
      hocket artifacts put texture.png --type acme.texture --ttl 7d
    """
    from hocket.kernel.ids import hash_text, ulid_text
    from hocket.work import artifacts
    from hocket.work.run_outputs import check_ttl, check_type, contain

    check_type(type)
    ttl_ms = check_ttl(ttl)
    with open_desk() as runtime:
        content = contain(runtime.blobs, file)
        artifact_id = runtime.log.run(lambda tx: artifacts.put(tx, runtime.blobs, type, content, ttl_ms))
    emit({"artifact_id": ulid_text(artifact_id), "hash": hash_text(content.hash), "size": content.size})
    say(f"kept {content.size} bytes as {ulid_text(artifact_id)}")


@app.command()
def evict(id: IdArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Say on the log that an artifact's content is gone, on every node. There is no way back.

    \b
      hocket artifacts evict 01J9ZD
    """
    from hocket.kernel.ids import ulid_text
    from hocket.work import artifacts

    with open_desk() as runtime:
        with runtime.read() as session:
            found = artifacts.find(session, id)
        runtime.log.run(lambda tx: artifacts.evict(tx, found))
        with runtime.store.write() as session:
            cleared = artifacts.collect(session, runtime.blobs, [found.hash])
    emit({"artifact_id": ulid_text(found.id), "evicted": True, "freed_bytes": cleared.bytes})
    say(f"evicted {ulid_text(found.id)}")


@app.command()
def gc(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Delete blobs that nobody needs: those of evicted artifacts, and those that no op has named for an hour.

    \b
      hocket artifacts gc
    """
    from hocket.work import artifacts

    with open_desk() as runtime:
        runtime.log.settle()
        cleared = artifacts.clear(runtime.store, runtime.blobs)
    emit({"blobs": cleared.blobs, "freed_bytes": cleared.bytes})
    say(f"deleted {cleared.blobs} blobs, {cleared.bytes} bytes are free")
