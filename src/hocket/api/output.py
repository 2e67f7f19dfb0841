"""The output of jobs, running or ended: what a command printed, or what a handler printed and logged. It comes from the
files of this home; for a run on another node, also from the peers. The whole output of a command that has ended is on
the log.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hocket.api import Service
from hocket.bus.hints import OUTPUT, about
from hocket.errors import Unreachable, Usage
from hocket.families.jobs import view
from hocket.kernel.extension import extension_kind, loaded
from hocket.kernel.ids import ulid_text
from hocket.mesh.output import AskedOutput, FarOutput, holders, streams_of
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import Stage
from hocket.work.output_files import HANDLER, OutputPart

if TYPE_CHECKING:
    from hocket.families.jobs.rules import Job
    from hocket.mesh.sync import Exchanges

T = TypeVar("T")

# How often to look for more output here, and on other nodes.
LOOK_S = 0.05
ASK_S = 0.5
READ_BYTES = 65_536
# So many parts are read at a time.
PARTS_AT_ONCE = 16
# How long to wait for output of another node before giving up, and for its last part after the job has ended.
PATIENCE_S = 10.0


def output(service: Service, job: str, *, stderr: bool = False, follow: bool = False) -> Iterator[bytes]:
    """The output of a job's last run, and with `follow` all that comes until the job ends."""
    with service.read() as session:
        found = view.find(session, job).job
    with closing(OutputReader(service, found, stderr)) as reading:
        yield from reading.chunks(follow)


class _Place(NamedTuple):
    """What is known of a job: whether a node has claimed it, whether its output can only be here, whether it has
    ended.
    """

    is_claimed: bool
    is_here: bool
    is_done: bool


class OutputPiece(NamedTuple):
    """Bytes of a stream from a place on. More bytes before it than were read are left out."""

    fence: int
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class OutputTail(NamedTuple):
    """The end of a stream of the run with this fence. `total` bytes were written to it so far."""

    stream: str
    fence: int
    data: bytes
    total: int

    @property
    def left_out(self) -> int:
        return self.total - len(self.data)


def tails_here(service: Service, job: "Job", size: int) -> list[OutputTail] | None:
    """The last bytes of what a job has printed, as far as this home has it; None if it can only be on another node."""
    with service.read() as session:
        nodes, runtime = holders(session, job), service.runtime
    found = [_tail(runtime, job, stream, size) for stream in streams_of(job)]
    tails = [each for each in found if each is not None]
    return tails if tails or not nodes or runtime.log.node in nodes else None


def _tail(runtime: Runtime, job: "Job", stream: str, size: int) -> OutputTail | None:
    name = ulid_text(job.id)
    if (first := runtime.output.read(name, stream, 0, 0, 0)) is None:
        return None
    tail = OutputTail(stream, first.fence, b"", first.total)
    start = max(0, first.total - size)
    while len(tail.data) < size and (part := runtime.output.read(name, stream, first.fence, start, size)) is not None:
        if part.fence != first.fence or not part.data:
            break
        data = part.data if part.start > start else tail.data + part.data
        tail, start = OutputTail(stream, part.fence, data[-size:], part.end), part.end
    return tail


