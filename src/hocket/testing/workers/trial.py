"""One promise on trial: a worker behind a proxy of its own, with jobs of a kind of its own."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from hocket.api.jobs import JobDetails
from hocket.testing.workers.lossy_proxy import Exchange, LossyProxy, NetworkFault, SentEnd
from hocket.testing.workers.temporary_server import KINDS, TemporaryServer
from hocket.testing.workers.worker_process import WorkerProcess

T = TypeVar("T")

LOOK_S = 0.05
CLAIMS_MAX = 1_000_000
RIVAL_LEASE_MS = 120_000
RIVAL_WAIT_MS = 50_000


class BrokenPromise(Exception):
    """The worker breaks a promise. The text says what was seen."""


class Trial:
    """`lease_s` is the lease that the worker asks for, and `patience_s` how long the trial waits for anything."""

    def __init__(
        self,
        name: str,
        server: TemporaryServer,
        command: Sequence[str],
        directory: Path,
        lease_s: float,
        patience_s: float,
    ) -> None:
        self.name, self.server, self.lease_s, self.patience_s = name, server, lease_s, patience_s
        self.kind = f"{KINDS}{name}"
        self.proxy = LossyProxy(lambda: server.port)
        self._command, self._directory = command, directory
        self._workers: list[WorkerProcess] = []
        self._url = ""

    async def start_worker(self) -> WorkerProcess:
        if not self._url:
            self._url = await self.proxy.start()
        variables = {
            "HOCKET_URL": self._url,
            "HOCKET_TOKEN": self.server.token,
            "HOCKET_KINDS": self.kind,
            "HOCKET_LEASE_MS": str(round(self.lease_s * 1000)),
            "HOCKET_WAIT_MS": "2000",
        }
        log = self._directory / f"{self.name}-{len(self._workers) + 1}.log"
        worker = await WorkerProcess.start(self._command, variables, log)
        self._workers.append(worker)
        return worker

    async def end(self) -> None:
        for worker in self._workers:
            await worker.kill()
        await self.proxy.close()

    def last_line(self) -> str:
        """What the worker printed last."""
        return self._workers[-1].last_line() if self._workers else ""

    async def submit(self, seconds: float = 0.0, **payload: Any) -> str:
        """Submits a job that takes so long. Its result is its `echo`."""
        return await self.server.submit(self.kind, ms=round(seconds * 1000), **payload)

    async def until(self, look: Callable[[], Awaitable[T | None] | T | None], awaited: str, longer_s: float = 0.0) -> T:
        """Waits until `look` gives something true. Raises BrokenPromise if that takes too long or the worker ends."""
        give_up = time.monotonic() + self.patience_s + longer_s
        while True:
            found = look()
            value = await found if isinstance(found, Awaitable) else found
            if value:
                return value
            code = self._workers[-1].exit_code if self._workers else None
            if code is not None:
                raise BrokenPromise(f"the worker ended with exit code {code} before {awaited}")
            if time.monotonic() > give_up:
                raise BrokenPromise(f"not within {self.patience_s + longer_s:.0f} s: {awaited}")
            await asyncio.sleep(LOOK_S)

    async def given(self, job_id: str) -> Exchange:
        """Waits until the worker has got a job. Returns the claim."""
        return await self.until(
            lambda: next((each for each in self.proxy.claims(job_id) if each.arrived), None), "the worker has the job"
        )

    async def ended(self, job_id: str, longer_s: float = 0.0, fences: int = CLAIMS_MAX) -> JobDetails:
        """Waits until a job has ended. Raises BrokenPromise if it is claimed more often than `fences` times."""

        async def look() -> JobDetails | None:
            job = await self.server.job(job_id)
            if job.fence > fences:
                raise BrokenPromise(f"a job was claimed {job.fence} times, and {fences} is right")
            return job if job.outcome else None

        return await self.until(look, "the job ends", longer_s)

    async def succeeds_once(self, job_id: str, result: Any, longer_s: float = 0.0) -> JobDetails:
        """Waits until a job has its result from its first run."""
        job = await self.ended(job_id, longer_s, fences=1)
        if job.outcome != "succeeded" or job.result != result:
            raise BrokenPromise(
                f"a job that should have the result {result!r} {job.outcome} with {job.result or job.error!r}"
            )
        return job

    async def works_on(self) -> None:
        """Waits until the worker does another job."""
        await self.succeeds_once(await self.submit(echo="after"), "after")

    def hold(self, job_id: str) -> tuple[str, int]:
        """The name of the worker and the fence of the last claim that has the job."""
        claim = self.proxy.claims(job_id)[-1]
        fence = next(job["fence"] for job in claim.answer["jobs"] if job["job_id"] == job_id)
        return claim.body["worker"], fence

    def ends(self, job_id: str, fence: int) -> list[SentEnd]:
        return [end for end in self.proxy.ends(job_id) if end.fence == fence]

    async def rival_claims(self, job_id: str) -> int:
        """Another worker claims the job as soon as its hold is over. Returns the new fence."""
        give_up = time.monotonic() + self.patience_s + 2 * self.lease_s
        while time.monotonic() < give_up:
            body = {"worker": f"rival-{self.name}", "claim_id": uuid4().hex, "kinds": [self.kind], "count": 1}
            answer = await self.server.post(
                "claim", body | {"lease_ms": RIVAL_LEASE_MS, "wait_ms": min(RIVAL_WAIT_MS, round(self.lease_s * 1000))}
            )
            for job in answer["jobs"]:
                if job["job_id"] == job_id:
                    fence: int = job["fence"]
                    return fence
        raise BrokenPromise("the job did not return after its lease: the worker still renews it")

    async def rival_completes(self, job_id: str, fence: int) -> None:
        await self.server.post(f"{job_id}/complete", {"fence": fence, "result": "rival"})

    async def take_away(self, job_id: str) -> int:
        """Takes a job from the worker, as if it had said goodbye, and gives it to another. Returns the new fence."""
        worker, _ = self.hold(job_id)
        self.proxy.faults["claim"] = NetworkFault.REFUSE
        await self.server.post("goodbye", {"worker": worker})
        fence = await self.rival_claims(job_id)
        del self.proxy.faults["claim"]
        return fence
