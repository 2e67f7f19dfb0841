"""Homes in every condition: made by many at once, missing, half-made, read-only, too new, damaged. Each gets one
sentence and an exit code, and nothing that was there is lost.
"""

import os
import random
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from .conftest import PATIENCE_S, PROGRAM, Program

COMMANDS = (["jobs"], ["submit", "test.echo"], ["status"], ["log"], ["log", "verify"], ["cron", "list"], ["show", "0"])


def test_init_makes_a_home_and_says_whose(tmp_path: Path):
    hocket = Program(tmp_path / "new" / "home")
    made = hocket("init", "--json", code=0).json
    assert made["home"] == str(hocket.home)
    assert len(made["node"]) == 16 and made["user"].startswith("did:key:z")
    for key in ("user.key", "node.key"):
        assert stat.S_IMODE((hocket.home / key).stat().st_mode) == 0o600
    assert hocket("status", "--json", code=0).json["node"] == made["node"]
    assert hocket("log", "--json", code=0).json[0]["type"] == "DelegateUcan"


def test_a_second_init_changes_nothing(hocket: Program):
    before = {path.name: path.read_bytes() for path in hocket.home.iterdir() if path.is_file()}
    assert "already exists" in hocket("init", code=3).sentence
    assert before == {path.name: path.read_bytes() for path in hocket.home.iterdir() if path.is_file()}


@pytest.mark.req("LW-23")
def test_a_users_key_makes_a_second_node_of_that_user(hocket: Program, tmp_path: Path):
    second = Program(tmp_path / "second")
    made = second("init", "--user-key", hocket.home / "user.key", "--json", code=0).json
    first = hocket("status", "--json").json
    assert made["user"] == first["user"] and made["node"] != first["node"]


@pytest.mark.parametrize("content", [None, "no key", b"\xff\xfe"], ids=["missing", "text", "bytes"])
def test_a_bad_user_key_is_refused_and_makes_nothing(tmp_path: Path, content: str | bytes | None):
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content if isinstance(content, bytes) else content.encode())
    hocket = Program(tmp_path / "home")
    result = hocket("init", "--user-key", key)
    assert result.code in (2, 5) and str(key) in result.sentence
    assert not hocket.home.exists()


@pytest.mark.req("VX-02")
def test_many_inits_at_once_make_one_home(tmp_path: Path):
    hocket = Program(tmp_path / "home")
    processes = [hocket.start("init", "--json") for _ in range(8)]
    results = [hocket.finished(process, None) for process in processes]
    assert sorted(result.code for result in results) == [0] + [3] * 7
    winner = next(result for result in results if result.code == 0)
    assert hocket("status", "--json", code=0).json["node"] == winner.json["node"]
    assert hocket("log", "verify", "--json", code=0).json["ops"] == 2
    hocket("submit", "test.echo", code=0)


@pytest.mark.parametrize("command", [*COMMANDS, ["work", "tasks.py"]], ids=" ".join)
def test_a_missing_home_is_said_with_what_to_do(tmp_path: Path, command: list[str]):
    hocket = Program(tmp_path / "none")
    result = hocket(*command, code=2)
    assert f"no home at {hocket.home}" in result.sentence and "init" in result.sentence
    assert not hocket.home.exists()


def test_a_file_in_the_place_of_a_home(tmp_path: Path):
    (tmp_path / "home").write_text("I was here first")
    hocket = Program(tmp_path / "home")
    assert "is not a directory" in hocket("jobs", code=2).sentence
    assert hocket("init").code in (2, 5)
    assert (tmp_path / "home").read_text() == "I was here first"


@pytest.mark.parametrize("missing", ["complete", "node.key", "log.db"])
def test_a_half_created_home_is_said_and_finished_by_init(hocket: Program, missing: str):
    """As a kill leaves it: the mark that it is complete comes last, and what comes before may be missing too."""
    node_key = (hocket.home / "node.key").read_text()
    (hocket.home / "complete").unlink()
    (hocket.home / missing).unlink(missing_ok=True)
    assert "half-created" in hocket("jobs", code=2).sentence
    assert hocket("doctor", code=1).out.count("half-created") == 1
    hocket("init", code=0)
    hocket("submit", "test.echo", code=0)
    if missing != "node.key":
        assert (hocket.home / "node.key").read_text() == node_key


def test_a_home_that_lost_a_key_is_not_made_anew(hocket: Program):
    (hocket.home / "node.key").unlink()
    assert "has lost node.key" in hocket("jobs", code=2).sentence
    assert hocket("init", code=3)


def test_an_empty_directory_is_not_a_home(tmp_path: Path):
    (tmp_path / "home").mkdir()
    assert "is not a Hocket home" in Program(tmp_path / "home")("jobs", code=2).sentence


NOBODY = 65534


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may enter: pytest's own are closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="hocket-test-"))
    path.chmod(0o755)
    yield path
    for each in [path, *path.rglob("*")]:
        each.chmod(0o700)
    shutil.rmtree(path)


