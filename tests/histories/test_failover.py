"""Histories of claims and locks, and submits, by processes that are killed and frozen at random, on two nodes whose
database is a primary server of PostgreSQL with a synchronous standby. The primary dies, stops, freezes, or comes back
as a standby, and the standby takes its place, again and again. Nothing that was acknowledged is lost, the histories are
linearizable, and no fence falls.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket.families.jobs.rules import Outcome
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.testing.linearizability import Release, apart, falling_fences
from tests.histories import guarded
from tests.histories.disturbance import Client, disturb
from tests.histories.locker import KEYS
from tests.histories.recording import Death, recorded
from tests.histories.runs import FREEZE_S, LASTS_MS, Mesh, check_history, without_guesses
from tests.histories.test_claims import KIND
from tests.postgres_pair import ServerPair
from tests.scenarios.machines import machines

CLIENTS = ("claimer", "claimer", "locker", "locker", "submitter", "submitter")
WAYS = ("killed", "frozen", "stopped", "back")
# How often the standby takes over, and after how many seconds.
ROUNDS = [(2, 1.5), pytest.param(20, 4.0, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
# Guarded writes of claimers, and of lockers. A hold has a few, or none.
ENOUGH = 20


class PairedMesh(Mesh):
    """Two nodes on one database, which has a standby."""

    pair: ServerPair
    rounds, rounds_wanted = 0, 0

    def restart_server(self, away_s: float = 0.0) -> None:
        if self.rounds == self.rounds_wanted:
            return
        self.pair.fail_over(WAYS[self.rounds % len(WAYS)])
        self.rounds += 1
        self.pair.attach()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[PairedMesh]:
    pair = ServerPair()
    try:
        with machines(tmp_path, "first", "second") as [first, second]:
            first("init", "--store", pair.address)
            second("init", "--store", pair.address, "--user-key", first.home / "user.key")
            made = PairedMesh([first, second])
            made.pair = pair
            yield made
    finally:
        pair.remove()


@pytest.mark.slow
@pytest.mark.req("VX-01", "VX-03", "VX-18", "LW-37", "LW-39")
@pytest.mark.parametrize(("rounds", "every_s"), ROUNDS)
def test_a_failover_to_a_synchronous_standby_loses_nothing(
    mesh: PairedMesh, tmp_path: Path, rounds: int, every_s: float
) -> None:
    directories = {name: tmp_path / name for name in CLIENTS}
    for directory in directories.values():
        directory.mkdir()
        guarded.prepare(directory)
    step = hocket.kind(KIND, lease=f"{LASTS_MS}ms", retries=1_000, backoff="1ms", backoff_max="1ms")
    with hocket.open(mesh.owner.home) as node:
        job_ids = [handle.job_id for handle in node.submit_many((step, {}) for _ in range(60 * rounds))]
    (directories["claimer"] / "given").write_text("\n".join(job_ids))
    died = run(mesh, directories, rounds, every_s)
    for name, resources in (("claimer", job_ids), ("locker", list(KEYS))):
        history, notes = recorded(directories[name], died, acts_after_death=True)
        for note in sorted(set(notes)):
            print(f"  {notes.count(note)}× {note}")
        print(f"{name}: {len(history)} calls, {guarded.check_writes(directories[name], resources)} guarded writes")
        history = without_guesses(history, mesh.is_alone)
        check_history(history, 5)
        for part in apart(history, lambda op: op.keys) if name == "claimer" else [history]:
            assert not falling_fences(part)
        if name == "claimer":
            ended = {key for call in history if _is_end(call.op) and call.result is True for key in call.op.keys}
    check_logs(mesh, directories["submitter"], ended)


def _is_end(op: object) -> bool:
    return isinstance(op, Release) and op.for_good


def run(mesh: PairedMesh, directories: dict[str, Path], rounds: int, every_s: float) -> dict[int, Death]:
    mesh.rounds_wanted = rounds
    clients = []
    for number, name in enumerate(CLIENTS):
        place, longer = mesh.places[number % 2], () if name == "submitter" else (str(LASTS_MS),)
        clients.append(Client(place, name, (str(place.home), str(directories[name]), *longer)))

    def have_begun() -> bool:
        return all(len(list(directories[name].glob("calls-*"))) >= CLIENTS.count(name) for name in CLIENTS)

    def has_enough() -> bool:
        return mesh.rounds == rounds and all(
            guarded.has_enough(directories[name], ENOUGH + 2 * rounds) for name in ("claimer", "locker")
        )

    died = disturb(
        clients,
        rounds * every_s,
        FREEZE_S,
        random.Random(rounds),
        mesh.restart_server,
        have_begun,
        has_enough=has_enough,
        restart_every_s=every_s,
        longest_s=60 + 20 * rounds,
    )
    print(f"{mesh.rounds} failovers, {len(died)} deaths")
    return died


def check_logs(mesh: PairedMesh, submits: Path, ended: set[str]) -> None:
    """All that was acknowledged is on the log, which proves itself and derives what is there."""
    lines = [line.split() for path in submits.glob("calls-*") for line in path.read_text().splitlines()]
    jobs, messages = ({id for what, id in lines if what == wanted} for wanted in ("job", "message"))
    for place in mesh.places:
        place("node", "doctor", code=None)  # sends what the home has kept
        with hocket.open(place.home) as node:
            node.submit("history.submitted")
    with Runtime.open(mesh.owner.home) as runtime:
        with runtime.read() as session:
            head = session.head()
            completed = [job_id for job_id in ended if _outcome(session, job_id) is Outcome.SUCCEEDED]
            there = {job_id for job_id in jobs if session.job(parse_ulid(job_id)) is not None}
            sent = {ulid_text(message.id) for message in session.each_message()}
        assert runtime.verify().findings == []
    print(f"{len(jobs)} jobs and {len(messages)} messages acknowledged, {len(ended)} ends; {head.seq} ops")
    assert jobs and not jobs - there
    assert messages and not messages - sent
    assert sorted(completed) == sorted(ended)


def _outcome(session: Session, job_id: str) -> Outcome | None:
    entry = session.job(parse_ulid(job_id))
    return None if entry is None else entry.job.outcome
