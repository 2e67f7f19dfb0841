"""The attack that made a shared store a boundary, with real processes: a node invited with `--share --worker acme.`
changes the body of the owner's pending `hocket.run` op, by the least SQL rights of docs/postgres.md.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trust.sharer import SharedMesh

PATIENCE_S = 120


def hocket(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOCKET_HOME": str(home)}
    command = [sys.executable, "-m", "hocket", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.req("LW-48")
def test_the_owners_worker_does_not_run_a_command_that_a_sharer_has_changed(tmp_path: Path) -> None:
    mesh = SharedMesh(tmp_path)
    home, good, evil = tmp_path / "owner", tmp_path / "good", tmp_path / "evil"
    job_id = hocket(home, "run", "--detach", "--", "touch", str(good)).stdout.split()[-1]
    other = tmp_path / "next"
    assert hocket(home, "run", "--detach", "--", "touch", str(other)).returncode == 0
    ((seq, body),) = mesh.sql("SELECT seq, body FROM ops WHERE position(?::bytea IN body) > 0", str(good).encode())
    changed = bytes(body).replace(str(good).encode(), str(evil).encode())
    mesh.sql("UPDATE ops SET body = ? WHERE seq = ?", changed, seq)
    worked = hocket(home, "work", "--until-idle")
    assert other.exists(), worked.stderr
    assert not evil.exists() and not good.exists()
    assert "another program changed the store: ops" in worked.stderr
    verified = hocket(home, "log", "verify")
    assert verified.returncode == 1
    assert "its signature does not fit its bytes and its author" in verified.stdout + verified.stderr
    assert job_id
    mesh.close()
