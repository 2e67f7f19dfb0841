"""The benchmark of the grid, at a small size: no job is started twice while nobody comes or goes, and every side
finishes what it is given.
"""

from pathlib import Path

import pytest

from bench import grid

pytestmark = pytest.mark.slow


@pytest.mark.touches("GR-10")
def test_no_job_starts_twice_on_two_nodes(tmp_path: Path) -> None:
    found = grid.duplicates(tmp_path, count=60, nodes=2, churning=False, settled_s=0)
    assert found["repeated"] == found["same_fence"] == 0


def test_each_announced_job_is_claimed_and_started(tmp_path: Path) -> None:
    found = grid.announcements(tmp_path, nodes=3, processes=2, samples=4, settled_s=0)
    assert len(found["claims_ms"]) == len(found["starts_ms"]) == 4


@pytest.mark.timeout(240)
def test_every_side_finishes_its_jobs(tmp_path: Path) -> None:
    pytest.importorskip("taskiq_nats", reason="only `make bench` installs the peers")
    found = grid.throughput(tmp_path, count=40, workers=2, settled_s=0)
    assert min(found[f"{side}rate"] for side in ("", "nodes_", "taskiq_", "taskiq_synced_", "jetstream_")) > 0
    assert found["repeated"] == found["nodes_repeated"] == 0
