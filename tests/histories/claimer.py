"""A client that claims jobs of its choice, holds them for a moment, writes under their fences, and ends them in all
ways there are. It goes on until it is killed.

    python -m tests.histories.claimer HOME DIRECTORY LEASE_MS

The ids of the jobs are in the file `given` of the directory.
"""

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from hocket.errors import HocketError
from hocket.events import ignore
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Decision, Held, Offer
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import parse_ulid
from hocket.log import Transaction
from hocket.node.node import Node
from hocket.store import Session
from tests.histories.guarded import Guarded
from tests.histories.opening import patiently_opened
from tests.histories.recording import NOT_ASKED, Recorder

# So many jobs are contended for at a time.
OPEN_AT_ONCE = 4


class Claimer:
    def __init__(self, node: Node, directory: Path, job_ids: list[str], lease_ms: int) -> None:
        self._node, self._jobs, self._lease_ms = node, job_ids, lease_ms
        self._recorder, self._guarded = Recorder(directory), Guarded(directory)
        self._sign = node.environment.liveness.announce(f"claimer-{os.getpid()}")
        self._chance = random.Random()

    async def run(self) -> None:
        while True:
            try:
                open_jobs = await self._node.read(self._open_jobs)
                if not open_jobs:
                    await asyncio.sleep(0.1)  # until the first exchange
                    continue
                key = self._chance.choice(open_jobs)
                held = await self._claim(key)
                if held is not None:
                    await self._hold(key, held)
            except HocketError as error:
                self._recorder.note(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
            await asyncio.sleep(self._chance.uniform(0, 0.02))

    def _open_jobs(self, session: Session) -> list[str]:
        entries = ((key, session.job(parse_ulid(key))) for key in self._jobs)
        return [key for key, entry in entries if entry is not None and entry.job.outcome is None][:OPEN_AT_ONCE]

    async def _claim(self, key: str) -> Job | None:
        """A refusal is not recorded as one: a job that nobody holds can rest, or have a claim that is undecided."""
        job_id = parse_ulid(key)

        def request(tx: Transaction) -> Job | Offer | None:
            self._sign.beat(tx)
            claims = claiming.claim(
                tx, self._sign.row(tx), 1, lambda kind: self._lease_ms, True, lambda job, _: job.id == job_id
            )
            if claims.taken:
                return claims.taken[0].job
            return claims.wanted[0].offer if claims.wanted else None

        call = self._recorder.call("acquire", keys=[key], agent=self._recorder.client, bound=True)
        decision = await self._decision(await self._node.run(request))
        if isinstance(decision, Job):
            self._recorder.answer(call, decision.fence, decision.deadline)
            return decision
        if decision is None:
            self._recorder.answer(call, NOT_ASKED)
        return None

    async def _hold(self, key: str, job: Job) -> None:
        assert job.claim_op is not None
        held, fence = Held(job.id, job.claim_op), job.fence
        for _ in range(self._chance.randint(1, 4)):
            await asyncio.sleep(self._chance.uniform(0, 0.1))
            if not self._guarded.write(key, fence):
                self._recorder.note("a stale write was refused")
            if self._chance.random() < 0.3 and not await self._renew(key, held, fence):
                return
        fate = self._chance.random()
        if fate < 0.2:
            await self._end("complete", key, held, fence)
        elif fate < 0.95:
            await self._end("release", key, held, fence)
        # Else it forgets the job, whose lease has to pass.

    async def _renew(self, key: str, held: Held, fence: int) -> bool:
        return await self._decided("renew", key, fence, lambda tx: jobs.renew(tx, held, self._lease_ms))

    async def _end(self, what: str, key: str, held: Held, fence: int) -> None:
        def request(tx: Transaction) -> jobs.Result:
            if what == "complete":
                return jobs.complete(tx, held, None, 1)
            return jobs.fail(tx, held, "again", "", retry=True)

        await self._decided(what, key, fence, request)

    async def _decided(self, what: str, key: str, fence: int, request: Callable[[Transaction], jobs.Result]) -> bool:
        call = self._recorder.call(what, keys=[key], agent=self._recorder.client, fence=fence)
        decision = await self._decision(await self._node.run(request))
        is_done = isinstance(decision, Job)
        if decision is not Reason.NOT_ACCEPTED:
            self._recorder.answer(call, is_done, decision.deadline if isinstance(decision, Job) else None)
        return is_done

    async def _decision(self, result: jobs.Result | None) -> Decision | None:
        return (await self._node.consult([result]))[0] if isinstance(result, Offer) else result


async def run(home: str, directory: str, lease_ms: str) -> None:
    async with patiently_opened(home) as node, node.in_touch(ignore):
        await Claimer(node, Path(directory), (Path(directory) / "given").read_text().split(), int(lease_ms)).run()


def main() -> None:
    asyncio.run(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()
