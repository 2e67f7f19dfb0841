"""Who waits for a job learns of its end by the results topic. Two machines wait, each for a job of its own. Neither
gets hints over HTTP, and neither visits its peer because time has passed. One of them hears the topic, the other one
does not.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import nats
import pytest

from tests.bus.nats_server import NatsServer
from tests.ports import free_port
from tests.scenarios.cables import proxies
from tests.scenarios.machines import Machine, Process, journal, machines, until

KIND = "hold.open"
GRANTS = ("job:all", "artifact:all", "ops:read")
PATIENT = "import hocket.mesh.loop\nhocket.mesh.loop.CADENCE_S = 1e6\n"
PROGRAM = f"""
import json
import sys

import hocket

with hocket.open() as node:
    handle = node.submit({KIND!r}, gate=sys.argv[1])
    print(handle.job_id, flush=True)
    print(json.dumps(handle.result()))
"""


class Subscriber:
    """A plain client of NATS, which collects what is published on the topics of results."""

    def __init__(self, url: str) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._run(nats.connect(url))
        self._run(self._client.subscribe("hocket.*.results.>", cb=self._hear))
        self._run(self._client.flush())

    async def _hear(self, message: Any) -> None:
        self.heard.append((message.subject, message.data))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def says(self, job_id: str) -> tuple[str, bytes]:
        """Waits for the message about a job."""
        found = lambda: [each for each in self.heard if job_id.encode() in each[1]]  # noqa: E731
        return until(found, f"the message about {job_id}")[0]

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Bus(NamedTuple):
    """A NATS server that keeps the announcements of jobs from both machines, and the results from one."""

    server: NatsServer
    monitor: int

    def url(self, user: str) -> str:
        return f"nats://{user}:{user}@127.0.0.1:{self.server.port}"

    def subscribed(self, user: str, topic: str) -> bool:
        with urlopen(f"http://127.0.0.1:{self.monitor}/connz?subs=1&auth=1", timeout=60) as answer:
            known = json.load(answer)["connections"]
        subjects = [
            each for one in known if one["authorized_user"] == user for each in one.get("subscriptions_list", ())
        ]
        return any(each.startswith("hocket.") and f".{topic}." in each for each in subjects)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    denied = {"all": "", "hearing": '"hocket.*.jobs.>"', "unhearing": '"hocket.*.jobs.>", "hocket.*.results.>"'}
    users = ", ".join(
        f"{{ user: {user}, password: {user}, permissions: {{ publish: '>', subscribe: {{ deny: [{some}] }} }} }}"
        for user, some in denied.items()
    )
    port = free_port()
    with NatsServer(tmp_path, f"http: 127.0.0.1:{port}\nauthorization {{ users: [{users}] }}") as server:
        yield Bus(server, port)


class Waiters(NamedTuple):
    root: Path
    owner: Machine
    hearing: Machine
    unhearing: Machine

    def patient(self, machine: Machine) -> dict[str, str]:
        """The environment of a process that visits its peers only for a reason."""
        directory = self.root / "patient"
        directory.mkdir(exist_ok=True)
        (directory / "sitecustomize.py").write_text(PATIENT)
        return {"PYTHONPATH": f"{directory}{os.pathsep}{machine.environment['PYTHONPATH']}"}

    def wait(self, machine: Machine, how: str) -> tuple[Process, str]:
        """Starts a process that submits a job and waits for its result. Returns when the job runs, with its id."""
        if how == "submit --wait":
            gate = json.dumps({"gate": f"{machine.name}.gate"})
            process = machine.start("submit", KIND, gate, "--wait", **self.patient(machine))
        else:
            (machine.root / "program.py").write_text(PROGRAM)
            hocket, machine.program = machine.program, [sys.executable]
            process = machine.start("program.py", f"{machine.name}.gate", **self.patient(machine))
            machine.program = hocket
        job_id = until(process.out.read_text, "the job's id").split()[-1]
        until(lambda: job_id in {line["job"] for line in journal(self.root)}, "the job to run")
        return process, job_id


@contextmanager
def two_waiters(root: Path, bus: Bus) -> Iterator[Waiters]:
    """The owner's machine runs the jobs. The other two reach it by proxies that pass on no hints."""
    with machines(root, "owner", "hearing", "unhearing") as (owner, *others), proxies() as proxy:
        owner("init")
        connect(owner, bus, "all")
        address = owner.serve()
        for each in others:
            way = proxy(address)
            way.refused = (b"GET /hints",)
            each("join", owner.invite(each.name, *GRANTS, address=way.address))
            connect(each, bus, each.name)
        owner.work()
        yield Waiters(root, owner, *others)


def connect(machine: Machine, bus: Bus, user: str) -> None:
    (machine.home / "config.toml").write_text(f'[bus]\nurl = "{bus.url(user)}"\n')


def check(at: Waiters, heard: tuple[Process, str], unheard: tuple[Process, str]) -> None:
    """The job of the one that does not hear ends first, but only the other one's waiter learns of the end of its job.
    The first one gets its result as soon as its log has it, for whatever reason.
    """
    (at.root / "unhearing.gate").touch()
    until(lambda: at.owner.is_done(unheard[1]), "the end of the first job")
    (at.root / "hearing.gate").touch()
    ended = heard[0].ended()
    assert ended.code == 0 and json.loads(ended.out.splitlines()[-1]) == "owner"
    assert unheard[0].is_alive and not at.unhearing.is_done(unheard[1])
    at.unhearing("sync")
    ended = unheard[0].ended()
    assert ended.code == 0 and json.loads(ended.out.splitlines()[-1]) == "owner"


@pytest.mark.req("GR-05", "GR-11")
@pytest.mark.parametrize("how", ["submit --wait", "handle.result()"])
def test_who_waits_learns_of_the_result_by_the_topic(tmp_path: Path, bus: Bus, how: str) -> None:
    with two_waiters(tmp_path, bus) as at, closing(Subscriber(bus.url("all"))) as subscriber:
        unheard, heard = at.wait(at.unhearing, how), at.wait(at.hearing, how)
        until(lambda: bus.subscribed("hearing", "results"), "the subscription of the one that hears")
        until(lambda: bus.subscribed("unhearing", "presence"), "the connection of the other one")
        assert not bus.subscribed("unhearing", "results")
        check(at, heard, unheard)
        mesh = at.owner.runtime.log.user.replace(":", "%3A")
        for _, job_id in (heard, unheard):
            subject, data = subscriber.says(job_id)
            assert subject == f"hocket.{mesh}.results.{KIND}" and f"{job_id} succeeded".encode() in data
