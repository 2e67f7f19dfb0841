"""A fleet for the tests about ranked claims: nodes with worker processes and a real NATS server between them."""

import asyncio
import itertools
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path

from hocket.api import Service, claims
from hocket.api.claims import ClaimsExplained
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import State
from hocket.kernel.ids import node_text, parse_ulid, ulid_text
from hocket.node.message_bus import bus_settings, open_message_bus
from hocket.node.runtime import Runtime
from hocket.work.handlers import kind
from hocket.work.presence import read_presence
from tests.bus.nats_server import NatsServer
from tests.cli.fork_server import start_command
from tests.mesh.world import Place, until, world
from tests.work.mesh import SOURCE
from tests.work.worker_process import HANDLERS

KIND = "step.rest"
PATIENCE_S = 90.0
# What a loaded machine may add to a wait. Where the rule about waits is broken they have no end.
SLOW_MS = 20_000


class Fleet:
    """Homes beside the coordinator's, each with worker processes: the real command, with a real server between them."""

    def __init__(self, directory: Path, owner: Place, server: NatsServer, concurrency: int) -> None:
        self.directory, self.owner, self.server, self._concurrency = directory, owner, server, concurrency
        self.urls = itertools.cycle([server.url])
        """Which server each worker that is started gets."""
        self.homes: dict[str, Path] = {}
        self.processes: dict[str, list[subprocess.Popen[str]]] = {}

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    async def add(self, name: str) -> str:
        key = self.owner.runtime.home.path / "user.key"
        place = Place(await asyncio.to_thread(Runtime.init, self.directory / name, key))
        place.befriend(self.owner.address, self.owner.id)
        await place.exchanges.visit(self.owner.address)
        node = node_text(place.id)
        self.homes[node] = self.directory / name
        await place.close()
        self.start(node)
        return node

    def start(self, node: str) -> None:
        """Starts one more worker of the node."""
        told = {"HOCKET_TEST_JOURNAL": str(self.journal), "PYTHONPATH": SOURCE, "HOCKET_HOME": str(self.homes[node])}
        words = ["work", HANDLERS, "--concurrency", str(self._concurrency), "--bus", next(self.urls)]
        with (self.directory / f"out-{node}").open("ab") as out:
            process = start_command(words, os.environ | told, self.directory, (out.fileno(), out.fileno()))
        self.processes.setdefault(node, []).append(process)

    def kill(self, node: str) -> None:
        """Kills the oldest worker of the node."""
        process = self.processes[node].pop(0)
        process.send_signal(signal.SIGKILL)
        process.wait()

    async def submit(self, count: int, ms: int = 0, **options: object) -> list[str]:
        job = kind(KIND, claim="rendezvous", **{"claim_timeout": "1s"} | options)  # type: ignore[arg-type]
        drafts = [job.draft({"ms": ms}) for _ in range(count)]
        made = await self.owner.node.run(lambda tx: jobs.submit(tx, drafts))
        return [ulid_text(each.job_id) for each in made]

    def explained(self, job: str) -> ClaimsExplained:
        return claims.explain(Service(self.owner.runtime), job)

    def completions(self, job: str) -> int:
        """How many completions of the job the arbiter has accepted."""
        ops = self.owner.runtime.show(job)["ops"]
        offered = {f"accepts {each['id']}" for each in ops if each["type"] == "CompleteJob"}
        return sum(each["type"] == "AcceptWork" and each["detail"] in offered for each in ops)

    async def candidates(self, *nodes: str) -> None:
        """Waits until the coordinator knows a worker of exactly these nodes."""
        (job,) = await self.submit(1, not_before="+1h")
        async with asyncio.timeout(60):
            while {each.worker.partition("/")[0] for each in self.explained(job).ranking} != {*nodes}:
                await asyncio.sleep(0.05)

    async def acquainted(self) -> None:
        """Waits until each node knows the workers of all others."""
        for node, home in self.homes.items():
            with closing(Runtime.open(home)) as runtime:

                def others(runtime: Runtime = runtime) -> set[str]:
                    with runtime.store.read() as session:
                        found = map(read_presence, session.presence())
                        return {node_text(each.node) for each in found if each.workers}

                await until(lambda others=others, node=node: others() == self.homes.keys() - {node}, "acquaintance")

    async def finished(self, job_ids: list[str]) -> list[ClaimsExplained]:
        """Waits until the jobs are completed. It looks briefly: the coordinator runs on the same event loop."""
        wanted = [parse_ulid(each) for each in job_ids]

        def unfinished() -> bool:
            with self.owner.log.store.read() as session:
                return any(entry.job.state is not State.COMPLETED for entry in session.jobs_by_id(wanted))

        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(unfinished):
                await asyncio.sleep(0.05)
        return [self.explained(each) for each in job_ids]


@asynccontextmanager
async def fleet(
    directory: Path, nodes: int, workers: int = 1, server: NatsServer | None = None, concurrency: int = 4
) -> AsyncIterator[Fleet]:
    """So many nodes, and so many workers on each, which know each other. Over a server that is given, which need not
    serve, only the coordinator knows them all.
    """
    is_good = server is None
    with NatsServer(directory) if server is None else nullcontext(server) as server:
        async with world(directory, "owner") as (owner,), owner.node.kept_up(lambda event: None):
            home = owner.runtime.home
            bus = await open_message_bus(
                owner.node, home, bus_settings(home, server.url), owner.node.environment, lambda event: None
            )
            owner.services.messages = bus
            owner.keep_in_touch()
            made = Fleet(directory, owner, server, concurrency)
            try:
                for number in range(nodes):
                    node = await made.add(f"n{number}")
                    for _ in range(workers - 1):
                        made.start(node)
                await made.candidates(*made.homes)
                if is_good:
                    await made.acquainted()
                yield made
            finally:
                for node, processes in made.processes.items():
                    while processes:
                        made.kill(node)
                await bus.close()


def places(told: ClaimsExplained) -> list[str]:
    return [each.worker.partition("/")[0] for each in told.ranking]
