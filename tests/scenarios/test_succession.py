"""Three machines, of which the coordinator's loses its power under load: another one goes on, and the old one follows
it when it is back.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.log.succession.leading import read_lead
from tests.ports import free_port
from tests.scenarios.machines import Machine, machines
from tests.waiting import wait_for as until

JOBS = 60


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[Machine]]:
    """Each serves, and knows the addresses of the others."""
    with machines(tmp_path, "a", "b", "c") as made:
        a, *others = made
        addresses = [f"http://127.0.0.1:{free_port()}" for _ in made]
        a("init", "--name", "a")
        for machine, address in zip(made, addresses, strict=True):
            if machine is not a:
                machine("join", a.invite(machine.name, "all", address=addresses[0]))
            machine.serve("--port", address.rpartition(":")[2])
        for machine in others:
            for address in addresses[1:]:
                if address != addresses[made.index(machine)]:
                    machine("mesh", "peers", "add", address)
            a("mesh", "peers", "add", addresses[made.index(machine)])
        yield made


def succession(machine: Machine) -> dict[str, object]:
    shown: dict[str, object] = machine("mesh", "succession", "--json").json
    return shown


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mesh_goes_on_without_its_coordinator_and_no_job_is_lost_or_done_twice(mesh: list[Machine]) -> None:
    a, b, c = mesh
    a("mesh", "succession", "a", "b", "c", "--quorum", "2", "--after", "3s")
    until(
        lambda: a("lock", "acquire", "x", "--agent", "ada", "--ttl", "10m", code=None).code == 0,
        "the coordinator decides",
    )
    until(lambda: (row := a.look(read_lead)) is not None and row.settled, "the succession is in force")
    for machine in (b, c):
        machine.work()
    jobs = c.submit_all([{"kind": "acme.step", "payload": {"ms": 50.0, "n": n}} for n in range(JOBS)])
    until(lambda: sum(c.is_done(each) for each in jobs) >= 5, "some jobs are done")
    a.cut_power()
    until(lambda: int(str(succession(b)["term"])) >= 1, "another node follows")
    assert b("lock", "acquire", "x", "--agent", "bob", code=None).code == 3, "the lock that was told stands"
    until(lambda: all(c.is_done(each) for each in jobs), "all jobs are done")
    a.serve("--port", "0")
    until(lambda: int(str(succession(a)["term"])) >= 1, "the old coordinator follows")
    until(lambda: a.digest() == b.digest() == c.digest(), "all nodes agree")
    for machine in mesh:
        assert machine.reasons("CompleteJob")[0] + machine.reasons("AcceptWork")[0] >= JOBS
        machine("log", "verify")
