"""The outbox, with real processes: what is written while the coordinator is away is there afterwards, once and in
order, whichever process was killed meanwhile.
"""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import ScheduleJob
from tests.scenarios.machines import CHECKOUT, Machine, machines, until, verify
from tests.scenarios.test_submit_only import free_port

pytestmark = [pytest.mark.xdist_group("processes")]

WRITER = str(Path(__file__).with_name("writer.py"))
JOBS = 1_000


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init")
        hub.serve("--port", str(free_port()))
        leaf("join", hub.invite("leaf", "job:schedule:acme."))
        yield [hub, leaf]


def numbers(machine: Machine, author: str) -> list[int]:
    """The numbers of that node's jobs on a machine's log, in the order of that log."""
    with machine.runtime.read() as session:
        rows = session.ops_after(0, 1_000_000)
    ops = [decode(row.body) for row in rows if row.reason == 0]
    mine = [op.payload for op in ops if f"{op.node_id:016x}" == author and isinstance(op.payload, ScheduleJob)]
    return [json.loads(each.payload)["n"] for each in mine]


def write(machine: Machine, first: int) -> "subprocess.Popen[str]":
    command = [sys.executable, WRITER, str(machine.home), str(first), str(JOBS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=machine.environment, cwd=CHECKOUT)


def outbox(machine: Machine) -> dict[str, int]:
    shown: dict[str, int] = machine("status", "--json").json["outbox"]
    return shown


@pytest.mark.req("VX-16")
def test_what_is_written_while_the_coordinator_is_away_is_replayed_in_order_and_exactly_once(mesh: list[Machine]):
    hub, leaf = mesh
    leaf("sync")
    assert outbox(leaf)["ops"] == 0
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    hub.cut_power()

    # The writer is killed in the middle, and another one goes on.
    writer = write(leaf, 1)
    assert writer.stdout is not None
    for _ in range(JOBS // 3):
        assert writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    acknowledged = JOBS // 3 + len(writer.stdout.readlines())
    writer.wait()
    written = numbers(leaf, leaf.node)
    assert written == [*range(1, len(written) + 1)] and acknowledged <= len(written) <= acknowledged + 1
    rest = write(leaf, len(written) + 1)
    assert rest.wait(120) == 0
    found = outbox(leaf)
    assert found["ops"] == JOBS and found["coordinator_is_away"]
    shown = leaf("status").out
    assert "1000 ops waiting here for the coordinator, the oldest for " in shown and "breaker\t" in shown

    # So are processes that send.
    assert numbers(hub, leaf.node) == []
    hub.serve("--port", address.rpartition(":")[2])
    chance = random.Random(13)
    for _ in range(4):
        sender = leaf.start("sync")
        try:
            sender.popen.wait(chance.uniform(0.4, 1.5))
        except subprocess.TimeoutExpired:
            sender.kill()
    leaf("sync")
    assert numbers(hub, leaf.node) == [*range(1, JOBS + 1)]
    assert outbox(leaf)["ops"] == 0 and leaf("status", "--json").json["breakers"] == []
    leaf("sync")
    assert len(numbers(hub, leaf.node)) == JOBS
    verify(hub, leaf)


@pytest.mark.req("VX-16")
def test_the_caller_is_told_that_it_waits_here_and_a_running_worker_sends_it(mesh: list[Machine]):
    hub, leaf = mesh
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    assert leaf("submit", "acme.one", "--json").json["waits_here"] is None
    hub.cut_power()
    kept = leaf("submit", "acme.one", "--json").json
    assert "Connection refused; what was written waits here, and the next `hocket sync`" in kept["waits_here"]
    worker = leaf.work("-v")
    worker.says("waiting here for the coordinator: 1 op,")
    worker.says("failed 5 times")
    assert "is open" in leaf("status").out
    hub.serve("--port", address.rpartition(":")[2])
    worker.says("the coordinator has all ops that waited here", patience=120)
    worker.says("answers again")
    assert hub.has(kept["job_id"]) and outbox(leaf)["ops"] == 0
    until(lambda: "breaker" not in leaf("status").out, "no breaker in the status")


@pytest.mark.req("VX-16")
def test_a_full_outbox_is_an_error_that_says_so_and_loses_nothing(mesh: list[Machine], tmp_path: Path):
    hub, leaf = mesh
    leaf("sync")
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    hub.cut_power()
    small = tmp_path / "small"
    small.mkdir()
    (small / "sitecustomize.py").write_text("import hocket.log.outbox as o\no.OUTBOX_OPS_MAX = 5\n")
    leaf.environment["PYTHONPATH"] = f"{small}:{leaf.environment['PYTHONPATH']}"
    lines = [{"kind": "acme.one", "payload": {"n": n}} for n in range(1, 5)]
    leaf.submit_all(lines)
    both = "\n".join(json.dumps(each) for each in lines[:2])
    refused = leaf("submit", "--batch", "-", input=both, code=5)
    assert "4 ops wait here for the coordinator" in refused.sentence and "at most 5 may" in refused.sentence
    leaf("submit", "acme.one", '{"n": 5}')
    refused = leaf("submit", "acme.one", '{"n": 6}', code=5)
    assert "5 ops wait here for the coordinator" in refused.sentence and "nothing was written" in refused.sentence
    assert numbers(leaf, leaf.node) == [1, 2, 3, 4, 5], "all or none"
    hub.serve("--port", address.rpartition(":")[2])
    leaf("sync")
    leaf("submit", "acme.one", '{"n": 6}')
    assert numbers(hub, leaf.node) == [1, 2, 3, 4, 5, 6]
