"""`HOCKET_REPLICA`: a local copy of a store in PostgreSQL answers reads, and changes go to the server."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hocket.api import Service
from hocket.api.retention import keeping, pruning
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import parse_ulid
from hocket.kernel.policy import DEFAULT
from hocket.log import copies
from hocket.node.runtime import Runtime
from tests.cli.conftest import Program, home_in_postgres, until
from tests.cli.fork_server import start_command
from tests.postgres_server import server

HOUR = 3_600_000


@pytest.fixture
def hocket(tmp_path: Path) -> Program:
    return home_in_postgres(tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> dict[str, str]:
    return {"HOCKET_REPLICA": str(tmp_path / "replica.db")}


def copied(environment: dict[str, str]) -> int:
    """How many ops the replica has."""
    try:
        with closing(sqlite3.connect(environment["HOCKET_REPLICA"])) as connection:
            ((ops,),) = connection.execute("SELECT seq FROM head").fetchall()
    except (sqlite3.OperationalError, ValueError):
        return 0
    return int(ops)


@pytest.mark.req("VX-14")
def test_reads_are_local_and_writes_go_to_the_server_and_are_read_at_once(
    hocket: Program, here: dict[str, str]
) -> None:
    job_id = hocket("submit", "test.echo", '{"n": 1}', environment=here, code=0).job_id
    assert hocket("show", job_id, "--json", environment=here, code=0).json["state"] == "pending"
    hocket("work", "tasks.py", "--until-idle", environment=here, code=0)
    shown = hocket("show", job_id, "--json", environment=here, code=0).json
    assert shown["result"] == {"n": 1} and shown == hocket.show(job_id)
    there = hocket("status", "--json", code=0).json
    local = hocket("status", "--json", environment=here, code=0).json
    assert local["chain_head"] == there["chain_head"] and local["replica"]["ops"] == there["ops"]
    assert there["replica"] is None and "old" in hocket("status", environment=here, code=0).out
    server().stop()
    try:
        # At first the copy is too young to be followed again.
        until(lambda: hocket("jobs", environment=here, code=0).err, "the first look at the server")
        away = hocket("jobs", "--json", environment=here, code=0)
        assert [each["job_id"] for each in away.json] == [job_id]
        assert "read from the replica" in away.sentence and "cannot connect" in away.sentence
        assert hocket("show", job_id, "--json", environment=here, code=0).json["result"] == {"n": 1}
        known = hocket("status", "--json", environment=here, code=0).json["replica"]
        assert known["followed_ms"] >= local["replica"]["followed_ms"] and "cannot connect" in known["error"]
        refused = hocket("cancel", job_id, environment=here, code=5)
        assert "cannot connect" in refused.err
        assert hocket("jobs", code=5).sentence.startswith("cannot connect")
    finally:
        server().start()
    other = hocket("submit", "test.echo", environment=here, code=0).job_id
    assert {each["job_id"] for each in hocket("jobs", "--json", environment=here, code=0).json} == {job_id, other}


@pytest.mark.req("VX-14")
def test_a_process_reads_what_it_wrote_however_young_the_replica_is(
    hocket: Program, here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_REPLICA", here["HOCKET_REPLICA"])
    monkeypatch.setattr(copies, "FOLLOW_MS", 3_600_000)
    with Runtime.open(hocket.home) as runtime:
        with runtime.view() as session:
            assert session.head().seq == copied(here)
        (made,) = runtime.submit([Draft("test.echo", b"{}", DEFAULT)])
        with runtime.view() as session:
            assert session.job(made.job_id) is not None
        # Of others it learns when the replica is old enough.
        other = hocket.submit("test.echo")
        monkeypatch.setattr(copies, "FOLLOW_MS", 0)
        with runtime.view() as session:
            assert session.job(parse_ulid(other)) is not None


@pytest.mark.req("VX-14")
def test_a_replica_follows_a_log_that_is_pruned(
    hocket: Program, here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(json.dumps({"kind": "test.echo", "payload": {"n": n}}) for n in range(20))
    hocket("submit", "--batch", "-", input=lines, code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    open_one = hocket.submit("test.other")
    assert len(hocket("jobs", "--limit", 50, "--json", environment=here, code=0).json) == 21
    with Runtime.open(hocket.home) as runtime:
        log = runtime.log
        physical, wall = log.physical, log.wall
        log.physical = lambda: physical() + 5 * HOUR
        log.wall = lambda floor: max(wall(floor), physical() + 5 * HOUR)
        keeping.retain(Service(runtime), keep_ms=HOUR, without_archive=True)
        assert pruning.prune(Service(runtime)).horizon.deleted
    monkeypatch.setattr(copies, "FOLLOW_MS", 0)
    for environment in (here, here | {"HOCKET_REPLICA": f"{here['HOCKET_REPLICA']}.new"}):
        until(lambda e=environment: len(hocket("jobs", "--json", environment=e, code=0).json) == 1, "the horizon")  # type: ignore[misc]
        assert hocket.show(open_one) == hocket("show", open_one, "--json", environment=environment, code=0).json
        there = hocket("status", "--json", code=0).json
        local = hocket("status", "--json", environment=environment, code=0).json
        assert (local["chain_head"], local["ops"]) == (there["chain_head"], there["ops"])


@pytest.mark.req("VX-14")
def test_a_follower_that_is_killed_in_the_middle_leaves_a_good_replica(hocket: Program, here: dict[str, str]) -> None:
    lines = [{"kind": "test.echo", "payload": {"n": n}} for n in range(4_000)]
    hocket("submit", "--batch", "-", input="\n".join(map(json.dumps, lines)), code=0)
    whole = hocket("status", "--json", code=0).json
    kills = 0
    while copied(here) < whole["ops"] / 2:
        before = copied(here)
        process = start_command(["jobs"], hocket.environment() | here, hocket.home.parent)
        hocket.started.append(process)
        until(lambda before=before: copied(here) > before, "a step of the follower")  # type: ignore[misc]
        process.kill()
        process.communicate()
        kills += 1
    assert kills > 1
    local = hocket("status", "--json", environment=here, code=0).json
    assert (local["ops"], local["chain_head"], local["jobs"]) == (whole["ops"], whole["chain_head"], whole["jobs"])
    assert hocket("jobs", "--limit", 5_000, "--json", environment=here, code=0).json == (
        hocket("jobs", "--limit", 5_000, "--json", code=0).json
    )


@pytest.mark.req("VX-14")
def test_a_file_that_is_no_replica_of_this_store_is_refused(
    hocket: Program, here: dict[str, str], tmp_path: Path
) -> None:
    hocket("jobs", environment=here, code=0)
    other = Program(tmp_path / "other")
    other("init", "--store", server().new_database(), code=0)
    assert "is the replica of another store" in other("jobs", environment=here, code=3).sentence
    alone = Program(tmp_path / "alone")
    alone("init", code=0)
    own = {"HOCKET_REPLICA": str(alone.home / "log.db")}
    assert "is a store of its own" in other("jobs", environment=own, code=3).sentence
    alone.submit("test.echo")
    # A replica is not a store to write to.
    bare = Program(tmp_path / "bare")
    shutil.copytree(hocket.home, bare.home)
    (bare.home / "store").unlink()
    file = {"HOCKET_DB_PATH": here["HOCKET_REPLICA"]}
    assert "is a replica of another store" in bare("submit", "test.echo", environment=file, code=3).sentence
