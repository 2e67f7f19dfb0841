"""Commands on a node whose store is in PostgreSQL."""

from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Program, home_in_postgres
from tests.docs import reader
from tests.postgres_server import server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hocket(tmp_path: Path) -> Program:
    """A node whose home remembers its store."""
    return home_in_postgres(tmp_path)


@pytest.mark.req("VX-18")
def test_the_readme_as_it_stands_with_nothing_but_the_variable(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    env = reader.environment(tmp_path) | {"HOCKET_STORE": server().new_database()}
    for command, code, output in reader.shell(page, tmp_path, env):
        assert code == 0 and (not command.shown or reader.matches(command.shown, output)), f"$ {command.text}\n{output}"
    assert not list(tmp_path.rglob("log.db"))


@pytest.mark.req("VX-18")
def test_a_home_remembers_its_store_and_everything_works_there(hocket: Program, tmp_path: Path) -> None:
    done = hocket.submit("test.echo", '{"n": 1}', "--concurrency", 1)
    failed = hocket.submit("test.fail", "--retries", 0)
    unique = [hocket.submit("test.echo", "--unique", "once") for _ in range(2)]
    assert unique[0] == unique[1]
    hocket("cron", "add", "nightly", "0 3 * * *", "test.echo", code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(done)["state"] == "succeeded" and hocket.show(done)["result"] == {"n": 1}
    assert hocket.show(failed)["outcome"] == "failed"
    hocket("log", "verify", code=0)
    hocket("log", "rebuild", code=0)
    assert hocket.show(done)["result"] == {"n": 1}
    assert [each["name"] for each in hocket("cron", "list", "--json", code=0).json] == ["nightly"]
    hocket("doctor", code=0)
    assert not (hocket.home / "log.db").exists()


@pytest.mark.touches("VX-18")
def test_a_change_of_the_tables_is_found_and_undone(hocket: Program) -> None:
    job_id = hocket.submit("test.echo", '{"n": 1}')
    hocket("work", "tasks.py", "--until-idle", code=0)
    address = (hocket.home / "store").read_text().strip()
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE hocket.jobs SET outcome = 1, fence = 99")
    assert hocket.show(job_id)["outcome"] == "failed"
    hocket("log", "rebuild", code=0)
    assert hocket.show(job_id)["outcome"] == "succeeded"
    hocket("log", "verify", code=0)
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE hocket.ops SET body = set_byte(body, 40, 255 - get_byte(body, 40)) WHERE seq = 3")
    said = hocket("log", "verify")
    assert said.code == 1 and "3" in said.out + said.err


@pytest.mark.touches("VX-18")
def test_no_password_gets_into_a_list_of_processes_or_into_the_home(tmp_path: Path) -> None:
    hocket, address = Program(tmp_path / "home"), server().new_database()
    with_password = address.replace("postgres@", "postgres:hush@")
    assert "list of processes" in (said := hocket("init", "--store", with_password, code=2).sentence)
    assert "hush" not in said
    hocket("init", environment={"HOCKET_STORE": with_password}, code=0)
    assert (hocket.home / "store").read_text().strip() == address
    hocket("status", code=0)
    other = Program(tmp_path / "other")
    assert "has the log of node" in other("init", "--store", address, code=3).sentence
    empty = {"HOCKET_STORE": server().new_database()}
    assert "has no Hocket store" in hocket("status", environment=empty, code=5).sentence
    two = {"HOCKET_STORE": address, "HOCKET_DB_PATH": str(tmp_path / "log.db")}
    assert "name two different databases" in hocket("status", environment=two, code=2).sentence
    for wrong in ("mysql://hush@host/db", "log.db"):
        said = hocket("status", environment={"HOCKET_STORE": wrong}, code=2).sentence
        assert said.startswith("bad HOCKET_STORE") and "hush" not in said
    assert hocket("init", "--store", "log.db", home=tmp_path / "third", code=2).sentence.startswith("bad --store")
