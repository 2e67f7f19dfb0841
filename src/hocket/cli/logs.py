"""`hocket logs`: what a command printed, or prints just now. While it runs on this machine its output is read where the
runner keeps it; afterwards on the log, wherever it ran. A terminal gets it with control characters spelled out: the
command may have been another node's.
"""

import sys
from codecs import getincrementaldecoder
from typing import Annotated, Literal

import typer

from hocket.cli.app import new_app
from hocket.cli.output import on_terminal
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.kernel.safe_text import clean

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
    from hocket.service import proofs

    stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"
    with open_service() as service:
        job_id = proofs.command_job(service, job)
        show = _raw if raw or not on_terminal() else _Safe()
        for chunk in proofs.output(service, job_id, stream, follow):
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
