"""Other users of the same machine: what they can read, what they can put in our way, and what they are handed."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hocket.extensions.command.local_client import HELLO
from hocket.node.home import Home
from tests.cli.conftest import PATIENCE_S, PROGRAM, Program, until

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def place(fresh_home: Path) -> Iterator[Program]:
    """A home in a directory that everybody may enter: pytest's own are closed to other users."""
    directory = Path(tempfile.mkdtemp(prefix="hocket-test-"))
    directory.chmod(0o755)
    shutil.copytree(fresh_home, directory / "home")
    program = Program(directory / "home")
    yield program
    for process in program.started:
        process.kill()
        process.communicate()
    shutil.rmtree(directory)


@contextmanager
def somebody_else(script: str, *words: object) -> "Iterator[subprocess.Popen[str]]":
    """A process of another user. It has said `up` when this is entered, and is ended when it is left."""
    code = f"import os, socket, sys\nos.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n{script}"
    words = (sys.executable, "-c", code, *map(str, words))
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("before", ["nothing", "a directory", "a used directory"])
def test_a_home_is_closed_to_others_whatever_was_there(tmp_path: Path, before: str) -> None:
    home = tmp_path / "home"
    if before != "nothing":
        home.mkdir()
        home.chmod(0o777)
    if before == "a used directory":
        (home / "mine.sh").touch(0o755)
        (home / "mine.sh").chmod(0o755)
    for words in (("init",), ("run", "--env", "TOKEN", "--input", "given", "--output", "**", "--", "cat", "given")):
        (tmp_path / "given").write_text("x" * 100_000)
        subprocess.run(
            [*PROGRAM, *words],
            env=dict(os.environ) | {"HOCKET_HOME": str(home), "TOKEN": "x"},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            preexec_fn=lambda: os.umask(0),
        )
    found = {each.relative_to(home): mode(each) for each in home.rglob("*") if each.name != "mine.sh"}
    assert mode(home) == 0o700 and (home / "blobs").is_dir()
    assert {each for each, bits in found.items() if bits & 0o077} == set()
    if before == "a used directory":
        assert mode(home / "mine.sh") == 0o755, "what is not Hocket's stays as it is"


def test_a_home_of_an_older_version_is_closed_when_it_is_opened(hocket: Program) -> None:
    for path in (hocket.home, hocket.home / "processes", hocket.home / "log.db"):
        path.chmod(0o755)
    assert f"other users can access {hocket.home} (mode 0755)" in hocket("doctor", code=0).out
    assert mode(hocket.home) == 0o755, "the doctor changes nothing"
    hocket("status", code=0)
    assert [mode(hocket.home / part) for part in ("", "processes", "log.db")] == [0o700] * 3
    assert "other users can access" not in hocket("doctor", code=0).out


