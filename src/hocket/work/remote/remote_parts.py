"""The parts of results that remote workers send: kept in memory while the job is held, given to those who follow the
job, and put on the log as a whole with the completion. A worker numbers the parts of a hold from 0. One that is sent
again changes nothing. If this process ends, its parts are gone: the answer to the next one says from which number on to
send them again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hocket.errors import Conflict, HocketError, Usage
from hocket.families.jobs.requests import RESULT_BYTES_MAX, WrittenOutputs
from hocket.families.jobs.rules import Job, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.work.run_outputs import RunOutputs, RunParts, RunServices

# The most bytes of the parts of jobs that are held, of one agent and of all.
OF_AGENT_BYTES_MAX = 64 * 1024 * 1024
BYTES_MAX = 256 * 1024 * 1024

PartsKey = tuple[bytes, int]


class RemoteLimit(HocketError):
    """A limit of workers over HTTP; what was asked for may be possible later."""


class RemoteParts:
    """By job and fence. Call this only for holds that stand. `services` are those of a run of a kind."""

    def __init__(self, services: Callable[[str], RunServices]) -> None:
        self._services = services
        self._parts: dict[PartsKey, tuple[RunParts, str]] = {}
        self._sizes: Counter[PartsKey] = Counter()

    @property
    def keys(self) -> list[PartsKey]:
        return list(self._parts)

    def add(self, job: Job, agent: str, values: Sequence[tuple[int, Any]]) -> int:
        """Returns the number of the next part. Raises Conflict if there is a gap, or a part that was sent before has
        another content.
        """
        key = job.id, job.fence
        parts, _ = self._parts.get(key) or (RunParts(job.id, job.fence), agent)
        begun = len(parts.made)
        try:
            for index, value in values:
                self._add(parts, index, value, key, agent)
        finally:
            if len(parts.made) > begun:
                self._parts[key] = parts, agent
                self._services(job.kind).stream(parts)
        return len(parts.made)

    def _add(self, parts: RunParts, index: int, value: Any, key: PartsKey, agent: str) -> None:
        try:
            written, is_bytes = parts.encode(value)
        except ValueError as error:
            raise Usage(str(error)) from None
        if index > len(parts.made):
            raise Conflict(
                f"part {index} of job {ulid_text(key[0])} comes too early: send part {len(parts.made)} first"
            )
        if index < len(parts.made):
            if parts.made[index] != written:
                raise Conflict(f"part {index} of job {ulid_text(key[0])} was sent before with another content")
            return
        own = sum(size for key, size in self._sizes.items() if self._parts.get(key, (None, agent))[1] == agent)
        if own + len(written) > OF_AGENT_BYTES_MAX or self._sizes.total() + len(written) > BYTES_MAX:
            raise RemoteLimit("the parts of jobs that are held take too much memory; complete some first")
        parts.add(written, is_bytes)
        self._sizes[key] += len(written)

    def drop(self, keys: Iterable[PartsKey]) -> None:
        """The holds are over."""
        for key in keys:
            self._sizes.pop(key, None)
            if (found := self._parts.pop(key, None)) is not None:
                found[0].is_over = True

    def outputs(self, job: Job) -> Callable[[Transaction], WrittenOutputs | Reason] | None:
        """Stages the parts, and returns what writes them with the completion; None if there are none. May block."""
        if (found := self._parts.get((job.id, job.fence))) is None:
            return None
        outputs = RunOutputs(self._services(job.kind), job)
        outputs.keep_parts(found[0], RESULT_BYTES_MAX)
        return lambda tx: outputs.write(tx, whole=True)

    def over(self, tx: Transaction) -> list[PartsKey]:
        """Those whose holds are over."""
        entries = {key: tx.projection.jobs.entry(key[0]) for key in self._parts}
        return [
            key
            for key, entry in entries.items()
            if entry is None or entry.job.fence != key[1] or entry.job.state is not State.CLAIMED
        ]
