"""Follows a command job: forwards its output as it is printed, and reports how it ended."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress

from hocket.bus.changes import about
from hocket.kernel.execution import Execution
from hocket.kernel.ids import ulid_text
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job, State
from hocket.kernel.subjects import JOB
from hocket.node.node import LOOK_AGAIN_S, Node, SyncNode
from hocket.work.command.outcome import CommandOutcome, ending, exit_code, plain_ending, printed
from hocket.work.proofs import STREAM_TYPES
from hocket.work.runner import Run


class Following:
    """`passed_on` is called with the output, in any thread."""

    def __init__(self, node: Node, job_id: bytes, passed_on: Callable[[str, bytes], None]) -> None:
        self._node = node
        self._job_id = job_id
        self._passed_on = passed_on
        self._heard: set[str] = set()
        self._execution: Execution | None = None
        self._outcome: CommandOutcome | None = None
        self._settled = asyncio.Event()

    def heard(self, stream: str, chunk: bytes) -> None:
        if not chunk:
            self._heard.add(stream)
        elif stream in self._heard:
            self._passed_on(stream, chunk)

    @property
    def is_heard(self) -> bool:
        """Whether the command runs, or has run, in this process."""
        return bool(self._heard)

    def ended(self, execution: Execution) -> None:
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
        """Waits for the end. Output of a run in another process or node was not heard meanwhile, and is forwarded
        now.
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
                self._settled.clear()
        blobs, fetch = self._node.runtime.blobs, SyncNode(self._node.runtime).fetch
        for stream in STREAM_TYPES.keys() - self._heard:
            kept = await self._node.read(lambda session, s=stream: printed(session, blobs, self._job_id, s, fetch))  # type: ignore[misc]
            if kept:
                await self._node.call(lambda s=stream, k=kept: self._passed_on(s, k))  # type: ignore[misc]
        return ended

    async def _look(self) -> CommandOutcome | None:
        return await self._node.read(lambda session: ending(session, self._node.runtime.blobs, self._job_id))
