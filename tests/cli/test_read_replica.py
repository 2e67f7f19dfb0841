"""`HOCKET_STORE_READ`: lists and pages from a streaming replica."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.cli.conftest import Program, home_in_postgres, until
from tests.postgres_replica import StreamingReplica
from tests.postgres_server import server


@pytest.fixture
def hocket(tmp_path: Path) -> Program:
    return home_in_postgres(tmp_path)


@pytest.fixture
def replica(hocket: Program) -> Iterator[StreamingReplica]:
    started = StreamingReplica(server())
    yield started
    started.remove()


def there(hocket: Program, replica: StreamingReplica) -> str:
    """The address of the home's store on the replica."""
    database = conninfo_to_dict((hocket.home / "store").read_text().strip())["dbname"]
    return replica.address(str(database))


def listed(hocket: Program, environment: dict[str, str]) -> set[str]:
    return {each["job_id"] for each in hocket("jobs", "--json", environment=environment, code=0).json}


@pytest.mark.req("VX-18")
def test_lists_come_from_the_replica_and_contain_what_this_home_wrote(
    hocket: Program, replica: StreamingReplica
) -> None:
    here = {"HOCKET_STORE_READ": there(hocket, replica)}
    first = hocket("submit", "test.echo", environment=here, code=0).job_id
    assert listed(hocket, here) == {first}
    until(lambda: hocket("jobs", "--json", environment={"HOCKET_STORE": there(hocket, replica)}).json, "the replay")
    replica.pause()
    # A program that does not know of the replica writes: the replica does not have that yet.
    second = hocket.submit("test.echo")
    assert listed(hocket, here) == {first} and listed(hocket, {}) == {first, second}
    # What is written here is read at once, from the primary.
    third = hocket("submit", "test.echo", environment=here, code=0).job_id
    assert listed(hocket, here) == {first, second, third}
    hocket("work", "tasks.py", "--until-idle", environment=here, code=0)
    shown = hocket("show", third, "--json", environment=here, code=0).json
    assert shown["outcome"] == "succeeded"
    replica.resume()
    replica.stop()
    assert listed(hocket, here) == {first, second, third}
    replica.start()


@pytest.mark.req("VX-18")
def test_a_replica_refuses_writes_and_claims_with_a_sentence(hocket: Program, replica: StreamingReplica) -> None:
    job_id = hocket.submit("test.echo")
    there_alone = {"HOCKET_STORE": there(hocket, replica)}
    until(lambda: hocket("jobs", "--json", environment=there_alone).json, "the replay")
    for command in (("submit", "test.echo"), ("work", "tasks.py", "--until-idle"), ("cancel", job_id)):
        said = hocket(*command, environment=there_alone, code=5).err
        assert "is read-only, as a replica is; give the address of the primary server" in said


@pytest.mark.touches("VX-18")
def test_bad_settings_are_one_sentence(hocket: Program, tmp_path: Path) -> None:
    address = (hocket.home / "store").read_text().strip()
    both = {"HOCKET_STORE_READ": address, "HOCKET_REPLICA": str(tmp_path / "replica.db")}
    assert "set one of them" in hocket("jobs", environment=both, code=2).sentence
    wrong = {"HOCKET_STORE_READ": "mysql://hush@host/db"}
    assert (said := hocket("jobs", environment=wrong, code=2).sentence).startswith("bad HOCKET_STORE_READ")
    assert "hush" not in said
    alone = Program(tmp_path / "alone")
    alone("init", code=0)
    for name in ("HOCKET_STORE_READ", "HOCKET_REPLICA"):
        said = alone("jobs", environment={name: address}, code=2).sentence
        assert said.startswith(f"{name} is for a store in a database server")
