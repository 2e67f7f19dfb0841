"""`hocket log archive`, and `hocket log verify` of what it has written: without a node, by killed processes, on a full
disk; and bad words.
"""

import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import hocket
from hocket.kernel.keys import key_text
from hocket.log.archives.targets import folder_target
from hocket.log.copies import import_ops
from hocket.node.runtime import Runtime
from tests.cli.conftest import PATIENCE_S, PROGRAM, Program, copied
from tests.log.roster.world import READER, USER
from tests.log.test_archive import exported
from tests.log.test_archives import Author, files
from tests.waiting import wait_for

DAYS = 40
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b")


@pytest.fixture(scope="module")
def old_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with ops of many past days, to be copied."""
    directory = tmp_path_factory.mktemp("old")
    author = Author(READER)
    for day in range(DAYS):
        author.on_day(day, 2)
    key = directory / "user.key"
    key.write_text(key_text(USER.seed))
    with Runtime.init(directory / "home", key) as runtime:
        assert import_ops(runtime.log, io.BytesIO(exported(author.log))).rejected == 0
    author.log.store.close()
    return directory / "home"


@pytest.fixture
def old(old_home: Path, tmp_path: Path) -> Iterator[Program]:
    program = Program(copied(old_home, tmp_path))
    yield program
    program.end_started()


def test_an_archive_is_written_and_verified_without_a_node(old: Program, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    asked = ("log", "archive", "--to", archive, "--before")
    would = old(*asked, "2026-02-03", "--dry-run", "--json", code=0).json
    assert not archive.exists() and (len(would["files"]), would["ops"]) == (4, 9)
    did = old(*asked, "2026-02-03", code=0).out
    assert did.startswith("wrote 9 ops to 4 files in ")
    assert len(old(*asked, "100d", "--json", code=0).json["files"]) == DAYS - 4
    assert "every op of these days already" in old(*asked, "100d", code=0).out
    nowhere = tmp_path / "nowhere"
    assert f"{DAYS} files verified, 2026-01-30 to 2026-03-10" in old("log", "verify", archive, code=0).out
    environment = {"HOCKET_HOME": ""}
    done = subprocess.run(
        [*PROGRAM, "log", "verify", str(archive)],
        env=old.environment(nowhere) | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, f"{DAYS} files verified" in done.stdout) == (0, True), done.stderr
    next(archive.rglob("2026-02-01*")).unlink()
    damaged = old("log", "verify", archive, code=1)
    assert "ops of its author are missing before it" in damaged.out
    assert "the archive is damaged: 1 finding in 39 files" in damaged.sentence


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("archive", "--to", "x", "--before", "soon"), "bad --before 'soon'"),
        (("archive", "--to", "x", "--before", "2026-02-30"), "bad --before '2026-02-30'"),
        (("archive", "--to", "x", "--before", "2999-01-01"), "that day has not ended"),
        (("archive", "--to", "/dev/null", "--before", "90d"), "/dev/null is no folder"),
        (("archive", "--to", "git+", "--before", "90d"), "git+ needs the folder"),
        (("archive", "--to", "ftp://x", "--before", "90d"), "unknown archive ftp://x"),
        (("verify", "/nowhere"), "/nowhere is not there"),
        (("verify", "/dev"), "/dev has no archive"),
        (("verify", "x", "--head", "1:00"), "give an archive or one of these"),
    ],
)
def test_bad_words(hocket: Program, words: tuple[str, ...], says: str) -> None:
    assert says in hocket("log", *words, code=2).sentence


def test_a_full_disk_leaves_whole_files(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from hocket.log.archives.targets import folder_target
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
folder = folder_target(Path(sys.argv[1]))
with folder.writing():
    folder.put("0" * 16 + "/2026-01-31.ops.zst", bytes(300))
    folder.put("0" * 16 + "/2026-02-01.ops.zst", bytes(301))
"""
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr.splitlines()[-1].startswith(f"hocket.errors.StoreError: cannot write {tmp_path}")
    assert {name: len(data) for name, data in files(tmp_path).items()} == {f"{'0' * 16}/2026-01-31.ops.zst": 300}


