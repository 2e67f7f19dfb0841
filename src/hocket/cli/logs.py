"""`hocket logs`: what a command printed, or prints just now. While it runs on this machine its output is read where the
runner keeps it; afterwards on the log, wherever it ran. A terminal gets it with control characters spelled out: the
command may have been another node's.
"""

import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hocket.cli.app import new_app
from hocket.cli.output import on_terminal
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Usage
from hocket.kernel.safe_text import clean

if TYPE_CHECKING:
    from hocket.kernel.roster import Job
    from hocket.node.runtime import Runtime

LOOK_S = 0.05
READ_BYTES = 65_536

app = new_app()


@app.command()
def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job of a command, or a unique beginning of its id.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the command has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Its stderr instead of its stdout.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="On a terminal, too, leave colours and control characters as they are.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a command printed. A pipe gets it byte by byte.

    \b
      hocket logs 01J9ZC
      hocket logs 01J9ZC --follow --stderr
    """
    from hocket.work import view
    from hocket.work.command.request import KIND
    from hocket.work.proofs import GIT_KIND

    stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"
    with open_desk() as runtime:
        with runtime.read() as session:
            found = view.find(session, job).job
        if found.kind not in (KIND, GIT_KIND):
            raise Usage(f"job {job} is of kind {found.kind}, not a command; see `hocket show {job}`")
        show = _raw if raw or not on_terminal() else _Safe()
        for chunk in _printed(runtime, found, stream, follow):
            sys.stdout.buffer.write(show(chunk))
            sys.stdout.buffer.flush()


def _raw(chunk: bytes) -> bytes:
    return chunk


class _Safe:
    """Makes what comes in pieces safe to show, characters that lie across two of them included."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def __call__(self, chunk: bytes) -> bytes:
        # A line's end may be written in two ways.
        return clean(self._decoder.decode(chunk).replace("\r\n", "\n"), lines=True).encode()


def _printed(runtime: "Runtime", job: "Job", stream: str, follow: bool) -> Iterator[bytes]:
    """What is kept of the stream: first where the command runs, then, from the same place on, on the log."""
    from hocket.kernel.ids import ulid_text
    from hocket.node.node import SyncNode
    from hocket.work.command.outcome import ending, printed

    shown = 0
    while True:
        live = next(runtime.home.runs.glob(f"*/{ulid_text(job.id)}-*/streams/{stream}"), None)
        if live is not None:
            for chunk in _tail(live, shown):
                shown += len(chunk)
                yield chunk
        with runtime.read() as session:
            if ending(session, runtime.blobs, job.id) is not None:
                yield printed(session, runtime.blobs, job.id, stream, SyncNode(runtime).fetch)[shown:]
                return
        if not follow:
            return
        time.sleep(LOOK_S)


def _tail(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(READ_BYTES):
                yield chunk
    except FileNotFoundError:
        return