@needs_root
@pytest.mark.parametrize("words", [("jobs",), ("init",), ("run", "--", "true"), ("doctor",)], ids=" ".join)
def test_a_home_of_another_user_is_refused_even_to_root(place: Program, words: tuple[str, ...]) -> None:
    for each in (place.home, *place.home.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    refused = place(*words)
    said = refused.out if words == ("doctor",) else refused.sentence
    assert refused.code == (1 if words == ("doctor",) else 4)
    assert f"the home {place.home} belongs to" in said and "but this is root; run this as" in said


@needs_root
@pytest.mark.parametrize("part", ["config.toml", "revocations", "replica.db", "spool"])
def test_what_another_user_put_into_an_open_home_is_told(place: Program, part: str) -> None:
    planted = place.home / part
    planted.mkdir() if part == "spool" else planted.touch()
    os.chown(planted, NOBODY, NOBODY)
    assert f"{planted} belongs to" in place("jobs", code=4).sentence
    os.chown(planted, 0, 0)
    place("jobs", code=0)


def test_every_path_in_a_home_is_one_of_its_parts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    paths = {each for each in vars(home).values() if isinstance(each, Path)} - {home.path}
    parts = {home.path / each.relative_to(home.path).parts[0] for each in paths}
    for part in parts:
        part.touch()
        part.chmod(0o644)
    assert parts and parts <= {*home.exposed()}


FALSE_SOCKET = """
line = socket.socket(socket.AF_UNIX)
line.bind(sys.argv[1])
line.listen()
print("up", flush=True)
caller, _ = line.accept()
print(repr(caller.recv(1 << 20)), flush=True)
"""


@needs_root
@pytest.mark.parametrize("is_open", [True, False], ids=["home open to others", "home closed meanwhile"])
def test_a_false_socket_is_handed_nothing(place: Program, is_open: bool) -> None:
    for path in (place.home, place.home / "processes"):
        path.chmod(0o777)
    server = place.home / "processes" / "0-false.socket"
    with somebody_else(FALSE_SOCKET, server) as thief:
        if not is_open:
            place.home.chmod(0o700)
            (place.home / "processes").chmod(0o700)
        ran = place("run", "--", "echo", "ran", environment={"PRECIOUS": "precious"})
        if is_open:
            assert ran.code == 4 and f"{server} belongs to" in ran.sentence
            thief.kill()
        else:
            assert (ran.code, ran.out) == (0, "ran\n")
        assert thief.stdout is not None
        heard = thief.stdout.readline()
        assert heard in ("", "b''\n"), "what it heard"


@needs_root
def test_a_door_opens_to_nobody_else(place: Program) -> None:
    place.start("work")
    (server,) = until(lambda: list((place.home / "processes").glob("*.socket")), "a socket")
    for path in (place.home, place.home / "processes", server):
        path.chmod(0o777)
    call = """
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
print("up", flush=True)
try:
    line.sendall(bytes.fromhex(sys.argv[2]))
    print(line.recv(100), flush=True)
except ConnectionError:
    print(b"", flush=True)
"""
    with somebody_else(call, server, (HELLO + bytes(12)).hex()) as caller:
        assert caller.stdout is not None and caller.stdout.readline() == "b''\n"
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(PATIENCE_S)
        ours.connect(str(server))
        ours.sendall(HELLO + bytes(12))
        assert ours.recv(100) == b"l\0\0\0\0", "our own caller is answered"


def test_what_the_program_writes_is_for_its_owner_alone(hocket: Program) -> None:
    directory = hocket.home.parent
    hocket("run", "--output", "made", "--", "sh", "-c", "echo made > made", code=0)
    made = [each for each in hocket("artifacts", "list", "--json", code=0).json if each["type"] == "hocket.output"]
    files = [directory / name for name in ("all.ops", "made", "proof.json")]
    files[1].touch(0o644)
    hocket("log", "export", files[0], code=0)
    hocket("artifacts", "get", made[0]["artifact_id"], "-o", files[1], code=0)
    hocket("proof", "export", hocket("jobs", "--json", code=0).json[0]["job_id"], "-o", files[2], code=0)
    assert [mode(each) for each in files] == [0o600] * 3


def test_a_crash_log_holds_no_secret(hocket: Program) -> None:
    script = """
import sys
import hocket.cli
def crash(arguments):
    raise RuntimeError("about " + sys.argv[1])
hocket.cli.run = crash
sys.argv = ["hocket", *sys.argv[1:]]
hocket.cli.main()
"""
    invitation, bearer = "hocket-1-" + "Ab_-" * 20, "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiIxIn0.c2ln"
    words = ("join", invitation, "--env", "PIN=123456", "--env=B=z", "--env", "MINE", bearer, "ed25519:" + "ab" * 32)
    secrets = {"MINE": "my own value", "HOCKET_PASSPHRASE": "correct horse", "PLAIN": "plain"}
    for first in (words, *((each,) for each in ("correct horse and 123456", f"x{bearer}", "my own value", "plain"))):
        done = subprocess.run(
            [sys.executable, "-c", script, *first, *words],
            env=hocket.environment() | secrets,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and "internal error: RuntimeError: about" in done.stderr
    kept = (hocket.home / "crash.log").read_text()
    assert mode(hocket.home / "crash.log") == 0o600
    for secret in (invitation, bearer, "123456", "B=z", "my own value", "correct horse", "abab"):
        assert secret not in kept
    assert "about plain" in kept and "--env PIN=[removed]" in kept and "Traceback" in kept
