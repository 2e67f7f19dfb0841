"""`hocket store move` between SQLite and PostgreSQL: nothing is lost, whenever it is killed, and a refused move changes
nothing.
"""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hocket import store as stores
from hocket.api import Service
from hocket.api.retention import keeping, pruning
from hocket.errors import StoreMoved
from hocket.log import copies
from hocket.node import home_store
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from hocket.node.store_move import move
from hocket.store import Store, local
from tests.cli.conftest import PROGRAM, Program, until
from tests.postgres_server import server

HOUR = 3_600_000


@pytest.fixture
def address() -> str:
    return server().new_database()


def state(hocket: Program) -> dict[str, Any]:
    """What a move must keep."""
    shown = hocket("status", "--json", code=0).json
    jobs = hocket("jobs", "--limit", 100, "--json", code=0).json
    return {
        "ops": int(shown["chain_head"].partition(":")[0]),
        "jobs": jobs,
        "details": [hocket.show(job["job_id"]) for job in jobs[:3]],
        "tokens": [each["name"] for each in hocket("token", "list", "--json", code=0).json],
        "peers": shown["peers"],
        "refusals": shown["refusals"],
    }


def furnish(hocket: Program) -> None:
    hocket("token", "create", "program", "--may", "job:read:test.", code=0)
    hocket("peers", "add", "http://127.0.0.1:9", code=0)
    hocket("invite", "leaf", "--may", "job:schedule", "--address", "http://127.0.0.1:9", code=0)


@pytest.mark.req("VX-18")
def test_a_log_moves_there_and_back_with_all_that_is_on_no_log(used: Program, address: str, tmp_path: Path) -> None:
    furnish(used)
    database, before = used.home / "log.db", state(used)
    said = used("store", "move", database, address, code=0)
    assert said.out.splitlines()[-1] == f"moved {before['ops']} ops from {database} to {address}"
    assert "copied" in said.out.splitlines()[0]
    assert state(used) == before and (used.home / "store").read_text().strip() == address
    assert "nothing changed" in used("log", "rebuild", code=0).out
    used("log", "verify", code=0)
    assert [each["name"] for each in used("invite", "--list", "--json", code=0).json] == ["leaf"]
    # A home that still uses the old file can read it, and cannot write.
    left = Program(tmp_path / "left")
    shutil.copytree(used.home, left.home)
    (left.home / "store").unlink()
    refused = left("submit", "test.echo", code=3).sentence
    assert f"was moved to {address}" in refused
    assert left("token", "create", "other", "--may", "job:read:test.", code=3).sentence == refused
    assert left("jobs", "--limit", 100, "--json", code=0).json == before["jobs"]
    # And back: the old file stands in the way.
    assert f"which was moved to {address}" in used("store", "move", address, database, code=3).sentence
    database.rename(tmp_path / "older.db")
    used("store", "move", address, database, code=0)
    assert state(used) == before and not (used.home / "store").exists()
    used("log", "verify", code=0)
    there = {"HOCKET_STORE": address}
    assert f"was moved to {database}" in used("submit", "test.echo", environment=there, code=3).sentence
    assert not used("status", "--json", environment=there, code=0).json["rebuilding"]
    used.submit("test.echo")


@pytest.mark.req("VX-18")
def test_a_pruned_log_moves_there_and_back_and_forgets_nothing_more(
    used: Program, address: str, tmp_path: Path
) -> None:
    database = used.home / "log.db"
    with Runtime.open(used.home) as runtime:
        log = runtime.log
        physical, wall = log.physical, log.wall
        log.physical = lambda: physical() + 5 * HOUR
        log.wall = lambda floor: max(wall(floor), physical() + 5 * HOUR)
        keeping.retain(Service(runtime), match="test.", keep_ms=HOUR, without_archive=True)
        assert pruning.prune(Service(runtime)).horizon.deleted
    before = state(used)
    assert len(before["jobs"]) == 1 and "log snapshot DIR" in used("log", "export", tmp_path / "ops", code=3).sentence
    for old, new in ((database, address), (address, database)):
        used("store", "move", old, new, code=0)
        if new == address:
            database.rename(tmp_path / "older.db")
        assert state(used) == before
        assert "nothing changed" in used("log", "rebuild", code=0).out
        used("log", "verify", code=0)
        assert "is deleted" in used("log", "prune", code=0).out


