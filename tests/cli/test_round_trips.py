"""How often a process waits for the database server, counted on the way there."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job
from hocket.kernel.policy import DEFAULT
from hocket.log import Log, Transaction
from hocket.node.runtime import Runtime
from hocket.store.local import Place, WorkerRow
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
    """It has run often enough that all statements are prepared, and that nobody else writes."""
    name = server().new_database(template=prepared()).partition("@/")[2].partition("?")[0]
    address = f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"
    with Runtime.init(tmp_path / "home", server=address) as runtime:
        row = WorkerRow(0, "worker", 1, 1, runtime.log.node.to_bytes(8, "big"), 1, Place("", "", "", ""), "")
        assert runtime.log.run(lambda tx: tx.session.put_worker(row)) == 1
        for _ in range(10):
            runtime.log.append_plain("k", b"{}")
            runtime.log.run(turn([]), beside=True)
        yield runtime.log


def ended(tx: Transaction, held: list[jobs.Held]) -> None:
    tx.projection.jobs.load([each.job_id for each in held])
    for each in held:
        assert isinstance(jobs.complete(tx, each, None, 1), Job)


def turn(held: list[jobs.Held]) -> Callable[[Transaction], list[jobs.Held]]:
    """What a worker does in one transaction: it ends the jobs that it holds, and claims others."""

    def request(tx: Transaction) -> list[jobs.Held]:
        ended(tx, held)
        tx.projection.availability(tx.node)
        tx.session.has_worker(1)
        found = claiming.claim(tx, 1, 10, lambda kind: 60_000).taken
        return [jobs.Held(claim.job.id, claim.job.claim_op or b"") for claim in found]

    return request


@pytest.fixture(params=["nobody else writes", "others write"])
def begins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a transaction waits to begin."""
    has_others = request.param == "others write"
    monkeypatch.setattr("hocket.store.postgres.beginning.QUIET_MIN", math.inf if has_others else 0)
    monkeypatch.setattr("hocket.store.postgres.beginning.RESUMED_S", math.inf)
    return int(has_others)


@pytest.mark.touches("VX-18")
def test_a_single_submit_costs_one_or_two(log: Log, relay: Relay, begins: int) -> None:
    """One locks, writes and commits. If others write, one before it begins, locks and reads what the kind has been
    told.
    """
    before = relay.waits
    log.append_plain("k", b"{}")
    assert relay.waits - before == 1 + begins


@pytest.mark.touches("VX-18")
def test_a_batch_costs_one_or_three(log: Log, relay: Relay, begins: int) -> None:
    """One writes and commits. If others write, one begins and locks, one writes the jobs and locks the end of the log,
    and one writes the ops and commits.
    """
    drafts = [jobs.Draft("k", b"{}", DEFAULT)] * 100
    log.run(lambda tx: jobs.submit(tx, drafts), beside=True)
    before = relay.waits
    log.run(lambda tx: jobs.submit(tx, drafts), beside=True)
    assert relay.waits - before == 1 + 2 * begins


@pytest.mark.touches("VX-18")
def test_a_turn_costs_four_or_six_at_most(log: Log, relay: Relay, begins: int) -> None:
    """One reads the submits that are not folded yet; one writes those and looks for kinds; one takes jobs; and one
    commits. If others write, one more begins, and one locks the end of the log. The jobs that the turn ends are not
    read, so that a turn that only ends jobs is the commit. A worker that finds nothing looks for kinds and commits.
    """
    log.append_plain("k", b"{}")
    before = relay.waits
    held = log.run(turn([]), beside=True)
    assert len(held) == 1 and relay.waits - before == 4 + 2 * begins
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft("k", b"{}", DEFAULT)] * 3), beside=True)
    before = relay.waits
    held = log.run(turn(held), beside=True)
    assert len(held) == 3 and relay.waits - before == 3 + 2 * begins
    before = relay.waits
    log.run(lambda tx: ended(tx, held), beside=True)
    assert relay.waits - before == 1 + 2 * begins
    before = relay.waits
    assert log.run(turn([]), beside=True) == [] and relay.waits - before == 2 + begins
