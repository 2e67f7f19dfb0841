"""Deadlocks that span scopes are found without reading the scopes in which nobody waits."""

import pytest

from hocket.families.locks import projector as lock_projector
from hocket.families.locks.facts import AcquireLocks, LeaveQueue, LockMode, ReleaseLocks
from hocket.families.locks.projector import waited_in
from hocket.families.locks.rules import LOCKS
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.log import Log
from hocket.log.rebuild import rebuild
from tests.log.roster.world import NOW
from tests.log.test_families import Node


def acquire(log: Log, scope: str, agent: str, wait: int = 0) -> Op | Reason:
    payload = AcquireLocks(scope, ("k",), agent, LockMode.EXCLUSIVE, 60_000, wait)
    return log.run(lambda tx: tx.author(payload))


def waited(log: Log, without: str = "") -> int:
    with log.store.read() as session:
        return len(waited_in(session, without.encode()))


@pytest.fixture
def log() -> Log:
    log = Node(0).log
    log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    return log


@pytest.mark.req("LW-49")
def test_only_scopes_in_which_agents_wait_are_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        acquire(log, f"idle {number}", "idler")
    acquire(log, "x", "one")
    acquire(log, "y", "two")
    assert isinstance(acquire(log, "y", "one", wait=60_000), Op)
    decoded: list[bytes] = []
    decode = LOCKS.decode
    monkeypatch.setattr(type(LOCKS), "decode", lambda self, data: decoded.append(data) or decode(data))
    assert acquire(log, "x", "two", wait=60_000) is Reason.DEADLOCK
    assert len(decoded) <= 2, "the scopes x and y"


def test_a_scope_is_known_while_agents_wait_in_it(log: Log) -> None:
    acquire(log, "x", "one")
    waiting = acquire(log, "x", "two", wait=60_000)
    assert isinstance(waiting, Op) and (waited(log), waited(log, "x")) == (1, 0)
    rebuild(log.store, log.permissions_reader, NOW)
    assert waited(log) == 1
    log.run(lambda tx: tx.author(LeaveQueue("x", "two", waiting.id)))
    assert waited(log) == 0
    acquire(log, "x", "two", wait=60_000)
    log.run(lambda tx: tx.author(ReleaseLocks("x", "one", 1)))
    assert waited(log) == 0


def test_one_node_fills_only_its_own_share_of_the_search(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_projector, "SCOPES_MAX", 3)
    for number in range(6):
        acquire(log, f"scope {number}", "one")
        acquire(log, f"scope {number}", "two", wait=60_000)
    assert waited(log) == 3
