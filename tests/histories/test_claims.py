"""Histories of claims on jobs, by eight processes that are killed and frozen at random, in one home and in a mesh whose
coordinator restarts. They are linearizable, no fence is given twice, and no stale write gets through the guard.
"""

from pathlib import Path

import pytest

import hocket
from hocket.testing.linearizability import apart, falling_fences
from tests.histories.runs import LASTS_MS, SECONDS, Mesh, check_history, coordinated, one_home, record

KIND = "history.step"


@pytest.mark.req("LW-37", "LW-39", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_claims_in_one_home(tmp_path: Path, seconds: int) -> None:
    with one_home(tmp_path) as mesh:
        run(mesh, tmp_path, seconds)


@pytest.mark.req("LW-37", "LW-39", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_claims_in_a_mesh_whose_coordinator_restarts(tmp_path: Path, seconds: int) -> None:
    with coordinated(tmp_path, *(f"job:{what}:{KIND}" for what in ("claim", "complete", "read"))) as mesh:
        run(mesh, tmp_path, seconds)


def run(mesh: Mesh, directory: Path, seconds: int) -> None:
    step = hocket.kind(KIND, lease=f"{LASTS_MS}ms", retries=1_000, backoff="1ms", backoff_max="1ms")
    with hocket.open(mesh.owner.home) as node:
        job_ids = [handle.job_id for handle in node.submit_many((step, {}) for _ in range(10 * seconds))]
    history = record(mesh, directory, "claimer", "\n".join(job_ids), job_ids, seconds)
    check_history(history)
    for part in apart(history, lambda op: op.keys):
        assert not falling_fences(part)
