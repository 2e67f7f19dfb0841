"""A node that has just joined does not decide anything before it knows who does."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.scenarios.machines import machines


@pytest.mark.slow
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


@pytest.mark.req("VX-09", "LW-50")
def test_an_invited_node_without_a_worker_asks_the_coordinator_for_its_messages(tmp_path: Path) -> None:
    with machines(tmp_path, "owner", "left") as [owner, left]:
        owner("init")
        address = owner.serve()
        left("join", owner.invite("left", "inbox:claim:editor"))
        owner.stop()
        claim = ("inbox", "--agent", "editor", "--claim", "1", "--json")
        never_synced = left(*claim, code=5)
        assert "does not know its coordinator yet" in never_synced.err
        owner.serve("--port", str(urlsplit(address).port))
        left("peers", "resume", address)
        assert left(*claim, code=0).json == []
        sent = owner("send", "editor", "hello", "--agent", "writer").out.strip()
        (received,) = left(*claim, code=0).json
        assert received["id"] == sent and received["state"] == "leased"
        left("ack", sent, "--agent", "editor")
        owner.stop()
        away = left(*claim, code=5)
        assert address in away.err


@pytest.mark.req("LW-50")
def test_the_messages_of_an_invited_nodes_own_agents_need_no_coordinator(tmp_path: Path) -> None:
    with machines(tmp_path, "owner", "left") as [owner, left]:
        owner("init")
        owner.serve()
        left("join", owner.invite("left", "inbox:claim:editor", "inbox:write:editor"))
        left("sync")
        owner.stop()
        sent = left("send", "editor@left", "hello", "--agent", "writer").out.strip()
        (received,) = left("inbox", "--agent", "editor", "--claim", "1", "--json").json
        assert received["id"] == sent
