"""`hocket store migrate`: the tables of a store, by whom they are made, and with which rights a role can use them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from hocket.store.postgres import migration
from hocket.store.statements import MAC_TABLES as MAC_TABLES_NOW
from tests.cli.conftest import TASKS, Program
from tests.postgres_server import server

# The rights that docs/postgres.md lists.
DOCS = Path(__file__).parents[2] / "docs"
RIGHTS = (
    "GRANT USAGE ON SCHEMA hocket TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hocket TO {role}",
)
# Those that version 1 has.
LATER_TABLES = ("checkpoints", "heads", "bases", "gaps", "pruning", "witnessed", "successions")
MAC_TABLES = {table: each for table, each in MAC_TABLES_NOW.items() if table not in LATER_TABLES}
OF_NODE = [table for table, each in MAC_TABLES.items() if each.owner == "of_node"]


@pytest.fixture
def hocket(tmp_path: Path) -> Program:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Program(tmp_path / "home")


def administer(address: str, *commands: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for command in commands:
            connection.execute(command)


def tables(address: str, schema: str = "hocket") -> set[str]:
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    return {name for (name,) in found}


def new_role(address: str, name: str) -> str:
    """The address for a new role without any right in the database."""
    administer(address, f"CREATE ROLE {name} LOGIN")
    return address.replace("postgres@", f"{name}@")


@pytest.mark.req("VX-02")
def test_twenty_processes_migrate_at_once(hocket: Program) -> None:
    address = server().new_database()
    started = [hocket.start("store", "migrate", address, "--json") for _ in range(20)]
    done = [hocket.finished(process).json for process in started]
    assert {each["to"] for each in done} == {migration.VERSION}
    assert "ops" in tables(address)
    assert hocket("store", "migrate", address, code=0).out.strip().endswith("nothing to do")
    hocket("init", "--store", address, code=0)


@pytest.mark.req("VX-18")
def test_a_store_of_version_1_is_brought_to_the_current_one_and_refuses_the_older_program(hocket: Program) -> None:
    address = server().new_database()
    hocket("init", "--store", address, code=0)
    done = hocket.submit("test.echo")
    hocket("work", "tasks.py", "--until-idle", code=0)
    administer(
        address,
        "DROP INDEX hocket.ops_bundles, hocket.jobs_done",
        *(f"DROP TABLE hocket.{table}" for table in LATER_TABLES),
        "ALTER TABLE hocket.ops DROP COLUMN place",
        *(f"ALTER TABLE hocket.{table} DROP COLUMN mac" for table in MAC_TABLES),
        *(f"ALTER TABLE hocket.{table} DROP COLUMN of_node" for table in OF_NODE),
        *(f"ALTER TABLE hocket.{table} ADD PRIMARY KEY ({MAC_TABLES[table].key})" for table in OF_NODE),
        "ALTER TABLE hocket.tokens ADD UNIQUE (id)",
        "CREATE INDEX answers_by_age ON hocket.answers (made)",
        "CREATE INDEX held_by_wall ON hocket.held (wall)",
        "CREATE INDEX held_by_author ON hocket.held (author)",
        "DROP TABLE hocket.blob_parts, hocket.blobs, hocket.progress, hocket.arguments",
        "ALTER TABLE hocket.finished DROP COLUMN author",
        "ALTER TABLE hocket.finished ADD PRIMARY KEY (kind, outcome)",
        "UPDATE hocket.hocket_version SET version = 1",
    )
    assert "ALTER TABLE finished" in hocket("store", "migrate", address, "--dry-run", code=0).out
    hocket.submit("test.echo")
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(done)["outcome"] == "succeeded"
    assert hocket("status", "--json", code=0).json["jobs"]["succeeded"] == 2
    # How a process of version 1 that still runs counts what ends: each of its changes of jobs contains this.
    counts = "INSERT INTO hocket.finished (kind, outcome, jobs) SELECT 'k', 0, 1 ON CONFLICT (kind, outcome) DO NOTHING"
    with pytest.raises(psycopg.Error):
        administer(address, counts)


@pytest.mark.req("VX-18")
def test_a_dry_run_prints_what_an_administrator_can_run_and_changes_nothing(hocket: Program) -> None:
    address = server().new_database()
    script = hocket("store", "migrate", address, "--dry-run", code=0).out
    assert tables(address) == set()
    administer(address, script)
    by_hand = tables(address)
    said = hocket("store", "migrate", address, "--dry-run", code=0).out
    assert f"has version {migration.VERSION}; nothing to do" in said
    other = server().new_database()
    hocket("store", "migrate", other, code=0)
    assert tables(other) == by_hand
    hocket("init", "--store", address, code=0)


@pytest.mark.req("VX-18")
def test_a_role_with_the_documented_minimum_of_rights_can_do_everything(hocket: Program) -> None:
    page = (DOCS / "postgres.md").read_text()
    assert all(right.format(role="hocket") in page for right in RIGHTS)
    address = server().new_database()
    hocket("store", "migrate", address, code=0)
    limited = new_role(address, "limited")
    said = hocket("init", "--store", limited, code=5).sentence
    assert all(right.format(role='"limited"') in said for right in RIGHTS)
    administer(address, *(right.format(role="limited") for right in RIGHTS))
    hocket("init", "--store", limited, code=0)
    job_id = hocket.submit("test.echo", '{"n": 1}')
    hocket("lock", "acquire", "src/a.py", "--agent", "a", code=0)
    hocket("send", "b", "hello", "--agent", "a", code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job_id)["result"] == {"n": 1}
    hocket("log", "rebuild", code=0)
    hocket("log", "verify", code=0)
    hocket("doctor", code=0)


@pytest.mark.req("VX-18")
def test_a_role_that_may_not_create_tables_is_told_what_helps_and_that_helps(hocket: Program, tmp_path: Path) -> None:
    address = server().new_database()
    poor = new_role(address, "poor")
    said = hocket("init", "--store", poor, code=5).sentence
    remedy = said.rpartition("an administrator can run: ")[2]
    assert remedy == 'CREATE SCHEMA hocket AUTHORIZATION "poor"'
    # The schema is there, and belongs to another role.
    administer(address, "CREATE SCHEMA hocket")
    said = hocket("init", "--store", poor, code=5).sentence
    remedy = said.rpartition("an administrator can run: ")[2]
    assert remedy == 'GRANT USAGE, CREATE ON SCHEMA hocket TO "poor"'
    administer(address, remedy)
    hocket("init", "--store", poor, code=0)


@pytest.mark.req("VX-18")
def test_newer_tables_and_those_of_another_program_are_refused(hocket: Program) -> None:
    address = server().new_database()
    hocket("init", "--store", address, code=0)
    administer(address, f"UPDATE hocket.hocket_version SET version = {migration.VERSION + 1}")
    for command in (("store", "migrate"), ("store", "migrate", "--dry-run"), ("status",)):
        assert f"has version {migration.VERSION + 1}, this program knows up to" in hocket(*command, code=5).sentence
    other = server().new_database()
    administer(other, "CREATE SCHEMA hocket", "CREATE TABLE hocket.invoices (id INTEGER)")
    for options in ((), ("--dry-run",)):
        assert "has tables of another program" in hocket("store", "migrate", other, *options, code=5).sentence
    assert tables(other) == {"invoices"}


@pytest.mark.req("VX-18")
def test_sqlite_has_the_same_command(hocket: Program, tmp_path: Path) -> None:
    hocket("init", code=0)
    assert "nothing to do" in hocket("store", "migrate", code=0).out
    new = tmp_path / "new.db"
    script = hocket("store", "migrate", new, "--dry-run", code=0).out
    assert not new.exists()
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.executescript(script)
    assert "nothing to do" in hocket("store", "migrate", new, code=0).out
    with closing(sqlite3.connect(hocket.home / "log.db")) as connection:
        connection.execute("PRAGMA user_version=1000")
    assert "has version 1000" in hocket("store", "migrate", "--dry-run", code=5).sentence


@pytest.mark.touches("VX-18")
def test_no_password_is_accepted_or_shown(hocket: Program) -> None:
    address = server().new_database()
    secret = address.replace("postgres@", "postgres:hush@")
    said = hocket("store", "migrate", secret, code=2).sentence
    assert "list of processes" in said and "hush" not in said
    shown = hocket("store", "migrate", address, environment={"HOCKET_STORE": secret}, code=0)
    assert "hush" not in shown.out + shown.err
