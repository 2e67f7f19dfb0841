"""Loose objects: whole or not there at all, readable by git, with a name from the start or without one."""

import gc
import os
import subprocess
import sys
from hashlib import sha1
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import StoreError
from hocket.extensions.git import objects
from hocket.extensions.git.objects import PLAIN_BYTES_MAX, Loose
from hocket.extensions.git.plane import ROOT, Change
from tests.extensions.git.places import Place

pytestmark = pytest.mark.touches("GT-01")

SIZES = st.integers(0, 64) | st.integers(PLAIN_BYTES_MAX - 64, PLAIN_BYTES_MAX + 64) | st.just(200_000)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("loose") / "objects.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(place)], check=True)
    return place


@pytest.fixture(params=["nameless", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With files that have no name at first, and as on a file system that has no such thing."""
    if request.param == "named":
        monkeypatch.setattr(objects, "_NAMELESS", 0)
    return str(request.param)


@given(
    size=SIZES,
    seed=st.binary(min_size=1, max_size=64),
    how=st.sampled_from([{}, {"core.compression": "0"}, {"core.loosecompression": "9"}]),
)
def test_git_reads_what_is_written(repository: Path, how: dict[str, str], size: int, seed: bytes) -> None:
    content = (seed * size)[:size]
    whole = b"blob %d\0" % len(content) + content
    oid = sha1(whole).hexdigest()
    objects = Loose(str(repository / "objects"), how)
    objects.put(oid, whole)
    asked = ["git", "--git-dir", str(repository), "cat-file", "blob", oid]
    assert subprocess.run(asked, check=True, capture_output=True).stdout == content


def test_what_is_small_is_left_as_it_is_unless_the_owner_wants_it_packed(repository: Path) -> None:
    sizes = []
    for number, how in enumerate(({}, {"core.compression": "9"})):
        whole = b"blob 1001\0%d" % number + 1000 * b"a"
        Loose(str(repository / "objects"), how).put(oid := sha1(whole).hexdigest(), whole)
        sizes.append((repository / "objects" / oid[:2] / oid[2:]).stat().st_size)
    assert sizes[0] > 1000 > 100 > sizes[1]


def test_objects_come_one_after_another_and_twice(here: Place, way: str) -> None:
    plane = here.open()
    commits = []
    for number in range(5):
        tree = plane.write("tree", b"")
        who = b"author a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n%d\n" % number
        commits.append(plane.write("commit", b"tree %s\n" % tree.encode() + who))
        assert plane.write("commit", b"tree %s\n" % tree.encode() + who) == commits[-1]
        assert plane.swap([Change(f"{ROOT}{number:064x}/job", None, commits[-1])])
    assert here.git("fsck", "--strict") == ""
    assert "garbage: 0" in here.git("count-objects", "-v")
    plane.close()
    plane.close()


def test_a_file_that_is_ready_is_closed_with_the_plane(here: Place) -> None:
    gc.collect()  # what earlier tests left behind would be closed at any time
    open_before = len(os.listdir("/proc/self/fd"))
    plane = here.open()
    plane.write("blob", b"x")
    plane.repository.prepare()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == open_before + 1
    plane.close()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_repository_that_vanishes_while_a_file_is_ready_does_not_come_back(here: Place, way: str) -> None:
    plane = here.open()
    plane.repository.prepare()  # type: ignore[attr-defined]
    here.directory.rename(here.directory.with_name("elsewhere"))
    with pytest.raises(StoreError, match="is gone; restore it"):
        plane.write("blob", b"x")
    assert not here.directory.exists()
    here.directory.with_name("elsewhere").rename(here.directory)
    plane.write("blob", b"x")


KILLED = """
import os, signal, sys
from hocket.extensions.git.objects import Loose
write = os.write
def half(handle, data):
    write(handle, data[:3])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
Loose(sys.argv[1], {}).put("ab" + "cd" * 19, b"blob 5\\0never")
"""


def test_a_writer_that_is_killed_leaves_nothing_behind(here: Place) -> None:
    objects = here.directory / "objects"
    before = sorted(objects.rglob("*"))
    assert subprocess.run([sys.executable, "-c", KILLED, str(objects)]).returncode == -9
    assert sorted(objects.rglob("*")) == before


def test_a_file_system_without_nameless_files_is_noticed(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return really(path, flags, *more)

    plane = here.open()
    monkeypatch.setattr(os, "open", refuse)
    oid = plane.write("blob", b"by name")
    plane.repository.prepare()  # type: ignore[attr-defined]
    assert here.git("cat-file", "blob", oid) == "by name"
    assert "garbage: 0" in here.git("count-objects", "-v")