def test_a_killed_archiver_is_followed_by_one_that_goes_on(old: Program, tmp_path: Path) -> None:
    archive, whole = tmp_path / "archive", tmp_path / "whole"
    for count in (1, 7, 20):
        process = old.start("log", "archive", "--before", "100d", "--to", archive)
        wait_for(partial(_has_written, archive, count, process))
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        if archive.exists():
            old("log", "verify", archive, code=0)
    old("log", "archive", "--before", "100d", "--to", archive, code=0)
    old("log", "archive", "--before", "100d", "--to", whole, code=0)
    assert {name: data for name, data in files(archive).items() if not Path(name).name.startswith(".")} == files(whole)


def _has_written(archive: Path, count: int, process: "subprocess.Popen[str]") -> bool:
    return len(list(archive.rglob("*.zst"))) >= count or process.poll() is not None


def test_programs_archive_and_verify_too(old: Program, tmp_path: Path) -> None:
    with closing(hocket.open_sync(old.home)) as node:
        admin = hocket.admin(node)
        assert len(admin.archive_log(tmp_path / "archive", before="100d", dry_run=True)) == DAYS
        written = admin.archive_log(tmp_path / "archive", before="2026-02-01")
        audit = admin.verify_archive(tmp_path / "archive")
    assert (len(written), audit.files, audit.findings) == (2, 2, [])


def test_an_archive_comes_back_onto_a_log(old: Program, tmp_path: Path) -> None:
    archive, again = tmp_path / "archive", tmp_path / "again"
    old("log", "archive", "--before", "100d", "--to", archive, code=0)
    new = tmp_path / "new"
    old("init", "--user-key", old.home / "user.key", home=new, code=0)
    assert f"{2 * DAYS + 1} appended, 0 duplicated, 0 rejected" in old("log", "import", archive, home=new, code=0).out
    assert f"0 appended, {2 * DAYS + 1} duplicated" in old("log", "import", archive, home=new, code=0).out
    old("log", "archive", "--before", "100d", "--to", again, home=new, code=0)
    assert files(again) == files(archive)
    newest = max(archive.rglob("*.zst"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert f"{newest} is damaged: it is cut off" in old("log", "import", archive, home=new, code=1).sentence
    assert "has no archive" in old("log", "import", new, home=new, code=2).sentence


def test_two_archivers_do_not_write_at_once(old: Program, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with folder_target(archive).writing():
        refused = old("log", "archive", "--before", "100d", "--to", archive, code=3)
    assert "another process is writing into the archive" in refused.sentence


def test_an_archive_in_a_git_repository_is_committed(old: Program, tmp_path: Path) -> None:
    repository, git = tmp_path / "repository", ["git", "-C", str(tmp_path / "repository")]
    old("log", "archive", "--before", "2026-02-03", "--to", f"git+{repository}", code=0)
    # A run that was killed before its commit left a file, and someone has staged something else.
    left = next(repository.rglob("2026-02-02*"))
    subprocess.run([*git, "rm", "--quiet", "--cached", str(left)], check=True)
    subprocess.run([*git, *IDENTITY, "commit", "--quiet", "--message", "x"], check=True)
    (repository / "mine").write_text("mine")
    subprocess.run([*git, "add", "mine"], check=True)
    old("log", "archive", "--before", "100d", "--to", f"git+{repository}", code=0)
    old("log", "archive", "--before", "100d", "--to", f"git+{repository}", code=0)
    listed = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == DAYS and "mine" not in listed.stdout
    log = subprocess.run([*git, "log", "--format=%s"], capture_output=True, text=True, check=True).stdout
    assert log.splitlines() == ["Archive of the log", "x", "Archive of the log"]
    assert f"{DAYS} files verified" in old("log", "verify", f"git+{repository}", code=0).out
    assert f"{2 * DAYS + 1} duplicated" in old("log", "import", f"git+{repository}", code=0).out
    (repository / ".git" / "index.lock").touch()
    (repository / left.relative_to(repository)).write_bytes(b"")
    refused = old("log", "archive", "--before", "99d", "--to", f"git+{repository}", code=5)
    assert "git add failed in" in refused.sentence
