"""Transactions that begin without a message, and jobs that a process does not read again, change nothing that nodes and
processes on one store decide.
"""

import random
from math import inf
from pathlib import Path

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import claim
from hocket.families.jobs.requests import Draft, Held
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import DEFAULT
from hocket.log import Log
from hocket.node.runtime import Runtime
from tests.node.sharers import Sharers

KIND = "acme.render"
STEPS = 60


class History:
    """What two processes of one node and one of another do, one after the other, and what they are told."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.sharers = Sharers(directory)
        self._other_process = Runtime.open(directory / "founder")
        logs = self.sharers.founder.log, self._other_process.log, self.sharers.second.log
        self._logs, self._submitter = logs, logs[0]
        self._jobs: list[bytes] = []
        self._held: list[tuple[Log, Held]] = []
        self.told: list[object] = []

    def play(self) -> None:
        log = self._logs[0]
        for _ in range(STEPS):
            # One of them often does several things in a row.
            log = log if self._chance.random() < 0.6 else self._chance.choice(self._logs)
            step = self._chance.choice(
                (self._submit, self._submit_many, self._claim, self._claim, self._end, self._end)
            )
            self.told.append((step.__name__, step(log)))
        self.told.append(sorted(self._rows()))

    def _submit(self, log: Log) -> None:
        # Only one process submits, so that the jobs have one order.
        job_id = self._submitter.append_plain(KIND, b"{}")
        assert job_id is not None
        self._jobs.append(job_id)

    def _submit_many(self, log: Log) -> None:
        drafts = [Draft(KIND, b"{}", DEFAULT)] * 2
        self._jobs += [made.job_id for made in self._submitter.run(lambda tx: jobs.submit(tx, drafts), beside=True)]

    def _claim(self, log: Log) -> list[int]:
        limit = self._chance.randint(1, 3)
        taken = log.run(lambda tx: claim(tx, 1, limit, lambda kind: 600_000), beside=True).taken
        self._held += [(log, Held(each.job.id, each.job.claim_op or b"")) for each in taken]
        return [self._jobs.index(each.job.id) for each in taken]

    def _end(self, log: Log) -> object:
        """Some of what this process holds, or held before somebody cancelled it."""
        held = [each for whose, each in self._held if whose is log][: self._chance.randint(1, 3)]
        cancelled = self._chance.choice([each for _, each in self._held]) if self._held else None
        if cancelled is not None and self._chance.random() < 0.3:
            by = self._chance.choice(self._logs)
            by.run(lambda tx: jobs.cancel(tx, cancelled.job_id, "not needed"))
        ends = log.run(
            lambda tx: (
                tx.projection.jobs.load([each.job_id for each in held])
                or [jobs.complete(tx, each, b"1", 1) for each in held]
            ),
            beside=True,
        )
        self._held = [(whose, each) for whose, each in self._held if each not in held and each != cancelled]
        return [each.outcome if isinstance(each, Job) else Reason(each) for each in ends]

    def _rows(self) -> list[object]:
        with self._submitter.store.read() as session:
            found = [(self._jobs.index(each.job.id), each) for each in session.each_job()]
        return [(number, each.stage, each.job.outcome or 0, each.job.fence) for number, each in found]

    def close(self) -> None:
        self._other_process.close()
        assert self.sharers.founder.rebuild().unchanged
        for log in self._logs:
            assert log.store_check is not None and not log.store_check.findings
        self.sharers.close()


def told(directory: Path, seed: int, *, resumes: bool, remembers: bool) -> list[object]:
    """What they are told if transactions begin without a message, and if processes do not read what they hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hocket.store.postgres.beginning.QUIET_MIN", 0 if resumes else inf)
        patch.setattr("hocket.store.postgres.beginning.RESUMED_S", inf)
        if not remembers:
            patch.setattr("hocket.log.job_check.JobCheck.held", lambda check, job_ids: [])
        history = History(directory, seed)
        history.play()
        history.close()
        return history.told


@pytest.mark.touches("VX-18")
@pytest.mark.parametrize("seed", range(3))
def test_processes_decide_as_if_each_transaction_read_everything(seed: int, tmp_path: Path) -> None:
    """A transaction that resumes notices by the head alone that others have written. Only one that does not resume
    needs to notice it by the rows of the jobs that its process holds.
    """
    read = told(tmp_path / "read", seed, resumes=False, remembers=False)
    assert told(tmp_path / "resumed", seed, resumes=True, remembers=True) == read
    assert told(tmp_path / "remembered", seed, resumes=False, remembers=True) == read
