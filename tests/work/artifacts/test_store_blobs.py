"""Blobs in a home and in a store that nodes share: the same suite for both. Then what only a shared store must show:
nodes that write at once, die half-way, lose their connection, and delete what others may still need.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from blake3 import blake3

from hocket import store as stores
from hocket.errors import StoreError
from hocket.families import blobs as store_blobs
from hocket.families.blobs import GARBAGE_AGE_S, Blobs, Damaged, HomeBlobs, StoreBlobs
from hocket.store import BlobTable
from hocket.store.artifact_rows import PART_BYTES
from hocket.store.postgres import blobs as postgres_blobs
from hocket.store.postgres import migration
from hocket.store.postgres.blobs import PostgresBlobs
from tests.postgres_relay import Relay
from tests.postgres_server import prepared, server
from tests.waiting import wait_for as until

PATIENCE_S = 60.0
HOUR_MS = 3_600_000


@pytest.fixture
def address() -> str:
    return server().new_database(template=prepared())


@pytest.fixture
def table(address: str) -> Iterator[BlobTable]:
    with closing(PostgresBlobs(address)) as made:
        yield made


@pytest.fixture
def shared(table: BlobTable, tmp_path: Path) -> StoreBlobs:
    """Another node than the one whose home has the copies."""
    return StoreBlobs(HomeBlobs(tmp_path / "other"), table)


def random_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


LARGE = random_bytes(2 * PART_BYTES + 12_345)


def sql(address: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path = hocket")
        done = connection.execute(statement, values)
        return [] if done.description is None else done.fetchall()


def put(table: BlobTable, data: bytes) -> bytes:
    hash = blake3(data).digest()
    table.write(hash, len(data), lambda: iter([data]))
    return hash


def counted(address: str) -> tuple[int, int]:
    return sql(address, "SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_parts)")[0]  # type: ignore[return-value]


# The suite of the interface.


class Kind:
    """`read_by` reads what `written_by` has written. `damage` changes the first byte behind their backs."""

    written_by: Blobs
    read_by: Blobs
    damage: Callable[[bytes], None]


@pytest.fixture(params=["home", "store"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    made = Kind()
    here = HomeBlobs(tmp_path / "blobs")
    if request.param == "home":
        made.written_by = made.read_by = here

        def damage(hash: bytes) -> None:
            place = here._place(hash)
            place.write_bytes(b"\xff" + place.read_bytes()[1:])

        made.damage = damage
        yield made
        here.close()
        return
    address = request.getfixturevalue("address")
    made.written_by = StoreBlobs(here, PostgresBlobs(address))
    made.read_by = StoreBlobs(HomeBlobs(tmp_path / "other"), PostgresBlobs(address))
    made.damage = lambda hash: void(
        sql(address, "UPDATE blobs SET content = overlay(content PLACING '\\xff'::bytea FROM 1) WHERE hash = %s", hash)
    )
    yield made
    made.written_by.close()
    made.read_by.close()


def void(_: object) -> None:
    pass


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, len(LARGE)])
def test_what_is_kept_is_read_again(kind: Kind, tmp_path: Path, size: int) -> None:
    data = LARGE[:size]
    (tmp_path / "file").write_bytes(data)
    staged = kind.written_by.stage(tmp_path / "file")
    assert staged.hash == blake3(data).digest() and staged.size == size
    kind.written_by.keep(staged)
    kind.written_by.keep(kind.written_by.renewed(staged))
    for blobs in (kind.read_by, kind.written_by):
        assert blobs.has(staged.hash) and blobs.read(staged.hash) == data
        assert b"".join(blobs.chunks(staged.hash)) == data
        for start, wanted in ((0, 10), (size // 2, PART_BYTES), (max(0, size - 3), 100), (size, 5), (0, size + 1)):
            assert blobs.part(staged.hash, start, wanted) == data[start : start + wanted]


@pytest.mark.req("VX-18")
def test_what_is_not_there(kind: Kind) -> None:
    for blobs in (kind.read_by, kind.written_by):
        assert not blobs.has(bytes(32)) and blobs.read(bytes(32)) is None and blobs.part(bytes(32), 0, 5) is None
        assert list(blobs.chunks(bytes(32))) == [] and blobs.remove(bytes(32)) == 0 and list(blobs.all()) == []


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("size", [100_000, len(LARGE)])
def test_a_damaged_blob_is_not_given_out_and_is_written_again(kind: Kind, size: int) -> None:
    data = LARGE[:size]
    kind.written_by.keep(staged := kind.written_by.stage(data))
    kind.damage(staged.hash)
    for read in (kind.read_by.read, lambda hash: list(kind.read_by.chunks(hash))):
        with pytest.raises(Damaged, match=r"is damaged; restore .* from a backup"):
            read(staged.hash)
    kind.written_by.keep(kind.written_by.stage(data))
    assert kind.read_by.read(staged.hash) == data


# What others see of a blob that is being written.


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("how", ["UPDATE blobs SET size = 7", "DELETE FROM blob_parts WHERE number = 1"])
def test_parts_that_are_missing_or_of_another_size_are_found(
    address: str, table: BlobTable, shared: StoreBlobs, how: str
) -> None:
    hash = put(table, LARGE)
    sql(address, how)
    if "DELETE" in how:
        with pytest.raises(Damaged):
            shared.read(hash)
    put(table, LARGE)
    assert shared.read(hash) == LARGE and counted(address) == (1, 2)
    assert sql(address, "SELECT size FROM blobs") == [(len(LARGE),)]


@pytest.mark.req("VX-18")
def test_content_that_does_not_match_its_hash_is_not_stored(address: str, table: BlobTable) -> None:
    with pytest.raises(StoreError, match="the content is not blake3:"):
        table.write(bytes(32), len(LARGE), lambda: iter([LARGE]))
    assert counted(address) == (0, 0) and not table.among([bytes(32)])


@pytest.mark.req("VX-18")
def test_no_statement_carries_more_than_a_part(address: str, table: BlobTable) -> None:
    put(table, LARGE)
    sizes = sql(address, "SELECT length(content) FROM blobs UNION ALL SELECT length(content) FROM blob_parts")
    assert sorted(size for (size,) in sizes) == [12_345, PART_BYTES, PART_BYTES]


def half_then(event: threading.Event, reached: threading.Event, fail: bool = False) -> Callable[[], Iterator[bytes]]:
    """Content that stops after its first parts until the event."""

    def content() -> Iterator[bytes]:
        yield LARGE[: PART_BYTES + 1]
        reached.set()
        assert event.wait(PATIENCE_S)
        if fail:
            raise StoreError("the first one fails")
        yield LARGE[PART_BYTES + 1 :]

    return content


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("fails", [False, True])
def test_two_nodes_that_write_the_same_blob_at_once_make_one(address: str, shared: StoreBlobs, fails: bool) -> None:
    hash, go, reached = blake3(LARGE).digest(), threading.Event(), threading.Event()
    with (
        closing(PostgresBlobs(address)) as first,
        closing(PostgresBlobs(address)) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        slow = pool.submit(first.write, hash, len(LARGE), half_then(go, reached, fails))
        assert reached.wait(PATIENCE_S)
        assert not shared.has(hash) and shared.read(hash) is None and shared.part(hash, 0, 5) is None
        waiting = pool.submit(put, second, LARGE)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until(lambda: sql(address, waits) == [(1,)])
        assert not shared.has(hash)
        go.set()
        assert waiting.result() == hash
        if fails:
            with pytest.raises(StoreError, match="the first one fails"):
                slow.result()
        else:
            slow.result()
    assert shared.read(hash) == LARGE and counted(address) == (1, 2)


DIES = """
import sys
from hocket.store.postgres.blobs import PostgresBlobs
from blake3 import blake3

