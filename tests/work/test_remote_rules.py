"""The rules of workers over HTTP against a model of them: claims that are repeated after a lost answer, renewals, ends
and their repetitions, leases that run out, goodbyes, cancellations, and servers that start anew. No job is held by two,
no fence is given twice, and each job ends once.
"""

import asyncio
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import hocket
import hocket.testing
from hocket.errors import NotAuthorised
from hocket.families.jobs import rescue
from hocket.families.jobs.rules import Outcome, State
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.work.remote.remote_claims import ClaimAsked, Given
from hocket.work.remote.remote_holds import End, EndKind, HoldEnded, HoldOver, RemoteName, Renewal

KINDS = ("remote.a", "remote.b")
WORKERS = (RemoteName("ci", "w1"), RemoteName("ci", "w2"), RemoteName("other", "w1"))
LEASE_MS = 600_000
ENDS: tuple[EndKind, ...] = ("complete", "fail", "yield")
OUTCOMES = {"complete": Outcome.SUCCEEDED, "fail": Outcome.FAILED}


class Hold(NamedTuple):
    job_id: bytes
    fence: int
    worker: RemoteName


class ModelJob:
    """`holder` is None while the job is ready or has ended. `last_end` is how its worker has ended the newest hold."""

    def __init__(self, kind: str) -> None:
        self.kind, self.fence, self.returns = kind, 0, 0
        self.holder: RemoteName | None = None
        self.outcome: Outcome | None = None
        self.last_end: tuple[EndKind, str] | None = None

    def give_back(self) -> None:
        self.holder, self.returns = None, self.returns + 1

    def stands(self, hold: Hold) -> bool:
        return self.holder == hold.worker and self.fence == hold.fence


