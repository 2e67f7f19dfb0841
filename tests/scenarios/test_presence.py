"""A hub and a worker's machine, as real programs: who is there, a machine that dies, and one that is drained while it
works.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.api import Service, agents, nodes
from hocket.families.liveness import BEAT_S, MISSES, Grade
from hocket.kernel.ids import node_text
from hocket.mesh.grants import parse_grants
from tests.mesh.world import Place, enrolled, run
from tests.mesh.world import until as until_async
from tests.scenarios.machines import HANDLERS, MORTAL, Machine, journal, machines, until

GRANTS = tuple(
    f"job:{action}:{kind}" for action in ("schedule", "claim", "complete") for kind in ("acme.", "hold.")
) + ("inbox:write:team/",)


@pytest.mark.req("VX-11")
def test_a_node_that_is_killed_is_graded_step_by_step(tmp_path: Path) -> None:
    """The node is a real process; the clock by which the hub grades it is the test's."""

    async def test(hub: Place) -> None:
        leaf = await enrolled(tmp_path / "leaf", hub, parse_grants(list(GRANTS)))
        await leaf.close()
        service, passed_ms, physical = Service(hub.runtime), 0, hub.log.physical
        hub.log.physical = lambda: physical() + passed_ms

        def grade() -> str:
            return next(each.grade for each in nodes.live(service) if not each.here)

        def work() -> subprocess.Popen[bytes]:
            words = [sys.executable, "-m", "hocket.cli", "--home", str(tmp_path / "leaf"), "work", HANDLERS]
            told = os.environ | {"HOCKET_TEST_ROOT": str(tmp_path), "HOCKET_TEST_JOURNAL": str(tmp_path / "journal")}
            path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
            told |= {"HOCKET_TEST_MACHINE": "leaf", "PYTHONPATH": path}
            return subprocess.Popen([*MORTAL, *words], env=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        (tmp_path / "journal").touch()
        assert grade() == "unknown"
        process = work()
        await until_async(lambda: grade() == "live", "the first heartbeat")
        await until_async(lambda: any(each.name == "worker" for each in agents.listing(service)), "its worker")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with hub.runtime.read() as session:
            (heard,) = session.presence()
        found = []
        for each in (Grade.LIVE, *MISSES):
            missed = MISSES.get(each, 0)
            passed_ms = heard.heard + round(missed * BEAT_S * 1000) - physical() + 500
            found.append(grade())
        assert found == ["live", "warn", "alert", "critical", "dead"]
        assert {each.grade for each in agents.listing(service)} == {"dead"}
        process = work()
        try:
            await until_async(lambda: grade() == "live", "the node to be heard again")
        finally:
            process.kill()
            process.wait()
        assert heard.node.hex() == node_text(leaf.id)

    run(tmp_path, lambda hub: asyncio.wait_for(test(hub), 120), "hub")


def test_a_machine_drains_while_its_jobs_run(tmp_path: Path) -> None:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init", "--name", "hub")
        hub.serve()
        leaf("join", hub.invite("leaf", *GRANTS))
        worker = leaf.work("--label", "gpu=a100")
        running = hub.submit("hold.one", '{"gate": "first"}')
        until(lambda: [line for line in journal(tmp_path) if line["event"] == "start"], "the job to start")

        shown = hub("drain", "leaf", "--reason", "new disk")
        assert "leaf drains: it takes no new jobs; it still runs 1 job" in shown.out
        worker.says("this node is draining")
        waiting = hub.submit("acme.two")
        assert "leaf is draining (new disk); `hocket node resume leaf`" in until(
            lambda: waits_for(hub, waiting), "the reason"
        )
        assert "leaf is draining (new disk)" in hub("why", waiting).out
        assert "draining: new disk" in hub("nodes").out
        live = {each["name"]: each for each in hub("nodes", "--live", "--json").json}
        assert (live["leaf"]["grade"], live["leaf"]["running"], live["leaf"]["labels"]) == ("live", 1, ["gpu=a100"])
        assert "draining: new disk" in leaf("status").out
        assert "hold., draining: new disk, last heard" in hub("status").out
        assert "this node is draining (new disk), for" in leaf("doctor", code=None).out
        assert leaf("resume", "here", code=4).err.count("cannot resume itself") == 1

        (tmp_path / "first").touch()
        until(lambda: hub.is_done(running), "the running job to finish")
        assert hub.state(waiting) == "pending"
        hub("resume", "leaf")
        until(lambda: hub.is_done(waiting), "the other job")
        worker.says("takes new jobs again")

        # An agent there is known here, however it says what it does.
        leaf("agents", "beat", "editor", "--doing", "reviews src/lib.rs")
        found = until(lambda: [each for each in hub("agents", "--json").json if each["name"] == "editor"], "the agent")
        assert (found[0]["node_name"], found[0]["doing"], found[0]["grade"]) == ("leaf", "reviews src/lib.rs", "live")
        assert hub("drain", "nobody", code=2).err.startswith("hocket: no node 'nobody'")
        for bad in ("bell\a", "two words", "x" * 200):
            assert leaf("agents", "beat", bad, code=2).err.count("\n") == 1
        assert leaf("agents", "beat", "editor", "--doing", "x" * 100_000, code=2).err.count("\n") == 1
        leaf.stop()


def waits_for(machine: Machine, job_id: str) -> str:
    said = machine.show(job_id)["waits_for"] or ""
    return said if "drain" in said else ""
