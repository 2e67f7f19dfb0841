"""`hocket log snapshot`, and `hocket log verify` and `hocket log import` of what it has written."""

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.families.jobs import requests as jobs
from hocket.kernel.keys import key_text
from hocket.log.copies import import_ops
from hocket.log.rebuild import roster_digest
from hocket.node.runtime import Runtime
from tests.cli.conftest import PATIENCE_S, PROGRAM, Program, copied
from tests.log.roster.world import READER, USER
from tests.log.test_archive import exported
from tests.log.test_archives import Author
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with jobs that ended long ago and some that are open, and one that has just joined the same mesh."""
    directory = tmp_path_factory.mktemp("homes")
    author = Author(READER)
    for day in range(20):
        author.on_day(day, 3)
    author.log.settle()
    with author.log.store.read() as session:
        ids = [entry.job.id for entry in session.each_job()]
    author.log.run(lambda tx: [jobs.cancel(tx, each, "done") for each in ids[:50]])
    key = directory / "user.key"
    key.write_text(key_text(USER.seed))
    with Runtime.init(directory / "old", key) as runtime:
        assert import_ops(runtime.log, io.BytesIO(exported(author.log))).rejected == 0
    author.log.store.close()
    with Runtime.init(directory / "new", key):
        pass
    return directory


def made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def old(homes: Path, tmp_path: Path) -> Iterator[Program]:
    program = Program(copied(homes / "old", made(tmp_path / "a")))
    yield program
    program.end_started()


@pytest.fixture
def new(homes: Path, tmp_path: Path) -> Iterator[Program]:
    program = Program(copied(homes / "new", made(tmp_path / "b")))
    yield program
    program.end_started()


@pytest.fixture
def snapshot(old: Program, tmp_path: Path) -> Path:
    old("retain", "1d", "--no-archive", code=0)
    old("log", "prune", code=0)
    old("submit", "acme.later", code=0)
    written = old("log", "snapshot", tmp_path / "snapshot", code=0)
    assert "settled until" in written.out
    return tmp_path / "snapshot"


def roster(program: Program) -> bytes:
    with Runtime.open(program.home) as runtime, runtime.read() as session:
        return roster_digest(session)


def test_another_machine_begins_from_a_snapshot(old: Program, new: Program, snapshot: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "log", "verify", str(snapshot)],
        env=old.environment(tmp_path / "nowhere") | {"HOCKET_HOME": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0 and "verified, of the mesh of did:key:" in done.stdout, done
    assert new("log", "verify", snapshot, "--json", code=0).json["authors"] == 1
    loaded = new("log", "import", snapshot, "--json", code=0).json
    assert loaded["added"] > 10 and loaded["deleted"] == 0
    assert loaded["later"] > 0 and loaded["rejected"] == 0
    assert roster(new) == roster(old)
    new("log", "verify", code=0)
    assert "settled up to that horizon already" in new("log", "import", snapshot, code=3).err


def test_bad_words_and_bad_folders(old: Program, new: Program, snapshot: Path, tmp_path: Path) -> None:
    assert "has other files" in old("log", "snapshot", tmp_path, code=2).err
    assert "no horizon" in new("log", "snapshot", tmp_path / "x", code=3).err
    chunk = snapshot / "00000.chunk"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    before = roster(new)
    for command in ("verify", "import"):
        assert "does not hold good: 00000.chunk: " in new("log", command, snapshot, code=1).err
    assert roster(new) == before


def test_a_killed_import_leaves_all_or_nothing(new: Program, snapshot: Path) -> None:
    empty = roster(new)
    for _ in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", LOADER, str(new.home), str(snapshot)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            with closing(child.stdout):
                wait_for(lambda: child.stdout.readline() == "begun\n", "the import")
                child.send_signal(signal.SIGKILL)
                child.wait(PATIENCE_S)
        with Runtime.open(new.home) as runtime, runtime.store.read() as session:
            assert session.head().rebuilding is None
            is_in = session.horizon() is not None
        assert is_in == (roster(new) != empty)
        if is_in:
            break
    if not is_in:
        new("log", "import", snapshot, code=0)
    new("log", "verify", code=0)


LOADER = """
import sys
from pathlib import Path
from hocket.log.snapshots import loading
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.node.runtime import Runtime

kept = loading._Loading.take_entries
def slowly(self, entries):
    print("begun", flush=True)
    return kept(self, entries)
loading._Loading.take_entries = slowly
with Runtime.open(Path(sys.argv[1])) as runtime:
    loading.load_snapshot(runtime.log, SnapshotFolder(Path(sys.argv[2])))
"""
