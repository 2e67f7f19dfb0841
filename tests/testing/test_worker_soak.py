"""Workers of two languages and the server that they claim from are killed and frozen at random, and answers get lost:
still no job is lost, no fence is given to two of them, and each job is completed once, by who held it then.
"""

import asyncio
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path

import pytest

from hocket.api.jobs import JobDetails
from hocket.families.jobs.rules import Outcome
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import ClaimWork, CompleteJob
from hocket.node.runtime import Runtime
from hocket.store import JobFilter
from hocket.store.job_rows import Stage
from hocket.testing.workers.lossy_proxy import LossyProxy, NetworkFault
from hocket.testing.workers.temporary_server import KINDS, TemporaryServer
from hocket.testing.workers.worker_process import WorkerProcess
from tests.testing.worker_examples import command

KIND = f"{KINDS}soak"
LEASE_MS = 3_000
SLOTS = 8
RATE_MIN = 8  # jobs a second, on a slow machine


@dataclass
class Turmoil:
    """The server, the four workers, and what is done to them."""

    server: TemporaryServer
    proxy: LossyProxy
    url: str
    commands: list[list[str]]
    logs: Path
    workers: list[WorkerProcess] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _numbers: "numbers[int]" = field(default_factory=numbers)

    async def start_worker(self, place: int) -> WorkerProcess:
        variables = {
            "HOCKET_URL": self.url,
            "HOCKET_TOKEN": self.server.token,
            "HOCKET_KINDS": KIND,
            "HOCKET_LEASE_MS": str(LEASE_MS),
            "HOCKET_WAIT_MS": "2000",
            "HOCKET_COUNT": str(SLOTS),
        }
        log = self.logs / f"worker-{place}-{next(self._numbers)}.log"
        return await WorkerProcess.start(self.commands[place], variables, log)

    async def disturb(self, what: str, chance: random.Random) -> None:
        self.done[what] += 1
        place = chance.randrange(len(self.workers))
        match what:
            case "kill":
                await self.workers[place].kill()
                self.workers[place] = await self.start_worker(place)
            case "freeze":
                self.workers[place].freeze()
                await asyncio.sleep(chance.choice((0.3, 1.5)) * LEASE_MS / 1000)
                self.workers[place].thaw()
            case "restart":
                await self.server.kill()
                await self.server.start()
            case _:
                step = chance.choice(("claim", "end", "renew"))
                self.proxy.next_faults[step] = [chance.choice((NetworkFault.LOSE, NetworkFault.CUT))]


DISTURBANCES = ("kill", "freeze", "lose", "restart", "lose", "kill", "lose")


@pytest.mark.slow
@pytest.mark.req("LW-02", "LW-18", "LW-37", "VX-07")
@pytest.mark.parametrize(
    "jobs",
    [
        300,
        pytest.param(3_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
        pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(2400)]),
    ],
)
def test_workers_of_two_languages_and_their_server_are_killed_and_lose_nothing(tmp_path: Path, jobs: int) -> None:
    languages = ["python", "go" if shutil.which("go") else "typescript"]
    commands = [command(each, tmp_path) for each in languages] * 2
    asyncio.run(survive(tmp_path, commands, jobs, random.Random(f"soak {jobs}")))


async def survive(directory: Path, commands: list[list[str]], jobs: int, chance: random.Random) -> None:
    began = time.monotonic()
    async with TemporaryServer(directory / "home") as server:
        proxy = LossyProxy(lambda: server.port)
        turmoil = Turmoil(server, proxy, await proxy.start(), commands, directory)
        try:
            handles = await server.node.submit_many(
                (KIND, {"ms": chance.randint(20, 200), "echo": number}) for number in range(jobs)
            )
            echoes = {handle.job_id: number for number, handle in enumerate(handles)}
            turmoil.workers = [await turmoil.start_worker(place) for place in range(len(commands))]
            while (ended := done(server)) < jobs or not turmoil.done.keys() >= set(DISTURBANCES):
                late = time.monotonic() > began + 60 + jobs / RATE_MIN
                assert not late, f"{ended} of {jobs} jobs, {turmoil.done}, {await left(server)}"
                await turmoil.disturb(DISTURBANCES[turmoil.done.total() % len(DISTURBANCES)], chance)
                await asyncio.sleep(chance.uniform(0.2, 1.0))
            for worker in turmoil.workers:
                worker.terminate()
            codes = [await worker.ended() for worker in turmoil.workers]
            # One that has just been started may not hear SIGTERM yet.
            assert set(codes) <= {0, -signal.SIGTERM}, [worker.last_line() for worker in turmoil.workers]
            # Those that were killed have not said goodbye, and count as running for a while.
            for name in {claim.body["worker"] for claim in proxy.of("claim")}:
                await server.post("goodbye", {"worker": name})
        finally:
            for worker in turmoil.workers:
                await worker.kill()
            await proxy.close()
        seconds = time.monotonic() - began
    ops = counting_ops(directory / "home")
    check_ends(ops, proxy, echoes)
    claims = sum(isinstance(op.payload, ClaimWork) for op in ops)
    print(f"{jobs} jobs in {seconds:.0f} s with {claims} claims, while it was: {dict(turmoil.done)}")


def done(server: TemporaryServer) -> int:
    with server.node.runtime.read() as session:
        return session.counts().get((Stage.DONE, Outcome.SUCCEEDED), 0)


async def left(server: TemporaryServer) -> list[JobDetails]:
    """Some of the jobs that have not succeeded."""
    with server.node.runtime.read() as session:
        ids = [
            ulid_text(entry.job.id)
            for entry in session.jobs(JobFilter(), 100_000)
            if entry.job.outcome is not Outcome.SUCCEEDED
        ]
    return [await server.job(each) for each in ids[:3]]


def counting_ops(home: Path) -> list[Op]:
    """The ops that count, of a log that proves itself."""
    with Runtime.open(home) as runtime:
        assert runtime.verify().findings == []
        assert runtime.rebuild().unchanged
        with runtime.read() as session:
            return [decode(row.body) for row in session.ops_after(0, 10_000_000) if row.reason == 0]


def check_ends(ops: list[Op], proxy: LossyProxy, echoes: dict[str, int]) -> None:
    completed = Counter(ulid_text(op.payload.job_id) for op in ops if isinstance(op.payload, CompleteJob))
    assert completed == Counter(echoes.keys())
    holders: dict[tuple[str, int], set[str]] = {}
    for claim in proxy.of("claim"):
        for job in claim.answer.get("jobs", []):
            holders.setdefault((job["job_id"], job["fence"]), set()).add(claim.body["worker"])
    shared = {hold: workers for hold, workers in holders.items() if len(workers) != 1}
    assert shared == {}
    accepted: dict[str, set[tuple[int, str]]] = {}
    for sent in proxy.of("end"):
        answers = {each["job_id"]: each for each in sent.answer.get("ends", [])}
        for end in sent.body["ends"]:
            if answers.get(end["job_id"], {}).get("state") == "succeeded":
                accepted.setdefault(end["job_id"], set()).add((end["fence"], sent.body["worker"]))
                assert end["result"] == echoes[end["job_id"]]
    for job_id, ends in accepted.items():
        ((fence, worker),) = ends
        assert holders[job_id, fence] == {worker}, "who ended it was not who held it"
