"""Workers as processes on a real repository: one result for each job, whoever is killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from hocket.bus.hints import Pipes
from hocket.extensions.command.job import command_runner
from hocket.extensions.command.manifest import content_id, read_manifest
from hocket.extensions.command.proofs import GIT_KIND
from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.announcements import listening
from hocket.extensions.git.plane import Change
from hocket.extensions.git.verify import verify
from hocket.extensions.git.worker import GitWorker, Parts
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import SigningKey, key_text
from hocket.node.home import Home
from hocket.node.local_node import run_services
from hocket.node.runtime import Runtime
from hocket.work.environment import MachineEnvironment
from tests.cli.fork_server import run_command, start_command
from tests.extensions.git.places import Place, place
from tests.waiting import wait_for

PATIENCE_S = 240.0
until = partial(wait_for, patience=PATIENCE_S)


def hocket(home: Path, *words: object, code: int = 0, environment: dict[str, str] | None = None) -> str:
    told = (environment or dict(os.environ)) | {"HOCKET_HOME": str(home)}
    done = run_command(list(map(str, words)), None, told, Path.cwd(), PATIENCE_S)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, (words, out, err)
    assert "Traceback" not in err
    return out + err if code else out


def start(home: Path, *words: object, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    told = (environment or dict(os.environ)) | {"HOCKET_HOME": str(home)}
    with open(os.devnull, "wb") as nothing:
        return start_command(list(map(str, words)), told, Path.cwd(), (nothing.fileno(), nothing.fileno()))


def manifest(number: int, *command: str) -> bytes:
    argv = list(command) or ["sh", "-c", f"echo {number} > outputs/number; echo said {number}"]
    return json.dumps({"command": argv, "timeout": 60, "env": {"NUMBER": str(number)}}).encode()


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"home-{number}" for number in range(4)]
    for home in made:
        Runtime.init(home).close()
        # The jobs write where the tests can see it.
        (home / "config.toml").write_text('[commands]\nsandbox = "off"\n')
    return made


@pytest.mark.req("GT-05", "GT-08", "GT-10", "GT-11")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("count", "kills"), [(100, 8), pytest.param(300, 24, marks=pytest.mark.soak)])
def test_eight_workers_are_killed_at_random_and_every_job_has_one_result(
    here: Place, homes: list[Path], tmp_path: Path, count: int, kills: int
) -> None:
    chance = random.Random(7)
    plane = here.open()
    command = (
        "sh",
        "-c",
        "mkdir outputs; echo $NUMBER > outputs/number; echo $NUMBER $HOCKET_FENCE >> $0",
        str(tmp_path / "ran"),
    )
    for number in range(count):
        assert git_jobs.submit(plane, manifest(number, *command), 1_000).is_new
    words = ("git", "work", here.directory, "--allow-any", "--lease", "3s", "--until-idle")
    workers = [start(homes[number % 4], *words) for number in range(8)]
    try:
        for _ in range(kills):
            until(lambda: (tmp_path / "ran").exists(), "a job to run")
            time.sleep(chance.uniform(0.0, 0.2))
            number = chance.randrange(8)
            workers[number].send_signal(signal.SIGKILL)
            workers[number].wait()
            workers[number] = start(homes[number % 4], *words)
        for worker in workers:
            assert worker.wait(PATIENCE_S) == 0
    finally:
        for worker in workers:
            worker.kill()
    states = Counter(job.state for job in git_jobs.listing(plane))
    assert states == {"succeeded": count}
    ran = Counter(tuple(line.split()) for line in (tmp_path / "ran").read_text().splitlines())
    assert {number for number, _ in ran} == {str(number) for number in range(count)}
    assert set(ran.values()) == {1}, "two ran under one fence"
    # Somebody else, with nothing but a clone.
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--mirror", str(here.directory), str(clone)], check=True, env=here.outside)
    shutil.rmtree(here.directory)
    assert f"{count} of {count} jobs" in hocket(tmp_path / "nobody", "git", "verify", clone, code=4)
    keys = [word for home in homes for word in ("--worker", key_text(Home(home).node_key().public))]
    assert hocket(tmp_path / "nobody", "git", "verify", clone, *keys) == f"good: {count} jobs\n"
    fsck = subprocess.run(["git", "-C", str(clone), "fsck", "--strict"], capture_output=True, text=True, check=True)
    assert "error" not in fsck.stderr + fsck.stdout
    for home in homes:
        hocket(home, "log", "verify")


@pytest.mark.req("GT-06", "GT-09")
@pytest.mark.parametrize("kind", ["http", "ssh", "daemon"])
def test_a_job_done_on_one_clone_is_verified_on_another(kind: str, homes: list[Path], tmp_path: Path) -> None:
    with place(kind, tmp_path) as there:
        submitter, worker, reader = homes[:3]
        file = tmp_path / "job.yaml"
        file.write_text("command: [sh, -c]\nargs: ['mkdir outputs && echo made > outputs/it']\ntimeout: PT1M\n")
        submit = ("git", "submit", there.address, file, "--json")
        made = json.loads(hocket(submitter, *submit, environment=there.outside))
        assert made["created"]
        assert not json.loads(hocket(worker, *submit, environment=there.outside))["created"]
        words = ("git", "work", there.address, "--allow", "sh **", "--until-idle")
        assert "1 succeeded" in hocket(worker, *words, environment=there.outside)
        shown = json.loads(
            hocket(reader, "git", "show", there.address, made["content_id"], "--json", environment=there.outside)
        )
        assert shown["state"] == "succeeded" and shown["fence"] == 1
        words = ("git", "verify", there.address, "--worker", shown["worker"])
        assert hocket(tmp_path / "none", *words, environment=there.outside) == "good: 1 job\n"
        body = there.git("log", "-1", "--format=%B", f"refs/gatos/jobs/{made['content_id'][7:]}/result")
        trailers = there.git("interpret-trailers", "--parse", given=body)
        assert [line.split(":")[0] for line in trailers.splitlines()] == [
            *("Job-Id", "Proof-Of-Execution", "Worker-Id", "Attest-Program", "Attest-Sig", "State")
        ]
        # The same on the worker's own log.
        (job,) = json.loads(hocket(worker, "jobs", "--json"))
        assert job["kind"] == "hocket.git" and job["outcome"] == "succeeded"
        hocket(worker, "proof", "verify", job["job_id"], "--offline")


def test_show_says_how_the_command_ended_and_what_it_printed(here: Place, homes: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    script = "mkdir outputs; echo made > outputs/it; echo printed; echo aside >&2; exit 3"
    file.write_text(f"command: [sh, -c]\nargs: ['{script}']\ntimeout: PT1M\n")
    made = json.loads(hocket(homes[0], "git", "submit", here.directory, file, "--json"))
    show = ("git", "show", here.directory, made["content_id"])
    assert json.loads(hocket(homes[0], *show, "--json"))["run"] is None
    hocket(homes[0], "git", "work", here.directory, "--allow", "sh **", "--until-idle")
    run = json.loads(hocket(homes[0], *show, "--json"))["run"]
    assert (run["exit_code"], run["timed_out"], run["signal"]) == (3, False, None)
    assert (run["stdout"], run["stderr"]) == ("printed\n", "aside\n")
    assert [each["path"] for each in run["outputs"]] == ["outputs/it"]
    text = hocket(homes[1], *show)
    assert "exit code\t3\noutput\toutputs/it (5 bytes)\n" in text
    assert text.endswith("\nstdout:\nprinted\n\nstderr:\naside\n")


def test_a_job_is_submitted_again_as_a_new_one(here: Place, homes: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [sh, -c]\nargs: ['echo run $HOCKET_AGAIN']\ntimeout: PT1M\nulid: 01J9ZC5M3V4W5X6Y7Z8A9B0C1D\n"
    )
    submit = ("git", "submit", here.directory, file, "--json")
    made = [json.loads(hocket(homes[0], *submit, *again)) for again in ((), ("--again",), ("--again",), ())]
    assert [each["created"] for each in made] == [True, True, True, False]
    assert len({each["content_id"] for each in made}) == 3 and made[3]["content_id"] == made[0]["content_id"]
    assert "done: 3 succeeded" in hocket(homes[0], "git", "work", here.directory, "--allow", "sh **", "--until-idle")
    assert hocket(homes[0], "git", "verify", here.directory) == "good: 3 jobs\n"
    shown = json.loads(hocket(homes[0], "git", "show", here.directory, made[2]["content_id"], "--json"))
    assert shown["run"]["stdout"] == "run 3\n" and shown["manifest"]["env"] == {"HOCKET_AGAIN": "3"}


@pytest.mark.req("GT-08", "GT-11")
def test_a_running_job_is_aborted(here: Place, homes: list[Path], tmp_path: Path) -> None:
    plane = here.open()
    began = tmp_path / "began"
    made = git_jobs.submit(plane, manifest(1, "sh", "-c", f"echo $$ > {began}; sleep 600"), 1_000)
    worker = start(homes[0], "git", "work", here.directory, "--allow-any", "--lease", "2s", "--until-idle")
    process = int(until(lambda: began.exists() and began.read_text().strip(), "the command to begin"))
    found = git_jobs.look(plane, made.content_id)
    assert found is not None and found.state in ("claimed", "running")
    hocket(homes[1], "git", "abort", here.directory, made.content_id.hex()[:12], "--reason", "no longer needed")
    assert worker.wait(PATIENCE_S) == 0
    assert not Path(f"/proc/{process}").exists()
    found = git_jobs.look(plane, made.content_id)
    assert found is not None and found.state == "aborted" and found.refs.result is None
    assert "has already ended" in hocket(homes[1], "git", "abort", here.directory, made.content_id.hex(), code=3)
    assert "good: 1 job" in hocket(homes[1], "git", "verify", here.directory)
    (job,) = json.loads(hocket(homes[0], "jobs", "--json"))
    assert job["outcome"] == "cancelled"


@pytest.mark.req("GT-07")
def test_a_job_is_announced_to_those_who_wait(here: Place, homes: list[Path], tmp_path: Path) -> None:
    file, heard = tmp_path / "job.yaml", threading.Event()
    file.write_bytes(manifest(1))
    processes = Home(homes[0]).processes
    hocket(homes[0], "git", "submit", here.directory, file)
    bus = Pipes(processes)
    with listening(bus, heard.set):
        assert not heard.is_set()
        hocket(homes[0], "submit", "other.kind")
        hocket(homes[0], "git", "submit", here.directory, file)
        assert heard.wait(PATIENCE_S)
    bus.close()
    assert list(processes.glob("*.any")) == []


@pytest.mark.req("GT-11")
def test_a_repository_that_vanishes_in_mid_job(here: Place, homes: list[Path], tmp_path: Path) -> None:
    """The worker lives, the command is stopped when its lease must be over, and the job is done when it is back."""
    plane = here.open()
    began, away = tmp_path / "began", here.directory.with_name("away")
    made = git_jobs.submit(
        plane, manifest(1, "sh", "-c", f"echo $$ >> {began}; [ -e {away}.back ] || sleep 600"), 1_000
    )
    worker = start(homes[0], "git", "work", here.directory, "--allow-any", "--lease", "2s", "--until-idle")
    process = int(until(lambda: began.exists() and began.read_text().strip(), "the command to begin"))
    here.directory.rename(away)
    until(lambda: not Path(f"/proc/{process}").exists(), "the command to be stopped")
    assert worker.poll() is None
    Path(f"{away}.back").touch()
    away.rename(here.directory)
    assert worker.wait(PATIENCE_S) == 0
    found = git_jobs.look(here.open(), made.content_id)
    assert found is not None and found.state == "succeeded" and found.claim is not None and found.claim.fence == 2
    assert "good: 1 job" in hocket(homes[0], "git", "verify", here.directory)


@pytest.mark.req("GT-03", "GT-06")
def test_what_goes_wrong_is_said(here: Place, homes: list[Path], tmp_path: Path) -> None:
    home, file = homes[0], tmp_path / "job.yaml"
    file.write_text("command: [sh, -c, 'exit 3']\ntimeout: 5\n")
    assert "no command is allowed here" in hocket(home, "git", "work", here.directory, code=2)
    assert "no git repository" in hocket(home, "git", "jobs", tmp_path / "none", code=2)
    assert "cannot read" in hocket(home, "git", "submit", here.directory, tmp_path / "none.yaml", code=2)
    (tmp_path / "bad.yaml").write_text("command: [sh]\ntimeout: -1\n")
    assert "timeout" in hocket(home, "git", "submit", here.directory, tmp_path / "bad.yaml", code=2)
    hocket(home, "git", "submit", here.directory, file)
    assert "not allowed here: sh" in _stderr(home, "git", "work", here.directory, "--allow", "make", "--until-idle")
    assert "0 succeeded, 1 failed" in hocket(home, "git", "work", here.directory, "--allow-any", "--until-idle")
    assert "no job 'ffff'" in hocket(home, "git", "show", here.directory, "ffff", code=2)
    assert "removed 0 jobs" in hocket(home, "git", "gc", here.directory)
    assert "removed 1 job" in hocket(home, "git", "gc", here.directory, "--older", "0s")
    assert hocket(home, "git", "jobs", here.directory) == ""


@pytest.mark.req("GT-11")
def test_a_worker_that_is_stopped_hands_its_job_back(here: Place, homes: list[Path], tmp_path: Path) -> None:
    """Nobody waits for the end of the lease."""
    plane = here.open()
    began, may_end = tmp_path / "began", tmp_path / "may-end"
    made = git_jobs.submit(plane, manifest(1, "sh", "-c", f"echo $$ >> {began}; [ -e {may_end} ] || sleep 600"), 1_000)
    words = ("git", "work", here.directory, "--allow-any", "--lease", "1h")
    worker = start(homes[0], *words)
    process = int(until(lambda: began.exists() and began.read_text().strip(), "the command to begin"))
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE_S) == 130
    assert not Path(f"/proc/{process}").exists()
    found = git_jobs.look(plane, made.content_id)
    assert found is not None and found.state == "pending"
    assert found.claim is not None and found.claim.state == "released" and found.claim.fence == 1
    assert "good: 1 job" in hocket(homes[1], "git", "verify", here.directory)
    may_end.touch()
    assert "1 succeeded" in hocket(homes[1], *words, "--until-idle")
    found = git_jobs.look(plane, made.content_id)
    assert found is not None and found.state == "succeeded" and found.claim is not None and found.claim.fence == 2
    assert "good: 1 job" in hocket(homes[1], "git", "verify", here.directory)


def test_a_worker_on_a_draining_node_finishes_and_takes_nothing_new(
    here: Place, homes: list[Path], tmp_path: Path
) -> None:
    plane = here.open()
    began, may_end = tmp_path / "began", tmp_path / "may-end"
    wait = f"echo $$ > {began}; until [ -e {may_end} ]; do sleep 0.05; done"
    first = git_jobs.submit(plane, manifest(1, "sh", "-c", wait), 1_000)
    words = ("git", "work", here.directory, "--allow-any", "--until-idle")
    worker = start(homes[0], *words)
    until(lambda: began.exists() and began.read_text().strip(), "the command to begin")
    hocket(homes[0], "drain", "here")
    second = git_jobs.submit(plane, manifest(2), 2_000)
    may_end.touch()
    assert worker.wait(PATIENCE_S) == 0
    states = [found.state for made in (first, second) if (found := git_jobs.look(plane, made.content_id)) is not None]
    assert states == ["succeeded", "pending"]
    hocket(homes[0], "resume", "here")
    assert "1 succeeded" in hocket(homes[0], *words)


@pytest.mark.req("GT-14")
def test_a_worker_writes_the_policy_of_the_manifest(here: Place, homes: list[Path], tmp_path: Path) -> None:
    root = "sha256:" + "ab" * 32
    (tmp_path / "job.yaml").write_text(f"command: [/bin/true]\ntimeout: 9\npolicy_root: {root}\n")
    made = json.loads(hocket(homes[0], "git", "submit", here.directory, tmp_path / "job.yaml", "--json"))
    hocket(homes[0], "git", "work", here.directory, "--allow-any", "--until-idle")
    body = here.git("log", "-1", "--format=%B", f"refs/gatos/jobs/{made['content_id'][7:]}/result")
    assert f"Policy-Code-Root: {root}" in here.git("interpret-trailers", "--parse", given=body).splitlines()
    assert "good: 1 job" in hocket(homes[0], "git", "verify", here.directory)


@pytest.fixture
def at_hand(here: Place, homes: list[Path]) -> Iterator[GitWorker]:
    """A worker in this process, whose rounds the test makes one by one."""
    with Runtime.open(homes[0]) as runtime, command_runner(runtime, allow_any=True) as commands:
        environment = MachineEnvironment(runtime.home.processes, runtime.bus)
        me = holding.GitWorkerKey(runtime.home.node_key(), environment.name("git"), 60, os.urandom)
        parts = Parts(runtime.log, environment, run_services(runtime, GIT_KIND, environment.monotonic), commands)
        made = GitWorker(here.open(), parts, me, concurrency=1, until_idle=True, emit=print, finished=lambda *_: None)
        with closing(environment.liveness.announce(me.process)) as made._sign:
            yield made


@pytest.mark.req("GT-11", "GT-15")
def test_a_job_that_was_submitted_again_between_two_looks_is_looked_at_again(here: Place, at_hand: GitWorker) -> None:
    """The manifest is in another commit: with what it knew of the first the worker would claim the tree of a job that
    is gone, and miss the inputs that came along this time."""
    plane, data = here.open(), b"an input\n"
    text = json.dumps(
        {
            "command": ["cat", f"inputs/{content_hash(data).hex()}"],
            "timeout": 60,
            "inputs": [{"kind": "blobptr", "algo": "blake3", "hash": hash_text(content_hash(data)), "size": len(data)}],
        }
    ).encode()
    first = git_jobs.submit(plane, text, 1_000)
    found = git_jobs.look(plane, first.content_id)
    assert found is not None
    other = holding.GitWorkerKey(SigningKey(b"\x31" * 32), "elsewhere", 3_600, os.urandom)
    assert holding.claim(plane, found, other, 1_000) is not None
    with ThreadPoolExecutor(1) as slots:
        # Another worker holds the job: this one learns what it asks for, and waits.
        assert at_hand._look(slots, 1) == (0, False)
        refs = plane.refs()
        assert plane.swap([Change(name, oid, None) for name, oid in refs.items()])
        second = git_jobs.submit(plane, text, 2_000, [data])
        assert second.is_new and second.commit != first.commit
        assert at_hand._look(slots, 1) == (1, False)
        (future,) = at_hand._running
        future.result(PATIENCE_S)
    at_hand._gather()
    assert at_hand.succeeded == 1
    (verified,) = verify(plane)
    assert verified.findings == () and verified.has_result


@pytest.mark.req("GT-15")
def test_a_job_that_was_no_good_is_looked_at_again_when_it_changes(
    here: Place, at_hand: GitWorker, capsys: pytest.CaptureFixture[str]
) -> None:
    plane, text = here.open(), b"command: [/bin/true]\ntimeout: 9\n"
    ref = f"refs/gatos/jobs/{content_id(read_manifest(text)).hex()}/job"
    here.git("update-ref", ref, plane.write("blob", b"nothing"))
    with ThreadPoolExecutor(1) as slots:
        for _ in range(3):
            assert at_hand._look(slots, 1) == (0, True)
        assert capsys.readouterr().out.count("is not a commit") == 1
        here.git("update-ref", "-d", ref)
        assert git_jobs.submit(plane, text, 1_000).is_new
        assert at_hand._look(slots, 1) == (1, False)
        (future,) = at_hand._running
        future.result(PATIENCE_S)


def _stderr(home: Path, *words: object) -> str:
    told = os.environ | {"HOCKET_HOME": str(home)}
    done = run_command(list(map(str, words)), None, told, Path.cwd(), PATIENCE_S)
    assert done.returncode == 0
    return done.stderr.decode()
