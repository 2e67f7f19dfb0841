"""Two homes that share a store in PostgreSQL with their blobs, and no server between them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import hocket
from hocket.api import Service, artifacts
from hocket.errors import StoreError
from hocket.families import blobs as store_blobs
from hocket.families.artifacts import content, find
from hocket.node.runtime import Runtime
from hocket.store.artifact_rows import PART_BYTES
from tests.cli.conftest import Program, until
from tests.postgres_server import server

LARGE = random.Random(1).randbytes(PART_BYTES + 200_000)
HANDLERS = """
import hocket


@hocket.job("test.make")
def make(ctx, size=200_000):
    ctx.artifact(b"x" * size, type="test.bytes")
    return "y" * size
"""


class Two(NamedTuple):
    first: Program
    second: Program
    store: str


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    (tmp_path / "tasks.py").write_text(HANDLERS)
    made = Two(Program(tmp_path / "first"), Program(tmp_path / "second"), server().new_database())
    made.first("init", "--store", made.store, "--blobs", "store", "--name", "first", code=0)
    # A further home follows what the store says.
    made.second("init", "--store", made.store, "--user-key", made.first.home / "user.key", "--name", "second", code=0)
    yield made
    for program in made[:2]:
        program.end_started()


def sql(address: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path = hocket")
        done = connection.execute(statement, values)
        return [] if done.description is None else done.fetchall()


def files(program: Program) -> int:
    return sum(path.is_file() and len(path.name) == 64 for path in (program.home / "blobs").rglob("*"))


def put(program: Program, data: bytes) -> str:
    file = program.home.parent / "content"
    file.write_bytes(data)
    artifact_id: str = program("artifacts", "put", file, "--type", "test.file", "--json", code=0).json["artifact_id"]
    return artifact_id


def got(program: Program, artifact_id: str, **options: Any) -> bytes:
    out = program.home.parent / "got"
    program("artifacts", "get", artifact_id, "--output", out, code=0, **options)
    return out.read_bytes()


@pytest.mark.req("VX-18", "VX-01")
def test_what_one_puts_the_other_gets(two: Two) -> None:
    first, second, store = two
    for data in (b"small", LARGE[:100_000], LARGE):
        artifact_id = put(first, data)
        assert got(second, artifact_id) == data
        brief = second("artifacts", "show", artifact_id, "--json", code=0).json
        assert brief["content"] == ("inline" if data == b"small" else "blob")
    assert sql(store, "SELECT size FROM blobs ORDER BY size") == [(100_000,), (len(LARGE),)]
    assert files(second) == 0, "it has read from the store, and kept nothing"
    assert got(first, put(second, LARGE)) == LARGE
    assert sql(store, "SELECT count(*) FROM blobs") == [(2,)], "the same content is one blob"
    assert "in PostgreSQL, shared by 2 nodes, with their blobs" in second("doctor", code=0).out


@pytest.mark.req("VX-18")
def test_inputs_outputs_and_results_go_between_them(two: Two, tmp_path: Path) -> None:
    first, second, _ = two
    (tmp_path / "given").write_bytes(LARGE)
    command = ("sh", "-c", "cat given given > made; od -v -An -x given")
    job_id = first("run", "--detach", "--input", "given", "--output", "made", "--", *command, code=0).job_id
    second("work", "--allow-any", "--until-idle", code=0)
    shown = first.show(job_id)
    assert shown["outcome"] == "succeeded", shown
    made = next(each for each in shown["artifacts"] if each["type"] == "hocket.output")
    assert got(first, made["artifact_id"]) == LARGE * 2
    assert first("proof", "verify", job_id, code=0).out
    job_id = first.submit("test.make")
    second("work", "tasks.py", "--until-idle", code=0)
    shown = first.show(job_id)
    assert shown["result"] == "y" * 200_000
    assert got(first, shown["artifacts"][0]["artifact_id"]) == b"x" * 200_000


@pytest.mark.req("VX-18")
def test_from_python(two: Two) -> None:
    @hocket.job("test.python")
    def make(ctx: Any) -> str:
        made: str = ctx.artifact(LARGE, type="test.bytes")
        return made

    with hocket.open(two.second.home) as second, hocket.open(two.first.home) as first:
        job = second.submit("test.python")
        first.work([make], until_idle=True)
        artifact_id = job.result(timeout=30)
        with second.runtime.read() as session:
            assert content(session, second.runtime.blobs, find(session, artifact_id)) == LARGE


@pytest.mark.req("VX-18")
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    program = Program(tmp_path / "home")
    refused = program("init", "--blobs", "store", code=2).sentence
    assert "--blobs store is for a store in PostgreSQL" in refused and "--store" in refused
    for unknown in ("cloud", ""):
        refused = program("init", "--store", "postgresql://x/y", "--blobs", unknown, code=2).sentence
        assert "--blobs" in refused and "'home'" in refused and "'store'" in refused
    assert not program.home.exists()
    program("init", "--blobs", "home", code=0)
    store = server().new_database()
    first, second = Program(tmp_path / "first"), Program(tmp_path / "second")
    first("init", "--store", store, code=0)
    join = ("init", "--store", store, "--user-key", first.home / "user.key")
    assert "keep blobs in the home already; leave out --blobs" in second(*join, "--blobs", "store", code=3).sentence
    second(*join, "--blobs", "home", code=0)
    artifact_id = put(first, LARGE)
    assert "is not here" in second("artifacts", "get", artifact_id, code=5).sentence
    assert sql(store, "SELECT count(*) FROM blobs") == [(0,)] and files(first) == 1


@pytest.mark.req("VX-18")
def test_a_changed_blob_is_found_when_it_is_read(two: Two) -> None:
    first, second, store = two
    artifact_id = put(first, LARGE)
    sql(store, "UPDATE blob_parts SET content = overlay(content PLACING '\\x00ff00'::bytea FROM 1000)")
    refused = second("artifacts", "get", artifact_id, code=5).sentence
    assert "is damaged; restore it in postgresql://" in refused
    # A node that has the content can put it again.
    put(second, LARGE)
    assert got(second, artifact_id) == LARGE


@pytest.mark.req("VX-18")
def test_evicted_and_unused_blobs_are_deleted_once_for_all_nodes(two: Two) -> None:
    first, second, store = two
    evicted, kept = put(first, LARGE), put(first, LARGE[:100_000])
    second("artifacts", "evict", evicted, code=0)
    # Another node could be writing the same content just now.
    assert second("artifacts", "gc", "--json", code=0).json["blobs"] == 0
    sql(store, "UPDATE blobs SET made = made - 3700000")
    assert second("artifacts", "gc", "--json", code=0).json == {"blobs": 1, "freed_bytes": len(LARGE)}
    assert sql(store, "SELECT size FROM blobs") == [(100_000,)]
    assert got(second, kept) == LARGE[:100_000]
    first("log", "rebuild", code=0)
    assert first("artifacts", "gc", "--json", code=0).json["blobs"] == 1, "the copy in the home of the one who put it"
    assert got(second, kept) == LARGE[:100_000]


@pytest.mark.req("VX-18")
def test_a_node_outside_fetches_from_any_of_them(two: Two, tmp_path: Path) -> None:
    first, second, store = two
    artifact_id = put(second, LARGE)
    process = first.start("serve", "--port", "0", "--json")
    assert process.stdout is not None and process.stdout.readline()
    outside = Program(tmp_path / "outside")
    outside("join", first("invite", "outside", "--may", "all", "--json", code=0).json["token"], code=0)
    outside("sync", code=0)
    assert got(outside, artifact_id) == LARGE
    # One that was invited to share the store reads from there.
    third = Program(tmp_path / "third")
    third(
        "join",
        first("invite", "third", "--share", "--may", "all", "--json", code=0).json["token"],
        "--store",
        store,
        code=0,
    )
    process.terminate()
    first.finished(process)
    assert got(third, artifact_id) == LARGE


@pytest.mark.req("VX-14", "VX-18")
def test_a_replica_leaves_blobs_on_the_server(two: Two, tmp_path: Path) -> None:
    first, second, _ = two
    here = {"HOCKET_REPLICA": str(tmp_path / "replica.db")}
    artifact_id = put(first, LARGE)
    assert got(second, artifact_id, environment=here) == LARGE
    listed = second("artifacts", "list", "--json", environment=here, code=0).json
    assert [each["content"] for each in listed] == ["blob"]
    server().stop()
    try:
        until(lambda: second("artifacts", "list", environment=here, code=0).err, "the first look at the server")
        listed = second("artifacts", "list", "--json", environment=here, code=0).json
        assert [each["content"] for each in listed] == ["elsewhere"]
        assert "cannot connect" in second("artifacts", "get", artifact_id, environment=here, code=5).err
    finally:
        server().start()
    assert got(second, artifact_id, environment=here) == LARGE


@pytest.mark.req("VX-18")
def test_an_output_that_was_cleared_during_a_long_run_is_stored_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_blobs, "RENEW_S", 0.0)

    @hocket.job("test.long")
    def long(ctx: Any) -> str:
        made: str = ctx.artifact(LARGE, type="test.bytes")
        # As other nodes do with content that no op has named for an hour.
        assert sql(two.store, "DELETE FROM blobs RETURNING 1")
        return made

    with hocket.open(two.first.home) as first:
        job = first.submit("test.long")
        first.work([long], until_idle=True)
        artifact_id = job.result(timeout=30)
    assert got(two.second, artifact_id) == LARGE


@pytest.mark.req("VX-18")
def test_a_blob_is_written_beside_the_transactions_of_the_log(two: Two) -> None:
    with Runtime.open(two.first.home) as runtime, Runtime.open(two.second.home) as other:
        with other.store.write():
            staged = runtime.blobs.stage(LARGE)
            assert other.blobs.read(staged.hash) == LARGE
        kept = artifacts.put(Service(runtime), LARGE, "test.bytes", None)
        with other.read() as session:
            assert content(session, other.blobs, find(session, kept.artifact_id)) == LARGE
        server().stop()
        try:
            with pytest.raises(StoreError, match=r"broke off|cannot connect"):
                artifacts.put(Service(runtime), LARGE[::-1], "test.bytes", None)
        finally:
            server().start()
        artifacts.put(Service(runtime), LARGE[::-1], "test.bytes", None)
