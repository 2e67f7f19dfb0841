"""Streams between two machines: over a real NATS server as the parts come, and without one the whole at the end. A
cancelled job stops there at once, and not when its lease ends.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus.nats_server import NatsServer

from .conftest import PATIENCE_S, Program, until

HANDLERS = """
import time
from pathlib import Path

import hocket


@hocket.job("acme.words", lease="1h")
def words(ctx, gate, closed):
    try:
        yield "to "
        yield "be "
        until = time.monotonic() + 60
        while not Path(gate).exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        yield "or "
    finally:
        Path(closed).touch()
"""


class Machines:
    """A server, and a worker on another machine."""

    def __init__(self, hub: Program, root: Path) -> None:
        self.hub, self.worker = hub, Program(root / "worker")
        self.gate, self.closed = root / "gate", root / "closed"
        (root / "acme.py").write_text(HANDLERS)
        server = hub.start("serve", "--port", "0", "--json")
        assert server.stdout is not None
        assert server.stdout.readline(), server.communicate(timeout=PATIENCE_S)
        may = ("--may", "job:claim:acme.", "--may", "job:complete:acme.")
        self.worker("join", hub("invite", "worker", *may, "--json", code=0).json["token"], code=0)
        self.worker.start("work", "acme.py")

    def submit(self) -> "subprocess.Popen[str]":
        payload = json.dumps({"gate": str(self.gate), "closed": str(self.closed)})
        return self.hub.start("submit", "acme.words", payload, "--stream")

    def close(self) -> None:
        for process in self.worker.started:
            process.kill()
            process.communicate()


@pytest.fixture
def nats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as server:
        monkeypatch.setenv("HOCKET_BUS", server.url)
        yield server


@pytest.fixture
def machines(hocket: Program, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(hocket, tmp_path)
    yield made
    made.close()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Gives the job, which the first line names. The text may come together with that line, and with the line's end."""
    assert process.stdout is not None
    said = ""
    while not said.partition("\n")[2].rstrip("\n").endswith(text):
        said += (chunk := os.read(process.stdout.fileno(), 100).decode())
        assert chunk, (said, process.communicate(timeout=PATIENCE_S))
    return said.partition("\n")[0].split()[-1]


@pytest.mark.touches("GR-05")
def test_parts_come_over_nats_as_they_are_made(nats: NatsServer, machines: Machines):
    process = machines.submit()
    job = read_until(process, "to be ")
    assert not machines.closed.exists()
    machines.gate.touch()
    assert machines.hub.finished(process).out == "or \n"
    assert machines.hub.show(job)["result"] == "to be or "


def test_a_cancelled_job_stops_on_the_other_machine_before_its_lease_ends(nats: NatsServer, machines: Machines):
    """Its lease lasts an hour."""
    process = machines.submit()
    job = read_until(process, "to be ")
    machines.hub("cancel", job, "--reason", "enough", code=0)
    assert "was cancelled: enough" in machines.hub.finished(process, 1).err
    until(machines.closed.exists, "the end of the handler")


def test_without_a_bus_between_them_the_whole_comes_at_the_end(machines: Machines):
    process = machines.submit()
    machines.gate.touch()
    read_until(process, "to be or ")
    machines.hub.finished(process)
