"""The output of jobs, running or ended: what a command printed, or what a handler printed and logged. It comes from the
files of this home; for a run on another node, also from the peers. The whole output of a command that has ended is on
the log.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing

from hocket.bus.changes import OUTPUT, about
from hocket.errors import Unreachable, Usage
from hocket.kernel.ids import ulid_text
from hocket.mesh.output import AskedOutput, FarOutput, holders
from hocket.node.node import Node
from hocket.service import Service
from hocket.store import Stage
from hocket.work import view
from hocket.work.command.outcome import printed
from hocket.work.command.request import KIND
from hocket.work.output_files import HANDLER, OutputPart
from hocket.work.proofs import GIT_KIND

# How often to look for more output here, and on other nodes.
LOOK_S = 0.05
ASK_S = 0.5
READ_BYTES = 65_536
# How long to wait for output of another node before giving up, and for its last part after the job has ended.
PATIENCE_S = 5.0


def output(service: Service, job: str, *, stderr: bool = False, follow: bool = False) -> Iterator[bytes]:
    """The output of a job's last run, and with `follow` all that comes until the job ends."""
    with service.read() as session:
        found = view.find(session, job).job
    is_command = found.kind in (KIND, GIT_KIND)
    if stderr and not is_command:
        raise Usage(f"job {job} is not a command: the output of a handler is one stream; leave out --stderr")
    stream = HANDLER if not is_command else "stderr" if stderr else "stdout"
    with closing(_Reading(service, found.id, stream)) as reading:
        yield from reading.chunks(follow)


class _Reading:
    """How far the output of one job was read: `shown` bytes of the run with this `fence`."""

    def __init__(self, service: Service, job_id: bytes, stream: str) -> None:
        self._service, self._job_id, self._stream = service, job_id, stream
        self._peers: _Peers | None = None
        self._fence = self._shown = 0
        self._is_over = self._is_done_there = False
        self._ask_at = self._waits_since = time.monotonic()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()

    def chunks(self, follow: bool) -> Iterator[bytes]:
        while True:
            is_done, is_here = self._look()
            if is_done and not self._shown and (kept := self._kept()):
                yield kept
                return
            for chunk in self._parts(is_here):
                self._waits_since = time.monotonic()
                yield chunk
            has_all = is_here or self._is_over or (not follow and self._fence > 0)
            if is_done or self._is_done_there or not follow:
                if has_all:
                    return
                if time.monotonic() - self._waits_since > PATIENCE_S:
                    raise Unreachable(
                        f"the output of job {ulid_text(self._job_id)} is on another node, which does not answer;"
                        " it must run `hocket work` or `hocket serve` and sync with a peer of this node"
                    )
            time.sleep(LOOK_S)

    def _look(self) -> tuple[bool, bool]:
        """Whether the job has ended, and whether its output can only be here."""
        with self._service.read() as session:
            entry = session.job(self._job_id)
            assert entry is not None
            nodes = holders(session, entry.job)
        return entry.stage is Stage.DONE, not nodes or self._service.runtime.log.node in nodes

    def _kept(self) -> bytes:
        """What the log has of a command that has ended."""
        if self._stream == HANDLER:
            return b""
        with self._service.read() as session:
            blobs, fetch = self._service.runtime.blobs, self._service.node.fetch
            return printed(session, blobs, self._job_id, self._stream, fetch)

    def _parts(self, is_here: bool) -> Iterator[bytes]:
        while (part := self._next(is_here)) is not None:
            if part.fence != self._fence:
                self._fence, self._shown = part.fence, 0
            if part.start > self._shown:
                yield b"\n[%d bytes left out]\n" % (part.start - self._shown)
            self._shown = part.end
            self._is_over = part.is_over and self._shown >= part.total
            if not part.data:
                return
            yield part.data

    def _next(self, is_here: bool) -> OutputPart | None:
        runtime = self._service.runtime
        here = runtime.output.read(ulid_text(self._job_id), self._stream, self._fence, self._shown, READ_BYTES)
        if is_here or (here is not None and here.data) or time.monotonic() < self._ask_at:
            return here
        # A server of this node passes the wish on, and keeps a copy of what comes in this home.
        runtime.bus.publish(about(OUTPUT, self._job_id))
        self._peers = self._peers or _Peers(self._service)
        far = self._peers.output(AskedOutput(self._job_id, self._stream, self._fence, self._shown))
        if far is None or not far.part.data:
            self._ask_at = time.monotonic() + ASK_S
        if far is None:
            return here
        self._is_done_there = far.is_done
        return far.part if far.part.data or far.part.is_over else here


class _Peers:
    """The peers of this node, on an event loop of its own, which stays as long as there is something to follow."""

    def __init__(self, service: Service) -> None:
        self._loop = asyncio.Runner()
        self._node = Node(service.runtime)
        with service.read() as session:
            self._has_peers = bool(session.peers())

    def output(self, asked: AskedOutput) -> FarOutput | None:
        return self._loop.run(self._node.services().exchanges.output(asked)) if self._has_peers else None

    def close(self) -> None:
        self._loop.run(self._node.finish())
        self._loop.close()
