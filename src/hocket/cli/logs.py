"""`hocket logs`: what a command or a handler printed, and what a handler logged, here or on another node. On a
terminal, control characters are escaped: the job may be another node's.
"""

import sys
from codecs import getincrementaldecoder
from typing import Annotated

from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.output import on_terminal
from hocket.cli.settings import open_service
from hocket.kernel.texts import clean

app = new_app()


@app.command()
def logs(
    job: Annotated[str, Argument(metavar="JOB", help="The job id, or a unique beginning of it.")],
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    stderr: Annotated[bool, Option("--stderr", help="Show a command's stderr instead of its stdout.")] = False,
    raw: Annotated[bool, Option("--raw", help="Keep colours and control characters on a terminal, too.")] = False,
) -> None:
    """Show the output of a command, or what a handler printed and logged. A pipe gets the exact bytes.

    \b
      hocket logs 01J9ZC
      hocket logs 01J9ZC --follow --stderr

    The output of a command that has ended is on the log. All other output is kept where the job runs, for a while: its
    beginning and its end, if it is long. If that is another node, this node asks its peers for it.
    """
    from hocket.api.output import output

    with open_service() as service:
        show = _raw if raw or not on_terminal() else _Safe()
        for chunk in output(service, job, stderr=stderr, follow=follow):
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
