"""Results in git by the other nodes of a mesh: trusted for as long as a node may complete such jobs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.extensions.git.holding import GitWorkerKey
from hocket.node.home import Home
from tests.extensions.git.hands import finished
from tests.extensions.git.places import place

from .conftest import PATIENCE_S, Program


@pytest.fixture
def mesh(hocket: Program, tmp_path: Path) -> Iterator[dict[str, Program]]:
    """The owner, a node that may complete jobs from git, and one that may complete others."""
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    assert process.stdout.readline(), process.communicate(timeout=PATIENCE_S)
    found = {"owner": hocket}
    for name, prefix in (("builder", "hocket."), ("stranger", "acme.")):
        found[name] = Program(tmp_path / name)
        may = ("--may", f"job:claim:{prefix}", "--may", f"job:complete:{prefix}")
        found[name]("join", hocket("invite", name, *may, "--json", code=0).json["token"], code=0)
    yield found
    for process in found["builder"].started + found["stranger"].started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.req("GT-15")
def test_nodes_that_may_complete_jobs_are_trusted_until_they_are_revoked(
    mesh: dict[str, Program], tmp_path: Path
) -> None:
    owner = mesh["owner"]
    by = {}
    for name in ("builder", "stranger"):
        (directory := tmp_path / f"of-{name}").mkdir()
        with place("bare", directory) as here:
            key = Home(mesh[name].home).node_key()
            finished(here.open(), by=GitWorkerKey(key, "worker-1", 60, os.urandom))
            by[name] = str(here.directory)
    assert owner("git", "verify", by["builder"], code=0).out == "good: 1 job\n"
    assert "an untrusted key" in owner("git", "verify", by["stranger"], code=4).sentence
    listed = {each["name"]: each for each in owner("git", "trust", "list", "--json", code=0).json}
    assert listed["builder"]["because"] == "mesh" and "stranger" not in listed
    owner("revoke", "builder", code=0)
    assert "an untrusted key" in owner("git", "verify", by["builder"], code=4).sentence
