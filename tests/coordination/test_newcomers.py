"""A node that has just joined does not decide anything before it knows who does."""

from pathlib import Path

import pytest

from tests.scenarios.machines import machines


@pytest.mark.req("VX-04")
def test_a_newcomer_grants_itself_no_lock(tmp_path: Path) -> None:
    """It would give fence 1, which the coordinator may have given long ago."""
    with machines(tmp_path, "owner", "left") as [owner, left]:
        owner("init")
        owner.serve()
        left("join", owner.invite("left", "lock:acquire:file:"))
        assert owner("lock", "acquire", "file:a", "--agent", "editor", "--json").json["fence"] == 1
        owner.stop()
        refused = left("lock", "acquire", "file:a", "--agent", "editor", code=5)
        assert "does not know its coordinator yet" in refused.err
