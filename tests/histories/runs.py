"""Runs of eight clients, in one home and in a mesh whose coordinator restarts, and what their histories must show."""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hocket.testing.linearizability import UNKNOWN, Acquire, Call, Expire, LockModel, apart, check
from tests.histories import guarded
from tests.histories.disturbance import Client, disturb
from tests.histories.recording import SLACK_S, recorded
from tests.postgres_server import server
from tests.scenarios.machines import Machine, machines

CLIENTS = 8
# How long a hold lasts, and how long a client is frozen at most.
LASTS_MS = 500
FREEZE_S = 1.2
SECONDS = [5, pytest.param(120, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]


class Mesh:
    """The machines whose homes the clients use. The first is the owner, and the coordinator if there are others."""

    def __init__(self, places: list[Machine]) -> None:
        self.places, self.owner = places, places[0]
        self._address: str | None = None
        self._restarts = 0

    def serve(self) -> None:
        self._address = self.owner.serve()

    def restart_server(self, away_s: float = 0.0) -> None:
        """Stops the server in good order, or kills it, by turns. It comes back after a while."""
        if self._address is None:
            return
        server = self.owner.processes[-1]
        server.popen.send_signal(signal.SIGKILL if self._restarts % 2 else signal.SIGTERM)
        server.popen.wait(30)
        self._restarts += 1
        time.sleep(away_s)
        self.owner.serve("--port", str(urlsplit(self._address).port))

    @property
    def is_alone(self) -> bool:
        return len(self.places) == 1


@contextmanager
def one_home(directory: Path) -> Iterator[Mesh]:
    with machines(directory, "home") as [home]:
        home("init")
        yield Mesh([home])


@contextmanager
def coordinated(directory: Path, *grants: str) -> Iterator[Mesh]:
    with machines(directory, "owner", "left", "right") as [owner, left, right]:
        owner("init")
        mesh = Mesh([owner, left, right])
        mesh.serve()
        for machine in (left, right):
            machine("join", owner.invite(machine.name, *grants))
        yield mesh


@contextmanager
def shared_store(directory: Path) -> Iterator[Mesh]:
    """Two nodes on one database of PostgreSQL, each with a home of its own."""
    with machines(directory, "first", "second") as [first, second]:
        store = server().new_database()
        first("init", "--store", store)
        second("init", "--store", store, "--user-key", first.home / "user.key")
        yield Mesh([first, second])


def record(mesh: Mesh, directory: Path, client: str, given: str, resources: list[str], seconds: int) -> list[Call]:
    """Runs the clients, checks what they wrote behind the guard, and gives their history."""
    guarded.prepare(directory)
    (directory / "given").write_text(given)
    clients = []
    for number in range(CLIENTS):
        place = mesh.places[number % len(mesh.places)]
        clients.append(Client(place, client, (str(place.home), str(directory), str(LASTS_MS))))

    def all_have_begun() -> bool:
        return len(list(directory.glob("calls-*"))) >= CLIENTS

    died = disturb(
        clients,
        seconds,
        FREEZE_S,
        random.Random(seconds),
        mesh.restart_server,
        all_have_begun,
        has_enough=lambda: guarded.has_enough(directory),
    )
    history, notes = recorded(directory, died, acts_after_death=not mesh.is_alone)
    written = guarded.check_writes(directory, resources)
    print(f"{len(history)} calls, {len(died)} deaths, {written} guarded writes")
    for note in sorted(set(notes)):
        print(f"  {notes.count(note)}× {note}")
    assert written > 20
    return without_guesses(history, mesh.is_alone)


def without_guesses(history: list[Call], is_alone: bool) -> list[Call]:
    """The history without requests that have no answer, and without refusals that such a request may have caused.
    Otherwise the search would have to guess when each of them was granted. They explain nothing but refusals: of
    requests for the same keys, and of requests for the other keys of those that wait for them. In a mesh a request can
    be granted much later, when its node reaches the coordinator, even if its client has given up: that word may come
    later still. A client that was frozen while it waited may have got the lock, lost it and asked again, so a request
    that took longer than a hold lasts may have caused a refusal before its answer, too.
    """
    requests = [call for call in history if isinstance(call.op, Acquire)]
    ended = {call.op.hold: call.end for call in history if isinstance(call.op, Expire)}
    guesses = [
        (call, min(ended[call.op.hold], call.end + LASTS_MS / 1000 + SLACK_S) if is_alone else inf)
        for call in requests
        if call.result is UNKNOWN
    ]
    waits = [(call, call.end) for call in requests if isinstance(call.result, int)]
    dropped = {call.op.hold for call, _ in guesses}
    unsure = dropped | {call.op.hold for call, _ in waits if call.end - call.start > LASTS_MS / 1000}
    for refusal in [call for call in requests if call.result is None]:
        meanwhile = [call for call, until in guesses + waits if call.start <= refusal.end and refusal.start <= until]
        [in_the_way] = [part for part in apart([*meanwhile, refusal], lambda op: op.keys) if refusal in part]
        if any(call.op.hold in unsure for call in in_the_way):
            dropped.add(refusal.op.hold)
    return [call for call in history if getattr(call.op, "hold", None) not in dropped]


def check_history(history: list[Call], holds: int = 20) -> None:
    grants = [call for call in history if isinstance(call.op, Acquire) and isinstance(call.result, int)]
    refusals = [call for call in history if isinstance(call.op, Acquire) and call.result is None]
    print(f"{len(grants)} holds, {len(refusals)} refusals")
    assert len(grants) > holds
    for part in apart(history, lambda op: op.keys):
        verdict = check(LockModel(), part)
        assert verdict.is_linearizable, str(verdict)
