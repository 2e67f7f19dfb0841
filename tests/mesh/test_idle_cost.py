"""What idle nodes cost is bounded: the benchmark of 200 nodes, with two smaller meshes."""

from pathlib import Path

import pytest

from bench.presence import heartbeats
from hocket.families.liveness import BEAT_S

SECONDS = 20.0
# What a server does to store what it has heard, and to read what other processes have stored.
ROUND_STATEMENTS = 12


@pytest.mark.touches("VX-11")
def test_heartbeats_cost_a_server_the_same_statements_however_many_nodes_there_are(tmp_path: Path) -> None:
    few, many = (heartbeats(tmp_path, nodes, SECONDS) for nodes in (4, 16))
    for found, nodes in ((few, 4), (many, 16)):
        assert found["heartbeats"] <= (nodes - 1) / BEAT_S * 1.2
        assert found["server_heartbeat_commits"] <= 1.1
        assert round(found["server_heartbeat_statements"] / found["server_heartbeat_commits"], 6) <= ROUND_STATEMENTS
        assert found["node_heartbeat_statements"] <= ROUND_STATEMENTS / BEAT_S * 1.2
    each = [found["heartbeat_bytes"] / found["heartbeats"] for found in (few, many)]
    assert each[1] - each[0] <= 12 * 40  # the ages of twelve more nodes
