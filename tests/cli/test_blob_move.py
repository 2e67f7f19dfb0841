"""`hocket store move` takes blobs along: from a home into the store, from one store to another, and back."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hocket.families.blobs import HomeBlobs
from hocket.log import copies
from hocket.node import store_move
from hocket.node.home import Home
from hocket.node.store_move import move
from hocket.store.artifact_rows import PART_BYTES, BlobPlace
from hocket.store.postgres.blobs import PostgresBlobs
from tests.cli.conftest import Program
from tests.postgres_server import server

CONTENTS = [random.Random(n).randbytes(70_000 + n * PART_BYTES) for n in range(3)]


def blobs_in(address: str) -> int:
    with psycopg.connect(address) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM hocket.blobs").fetchall()
    return int(count)


def put(program: Program, data: bytes) -> str:
    file = program.home.parent / "content"
    file.write_bytes(data)
    artifact_id: str = program("artifacts", "put", file, "--type", "test.file", "--json", code=0).json["artifact_id"]
    return artifact_id


def got(program: Program, artifact_id: str) -> bytes:
    out = program.home.parent / "got"
    program("artifacts", "get", artifact_id, "--output", out, code=0)
    return out.read_bytes()


def contents(program: Program, made: list[str]) -> list[bytes]:
    return [got(program, artifact_id) for artifact_id in made]


def forget_copies(program: Program) -> None:
    """The home has only what it cannot find elsewhere."""
    shutil.rmtree(program.home / "blobs", ignore_errors=True)


@pytest.fixture
def made(hocket: Program) -> list[str]:
    return [put(hocket, data) for data in CONTENTS]


@pytest.mark.req("VX-18")
def test_blobs_move_into_the_store_to_another_one_and_back(hocket: Program, made: list[str]) -> None:
    database, one, two = hocket.home / "log.db", server().new_database(), server().new_database()
    said = hocket("store", "move", database, one, "--blobs", "store", code=0).out
    assert " ops and 3 blobs from " in said and blobs_in(one) == 3
    forget_copies(hocket)
    assert contents(hocket, made) == CONTENTS
    added = put(hocket, CONTENTS[2][::-1])
    assert blobs_in(one) == 4
    # The next store goes on with it.
    assert hocket("store", "move", one, two, "--json", code=0).json["blobs"] == 4 and blobs_in(two) == 4
    forget_copies(hocket)
    assert contents(hocket, [*made, added]) == [*CONTENTS, CONTENTS[2][::-1]]
    database.rename(database.with_name("older"))
    assert hocket("store", "move", two, database, "--json", code=0).json["blobs"] == 4
    assert contents(hocket, [*made, added]) == [*CONTENTS, CONTENTS[2][::-1]]
    assert hocket("artifacts", "gc", "--json", code=0).json["blobs"] == 0
    # A store without them stays without them.
    three = server().new_database()
    assert hocket("store", "move", database, three, "--json", code=0).json["blobs"] == 0 and blobs_in(three) == 0
    put(hocket, CONTENTS[1][::-1])
    assert blobs_in(three) == 0 and contents(hocket, made) == CONTENTS


class Killed(BaseException):
    pass


def killing(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[None]:
    """Each call that copies something is the last one of its process, as far as the next one."""
    real = getattr(owner, name)
    left = [0]

    def once(*arguments: Any, **options: Any) -> Any:
        done = real(*arguments, **options)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return done

    monkeypatch.setattr(owner, name, once)
    while True:
        left[0] = 1
        yield


def move_until_done(home: Path, source: str, target: str, deaths: Iterator[None], blobs: BlobPlace | None) -> int:
    kills = 0
    while True:
        next(deaths)
        try:
            move(Home(home), source, target, lambda done, total: None, blobs)
            return kills
        except Killed:
            kills += 1


@pytest.mark.req("VX-18")
def test_a_move_that_is_killed_after_every_blob_goes_on_where_it_was(
    hocket: Program, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_move, "STEP", 2)
    database, address = hocket.home / "log.db", server().new_database()
    with monkeypatch.context() as patch:
        deaths = killing(patch, PostgresBlobs, "write")
        assert move_until_done(hocket.home, str(database), address, deaths, BlobPlace.STORE) == 3
    forget_copies(hocket)
    assert contents(hocket, made) == CONTENTS
    database.rename(database.with_name("older"))
    forget_copies(hocket)
    with monkeypatch.context() as patch:
        deaths = killing(patch, HomeBlobs, "keep")
        assert move_until_done(hocket.home, address, str(database), deaths, None) == 3
    assert contents(hocket, made) == CONTENTS
    hocket("log", "verify", code=0)


@pytest.mark.req("VX-18")
def test_what_is_put_while_the_log_is_copied_moves_too(
    hocket: Program, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPY_STEP", 1)
    address, other = server().new_database(), server().new_database()
    hocket("store", "move", hocket.home / "log.db", address, "--blobs", "store", code=0)
    late: list[str] = []

    def write(done: int, total: int) -> None:
        if not late:
            late.append(put(hocket, CONTENTS[0][::-1]))

    move(Home(hocket.home), address, other, write)
    forget_copies(hocket)
    assert contents(hocket, [*made, *late]) == [*CONTENTS, CONTENTS[0][::-1]]


@pytest.mark.req("VX-18")
def test_what_is_too_large_for_the_database_stays_in_the_home(
    hocket: Program, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_move, "STORED_BYTES_MAX", 100_000)
    address = server().new_database()
    move(Home(hocket.home), str(hocket.home / "log.db"), address, lambda done, total: None, BlobPlace.STORE)
    assert blobs_in(address) == 1 and contents(hocket, made) == CONTENTS


@pytest.mark.req("VX-18")
def test_what_cannot_be_moved_is_refused(hocket: Program, made: list[str], tmp_path: Path) -> None:
    database, address, other = hocket.home / "log.db", server().new_database(), server().new_database()
    broken = next(path for path in (hocket.home / "blobs").rglob("*") if len(path.name) == 64)
    whole = broken.read_bytes()
    broken.write_bytes(b"x" + whole[1:])
    refused = hocket("store", "move", database, address, "--blobs", "store", code=5).sentence
    assert f"is damaged; restore {broken} from a backup" in refused and not (hocket.home / "store").exists()
    broken.write_bytes(whole)
    hocket("store", "move", database, address, "--blobs", "store", code=0)
    database.rename(tmp_path / "older")
    refused = hocket("store", "move", address, database, "--blobs", "store", code=2).sentence
    assert "and the new one is not" in refused and not database.exists()
    second = Program(tmp_path / "second")
    second("init", "--store", address, "--user-key", hocket.home / "user.key", "--name", "second", code=0)
    refused = hocket("store", "move", address, other, "--blobs", "home", code=3).sentence
    assert "shares this store, and could no longer read its blobs" in refused
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE hocket.blob_parts SET content = '\\x00' WHERE number = 1")
    refused = hocket("store", "move", address, other, code=5).sentence
    assert "is damaged; restore it in postgresql://" in refused
    assert contents(hocket, made) == CONTENTS, "from the copies in the home"
