"""Follows a command job: passes on what it prints as it is printed, and says how it ended."""

from collections.abc import Callable

from hocket.kernel.proof import Execution
from hocket.node import Node, SyncNode
from hocket.work.command.outcome import Outcome, ending, printed
from hocket.work.proofs import STREAM_TYPES


class Following:
    """`passed_on` is handed what the job prints, in whatever thread it comes."""

    def __init__(self, node: Node, job_id: bytes, passed_on: Callable[[str, bytes], None]) -> None:
        self._node = node
        self._job_id = job_id
        self._passed_on = passed_on
        self._heard: set[str] = set()
        self._execution: Execution | None = None

    def heard(self, stream: str, chunk: bytes) -> None:
        if not chunk:
            self._heard.add(stream)
        elif stream in self._heard:
            self._passed_on(stream, chunk)

    def ended(self, execution: Execution) -> None:
        self._execution = execution

    async def end(self) -> Outcome:
        """Waits for it. What another process or node ran was not heard meanwhile, and comes now."""
        blobs, fetch = self._node.desk.blobs, SyncNode(self._node.desk).fetch

        async def look() -> tuple[bool, Outcome | None]:
            found = await self._node.read(lambda session: ending(session, blobs, self._job_id, self._execution))
            return found is not None, found

        ended = await self._node.until(look, None)
        assert ended is not None
        for stream in STREAM_TYPES.keys() - self._heard:
            kept = await self._node.read(lambda session, s=stream: printed(session, blobs, self._job_id, s, fetch))  # type: ignore[misc]
            if kept:
                await self._node.call(lambda s=stream, k=kept: self._passed_on(s, k))  # type: ignore[misc]
        return ended