def unprivileged(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as somebody whom permissions bind. It is loaded before: that somebody may not be able to read it."""
    import hocket.cli

    modules = sorted(path.stem for path in Path(hocket.cli.__file__).parent.glob("[a-z]*.py"))
    script = (
        "import importlib, os, sys\n"
        f"for name in {modules!r}: importlib.import_module('hocket.cli.' + name)\n"
        "import ctypes, difflib, gettext, glob, importlib.metadata, resource, shlex, traceback\n"
        "import hocket.node.node, hocket.log.copies, hocket.work.handlers\n"
        f"if os.getuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"hocket = sys.modules['hocket.cli']; hocket.main({list(arguments)!r})\n"
    )
    environment = dict(os.environ) | {"HOCKET_HOME": str(home)}
    return subprocess.run(
        [PROGRAM[0], "-c", script], capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("command", [["jobs"], ["submit", "test.echo"], ["log", "verify"]], ids=" ".join)
def test_a_read_only_home(fresh_home: Path, open_directory: Path, command: list[str]):
    home = open_directory / "home"
    shutil.copytree(fresh_home, home)
    content = (home / "log.db").read_bytes()
    for each in home.rglob("*"):
        each.chmod(0o555 if each.is_dir() else 0o444)
    home.chmod(0o555)
    if os.getuid() == 0:
        for each in (home, *home.rglob("*")):
            os.chown(each, NOBODY, NOBODY)
    done = unprivileged(home, *command)
    assert done.returncode == 5, done
    assert done.stderr == f"hocket: the home {home} is read-only; Hocket needs to write there\n"
    assert unprivileged(home, "doctor").returncode == 1
    assert unprivileged(home, "init").returncode in (3, 5)
    assert (home / "log.db").read_bytes() == content


def test_a_home_that_may_not_be_entered(fresh_home: Path, open_directory: Path):
    closed = open_directory / "closed"
    shutil.copytree(fresh_home, closed / "home")
    closed.chmod(0o700 if os.getuid() == 0 else 0)
    for command in (["jobs"], ["doctor"], ["init"]):
        done = unprivileged(closed / "home", *command)
        assert done.returncode in (1, 5) and "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("hocket: ")


def test_a_home_cannot_be_made_where_one_may_not_write(open_directory: Path):
    open_directory.chmod(0o555)
    done = unprivileged(open_directory / "home", "init")
    assert done.returncode == 5 and done.stderr.startswith("hocket: cannot create the home"), done


def test_a_newer_database_is_refused_and_untouched(used: Program):
    database = used.home / "log.db"
    connection = apsw.Connection(str(database))
    connection.execute("PRAGMA user_version=99")
    connection.close()
    content = database.read_bytes()
    for command in COMMANDS:
        sentence = used(*command, code=5).sentence
        assert "version 99" in sentence and "upgrade Hocket" in sentence
    assert "version 99" in used("doctor", code=1).out
    used("init", code=3)
    assert database.read_bytes() == content


def test_another_programs_database_is_refused(hocket: Program):
    database = hocket.home / "log.db"
    database.unlink()
    connection = apsw.Connection(str(database))
    connection.execute("CREATE TABLE cats (name TEXT); INSERT INTO cats VALUES ('Mia')")
    connection.close()
    assert "is not a Hocket database" in hocket("jobs", code=5).sentence


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("keep", [0, 1, 99, 100, 2048, 0.5, -2048], ids=str)
def test_a_truncated_database(used: Program, keep: float):
    database = used.home / "log.db"
    size = database.stat().st_size
    cut = int(size * keep) if isinstance(keep, float) else keep if keep >= 0 else size + keep
    os.truncate(database, cut)
    for command in (["jobs"], ["submit", "test.echo"], ["log", "verify"]):
        result = used(*command)
        assert result.code in (1, 5), (command, result)
        assert result.sentence
    assert used("doctor", code=1).out.count("bad") >= 1


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("seed", range(10))
def test_a_bit_flipped_database(used: Program, seed: int):
    """A flip may hit what nobody reads; whatever it hits, a command ends with an exit code and at most one sentence."""
    database = used.home / "log.db"
    content = bytearray(database.read_bytes())
    chance = random.Random(seed)
    # The first pages hold the header and the schema; most of the rest is ops and their indices.
    place = chance.randrange(4096) if seed % 2 else chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    database.write_bytes(content)
    for command in (["log", "verify"], ["jobs"], ["submit", "test.echo"], ["doctor"]):
        result = used(*command)
        assert result.code in (0, 1, 5), (place, command, result)
        assert result.code == 0 or result.sentence


def test_a_flipped_byte_of_an_op_is_named(used: Program):
    connection = apsw.Connection(str(used.home / "log.db"))
    seq, body = connection.execute("SELECT seq, body FROM ops WHERE seq = 7").fetchone()
    body = bytearray(body)
    body[len(body) // 2] ^= 1
    connection.execute("UPDATE ops SET body = ? WHERE seq = ?", (bytes(body), seq))
    connection.close()
    result = used("log", "verify", code=1)
    assert any(line.startswith(f"op {seq} ") for line in result.out.splitlines()), result.out
    assert "damaged" in result.sentence


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs resource limits")
def test_a_full_disk_keeps_nothing_of_the_change(hocket: Program):
    """A limit on the size of files stands in for the end of the disk."""
    import resource

    before = hocket("status", "--json", code=0).json["ops"]
    payload = '{"text": "' + "x" * 500_000 + '"}'
    size = (hocket.home / "log.db").stat().st_size + 100_000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        [*PROGRAM, "submit", "test.echo", "-"],
        input=payload,
        capture_output=True,
        text=True,
        env=hocket.environment(),
        preexec_fn=limited,
    )
    assert done.returncode == 5, done
    assert done.stderr.startswith("hocket: ") and len(done.stderr.splitlines()) == 1
    assert hocket("status", "--json", code=0).json["ops"] == before
    hocket("submit", "test.echo", "-", input=payload, code=0)
    hocket("log", "verify", code=0)
