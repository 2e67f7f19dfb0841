"""How often a process waits for the database server, counted on the way there."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.kernel.policy import DEFAULT
from hocket.kernel.roster import Job
from hocket.log import Log, Transaction
from hocket.node.runtime import Runtime
from hocket.work import claiming, jobs
from tests.cli.conftest import TASKS, Program
from tests.postgres_relay import Relay
from tests.postgres_server import prepared, server

JOBS = 2_000


@pytest.fixture
def relay() -> Iterator[Relay]:
    with closing(Relay()) as made:
        yield made


@pytest.fixture
def hocket(relay: Relay, tmp_path: Path) -> Program:
    (tmp_path / "tasks.py").write_text(TASKS)
    program = Program(tmp_path / "home")
    name = server().new_database().partition("@/")[2].partition("?")[0]
    program("init", "--store", f"postgresql://postgres@127.0.0.1:{relay.port}/{name}", code=0)
    return program


@pytest.mark.req("VX-18")
def test_a_drained_job_costs_less_than_one_round_trip(hocket: Program, relay: Relay) -> None:
    lines = "".join(f'{{"kind": "test.echo", "payload": {{"n": {n}}}}}\n' for n in range(JOBS))
    before = relay.waits
    hocket("submit", "--batch", "-", input=lines, code=0)
    submitted = relay.waits - before
    before = relay.waits
    hocket("work", "tasks.py", "--until-idle", code=0)
    drained = relay.waits - before
    assert hocket("status", "--json", code=0).json["jobs"]["succeeded"] == JOBS
    assert submitted + drained < JOBS


@pytest.fixture
def log(relay: Relay, tmp_path: Path) -> Iterator[Log]:
    """It has run often enough that all statements are prepared."""
    name = server().new_database(template=prepared()).partition("@/")[2].partition("?")[0]
    address = f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"
    with Runtime.init(tmp_path / "home", server=address) as runtime:
        for _ in range(10):
            runtime.log.append_plain("k", b"{}")
            runtime.log.run(turn([]), beside=True)
        yield runtime.log


def turn(held: list[jobs.Held]) -> Callable[[Transaction], list[jobs.Held]]:
    """What a worker does in one transaction: it ends the jobs that it holds, and claims others."""

    def request(tx: Transaction) -> list[jobs.Held]:
        tx.projection.jobs.load([each.job_id for each in held])
        for each in held:
            assert isinstance(jobs.complete(tx, each, None, 1), Job)
        tx.projection.availability(tx.node)
        tx.session.has_worker(1)
        found = claiming.claim(tx, 1, 10, lambda kind: 60_000).taken
        return [jobs.Held(claim.job.id, claim.job.claim_op or b"") for claim in found]

    return request


@pytest.mark.touches("VX-18")
def test_a_single_submit_costs_two(log: Log, relay: Relay) -> None:
    """One begins, locks and reads what the kind has been told, and one writes and commits."""
    before = relay.waits
    log.append_plain("k", b"{}")
    assert relay.waits - before == 2


@pytest.mark.touches("VX-18")
def test_a_batch_costs_three(log: Log, relay: Relay) -> None:
    """One begins and locks, one writes the jobs and locks the end of the log, and one writes the ops and commits."""
    drafts = [jobs.Draft("k", b"{}", DEFAULT)] * 100
    log.run(lambda tx: jobs.submit(tx, drafts), beside=True)
    before = relay.waits
    log.run(lambda tx: jobs.submit(tx, drafts), beside=True)
    assert relay.waits - before == 3


@pytest.mark.touches("VX-18")
def test_a_turn_costs_six_at_most(log: Log, relay: Relay) -> None:
    """One begins; one reads the submits that are not folded yet, or the jobs that have ended; one writes those
    and looks for kinds; one takes jobs; one locks the end of the log; and one commits. A worker that finds nothing has
    three of them.
    """
    log.append_plain("k", b"{}")
    before = relay.waits
    held = log.run(turn([]), beside=True)
    assert len(held) == 1 and relay.waits - before == 6
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft("k", b"{}", DEFAULT)] * 3), beside=True)
    before = relay.waits
    held = log.run(turn(held), beside=True)
    assert len(held) == 3 and relay.waits - before == 6
    log.run(turn(held), beside=True)
    before = relay.waits
    assert log.run(turn([]), beside=True) == [] and relay.waits - before == 3
