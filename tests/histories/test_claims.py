"""Histories of claims on jobs, by eight processes that are killed and frozen at random, in one home and in a mesh whose
coordinator restarts. They are linearizable, no fence is given twice, and no stale write gets through the guard.
"""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hocket
from hocket.testing.linearizability import Acquire, LockModel, apart, check, falling_fences
from tests.histories import guarded
from tests.histories.disturbance import CLIENTS, Client, disturb, file_of
from tests.histories.recording import Death, Recorded, recorded
from tests.scenarios.machines import Machine, machines

pytestmark = pytest.mark.xdist_group("processes")

LEASE_MS = 500
FREEZE_S = 1.2
KIND = "history.step"
SECONDS = [20, pytest.param(120, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]


def submit(machine: Machine, count: int) -> list[str]:
    step = hocket.kind(KIND, lease=f"{LEASE_MS}ms", retries=1_000, backoff="1ms", backoff_max="1ms")
    with hocket.open(machine.home) as node:
        return [handle.job_id for handle in node.submit_many((step, {}) for _ in range(count))]


@contextmanager
def one_home(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "home") as [home]:
        home("init")
        yield [home]


@contextmanager
def coordinated(tmp_path: Path, *grants: str) -> Iterator[tuple[list[Machine], "Coordinator"]]:
    with machines(tmp_path, "owner", "left", "right") as [owner, left, right]:
        owner("init")
        coordinator = Coordinator(owner)
        for machine in (left, right):
            machine("join", owner.invite(machine.name, *grants))
        yield [owner, left, right], coordinator


class Coordinator:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.address = machine.serve()
        self._restarts = 0

    def restart(self) -> None:
        """Kills it, or stops it in good order, by turns."""
        server = self._machine.processes[-1]
        server.popen.send_signal(signal.SIGKILL if self._restarts % 2 else signal.SIGTERM)
        server.popen.wait(30)
        self._restarts += 1
        self._machine.serve("--port", str(urlsplit(self.address).port))


def check_history(found: Recorded, died: dict[int, Death]) -> None:
    """A call by which nothing was asked is no part of the history."""
    history = [call for call in found.history if call.result != "nothing was asked"]
    grants = [call for call in history if isinstance(call.op, Acquire) and isinstance(call.result, int)]
    for part in apart(history, lambda op: op.keys):
        verdict = check(LockModel(), part)
        assert verdict.is_linearizable, str(verdict)
        assert not falling_fences(part)
    stale = found.notes.count("a stale write was refused")
    print(f"{len(history)} calls, {len(grants)} holds, {len(died)} deaths, {stale} stale writes refused")
    for note in sorted(set(found.notes)):
        print(f"  {found.notes.count(note)}× {note}")
    assert len(grants) > 20, found.notes


@pytest.mark.req("LW-37", "LW-39")
@pytest.mark.parametrize("seconds", SECONDS)
def test_claims_in_one_home(tmp_path: Path, seconds: int) -> None:
    with one_home(tmp_path) as [home]:
        claim(tmp_path, [home], home, seconds, acts_after_death=False)


@pytest.mark.req("LW-37", "LW-39")
@pytest.mark.parametrize("seconds", SECONDS)
def test_claims_in_a_mesh_whose_coordinator_restarts(tmp_path: Path, seconds: int) -> None:
    grants = [f"job:{what}:{KIND}" for what in ("claim", "complete", "read")]
    with coordinated(tmp_path, *grants) as ([owner, left, right], coordinator):
        claim(tmp_path, [owner, left, right], owner, seconds, acts_after_death=True, coordinator=coordinator)


def claim(
    directory: Path,
    places: list[Machine],
    owner: Machine,
    seconds: int,
    acts_after_death: bool,
    coordinator: Coordinator | None = None,
) -> None:
    guarded.prepare(directory)
    job_ids = submit(owner, 10 * seconds)
    clients = [
        Client(
            places[number % len(places)],
            (file_of("claimer.py"), str(places[number % len(places)].home), str(directory), str(LEASE_MS)),
            "\n".join(job_ids),
        )
        for number in range(CLIENTS)
    ]

    def all_have_begun() -> bool:
        return len(list(directory.glob("calls-*"))) == CLIENTS

    restart = None if coordinator is None else coordinator.restart
    died = disturb(clients, seconds, FREEZE_S, random.Random(seconds), restart, all_have_begun)
    check_history(recorded(directory, died, acts_after_death), died)
    assert guarded.check_writes(directory, job_ids) > 20
