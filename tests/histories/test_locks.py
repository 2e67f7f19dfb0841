"""Histories of locks, by eight processes that are killed and frozen at random, in one home and in a mesh whose
coordinator restarts. They are linearizable, no fence is given twice, and no stale write gets through the guard.
"""

from pathlib import Path

import pytest

from hocket.testing.linearizability import falling_fences
from tests.histories.locker import KEYS
from tests.histories.runs import SECONDS, Mesh, check_history, coordinated, one_home, record


@pytest.mark.req("VX-01", "VX-03", "VX-04", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_locks_in_one_home(tmp_path: Path, seconds: int) -> None:
    with one_home(tmp_path) as mesh:
        run(mesh, tmp_path, seconds)


@pytest.mark.req("VX-01", "VX-03", "VX-04", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_locks_in_a_mesh_whose_coordinator_restarts(tmp_path: Path, seconds: int) -> None:
    with coordinated(tmp_path, "lock:acquire:file:", "lock:acquire:other") as mesh:
        run(mesh, tmp_path, seconds)


def run(mesh: Mesh, directory: Path, seconds: int) -> None:
    history = record(mesh, directory, "locker.py", "", list(KEYS), seconds)
    check_history(history)
    assert not falling_fences(history)