class OutputReader:
    """How far the output of one job was read: `shown` bytes of the run with this `fence`. Raises Usage if a handler's
    stderr is asked for.
    """

    def __init__(self, service: Service, job: "Job", stderr: bool = False, fence: int = 0, shown: int = 0) -> None:
        kind = extension_kind(job.kind)
        if stderr and kind is None:
            raise Usage(
                f"job {ulid_text(job.id)} is not a command: the output of a handler is one stream; leave out --stderr"
            )
        self._stream = HANDLER if kind is None else "stderr" if stderr else "stdout"
        self._service, self._job_id, self._kind = service, job.id, kind
        self._peers = _Peers(service)
        self._fence, self._shown = fence, shown
        # Where the last chunk ended.
        self._told_fence = self._told = 0
        self._is_over = self._is_done_there = False
        self._ask_at = self._sync_at = self._waits_since = time.monotonic()

    def close(self) -> None:
        self._peers.close()

    def chunks(self, follow: bool) -> Iterator[bytes]:
        is_over = False
        while not is_over:
            pieces, is_over = self.look(follow)
            for fence, start, data in pieces:
                told = self._told if fence == self._told_fence else 0
                if start > told:
                    yield b"\n[%d bytes left out]\n" % (start - told)
                self._told_fence, self._told = fence, start + len(data)
                yield data
            if not is_over and not pieces:
                time.sleep(LOOK_S)

    def look(self, follow: bool) -> tuple[list[OutputPiece], bool]:
        """What has come since the last look, up to a limit, and whether that is all. Blocks."""
        place = self._find()
        if place.is_done and not self._shown and (kept := self._kept()) is not None:
            return [OutputPiece(self._fence, 0, kept)], True
        pieces = list(islice(self._parts(place.is_here), PARTS_AT_ONCE))
        if pieces:
            self._waits_since = time.monotonic()
        if len(pieces) < PARTS_AT_ONCE and (place.is_done or self._is_done_there or not follow):
            if place.is_here or self._is_over or (not follow and (self._fence or not place.is_claimed)):
                return pieces, True
            if time.monotonic() - self._waits_since > PATIENCE_S:
                raise Unreachable(
                    f"the output of job {ulid_text(self._job_id)} is on another node, which does not answer;"
                    " it must run `hocket work` or `hocket mesh serve` and sync with a peer of this node"
                )
        return pieces, False

    def _find(self) -> "_Place":
        """Where the output is. If no claim is known here, the coordinator may know of one."""
        place = self._look()
        if not place.is_claimed and not place.is_done and time.monotonic() >= self._sync_at:
            self._sync_at = time.monotonic() + ASK_S
            self._peers.sync()
            place = self._look()
        return place

    def _look(self) -> "_Place":
        with self._service.read() as session:
            entry = session.job(self._job_id)
            assert entry is not None
            nodes = holders(session, entry.job)
        return _Place(bool(nodes), not nodes or self._service.runtime.log.node in nodes, entry.stage is Stage.DONE)

    def _kept(self) -> bytes | None:
        """What the log has of a command that has ended."""
        if self._kind is None:
            return None
        with self._service.read() as session:
            blobs, fetch = self._service.runtime.blobs, self._service.fetch
            printed: bytes | None = loaded(self._kind.printed)(session, blobs, self._job_id, self._stream, fetch)
            return printed

    def _parts(self, is_here: bool) -> Iterator[OutputPiece]:
        while (part := self._next(is_here)) is not None:
            if part.fence != self._fence:
                self._fence, self._shown = part.fence, 0
            self._shown = part.end
            self._is_over = part.is_over and self._shown >= part.total
            if not part.data:
                return
            yield OutputPiece(part.fence, part.start, part.data)

    def _next(self, is_here: bool) -> OutputPart | None:
        runtime = self._service.runtime
        here = runtime.output.read(ulid_text(self._job_id), self._stream, self._fence, self._shown, READ_BYTES)
        if is_here or (here is not None and here.data) or time.monotonic() < self._ask_at:
            return here
        # A server of this node passes the wish on, and keeps a copy of what comes in this home.
        runtime.bus.publish(about(OUTPUT, self._job_id))
        far = self._peers.output(AskedOutput(self._job_id, self._stream, self._fence, self._shown))
        if far is None or not far.part.data:
            self._ask_at = time.monotonic() + ASK_S
        if far is None:
            return here
        self._is_done_there = far.is_done
        return far.part if far.part.data or far.part.is_over else here


class _Peers:
    """The peers of this node, on an event loop of its own, which begins with the first question."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop: asyncio.Runner | None = None

    def output(self, asked: AskedOutput) -> FarOutput | None:
        return self._ask(lambda exchanges: exchanges.output(asked))

    def sync(self) -> None:
        """Syncs with the coordinator, if it can be reached."""
        with suppress(Unreachable):
            self._ask(lambda exchanges: exchanges.consult())

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run(self._node.finish())
            self._loop.close()

    def _ask(self, question: "Callable[[Exchanges], Coroutine[Any, Any, T]]") -> T | None:
        """None if there are no peers. A process that is connected with them asks on its own loop."""
        if self._service.is_connected:
            with self._service.read() as session:
                has_peers = bool(session.peers())
            return self._service.node.with_node(lambda node: question(node.services().exchanges)) if has_peers else None
        if self._loop is None:
            with self._service.read() as session:
                if not session.peers():
                    return None
            self._loop, self._node = asyncio.Runner(), Node(self._service.runtime)
        return self._loop.run(question(self._node.services().exchanges))
