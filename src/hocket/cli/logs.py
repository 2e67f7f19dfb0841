"""`hocket logs`: the output of a command, finished or running. While the command runs on this machine, its output comes
from the runner's files; afterwards, from the log. On a terminal, control characters are escaped: the command may be
another node's.
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
    job: Annotated[str, typer.Argument(metavar="JOB", help="The command's job id, or a unique beginning of it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the command ends.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show stderr instead of stdout.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Keep colours and control characters on a terminal, too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the output of a command. A pipe gets the exact bytes.

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
    """Makes chunks of output safe to show, including characters that span two chunks."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def __call__(self, chunk: bytes) -> bytes:
        # Both \n and \r\n end a line.
        return clean(self._decoder.decode(chunk).replace("\r\n", "\n"), lines=True).encode()
