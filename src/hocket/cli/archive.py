"""`hocket log export` and `hocket log import`: the log as a file or through a pipe. A file appears whole or not at
all.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from hocket.cli.files import private_file
from hocket.cli.output import emit, notice, on_terminal, progress, say
from hocket.cli.settings import open_service
from hocket.errors import Failed, StoreError, Usage
from hocket.kernel.plurals import counted


def export_log(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The file to write; - is standard output.")],
) -> None:
    """Write every op to a file, as a postcard sequence.

    \b
      hocket log export backup.ops
      hocket log export - | ssh other hocket log import -
    """
    from hocket.service import ops

    if file == "-" and on_terminal():
        raise Usage("refusing to write binary data to a terminal; name a file or redirect the output")
    with open_service() as service, progress("exporting") as bar:
        if file == "-":
            count = ops.export(service, sys.stdout.buffer, bar)
            sys.stdout.buffer.flush()
            notice(f"{counted(count, 'op')} exported")
            return
        try:
            with _written(Path(file)) as out:
                count = ops.export(service, out, bar)
        except OSError as error:
            raise StoreError(f"cannot write {file}: {error.strerror}") from None
    emit({"ops": count, "file": file})
    say(f"{counted(count, 'op')} exported to {file}")


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Gives the file its name only when it is complete and on disk. Writes directly to anything but a regular file,
    such as a pipe.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with private_file(unfinished) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def import_log(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The file to read; - is standard input.")],
) -> None:
    """Import the ops of an exported log. Each op is verified; ops that this log already has are skipped.

    Exit code 1 if any op was rejected. Importing again changes nothing.

    \b
      hocket log import backup.ops
    """
    from hocket.events.nodes import NodeForked
    from hocket.kernel.ids import node_text
    from hocket.service import ops
    from hocket.service.checks import TWINS

    with open_service() as service:
        if file == "-":
            admitted = ops.take_in(service, sys.stdin.buffer)
        else:
            try:
                source = open(file, "rb")  # noqa: SIM115
            except OSError as error:
                raise Usage(f"cannot read {file}: {error.strerror}") from None
            with source:
                admitted = ops.take_in(service, source)
    reasons = {reason.sentence: count for reason, count in admitted.refused.items()}
    counts = {"appended": admitted.appended, "duplicated": admitted.duplicated, "rejected": admitted.rejected}
    emit(counts | {"collided": admitted.collided, "unread": admitted.unread, "reasons": reasons})
    say(f"{admitted.appended} appended, {admitted.duplicated} duplicated, {admitted.rejected} rejected")
    for sentence, count in reasons.items():
        say(f"rejected {count}: {sentence}", "red")
    for node in sorted(admitted.forked):
        say(NodeForked(node_text(node)), "warn")
    if admitted.collided:
        raise Failed(f"integrity failure: {TWINS.format(count=admitted.collided)}")
    if admitted.unread:
        raise Failed(f"the file is damaged: {admitted.unread} ops after that were not imported; use an intact copy")
    if admitted.rejected:
        raise Failed("rejected ops were not imported; all others are on the log")
