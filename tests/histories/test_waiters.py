"""Histories of agents that wait for locks, are killed while they wait, give up, and at times cannot reach the server:
in one home, on a database that two nodes share, and in a mesh. They are linearizable, no fence goes to a request after
its author has given it up (in a mesh: or could not say so in time), no deadlock is reported, and at the end every live
agent gets the lock.
"""

import json
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hocket.families.locks.facts import AcquireLocks
from hocket.families.locks.requests import WAIT_STEP_MS
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.testing.linearizability import falling_fences
from tests.histories import guarded
from tests.histories.disturbance import Client, disturb
from tests.histories.lock_log import lock_grants
from tests.histories.recording import GAVE_UP, SLACK_S, recorded
from tests.histories.runs import Mesh, check_history, coordinated, one_home, shared_store, without_guesses
from tests.histories.waiter import DEADLOCK, KEYS
from tests.scenarios.machines import until

CLIENTS = 6
FREEZE_S = 0.8
AWAY_S = 1.5
LONG = pytest.param(120, marks=[pytest.mark.soak, pytest.mark.timeout(900)])
SECONDS = [5, LONG]


@pytest.mark.req("LW-50", "VX-19", "VX-03", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_waiters_in_one_home(tmp_path: Path, seconds: int) -> None:
    with one_home(tmp_path) as mesh:
        run(mesh, tmp_path, seconds)


@pytest.mark.req("LW-50", "VX-19", "VX-03", "VX-18")
@pytest.mark.parametrize("seconds", SECONDS)
def test_waiters_on_nodes_that_share_a_database(tmp_path: Path, seconds: int) -> None:
    with shared_store(tmp_path) as mesh:
        run(mesh, tmp_path, seconds)


@pytest.mark.req("LW-50", "VX-19", "VX-03", "VX-04")
@pytest.mark.parametrize("seconds", [8, LONG])
def test_waiters_in_a_mesh_whose_server_is_away_at_times(tmp_path: Path, seconds: int) -> None:
    with coordinated(tmp_path, "lock:acquire:file:") as mesh:
        # An author that gives up because the server is away cannot tell it so: its request stays in the queue there
        # until the step for which it waits is over.
        run(mesh, tmp_path, seconds, SLACK_S + max(WAIT_STEP_MS / 1000, seconds / 2))


def run(mesh: Mesh, directory: Path, seconds: int, slack_s: float = SLACK_S) -> None:
    guarded.prepare(directory)
    clients = []
    for number in range(CLIENTS):
        place = mesh.places[number % len(mesh.places)]
        clients.append(Client(place, "waiter", (str(place.home), str(directory), f"agent-{number}")))
    died = disturb(
        clients,
        seconds,
        FREEZE_S,
        random.Random(seconds),
        partial(mesh.restart_server, AWAY_S),
        lambda: len(list(directory.glob("calls-*"))) >= CLIENTS,
        lambda alive: every_one_is_served(directory, alive),
        kills=0.35,
        has_enough=lambda: guarded.has_enough(directory),
    )
    history, notes = recorded(directory, died, acts_after_death=not mesh.is_alone)
    guarded.check_writes(directory, list(KEYS))
    print(f"{len(history)} calls, {len(died)} deaths")
    for note in sorted(set(notes)):
        print(f"  {notes.count(note)}× {note}")
    assert DEADLOCK not in notes
    history = without_guesses(history, mesh.is_alone)
    check_history(history)
    assert not falling_fences(history)
    runtime = Runtime.open(mesh.owner.home)
    try:
        with runtime.read() as session:
            granted = grants(session)
    finally:
        runtime.close()
    given_up = {ttl_ms: at for ttl_ms, at in answers(directory, GAVE_UP).items() if ttl_ms in granted}
    late = {ttl_ms: granted[ttl_ms] - at for ttl_ms, at in given_up.items() if granted[ttl_ms] > at + slack_s}
    assert not late, f"requests that were given up got a fence so many seconds later: {late}"


def every_one_is_served(directory: Path, clients: list[Client]) -> None:
    """Undisturbed, each client gets a lock that it asks for now."""
    begin = time.monotonic()

    def unserved() -> set[int]:
        for client in clients:
            client.check()
        served = {
            line["pid"] for line in lines(directory) if line["at"] > begin and isinstance(line.get("result"), int)
        }
        return {client.popen.pid for client in clients} - served

    # They give up after a moment and ask again, so on a busy machine it takes several tries.
    until(lambda: not unserved(), "a lock for every client", 180)


def lines(directory: Path) -> list[dict[str, Any]]:
    """The whole lines of all clients."""
    texts = (path.read_text() for path in directory.glob("calls-*"))
    return [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]


def answers(directory: Path, result: str) -> dict[int, float]:
    """The requests with this answer, and when they got it, in seconds since 1970."""
    offset, found = time.time() - time.monotonic(), {}
    for path in directory.glob("calls-*"):
        asked: dict[int, int] = {}
        for line in map(json.loads, path.read_text().splitlines()):
            if "ttl_ms" in line:
                asked[line["call"]] = line["ttl_ms"]
            elif line.get("answer") in asked and line["result"] == result:
                found[asked[line["answer"]]] = line["at"] + offset
    return found


def grants(session: Session) -> dict[int, float]:
    """When each request that got a fence got it, by the log of the node that decides."""
    times: dict[int, float] = {}
    for grant in lock_grants(session).values():
        assert isinstance(grant.asked.payload, AcquireLocks)
        times[grant.asked.payload.ttl_ms] = grant.granted.timestamp.wall / 1000
    return times
