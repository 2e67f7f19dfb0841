"""Jobs that are pushed with plain git are announced on the bus, and a push can start a job. The listener speaks NATS by
itself, over a socket.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus.nats_server import NatsServer
from tests.cli.conftest import Program, until

MANIFEST = b'{"command": ["true"], "timeout": 60}'
PATIENCE_S = 60.0


class Listener:
    """A plain subscriber of every subject."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPING\r\n')
        self._heard = b""
        self.until(b"PONG")

    def until(self, text: bytes) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._heard:
            assert time.monotonic() < deadline, self._heard
            self._heard += self._socket.recv(65536)
        return self._heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as server:
        yield server


@pytest.fixture
def hocket(tmp_path: Path, nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setenv("HOCKET_BUS", nats.url)
    program = Program(tmp_path / "home")
    program("init", code=0)
    yield program
    program.end_started()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.git"
    subprocess.run(["git", "init", "-q", "--bare", str(path)], check=True)
    return path


@pytest.fixture
def listener(nats: NatsServer) -> Iterator[Listener]:
    made = Listener(nats.port)
    yield made
    made.close()


def git(where: Path, *arguments: str, given: bytes = b"") -> str:
    who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    ran = subprocess.run(["git", "-C", str(where), *arguments], input=given, capture_output=True, env=os.environ | who)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode().strip()


def pushed(hocket: Program, repository: Path, clone: Path, manifest: bytes = MANIFEST) -> str:
    """Pushes a job as anybody could who has read the document; returns its content id."""
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    blob = git(clone, "hash-object", "-w", "--stdin", given=manifest)
    tree = git(clone, "mktree", given=f"100644 blob {blob}\tjob.yaml\n".encode())
    commit = git(clone, "commit-tree", tree, "-m", "a job")
    (clone / "job.yaml").write_bytes(manifest)
    content_id = hocket("manifest", "id", clone / "job.yaml", code=0).out.strip()
    ref = f"refs/gatos/jobs/{content_id.removeprefix('blake3:')}/job"
    git(clone, "push", "-q", str(repository), f"{commit}:{ref}")
    return content_id


@pytest.mark.req("GT-07", "GT-16")
def test_a_hook_announces_a_job_that_is_pushed_with_plain_git(
    hocket: Program, repository: Path, listener: Listener, tmp_path: Path
) -> None:
    hook = Path(hocket("git", "hook", repository, "--json", code=0).json["hook"])
    assert hook == repository / "hooks" / "post-receive" and os.access(hook, os.X_OK)
    hocket("git", "hook", repository, code=0)
    content_id = pushed(hocket, repository, tmp_path / "clone")
    heard = listener.until(content_id.encode())
    assert b"gatos%2Fjobs%2Fpending" in heard
    hook.write_text("#!/bin/sh\n")
    assert "another hook" in hocket("git", "hook", repository, code=3).sentence
    assert "not a git repository" in hocket("git", "hook", tmp_path / "home", code=2).sentence


@pytest.mark.req("GT-07", "GT-16")
@pytest.mark.parametrize("command", ["work", "serve"])
def test_a_process_that_watches_the_repository_announces_what_is_pushed(
    hocket: Program, repository: Path, listener: Listener, tmp_path: Path, command: str
) -> None:
    if command == "work":
        hocket.start("git", "work", repository, "--allow", "nothing")
    else:
        hocket.start("serve", "--port", "0", "--git", repository)
    for number, manifest in enumerate((MANIFEST, b'{"command": ["false"], "timeout": 60}')):
        content_id = pushed(hocket, repository, tmp_path / f"clone{number}", manifest)
        listener.until(content_id.encode())


@pytest.mark.req("GT-07", "GT-16")
def test_a_state_change_starts_a_job(hocket: Program, repository: Path, listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text("command: [sh, -c, 'echo $GATOS_REF $GATOS_NEW']\ntimeout: 60\n")
    assert "bad --on" in hocket("git", "hook", repository, "--on", "main", code=2).sentence
    hocket("git", "hook", repository, "--on", f"refs/heads/main={tmp_path / 'test.yaml'}", code=0)
    clone = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    (clone / "file").write_text("changed")
    git(clone, "add", "file")
    git(clone, "commit", "-qm", "a change")
    new = git(clone, "rev-parse", "HEAD")
    git(clone, "push", "-q", str(repository), "HEAD:refs/heads/other")
    assert json.loads(hocket("git", "jobs", repository, "--json", code=0).out) == []
    git(clone, "push", "-q", str(repository), "HEAD:refs/heads/main")
    (job,) = until(lambda: hocket("git", "jobs", repository, "--json", code=0).json)
    listener.until(job["content_id"].encode())
    hocket("git", "work", repository, "--allow-any", "--until-idle", code=0)
    assert f"refs/heads/main {new}" in hocket("git", "show", repository, job["content_id"], code=0).out
