"""Jobs in git are announced on other machines at least once: again and again, until a worker has claimed them."""

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hocket.events import ignore
from hocket.extensions.git.announcements import hearing
from hocket.extensions.git.pending_jobs import NOTED_MS_MAX, PendingGitJobs
from hocket.node.message_bus import bus_settings
from hocket.node.runtime import Runtime
from tests.bus.nats_server import NatsServer
from tests.cli.conftest import Program

PATIENCE_S = 60.0
MANIFEST = b'{"command": ["true"], "timeout": 60}'
JOB = b"\7" * 32


@contextmanager
def two_homes(directory: Path) -> Iterator[tuple[Program, Program, Path]]:
    """Two nodes of one user, and a repository. What the test starts ends with it."""
    repository = directory / "jobs.git"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    (directory / "job.yaml").write_bytes(MANIFEST)
    a, b = Program(directory / "a"), Program(directory / "b")
    a("init", code=0)
    b("init", "--user-key", a.home / "user.key", code=0)
    try:
        yield a, b, repository
    finally:
        for each in (*a.started, *b.started):
            each.terminate()
            each.communicate()


def serve(program: Program, *options: str) -> str:
    server = program.start("serve", "--port", "0", "--json", *options)
    assert server.stdout is not None
    address: str = json.loads(server.stdout.readline())["address"]
    return address


def notes(program: Program) -> list[Path]:
    return list((program.home / "git" / "pending").glob("*.json"))


async def _until_gone(program: Program) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while notes(program):
            await asyncio.sleep(0.1)


def submit(a: Program, repository: Path, **options: object) -> str:
    return a("git", "submit", str(repository), str(repository.parent / "job.yaml"), code=0, **options).err


def runs(b: Program, repository: Path) -> None:
    b("git", "work", str(repository), "--allow-any", "--until-idle", code=0)


@pytest.mark.slow
@pytest.mark.req("GT-07")
def test_a_job_whose_announcement_no_server_took_is_announced_when_one_is_there(tmp_path: Path) -> None:
    """The submitting command has ended long before."""
    with two_homes(tmp_path) as (a, b, repository):
        b("peers", "add", serve(a), code=0)
        b("sync", code=0)
        for each in a.started:
            each.terminate()
            each.communicate()
        a.started.clear()
        told = submit(a, repository, environment={"HOCKET_BUS": "nats://127.0.0.1:9"})
        assert "did not take the announcement" in told
        assert len(notes(a)) == 1
        with NatsServer(tmp_path) as server, Runtime.open(b.home) as runtime:
            heard = threading.Event()
            with hearing(runtime, bus_settings(runtime.home, server.url), heard.set, ignore):
                serve(a, "--bus", server.url)
                assert heard.wait(PATIENCE_S)
            assert len(notes(a)) == 1, "nobody has claimed it yet"
            runs(b, repository)
            asyncio.run(_until_gone(a))


@pytest.mark.slow
@pytest.mark.req("GT-07")
def test_a_job_is_announced_over_the_nodes_own_connections_until_it_is_claimed(tmp_path: Path) -> None:
    """The first announcement is lost: nobody was there, and what was kept of it is gone."""
    with two_homes(tmp_path) as (a, b, repository):
        assert submit(a, repository) == ""
        shutil.rmtree(a.home / "messages" / "announced")
        b("peers", "add", serve(a), code=0)
        with Runtime.open(b.home) as runtime:
            heard = threading.Event()
            with hearing(runtime, None, heard.set, ignore):
                serve(b)
                assert heard.wait(PATIENCE_S)
        assert len(notes(a)) == 1
        runs(b, repository)
        asyncio.run(_until_gone(a))


def test_notes_are_due_at_their_time_bounded_and_end_after_a_day(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("hocket.extensions.git.pending_jobs.NOTED_MAX", 3)
    kept = PendingGitJobs(tmp_path / "pending")
    assert kept.due(0) == []
    kept.add("relative.git", JOB, 1_000, 3_000)
    assert kept.due(2_999) == []
    (job,) = kept.due(3_000)
    assert Path(job.repository).is_absolute() and job.id == JOB and job.tries == 1
    assert kept.announced(job, 7_000) and not kept.announced(job, 9_000), "another process was first"
    assert kept.due(6_999) == []
    (again,) = kept.due(7_000)
    assert again.tries == 2
    kept.drop(again.id)
    assert kept.due(7_000) == [] and not kept.announced(again, 9_000)
    for number in range(5):
        kept.add("ssh://host/jobs.git", bytes([number]) * 32, 1_000, 1_000)
    (tmp_path / "pending" / "bad.json").write_text("{")
    (tmp_path / "pending" / "worse.json").write_text('{"repository": "x", "content_id": "zz"}')
    assert len(kept.due(1_000)) == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "pending").iterdir())
    assert kept.due(1_001 + NOTED_MS_MAX) == [] and list((tmp_path / "pending").iterdir()) == []
