"""How many jobs ended in each of the last minutes. The store keeps how many have ended in all; this reads that twice a
minute while the server runs and keeps an hour of it in the home, so that a restart loses only the time between.
"""

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hocket.families.jobs.rules import Outcome
from hocket.kernel.decoding import decode_json
from hocket.store import Session

MINUTE_MS = 60_000
MINUTES = 60
SAMPLE_S = 30.0
# Kinds beyond these are counted together.
KINDS_MAX = 200
OTHERS = "…"


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """How many jobs of each kind had succeeded, and how many had failed, at the end of a minute."""

    minute: int
    succeeded: dict[str, int]
    failed: dict[str, int]


class MinuteFigures(NamedTuple):
    """How many jobs ended in a minute; None where no server looked."""

    succeeded: int | None
    failed: int | None


class Throughput:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._samples: deque[Sample] = deque(maxlen=MINUTES + 1)
        with suppress(OSError, msgspec.MsgspecError):
            self._samples.extend(decode_json(file.read_bytes(), list[Sample]))

    def sample(self, session: Session, now_ms: int) -> None:
        succeeded: dict[str, int] = {}
        failed: dict[str, int] = {}
        for (_, outcome, kind), jobs in session.counts_by_kind().items():
            if outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
                into = succeeded if outcome is Outcome.SUCCEEDED else failed
                name = kind if kind in into or len(into) < KINDS_MAX else OTHERS
                into[name] = into.get(name, 0) + jobs
        sample = Sample(now_ms // MINUTE_MS, succeeded, failed)
        if self._samples and self._samples[-1].minute >= sample.minute:
            self._samples.pop()
        if not self._samples:
            # What has ended before the server began is no part of its first minute.
            self._samples.append(Sample(sample.minute - 1, succeeded, failed))
        self._samples.append(sample)

    def keep(self) -> None:
        """Writes what it knows into the home."""
        with suppress(OSError):  # the disk may be full; then a restart loses the last hour
            unfinished = self._file.with_suffix(".new")
            unfinished.write_bytes(msgspec.json.encode(list(self._samples)))
            unfinished.replace(self._file)

    def minutes(self, now_ms: int) -> list[MinuteFigures]:
        """The last hour, the oldest minute first."""
        totals = {each.minute: (sum(each.succeeded.values()), sum(each.failed.values())) for each in self._samples}
        last = now_ms // MINUTE_MS
        found = []
        for minute in range(last - MINUTES + 1, last + 1):
            before, after = totals.get(minute - 1), totals.get(minute)
            if before is None or after is None:
                found.append(MinuteFigures(None, None))
            else:
                # A job that is retried has not ended any more.
                found.append(MinuteFigures(max(0, after[0] - before[0]), max(0, after[1] - before[1])))
        return found

    def failing(self) -> dict[str, int]:
        """How many jobs of each kind failed within the hour, where any did."""
        if not self._samples:
            return {}
        first, last = self._samples[0].failed, self._samples[-1].failed
        grown = {kind: jobs - first.get(kind, 0) for kind, jobs in last.items()}
        return {kind: jobs for kind, jobs in grown.items() if jobs > 0}