data = bytes(8 * 1024 * 1024)

def content():
    for start in range(0, len(data), 65_536):
        yield data[start : start + 65_536]
        if start == len(data) // 2:
            print("half", flush=True)
            sys.stdin.read()

PostgresBlobs(sys.argv[1]).write(blake3(data).digest(), len(data), content)
"""


@pytest.mark.req("VX-18")
def test_a_process_that_is_killed_half_way_leaves_nothing(address: str, table: BlobTable) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    hash = blake3(data := bytes(8 * 1024 * 1024)).digest()
    assert not table.among([hash]) and table.part(hash, 0) is None and table.part(hash, 1) is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert put(table, data) == hash and counted(address) == (1, 7)


@pytest.mark.req("VX-18")
def test_a_connection_that_breaks_once_is_made_again_and_then_the_error_says_so(
    address: str, table: BlobTable, shared: StoreBlobs
) -> None:
    hash, cuts = blake3(LARGE).digest(), 1

    def content() -> Iterator[bytes]:
        nonlocal cuts
        yield LARGE[: PART_BYTES + 1]
        if cuts:
            cuts -= 1
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            sql(address, f"SELECT pg_terminate_backend(pid, 10000) {others} AND backend_type = 'client backend'")
        yield LARGE[PART_BYTES + 1 :]

    table.write(hash, len(LARGE), content)
    assert shared.read(hash) == LARGE
    sql(address, "DELETE FROM blobs")
    cuts = 2
    with pytest.raises(StoreError, match=r"postgresql://.* broke off .* check the server and repeat it"):
        table.write(hash, len(LARGE), content)
    assert counted(address) == (0, 0)
    table.write(hash, len(LARGE), content)
    assert shared.read(hash) == LARGE


@pytest.mark.req("VX-18")
def test_a_server_that_is_away_is_said_and_not_asked_for_every_blob(tmp_path: Path) -> None:
    away, now = "postgresql://hocket:hush@127.0.0.1:1/hocket", [100.0]
    with closing(StoreBlobs(HomeBlobs(tmp_path / "blobs"), PostgresBlobs(away), lambda: now[0])) as blobs:
        with pytest.raises(StoreError, match=r"cannot connect to postgresql://hocket@127\.0\.0\.1:1/hocket") as raised:
            blobs.stage(b"content")
        assert "hush" not in str(raised.value)
        assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
        with pytest.raises(StoreError, match="cannot connect"):
            blobs.read(bytes(32))
        asked: list[object] = []

        def refuse(hashes: object) -> set[bytes]:
            asked.append(hashes)
            raise StoreError("away")

        blobs._table.among = refuse  # type: ignore[method-assign]
        assert not blobs.has(bytes(32)) and not blobs.has(bytes(32)) and len(asked) == 1
        now[0] += store_blobs.AWAY_S
        assert not blobs.has(bytes(32)) and len(asked) == 2


@pytest.mark.req("VX-18")
def test_behind_a_pooler(address: str) -> None:
    relay = Relay(sessions=2)
    try:
        name = address.partition("?")[0].rpartition("/")[2]
        pooled = f"postgresql://postgres@127.0.0.1:{relay.port}/{name}?sslmode=disable&gssencmode=disable"
        with closing(PostgresBlobs(pooled)) as table:
            hash = put(table, LARGE)
            put(table, LARGE)
            assert [len(table.part(hash, number) or b"") for number in range(4)] == [PART_BYTES, PART_BYTES, 12_345, 0]
    finally:
        relay.close()


@pytest.mark.req("VX-18")
def test_the_rights_on_the_tables_are_enough(address: str) -> None:
    sql(address, "CREATE ROLE blob_writer LOGIN; GRANT USAGE ON SCHEMA hocket TO blob_writer")
    sql(address, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hocket TO blob_writer")
    with closing(PostgresBlobs(address.replace("postgres@", "blob_writer@"))) as table:
        hash = put(table, LARGE)
        put(table, LARGE)
        assert list(table.all()) == [(hash, len(LARGE))]
        age(address, hash, 2 * HOUR_MS)
        assert table.clear(GARBAGE_AGE_S) == (1, len(LARGE)) and counted(address) == (0, 0)
    sql(address, "DROP OWNED BY blob_writer; DROP ROLE blob_writer")


# Large content, and the home's copies.


@pytest.mark.req("VX-18")
def test_what_is_too_large_for_the_database_stays_in_the_home(
    address: str, table: BlobTable, shared: StoreBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_blobs, "STORED_BYTES_MAX", 1000)
    blobs = StoreBlobs(HomeBlobs(tmp_path / "blobs"), table)
    for size in (1000, 1001):
        blobs.keep(blobs.stage(LARGE[:size]))
    small, large = (blake3(LARGE[:size]).digest() for size in (1000, 1001))
    assert shared.has(small) and not shared.has(large) and shared.read(large) is None
    assert blobs.read(large) == LARGE[:1001] and counted(address) == (1, 0)
    blobs.close()


@pytest.mark.req("VX-18")
def test_content_that_was_staged_long_ago_is_written_again_before_its_op(
    address: str, table: BlobTable, shared: StoreBlobs, tmp_path: Path
) -> None:
    now = [1000.0]
    blobs = StoreBlobs(HomeBlobs(tmp_path / "blobs"), table, lambda: now[0])
    staged = blobs.stage(LARGE)
    now[0] += store_blobs.RENEW_S - 1
    sql(address, "DELETE FROM blobs")
    assert blobs.renewed(staged) is staged
    now[0] += 2
    renewed = blobs.renewed(staged)
    assert renewed.stored_s == now[0] and shared.read(staged.hash) == LARGE
    # Too late: other nodes may have deleted it since.
    now[0] += GARBAGE_AGE_S + 1
    with pytest.raises(StoreError, match="more than an hour before its op; repeat the change"):
        blobs.keep(renewed)
    blobs.keep(renewed := blobs.renewed(renewed))
    # A transaction that is repeated later finds the content in its place.
    sql(address, "DELETE FROM blobs")
    now[0] += GARBAGE_AGE_S + 1
    blobs.keep(blobs.renewed(renewed))
    assert shared.read(staged.hash) == LARGE
    blobs.close()


# Deleting.


def age(address: str, hash: bytes, by_ms: int) -> None:
    sql(address, "UPDATE blobs SET made = made - %s WHERE hash = %s", by_ms, hash)


def add_artifact(address: str, id: bytes, hash: bytes) -> None:
    row = "INSERT INTO artifacts (id, op_id, type, hash, size, inline, made) VALUES (%s, %s, 'a', %s, 1, 0, %s)"
    sql(address, row, id, id, hash, bytes(20))


@pytest.mark.req("VX-18")
def test_only_old_blobs_that_no_artifact_needs_are_deleted(address: str, table: BlobTable) -> None:
    young, old, needed, evicted, fresh = (put(table, bytes([n]) * 70_000) for n in range(5))
    for hash in (old, needed, evicted):
        age(address, hash, HOUR_MS + 1000)
    age(address, young, HOUR_MS - 60_000)
    for n, hash in enumerate((needed, evicted, evicted)):
        add_artifact(address, bytes([n] * 16), hash)
    for n in (1, 2):
        sql(address, "INSERT INTO evictions VALUES (%s, %s)", bytes([9, n]), bytes([n] * 16))
    assert table.clear(GARBAGE_AGE_S) == (2, 140_000)
    assert table.among([young, old, needed, evicted, fresh]) == {young, needed, fresh}
    assert table.clear(GARBAGE_AGE_S) == (0, 0)
    assert table.remove(young, GARBAGE_AGE_S) == 0
    age(address, young, 120_000)
    assert table.remove(young, GARBAGE_AGE_S) == 70_000 and not table.among([young])


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("state", ["unsettled = 1", "rebuilding = '\\x00'::bytea", "rebuilding = 'moved'::bytea"])
def test_nothing_is_deleted_while_artifacts_are_derived_or_the_store_is_moved(
    address: str, table: BlobTable, state: str
) -> None:
    hash = put(table, LARGE)
    age(address, hash, 2 * HOUR_MS)
    sql(address, f"UPDATE head SET {state}")
    assert table.clear(GARBAGE_AGE_S) == (0, 0) and table.among([hash])
    sql(address, "UPDATE head SET unsettled = 0, rebuilding = NULL")
    assert table.clear(GARBAGE_AGE_S) == (1, len(LARGE)) and counted(address) == (0, 0)


@pytest.mark.req("VX-18")
def test_writing_a_blob_again_saves_it_from_those_who_are_about_to_delete_it(address: str, table: BlobTable) -> None:
    hash = put(table, LARGE)
    age(address, hash, 2 * HOUR_MS)
    with psycopg.connect(address) as writer, ThreadPoolExecutor(1) as pool:
        # Another node makes it young again, and has not committed yet.
        writer.execute("UPDATE hocket.blobs SET made = made + %s", (2 * HOUR_MS,))
        removing = pool.submit(table.remove, hash, GARBAGE_AGE_S)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until(lambda: sql(address, waits) == [(1,)])
        assert table.clear(GARBAGE_AGE_S) == (0, 0), "it waits for nobody"
        writer.commit()
        assert removing.result() == 0
    assert table.clear(GARBAGE_AGE_S) == (0, 0) and table.among([hash])


@pytest.mark.req("VX-18")
def test_several_nodes_clear_at_once_and_each_blob_is_deleted_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_blobs, "_UNUSED", postgres_blobs._UNUSED.replace("LIMIT 500", "LIMIT 3"))
    with closing(PostgresBlobs(address)) as table, ThreadPoolExecutor(4) as pool:
        for n in range(40):
            age(address, put(table, bytes([n]) * 70_000), 2 * HOUR_MS)
        cleared = [each.result() for each in [pool.submit(table.clear, GARBAGE_AGE_S) for _ in range(4)]]
    assert sum(each.blobs for each in cleared) == 40 and sum(each.bytes for each in cleared) == 40 * 70_000
    assert counted(address) == (0, 0)


@pytest.mark.req("VX-18")
def test_the_copy_in_the_home_goes_after_an_hour_and_only_if_the_store_has_it(
    address: str, table: BlobTable, tmp_path: Path
) -> None:
    home = HomeBlobs(tmp_path / "blobs")
    blobs = StoreBlobs(home, table)
    kept = [blobs.stage(bytes([n]) * 70_000) for n in range(3)]
    for n, staged in enumerate(kept):
        blobs.keep(staged)
        add_artifact(address, bytes([n] * 16), staged.hash)
    only_here, copied, new = (staged.hash for staged in kept)
    sql(address, "DELETE FROM blobs WHERE hash = %s", only_here)
    for hash in (only_here, copied):
        os.utime(home._place(hash), (0, time.time() - GARBAGE_AGE_S - 10))
    assert blobs.clear_leftovers() == (0, 70_000)
    assert {hash for hash, _ in home.all()} == {only_here, new}
    assert all(blobs.read(staged.hash) for staged in kept)
    blobs.close()


@pytest.mark.req("VX-02", "VX-18")
def test_an_older_store_gets_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    address = server().new_database()
    with monkeypatch.context() as older:
        older.setattr(migration, "VERSION", 2)
        older.setattr(migration, "_STEPS", migration._STEPS[:2])
        stores.open(address, create=True).close()
    stores.open(address).close()
    with closing(PostgresBlobs(address)) as table:
        assert table.among([put(table, LARGE)])
