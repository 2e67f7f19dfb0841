"""A grid without a coordinator: three machines with homes of their own, a real NATS server between them, and nobody
who decides. The machine that enrolled them is gone.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import hocket
from tests.bus.nats_server import NatsServer
from tests.scenarios.machines import Machine, agree, journal, machines, until

GRANTS = ("job:all", "artifact:all", "ops:read")
# Each worker has some of so many, unless bad luck comes once in 10^11 times.
JOBS = 40


class Grid(NamedTuple):
    root: Path
    submitter: Machine
    workers: tuple[Machine, Machine]

    @property
    def all(self) -> tuple[Machine, ...]:
        return self.submitter, *self.workers

    def runs(self, machine: Machine) -> int:
        return sum(line["event"] == "start" and line["machine"] == machine.name for line in journal(self.root))


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    """The owner enrols three machines, and is never seen again. Each of them serves, and knows the other two."""
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServer(tmp_path))
        owner, *three = stack.enter_context(machines(tmp_path, "owner", "a", "b", "c"))
        owner("init", "--ranked-open")
        owner.serve()
        for each in three:
            each("join", owner.invite(each.name, *GRANTS))
            (each.home / "config.toml").write_text(f'[bus]\nurl = "{nats.url}"\n')
        for each in three:
            each("sync")  # and knows those that joined before
        owner.cut_power()
        addresses = {each.name: each.serve() for each in three}
        for each in three:
            for name, address in addresses.items():
                if name != each.name:
                    each("peers", "add", address)
        yield Grid(tmp_path, three[0], (three[1], three[2]))


@pytest.mark.req("GR-05", "GR-12")
def test_ranked_jobs_are_done_once_where_no_coordinator_can_be_reached(grid: Grid) -> None:
    """One machine submits, the others run, each job is completed once, and the one that waits gets the results."""
    submitter, workers = grid.submitter, grid.workers
    assert submitter("rules", "show", "--json").json["ranked_open"] is True
    for each in workers:
        each.work("--concurrency", 2)
    ranked = ("submit", "acme.add", '{"n": 7}', "--claim", "rendezvous", "--wait-for", "60s")
    said = submitter(*ranked)
    assert json.loads(said.out.splitlines()[-1]) == {"n": 7}
    with hocket.open(submitter.home) as node:
        assert node.submit(hocket.kind("acme.add", claim="rendezvous"), n=8).result(60) == {"n": 8}

    # On a busy machine the first in rank may take seconds; then a second run by the next one would be right, too.
    ranked_job = {"kind": "acme.add", "claim": "rendezvous", "claim_timeout": "20s"}
    lines = [ranked_job | {"payload": {"n": n}} for n in range(JOBS)]
    ids = submitter.submit_all(lines)
    until(lambda: all(map(submitter.is_done, ids)), "all jobs to be done")
    assert [submitter.runtime.show(each)["result"] for each in ids] == [{"n": n} for n in range(JOBS)]
    assert all(map(grid.runs, workers)) and not grid.runs(submitter)
    agree(*grid.all)
    for job_id in ids:
        types = submitter.ops_of(job_id)
        assert types.count("CompleteJob") == 1 and "AcceptWork" not in types, types

    # A machine without a server sends its jobs to the others, too, and does not complain of the coordinator.
    submitter.stop()
    said = submitter(*ranked)
    assert json.loads(said.out.splitlines()[-1]) == {"n": 7} and "coordinator" not in said.err

    # Who wants the coordinator's word still waits for it.
    unopen = submitter.submit("acme.add", "--claim", "rendezvous", "--no-open")
    unranked = submitter.submit("acme.add")
    until(lambda: all(each.has(unopen) and each.has(unranked) for each in workers), "the others to know them")
    submitter(*ranked)
    assert not {unopen, unranked} & {line["job"] for line in journal(grid.root)}