@pytest.mark.req("VX-18")
def test_a_store_that_has_moved_can_still_be_read_later(
    used: Program, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that opens a shared store notes there now and then that it uses it."""
    database = used.home / "log.db"
    used("store", "move", database, address, code=0)
    database.rename(tmp_path / "older.db")
    used("store", "move", address, database, code=0)
    monkeypatch.setattr(home_store, "USED_MS", -1)
    monkeypatch.setenv("HOCKET_STORE", address)
    runtime = Runtime.open(used.home)
    try:
        with runtime.store.read() as session:
            assert session.head().seq > 0
        with pytest.raises(StoreMoved):
            runtime.log.run(lambda tx: tx.session.set_meta("any", b""))
    finally:
        runtime.close()


@pytest.mark.req("VX-18")
def test_the_variable_that_still_names_the_old_store_is_said(used: Program, address: str, tmp_path: Path) -> None:
    database = used.home / "log.db"
    used("store", "move", database, address, code=0)
    database.rename(tmp_path / "older.db")
    secret = {"HOCKET_STORE": address.replace("postgres@", "postgres:hush@")}
    said = used("store", "move", address, database, environment=secret, code=0)
    assert "unset HOCKET_STORE" in said.sentence and "hush" not in said.out + said.err


@pytest.mark.req("VX-18")
def test_what_cannot_be_moved_is_refused_and_nothing_changes(used: Program, address: str, tmp_path: Path) -> None:
    database, before = used.home / "log.db", state(used)
    other = Program(tmp_path / "other")
    other("init", "--store", (full := server().new_database()), code=0)
    foreign = server().new_database()
    with psycopg.connect(foreign, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA hocket")
        connection.execute("CREATE TABLE hocket.invoices (id INTEGER)")
    nobody = address.replace("postgres@", "nobody_known@")
    cases = {
        (database, full): (3, "is not empty, it has a log"),
        (database, foreign): (5, "tables of another program"),
        (database, nobody): (5, 'role "nobody_known" does not exist'),
        (database, address.replace("postgres@", "postgres:hush@")): (2, "list of processes"),
        (full, address): (3, "has not the log of the node"),
        (database, database): (2, "is both the old and the new store"),
        (database, tmp_path / "elsewhere.db"): (2, "HOCKET_DB_PATH"),
        (tmp_path / "none.db", address): (5, "cannot be opened"),
    }
    for (old, new), (code, sentence) in cases.items():
        assert sentence in used("store", "move", old, new, code=code).sentence
    worker = used.start("work", "tasks.py")
    until(lambda: used("status", "--json", code=0).json["workers"], "the worker's start")
    assert "workers are running" in used("store", "move", database, address, code=3).sentence
    worker.terminate()
    used.finished(worker)
    assert state(used) == before and not (used.home / "store").exists()
    used.submit("test.echo")


@pytest.mark.req("VX-18")
def test_a_damaged_op_is_not_copied(used: Program, address: str) -> None:
    with closing(sqlite3.connect(used.home / "log.db")) as connection, connection:
        ((body,),) = connection.execute("SELECT body FROM ops WHERE seq = 9").fetchall()
        connection.execute("UPDATE ops SET body = ? WHERE seq = 9", (body[:-1] + bytes([body[-1] ^ 1]),))
    said = used("store", "move", used.home / "log.db", address, code=5).sentence
    assert said.startswith("op 9 was not copied: its mark")
    assert not (used.home / "store").exists()


@pytest.mark.req("VX-18")
def test_a_full_disk_is_said_and_the_move_goes_on_later(used: Program, address: str, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    import resource

    database, before = used.home / "log.db", state(used)
    used("store", "move", database, address, code=0)
    database.rename(tmp_path / "older.db")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    command = [*PROGRAM, "store", "move", address, str(database)]
    done = subprocess.run(command, capture_output=True, text=True, env=used.environment(), preexec_fn=limited)
    assert done.returncode == 5 and len(done.stderr.splitlines()) == 1, done
    assert state(used) == before
    used("store", "move", address, database, code=0)
    assert state(used) == before and not (used.home / "store").exists()


# Killed again and again.


class Killed(BaseException):
    pass


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Ends the program before its n-th write transaction, in whichever store. Transactions are kept whole or not at
    all, so these are all the moments that differ.
    """
    left = [0]
    opened = stores.open

    def counted(write: Callable[[], Any]) -> Callable[[], Any]:
        def begin() -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return write()

        return begin

    def open_counted(url: Path | str, *, create: bool = False) -> Store:
        found = opened(url, create=create)
        monkeypatch.setattr(found, "write", counted(found.write))
        return found

    monkeypatch.setattr("hocket.node.store_move.open_store", open_counted)
    monkeypatch.setattr(copies, "COPY_STEP", 20)
    yield lambda n: left.__setitem__(0, n)


@pytest.mark.req("VX-18")
def test_a_move_that_ends_anywhere_is_finished_by_the_next(
    used: Program, address: str, killed_after: Callable[[int], None]
) -> None:
    """Each try may do one transaction more than the last one, so that each of them is the last of some try."""
    before, database, tries = state(used), used.home / "log.db", 0
    while True:
        tries += 1
        assert tries < 100
        killed_after(tries)
        try:
            move(Home(used.home), str(database), address, lambda done, total: None)
            break
        except Killed:
            assert not (used.home / "store").exists()
            with closing(stores.open(database)) as kept, kept.read() as session:
                is_moved = session.meta(local.MOVED) is not None
            if tries > 1 and not is_moved:
                half = used("status", environment={"HOCKET_STORE": address})
                assert half.code in (3, 5), half
    assert tries > 4 and state(used) == before
    assert "nothing changed" in used("log", "rebuild", code=0).out
    used("log", "verify", code=0)


@pytest.mark.req("VX-18")
def test_what_others_write_while_the_ops_are_copied_moves_too(
    used: Program, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPY_STEP", 20)
    written: list[str] = []

    def write(done: int, total: int) -> None:
        if not written:
            used("token", "create", "late", "--may", "job:read:test.", code=0)
            written.append(used.submit("test.echo"))

    move(Home(used.home), str(used.home / "log.db"), address, write)
    assert used.show(written[0])["state"] == "pending"
    assert [each["name"] for each in used("token", "list", "--json", code=0).json] == ["late"]
    used("log", "verify", code=0)


@pytest.mark.req("VX-18")
def test_a_process_that_is_killed_again_and_again_moves_everything(hocket: Program, address: str) -> None:
    lines = [{"kind": "test.echo", "payload": {"n": n}} for n in range(4_000)]
    hocket("submit", "--batch", "-", input="\n".join(map(json.dumps, lines)), code=0)
    before, kills = state(hocket), 0
    while True:
        process = hocket.start("store", "move", hocket.home / "log.db", address)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("copied") or line.startswith("copied 4002"):
            hocket.finished(process)
            break
        process.kill()
        process.communicate()
        kills += 1
    assert kills > 3 and state(hocket) == before
    hocket("log", "verify", code=0)


# What becomes of each table.


@pytest.mark.req("VX-18")
def test_every_table_is_copied_derived_or_left_on_purpose(used: Program, address: str) -> None:
    derived = {
        *("jobs", "finished", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts", "evictions"),
        *("delegations", "revocations", "coordinators", "forks", "written", "messages", "deliveries", "group_cursors"),
        *("arguments", "successions"),
    }
    known = {"head", "ops", "hocket_version"} | derived | local.KEPT.keys()
    known |= {*local.LEFT, *local.CARRIED, *local.SETTLED}
    assert not derived & local.KEPT.keys() and not set(local.LEFT) & local.KEPT.keys()
    with closing(sqlite3.connect(used.home / "log.db")) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {name for name in found if not name.startswith("sqlite")} <= known | {local.TO_MAC}
    used("store", "migrate", address, code=0)
    with psycopg.connect(address) as server_side:
        rows = server_side.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hocket'").fetchall()
    assert {name for (name,) in rows} == known
