"""Blobs on the disk: whole or not at all, and never taken for what they are not."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import StoreError, Usage
from hocket.families import blobs as rooms
from hocket.families.blobs import Damaged, HomeBlobs


@pytest.fixture
def blobs(tmp_path: Path) -> HomeBlobs:
    return HomeBlobs(tmp_path / "blobs")


def files(blobs: HomeBlobs) -> list[Path]:
    return [path for path in blobs._directory.rglob("*") if path.is_file() and path.suffix != ".lock"]


def kept(blobs: HomeBlobs, data: bytes) -> bytes:
    staged = blobs.stage(data)
    blobs.keep(staged)
    return staged.hash


def test_nothing_is_made_before_it_is_needed(blobs: HomeBlobs):
    assert blobs.read(bytes(32)) is None and not blobs.has(bytes(32)) and list(blobs.all()) == []
    assert blobs.remove(bytes(32)) == 0 and blobs.clear_shelves() == 0
    blobs.close()
    assert not blobs._directory.exists()


@given(data=st.binary(max_size=5000))
def test_what_is_kept_is_read_again(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    blobs = HomeBlobs(tmp_path_factory.mktemp("b"))
    staged = blobs.stage(data)
    assert staged.hash == blake3(data).digest() and staged.size == len(data)
    assert blobs.read(staged.hash) is None
    blobs.keep(staged)
    blobs.keep(staged)
    assert blobs.read(staged.hash) == data
    assert [hash for hash, _ in blobs.all()] == [staged.hash]
    blobs.close()


def test_a_file_is_copied_in_parts(blobs: HomeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rooms, "CHUNK_BYTES", 1000)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 100)
    staged = blobs.stage(source)
    blobs.keep(staged)
    assert blobs.read(staged.hash) == source.read_bytes()
    assert len(list(blobs.chunks(staged.hash))) == 26
    place = blobs._place(staged.hash)
    assert place == blobs._directory / staged.hash.hex()[:2] / staged.hash.hex()
    assert place.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty"])
def test_a_damaged_blob_is_not_given_out(blobs: HomeBlobs, damage: str):
    hash = kept(blobs, b"x" * 5000)
    place = blobs._place(hash)
    data = bytearray(place.read_bytes())
    data[17] ^= 1
    place.write_bytes({"flipped": bytes(data), "cut": b"x" * 4999, "longer": b"x" * 5001, "empty": b""}[damage])
    with pytest.raises(Damaged, match="damaged"):
        blobs.read(hash)
    kept(blobs, b"x" * 5000)
    assert blobs.read(hash) == b"x" * 5000


@pytest.mark.parametrize("failing", ["fsync", "write"])
def test_a_full_disk_leaves_nothing_behind(blobs: HomeBlobs, monkeypatch: pytest.MonkeyPatch, failing: str):
    hash = kept(blobs, b"before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full) if failing == "fsync" else patch.setattr(rooms, "_copy", full)
        with pytest.raises(StoreError, match="cannot write a blob: No space left"):
            blobs.stage(b"y" * 100_000)
    assert [path.name for path in files(blobs)] == [hash.hex()]
    assert blobs.read(kept(blobs, b"y" * 100_000)) == b"y" * 100_000


def test_what_is_too_large_or_no_file(blobs: HomeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rooms, "BLOB_BYTES_MAX", 1000)
    assert blobs.stage(bytes(1000)).size == 1000
    with pytest.raises(Usage, match="more than 1000 bytes"):
        blobs.stage(bytes(1001))
    os.mkfifo(tmp_path / "pipe")
    for wrong, why in (("nowhere", "No such file"), ("pipe", "not a file"), (".", "not a file|Is a directory")):
        with pytest.raises(Usage, match=why):
            blobs.stage(tmp_path / wrong)
    assert len(files(blobs)) == 1


def test_the_shelf_goes_with_its_process(blobs: HomeBlobs, tmp_path: Path):
    staged = blobs.stage(b"mine")
    code = (
        "import os, sys; from pathlib import Path; from hocket.families.blobs import HomeBlobs\n"
        "HomeBlobs(Path(sys.argv[1])).stage(b'left behind'); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(blobs._directory)], check=False)
    assert len(files(blobs)) == 2
    assert blobs.clear_shelves() == len(b"left behind")
    assert files(blobs) == [staged.path]
    blobs.close()
    assert files(blobs) == []
    assert blobs.stage(b"again").path.exists()


def test_a_stranger_in_the_directory_is_no_blob(blobs: HomeBlobs):
    hash = kept(blobs, b"x")
    for name in ("ab/readme", f"ab/{hash.hex()}", f"ab/{'zz' * 32}"):
        path = blobs._directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert [each for each, _ in blobs.all()] == [hash]
