"""What a job prints and logs, for programs: as it comes, or what there is."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from hocket.api import Service
from hocket.api.jobs import READ, JobText, found_job
from hocket.api.operation import operation
from hocket.api.output import READ_BYTES, OutputPiece, OutputReader

if TYPE_CHECKING:
    from hocket.families.jobs.rules import Job
    from hocket.node.node import Node
    from hocket.store import Session

# How often a program that follows is given what has come.
FOLLOW_S = 0.25


class JobOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a job's output: that of the run with this fence, from the byte `start` up to `end`. If `start` is
    after the `end` before it, what lies between is no longer kept. Bytes that are not UTF-8 are base64.
    """

    fence: int
    start: int
    end: int
    text: str
    is_base64: bool = False


@operation("job_logs", "GET /v1/jobs/{job}/logs", READ, key=lambda piece: f"{piece.fence}.{piece.end}")
async def logs(
    service: Service,
    node: "Node",
    job: JobText,
    stderr: Annotated[bool, Meta(description="Whether to read a command's stderr instead of its stdout.")] = False,
    follow: Annotated[bool, Meta(description="Whether to go on until the job ends.")] = False,
    after: Annotated[
        str,
        Meta(
            pattern=r"^\d{1,15}\.\d{1,15}$",
            description="The id of the last piece that the program has, FENCE.END.",
        ),
    ]
    | None = None,
) -> AsyncIterator[JobOutput]:
    """Read the output of a job: what a command printed, or what a handler printed and logged; the token also needs
    `artifact:read` for its kind. It is that of the last run; a later run begins at 0 again, under another fence.
    """
    fence, _, end = (after or "0.0").partition(".")

    def read(session: "Session") -> "Job":
        found = found_job(service, session, job, "Read")
        service.check("Artifact", "Read", found.kind)
        return found

    reader = OutputReader(service, await node.read(read), stderr, int(fence), int(end))
    return _followed(reader, follow)


async def _followed(reader: OutputReader, follow: bool) -> AsyncGenerator[JobOutput, None]:
    texts = _Texts()
    with closing(reader):
        is_over = False
        while not is_over:
            # A look may ask other nodes on this loop, so it has a thread of its own.
            pieces, is_over = await asyncio.to_thread(reader.look, follow)
            for each in texts.of(pieces):
                yield each
            if not is_over and not pieces:
                await asyncio.sleep(FOLLOW_S)
        for each in texts.rest():
            yield each


class _Texts:
    """Makes texts of pieces. The beginning of a character at the end of one waits for the next."""

    def __init__(self) -> None:
        self._waiting = OutputPiece(0, 0, b"")

    def of(self, pieces: Iterable[OutputPiece]) -> Iterator[JobOutput]:
        for piece in pieces:
            for at in range(0, len(piece.data), READ_BYTES):
                yield from self._one(OutputPiece(piece.fence, piece.start + at, piece.data[at : at + READ_BYTES]))

    def rest(self) -> Iterator[JobOutput]:
        if self._waiting.data:
            yield _shown(self._waiting)

    def _one(self, piece: OutputPiece) -> Iterator[JobOutput]:
        waiting = self._waiting
        if waiting.data and (waiting.fence, waiting.end) == (piece.fence, piece.start):
            piece = OutputPiece(piece.fence, waiting.start, waiting.data + piece.data)
        else:
            yield from self.rest()
        cut = _whole_characters(piece.data)
        self._waiting = OutputPiece(piece.fence, piece.start + cut, piece.data[cut:])
        if cut:
            yield _shown(piece._replace(data=piece.data[:cut]))


def _whole_characters(data: bytes) -> int:
    """How many bytes there are without the beginning of a character at the end."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return error.start
    return len(data)


def _shown(piece: OutputPiece) -> JobOutput:
    try:
        return JobOutput(piece.fence, piece.start, piece.end, piece.data.decode())
    except UnicodeDecodeError:
        text = base64.b64encode(piece.data).decode()
        return JobOutput(piece.fence, piece.start, piece.end, text, True)
