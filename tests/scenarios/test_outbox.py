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

from hocket.families.inbox.facts import SendMessage
from hocket.families.rows.facts import PutRow
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import ScheduleJob
from tests.ports import free_port
from tests.scenarios.machines import CHECKOUT, Machine, machines, until, verify

WRITER = str(Path(__file__).with_name("writer.py"))
COORDINATION_WRITER = str(Path(__file__).with_name("coordination_writer.py"))
JOBS = 1_000
NUMBERS = 60


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init")
        hub.serve("--port", str(free_port()))
        leaf("join", hub.invite("leaf", "job:schedule:acme.", "inbox:write", "row:write:memories/"))
        yield [hub, leaf]


def numbers(machine: Machine, author: str) -> list[int]:
    """The numbers of that node's jobs on a machine's log, in the order of that log."""
    with machine.runtime.read() as session:
        rows = session.ops_after(0, 1_000_000)
    ops = [decode(row.body) for row in rows if row.reason == 0]
    mine = [op.payload for op in ops if f"{op.node_id:016x}" == author and isinstance(op.payload, ScheduleJob)]
    return [json.loads(each.payload)["n"] for each in mine]


def write(machine: Machine, first: int, writer: str = WRITER, last: int = JOBS) -> "subprocess.Popen[str]":
    command = [sys.executable, writer, str(machine.home), str(first), str(last)]
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


def coordination(machine: Machine, author: str) -> list[SendMessage | PutRow]:
    """That node's messages and row writes on a machine's log, in the order of that log, whether they count or not."""
    with machine.runtime.read() as session:
        ops = [decode(row.body) for row in session.ops_after(0, 1_000_000)]
    mine = [op.payload for op in ops if f"{op.node_id:016x}" == author]
    return [each for each in mine if isinstance(each, SendMessage | PutRow)]


@pytest.mark.req("VX-16")
def test_messages_and_rows_of_the_meantime_are_replayed_in_order_and_exactly_once(mesh: list[Machine]):
    hub, leaf = mesh
    leaf("sync")
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    hub("rows", "put", "memories", "row-0001", '"the hub was first"')
    hub.cut_power()

    # The writer is killed in the middle, and another one goes on.
    writer = write(leaf, 1, COORDINATION_WRITER, NUMBERS)
    assert writer.stdout is not None
    for _ in range(NUMBERS // 3):
        assert writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    begun = len([each for each in coordination(leaf, leaf.node) if isinstance(each, SendMessage)])
    assert write(leaf, begun + 1, COORDINATION_WRITER, NUMBERS).wait(150) == 0
    written = coordination(leaf, leaf.node)
    sent = [each for each in written if isinstance(each, SendMessage)]
    puts = [each for each in written if isinstance(each, PutRow)]
    assert [int(each.body) for each in sent] == [*range(1, NUMBERS + 1)] and len(puts) >= NUMBERS - 1
    assert outbox(leaf)["ops"] >= len(written) and leaf("rows", "list", "memories", "--json").json == []
    assert coordination(hub, leaf.node) == []

    # So are processes that send.
    hub.serve("--port", address.rpartition(":")[2])
    chance = random.Random(16)
    for _ in range(3):
        sender = leaf.start("sync")
        try:
            sender.popen.wait(chance.uniform(0.3, 1.0))
        except subprocess.TimeoutExpired:
            sender.kill()
    leaf("sync")
    leaf("sync")
    assert coordination(hub, leaf.node) == written == coordination(leaf, leaf.node)
    assert outbox(leaf)["ops"] == 0

    # Each message is delivered once, in order; each write was decided once, and the late one is recorded.
    claimed = hub("inbox", "--agent", "sink", "--claim", 1000, "--lease", "1h", "--json").json
    assert [int(each["body"]) for each in claimed] == [*range(1, NUMBERS + 1)]
    assert [each["tries"] for each in claimed] == [1] * NUMBERS
    rows = hub("rows", "list", "memories", "--limit", 1000, "--json").json
    keys = [each.row.partition("/")[2] for each in puts if not each.row.endswith("0001")]
    assert [(each["key"], each["value"]) for each in rows] == [
        ("row-0001", "the hub was first"),
        *((key, int(key[-4:])) for key in keys),
    ]
    assert rows == leaf("rows", "list", "memories", "--limit", 1000, "--json").json
    (conflict,) = hub("conflicts", "list", "--json").json
    assert hub("conflicts", "show", conflict["id"], "--json").json["left"] == 1
    verify(hub, leaf)


@pytest.mark.slow
@pytest.mark.req("VX-16")
def test_the_caller_is_told_that_it_waits_here_and_a_running_worker_sends_it(mesh: list[Machine]):
    hub, leaf = mesh
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    assert leaf("submit", "acme.one", "--json").json["waits_here"] is None
    hub.cut_power()
    kept = leaf("submit", "acme.one", "--json").json
    assert "Connection refused; what was written waits here, and the next `hocket mesh sync`" in kept["waits_here"]
    worker = leaf.work("-v", PYTHONPATH=leaf.open_briefly())
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
    (small / "sitecustomize.py").write_text("import hocket.log.limits as o\no.OUTBOX_OPS_MAX = 5\n")
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
