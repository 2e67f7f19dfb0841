"""`hocket artifacts`: lists, reads, stores, evicts and deletes artifacts."""

import sys
from pathlib import Path
from typing import Annotated

from hocket.api import artifacts
from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.derived import add_operations
from hocket.cli.files import write_file
from hocket.cli.output import emit, on_terminal, say
from hocket.cli.settings import open_service, settings
from hocket.kernel.texts import counted

app = new_app()

IdArgument = Annotated[str, Argument(metavar="ID", help="An artifact id, or a unique beginning of one.")]


@app.callback()
def artifacts_group() -> None:
    """Outputs of jobs besides their results, and files that people stored. The log holds small content; the home holds
    larger content under its hash.

    \b
      hocket artifacts list --job 01J9ZC
      hocket artifacts get 01J9ZD -o frame.png
    """


add_operations(app, artifacts.page, artifacts.show)


@app.command()
def get(
    id: IdArgument,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="The file to write; default standard output.")
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


add_operations(app, artifacts.put, artifacts.evict)


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
