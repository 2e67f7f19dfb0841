"""Locks as people and agents use them from a shell: the same script of commands on one home, and on either node of a
mesh whose other node is there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.machines import Machine, machines, until

GRANTS = ("lock:acquire", "lock:break")


@pytest.fixture(params=["alone", "coordinator", "member"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init")
        if request.param == "alone":
            yield hub
            return
        hub.serve()
        leaf("join", hub.invite("leaf", *GRANTS))
        yield hub if request.param == "coordinator" else leaf


@pytest.mark.soak  # test_one_script.py has the same in short
@pytest.mark.req("VX-01")
def test_one_script_everywhere(machine: Machine) -> None:
    held = machine("lock", "acquire", "file:a", "file:b", "--agent", "one", "--ttl", "10m", "--json").json
    fence = held["fence"]
    assert (held["keys"], held["agent"], held["mode"]) == (["file:a", "file:b"], "one", "exclusive")
    refused = machine("lock", "acquire", "file:*", "--agent", "two", code=3)
    assert f"held by one on {held['holder']} since" in refused.err and f"(fence {fence})" in refused.err
    assert machine("lock", "renew", "file:a", "--fence", fence, "--agent", "one", "--json").json["fence"] == fence
    machine("lock", "renew", "file:a", "--fence", fence + 1, "--agent", "one", code=3)
    machine("lock", "release", "file:a", "--fence", fence, "--agent", "two", code=3)
    waiting = machine.start("lock", "acquire", "file:b", "--agent", "three", "--wait", "1m", "--json")
    until(lambda: machine("lock", "show", "file:b", "--json").json["waiting"], "a wait")
    machine("lock", "release", "file:b", "--fence", fence, "--agent", "one")
    assert waiting.ended().code == 0 and waiting.ended().json["fence"] == fence + 1
    assert [each["agent"] for each in machine("lock", "list", "--json").json] == ["three"]
    machine("lock", "break", "file:b", "--reason", "the test is over")
    assert machine("lock", "run", "file:b", "--", "sh", "-c", "echo $HOCKET_FENCE").out == f"{fence + 2}\n"
    shared = [machine("lock", "acquire", "k", "--agent", agent, "--shared").out for agent in ("x", "y")]
    assert shared == [f"{fence + 3}\n", f"{fence + 4}\n"]
    machine("lock", "acquire", "k", "--agent", "z", code=3)
    machine("lock", "acquire", "k", "--agent", "z", "--scope", "elsewhere")
