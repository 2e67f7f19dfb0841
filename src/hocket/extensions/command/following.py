"""Follows a command job: forwards its output as it is printed, and reports how it ended. A slow listener slows the
command down, as a pipe would.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Literal

from hocket.api import Service
from hocket.api.output import output
from hocket.bus.hints import about
from hocket.errors import HocketError
from hocket.extensions.command.execution import Execution
from hocket.extensions.command.proofs import CommandOutcome, ending, exit_code, plain_ending, printed
from hocket.families.jobs.rules import Job, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import JOB
from hocket.node.local_node import LOOK_AGAIN_S, fetch_for
from hocket.node.node import Node
from hocket.work.output_files import STREAM_TYPES
from hocket.work.runner import Run


class Following:
    """`passed_on` is called with the output, in any thread. `heard` and `ended` are called in the thread of the run."""

    def __init__(self, node: Node, job_id: bytes, passed_on: Callable[[str, bytes], None]) -> None:
        self._node = node
        self._job_id = job_id
        self._passed_on = passed_on
        self._heard: set[str] = set()
        self._execution: Execution | None = None
        self._outcome: CommandOutcome | None = None
        self._settled = asyncio.Event()
        self._pouring: list[asyncio.Future[None]] = []

    def heard(self, stream: str, chunk: bytes) -> None:
        """Output on "stdout" or "stderr"; the first chunk is empty and means that all of it will be heard."""
        if not chunk:
            self._heard.add(stream)
        elif stream in self._heard:
            self._passed_on(stream, chunk)

    @property
    def is_heard(self) -> bool:
        """Whether the command runs, or has run, in this process."""
        return bool(self._heard)

    def ended(self, execution: Execution) -> None:
        """How a run ended. The log tells whether the job has ended."""
        self._execution = execution

    def finished(self, run: Run, outcome: Job | Reason) -> None:
        """The worker of this process calls this for each ended run of the job, with the outcome."""
        if isinstance(outcome, Job):
            self._outcome = plain_ending(outcome, self._execution) or self._strict_ending(outcome)
        self._settled.set()

    def is_over(self) -> bool:
        """Whether the job will not run again here. In a strict mesh a failure returns it to the queue."""
        return self._execution is not None and self._node.runtime.log.rules.is_strict

    def _strict_ending(self, job: Job) -> CommandOutcome | None:
        """How the last run ended, if a strict mesh may run the job again."""
        execution = self._execution
        if not self.is_over() or execution is None or execution.fence != job.fence:
            return None
        if job.outcome is not None or job.state is not State.PENDING:
            return None
        stays = f"this is a strict mesh: job {ulid_text(job.id)} stays in the queue, and a worker may run it again"
        return CommandOutcome(exit_code(execution), stays)

    async def end(self) -> CommandOutcome:
        """Waits for the end. Output of a run on another node is forwarded as this node gets it. Output of a run in
        another process of this node is forwarded now.
        """
        with closing(self._node.listen(about(JOB, self._job_id))) as changes:
            while (ended := self._outcome or await self._look()) is None:
                # A run in this process reports its end; for any other run, the log must be read.
                if self._heard:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_AGAIN_S):
                            await self._settled.wait()
                else:
                    await changes.wait(LOOK_AGAIN_S)
                    if not self._pouring and await self._runs_elsewhere():
                        self._pour()
                self._settled.clear()
        if self._pouring:
            await asyncio.wait(self._pouring)
            return ended
        blobs, fetch = self._node.runtime.blobs, fetch_for(self._node.runtime)
        for stream in STREAM_TYPES.keys() - self._heard:
            kept = await self._node.read(lambda session, s=stream: printed(session, blobs, self._job_id, s, fetch))  # type: ignore[misc]
            if kept:
                await self._node.call(lambda s=stream, k=kept: self._passed_on(s, k))  # type: ignore[misc]
        return ended

    async def _runs_elsewhere(self) -> bool:
        """Whether another node holds the job."""
        entry = await self._node.read(lambda session: session.job(self._job_id))
        return entry is not None and entry.job.claimer not in (None, self._node.runtime.log.node)

    def _pour(self) -> None:
        """Forwards both streams until the job has ended, each in a thread."""
        service, loop = Service(self._node.runtime), asyncio.get_running_loop()

        def pour(stream: Literal["stdout", "stderr"], done: asyncio.Future[None]) -> None:
            try:
                with suppress(HocketError):  # what cannot be had from there is left out; the exit code tells the rest
                    is_stderr = stream == "stderr"
                    for chunk in output(service, ulid_text(self._job_id), stderr=is_stderr, follow=True):
                        self._passed_on(stream, chunk)
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(done.set_result, None)

        for stream in STREAM_TYPES:
            self._pouring.append(done := loop.create_future())
            threading.Thread(target=pour, args=(stream, done), name="hocket-output", daemon=True).start()

    async def _look(self) -> CommandOutcome | None:
        return await self._node.read(lambda session: ending(session, self._node.runtime.blobs, self._job_id))


class OutputListeners:
    """The outputs of running commands that are followed here. Safe to use from several threads. Jobs are keyed by their
    ids as text.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, Following] = {}
        self._lock = threading.Lock()

    def listen(self, job_id: str, listener: Following) -> None:
        with self._lock:
            self._listeners[job_id] = listener

    def leave(self, job_id: str) -> None:
        with self._lock:
            self._listeners.pop(job_id, None)

    def tell(self, job_id: str, stream: str, chunk: bytes) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.heard(stream, chunk)

    def tell_end(self, job_id: str, execution: Execution) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.ended(execution)

    def _of(self, job_id: str) -> Following | None:
        with self._lock:
            return self._listeners.get(job_id)