class RemoteRules(RuleBasedStateMachine):
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opening = hocket.testing.node()
        self.node = self.runner.run(self.opening.__aenter__())
        self.jobs: dict[bytes, ModelJob] = {}
        # For each worker the claim that it repeats, because its answer was lost.
        self.lost: dict[RemoteName, ClaimAsked] = {}
        self.last_got: dict[RemoteName, list[Hold]] = {}
        self.claims = 0
        self.fences: set[tuple[bytes, int]] = set()

    def teardown(self) -> None:
        self.runner.run(self.opening.__aexit__(None, None, None))
        self.runner.close()

    @property
    def desk(self):  # type: ignore[no-untyped-def]
        return self.node.remote_workers

    @initialize()
    def first_jobs(self) -> None:
        self.submit()

    @rule()
    def submit(self) -> None:
        for kind in KINDS:
            handle = self.runner.run(self.node.submit(hocket.kind(kind, retries=0)))
            self.jobs[parse_ulid(handle.job_id)] = ModelJob(kind)

    @rule(
        target=holds,
        worker=st.sampled_from(WORKERS),
        kinds=st.sampled_from([KINDS, KINDS[:1], KINDS[1:]]),
        limit=st.integers(1, 3),
        lost=st.sampled_from(["no", "no", "on the way", "before it was written"]),
    )
    def claim(self, worker: RemoteName, kinds: tuple[str, ...], limit: int, lost: str):  # type: ignore[no-untyped-def]
        before = self.lost.pop(worker, None)
        self.claims += 1
        asked = before or ClaimAsked(worker, f"claim {self.claims}", kinds, limit, LEASE_MS)
        given = self.runner.run(self.desk.claim(asked, 0.0))
        got = [Hold(each.job.id, each.job.fence, worker) for each in given.jobs]
        # A claim that got nothing is not repeated, but made again.
        if before is None or not self.last_got[worker]:
            self._check_new(asked, got)
        else:
            assert all(self.jobs[each.job_id].stands(each) for each in got)
            again = {each for each in self.last_got[worker] if self.jobs[each.job_id].stands(each)}
            assert set(got) == again
        self.last_got[worker] = got
        if lost == "before it was written":
            self.runner.run(self._undelivered(asked, given))
            for each in got:
                self.jobs[each.job_id].give_back()
        elif lost == "on the way":
            self.lost[worker] = asked
        return multiple(*got)

    def _check_new(self, asked: ClaimAsked, got: list[Hold]) -> None:
        assert len(got) <= asked.limit and len({each.job_id for each in got}) == len(got)
        free = {id: job for id, job in self.jobs.items() if job.holder is None and job.outcome is None}
        fitting = [id for id, job in free.items() if job.kind in asked.kinds]
        if not any(job.returns for job in self.jobs.values()):
            assert len(got) == min(asked.limit, len(fitting))
        for each in got:
            job = self.jobs[each.job_id]
            assert each.job_id in fitting and each.fence > job.fence
            assert (each.job_id, each.fence) not in self.fences
            self.fences.add((each.job_id, each.fence))
            job.fence, job.holder, job.last_end = each.fence, each.worker, None

    async def _undelivered(self, asked: ClaimAsked, given: Given) -> None:
        self.desk.undelivered(asked, given)
        while self.desk._beside:
            await asyncio.sleep(0)

    @rule(hold=holds)
    def renew(self, hold: Hold) -> None:
        found, _ = self.runner.run(
            self.desk.renew(hold.worker, [Renewal(hold.job_id, hold.fence)], None, lambda kind: None)
        )
        job = self.jobs[hold.job_id]
        expected = "held" if job.stands(hold) else "lost"
        if job.outcome is Outcome.CANCELLED and job.fence == hold.fence:
            expected = "cancel"
        assert [each.state for each in found] == [expected]

    @rule(hold=holds, do=st.sampled_from(ENDS), text=st.sampled_from(["x", "y"]))
    def end(self, hold: Hold, do: EndKind, text: str) -> None:
        (found,) = self.runner.run(self.desk.end(hold.worker.agent, [_end(hold, do, text)], lambda kind: None))
        job = self.jobs[hold.job_id]
        if job.stands(hold):
            assert isinstance(found, HoldEnded) and not found.is_repeat
            job.last_end = do, text
            job.holder, job.outcome = None, OUTCOMES.get(do)
            job.returns += do == "yield"
        elif (job.fence, job.last_end) == (hold.fence, (do, text)):
            assert isinstance(found, HoldEnded) and found.is_repeat
        else:
            assert isinstance(found, HoldOver)

    @rule(hold=holds, agent=st.sampled_from(["ci", "other"]))
    def end_of_another(self, hold: Hold, agent: str) -> None:
        if agent != hold.worker.agent and self.jobs[hold.job_id].stands(hold):
            (found,) = self.runner.run(self.desk.end(agent, [_end(hold, "complete", "stolen")], lambda kind: None))
            assert isinstance(found, NotAuthorised)

    @rule(worker=st.sampled_from(WORKERS))
    def goodbye(self, worker: RemoteName) -> None:
        held = [job for job in self.jobs.values() if job.holder == worker]
        assert self.runner.run(self.desk.goodbye(worker)) == len(held)
        for job in held:
            job.give_back()
        # Its claims are forgotten with it.
        self.lost.pop(worker, None)

    @rule(hold=consumes(holds))
    def cancel(self, hold: Hold) -> None:
        job = self.jobs[hold.job_id]
        if job.outcome is None:
            self.runner.run(self.node.job(ulid_text(hold.job_id)).cancel("no longer needed"))
            job.holder, job.outcome, job.last_end = None, Outcome.CANCELLED, None

    @rule(seconds=st.sampled_from([1, 1, 3_600]))
    def pass_time(self, seconds: int) -> None:
        self.node.clock.advance(seconds)
        self.node.runtime.log.run(lambda tx: rescue.expire(tx, 100))
        if seconds * 1000 > LEASE_MS:
            for job in self.jobs.values():
                if job.holder is not None:
                    job.give_back()

    @rule()
    def restart(self) -> None:
        """All that a server remembers is gone."""

        async def anew() -> None:
            await self.node.remote_workers.close()
            self.node._remote_workers = None

        self.runner.run(anew())

    @invariant()
    def the_log_says_the_same(self) -> None:
        with self.node.runtime.store.read() as session:
            for id, model in self.jobs.items():
                entry = session.job(id)
                if entry is None:
                    continue  # a submit that is not folded yet
                job = entry.job
                assert (job.fence, job.outcome) == (model.fence, model.outcome)
                assert (job.state is State.CLAIMED) == (model.holder is not None)


def _end(hold: Hold, do: EndKind, text: str) -> End:
    if do == "complete":
        return End(hold.job_id, hold.fence, do, msgspec.json.encode(text))
    return End(hold.job_id, hold.fence, do, text=text)


TestRemoteRules = pytest.mark.req("LW-37")(RemoteRules.TestCase)
