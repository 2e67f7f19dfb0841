"""How often a process waits for the database server, counted on the way there."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.store.postgres import PostgresStore
from tests.cli.conftest import TASKS, Program
from tests.log.roster.world import READER, introduction, new_log
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


@pytest.mark.touches("VX-18")
def test_a_single_submit_costs_three(relay: Relay) -> None:
    """One begins and locks, one reads what the kind has been told, and one writes and commits."""
    name = server().new_database(template=prepared()).partition("@/")[2].partition("?")[0]
    with closing(PostgresStore(f"postgresql://postgres@127.0.0.1:{relay.port}/{name}")) as store:
        log = new_log(store)
        log.run(lambda tx: tx.author(introduction(READER).payload))
        for _ in range(10):  # until all statements are prepared
            log.append_plain("k", b"{}")
        before = relay.waits
        log.append_plain("k", b"{}")
        assert relay.waits - before == 3
