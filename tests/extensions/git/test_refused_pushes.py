"""A repository that refuses pushes for a while: a hook declines them, or the server cannot write. The workers stay, say
it once, and go on when it has passed.
"""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.extensions.git import git_jobs
from hocket.node.runtime import Runtime
from tests.cli.fork_server import start_command
from tests.extensions.git.places import Place, place
from tests.extensions.git.test_workers import manifest, until


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place("file", tmp_path) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home").close()
    (tmp_path / "home" / "config.toml").write_text('[commands]\nsandbox = "off"\n')
    return tmp_path / "home"


def started(home: Path, here: Place, said: Path, *options: str) -> "subprocess.Popen[str]":
    words, told = ["git", "work", here.address, "--allow-any", *options], here.outside | {"HOCKET_HOME": str(home)}
    with said.open("wb") as file:
        return start_command(words, told, Path.cwd(), (file.fileno(), file.fileno()))


def refuse(here: Place, condition: str = "true") -> Path:
    """A hook that declines every push for which the condition holds, and notes that it did."""
    hook, declined = here.directory / "hooks" / "pre-receive", here.directory / "declined"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f"#!/bin/sh\nrefs=$(cat)\nif {condition}; then echo no >> {declined}; echo maintenance >&2; exit 1; fi\n"
    )
    hook.chmod(0o755)
    return declined


def count(declined: Path) -> int:
    return len(declined.read_text().splitlines()) if declined.exists() else 0


@pytest.mark.req("GT-11")
def test_a_worker_whose_claims_are_refused_for_a_while_claims_later(here: Place, home: Path, tmp_path: Path) -> None:
    made = git_jobs.submit(here.open(), manifest(1), 1_000)
    declined, said = refuse(here), tmp_path / "said"
    worker = started(home, here, said)
    until(lambda: count(declined) >= 3, "three refused pushes")
    assert worker.poll() is None
    assert said.read_text().count("refuses changes") == 1
    (here.directory / "hooks" / "pre-receive").unlink()
    until(lambda: (job := git_jobs.look(here.open(), made.content_id)) and job.state == "succeeded", "the job's result")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


@pytest.mark.req("GT-11")
def test_a_result_that_is_refused_for_a_while_is_pushed_later(here: Place, home: Path, tmp_path: Path) -> None:
    made = git_jobs.submit(here.open(), manifest(1), 1_000)
    declined, said = refuse(here, 'echo "$refs" | grep -q /result'), tmp_path / "said"
    worker = started(home, here, said, "--until-idle")
    until(lambda: count(declined) >= 3, "three refused results")
    assert worker.poll() is None
    (here.directory / "hooks" / "pre-receive").unlink()
    assert worker.wait(60) == 0
    found = git_jobs.look(here.open(), made.content_id)
    assert found is not None and found.state == "succeeded" and found.claim is not None and found.claim.fence == 1
    assert said.read_text().count("refuses changes") == 1
