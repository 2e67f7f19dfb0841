"""Locks of programs on one home: several tasks, several processes, and processes that die."""

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import hocket
from hocket.errors import StoreError, Usage
from hocket.events import ignore
from hocket.families.locks import processes as lock_processes
from hocket.families.locks import requests as locks
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import LOCK, AcquireLocks
from hocket.families.locks.processes import LockProcesses, LockSweep
from hocket.families.locks.requests import LockHeld, LockLost, wanted
from hocket.families.locks.rules import Scope
from hocket.kernel.clock import Hlc
from hocket.kernel.vocabulary import DesignateCoordinator, Subject
from hocket.node.locks import lock_client
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import BoundRequest, Session
from tests.suspending import suspend

PATIENCE_S = 60.0
HOLDER = """
import asyncio, sys, hocket

async def main():
    async with hocket.open(sys.argv[1]) as node:
        async with node.lock(*sys.argv[3:], agent=sys.argv[2], ttl="1h", wait="1m") as held:
            print(held.fence, flush=True)
            await asyncio.sleep(3600)

asyncio.run(main())
"""
TWICE_HOLDER = """
import asyncio, sys, hocket

async def main():
    async with hocket.open(sys.argv[1]) as node:
        async with node.lock("first", agent=sys.argv[2], ttl="1h") as held:
            print(held.fence, flush=True)
            sys.stdin.readline()
            async with node.lock("second", agent=sys.argv[2], ttl="1h") as held:
                print(held.fence, flush=True)
                sys.stdin.readline()

asyncio.run(main())
"""


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    Runtime.init(tmp_path / "home").close()
    yield tmp_path / "home"


def scope_of(node: Node, scope: str = "") -> Scope:
    with node.runtime.read() as session:
        found = read_scope(session, scope)
    assert found is not None
    return found


async def eventually(node: Node, is_so: Callable[[], object], what: str) -> None:
    async def look() -> tuple[bool, None]:
        return bool(is_so()), None

    try:
        await node.until(look, PATIENCE_S)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


def holder(home: Path, agent: str, *keys: str) -> "subprocess.Popen[str]":
    """A process that holds a lock; its first line is the fence."""
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(home), agent, *keys], stdout=subprocess.PIPE, text=True)


def fence_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.req("VX-03", "VX-06")
@on_a_loop
async def test_a_lock_is_held_in_a_block_and_by_nobody_else(home: Path) -> None:
    async with hocket.open(home) as node:
        async with node.lock("file:a", "file:b", agent="one") as held:
            assert (held.fence, held.keys, held.lost.is_set()) == (1, ("file:a", "file:b"), False)
            with pytest.raises(
                LockHeld, match=r"file:a, file:b is held by one on .* since .* until .*fence 1"
            ) as error:
                async with node.lock("file:*", agent="two"):
                    pass
            assert error.value.exit_code == 3
        async with node.lock("file:*", agent="two") as held:
            assert held.fence == 2
        with node.runtime.read() as session:
            assert session.lock_requests(node.log.node.to_bytes(8, "big")) == []


@on_a_loop
async def test_a_failed_block_releases_its_lock(home: Path) -> None:
    async with hocket.open(home) as node:
        with pytest.raises(ZeroDivisionError):
            async with node.lock("k", agent="one"):
                raise ZeroDivisionError
        assert scope_of(node).holds == ()


@pytest.mark.req("VX-05")
@on_a_loop
async def test_locks_on_files_last_half_a_minute_others_five(home: Path) -> None:
    async with hocket.open(home) as node, node.lock("file:a", agent="x"), node.lock("build", "file:b", agent="x"):
        lasts = [hold.deadline - hold.since for hold in scope_of(node).holds]
    assert lasts == [30_000, 300_000]


@pytest.mark.req("VX-06")
@on_a_loop
async def test_waiting_tasks_get_their_turn_in_order(home: Path) -> None:
    order: list[int] = []

    async def take(number: int) -> None:
        async with node.lock("k", agent=f"agent {number}", wait="1m") as held:
            order.append(number)
            fences.append(held.fence)

    fences: list[int] = []
    async with hocket.open(home) as node:
        async with node.lock("k", agent="first"):
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(take(number)))
                await eventually(node, lambda n=number: len(scope_of(node).waits) == n + 1, "its place in the queue")
        await asyncio.gather(*tasks)
        assert (order, fences) == ([0, 1, 2, 3, 4], [2, 3, 4, 5, 6])
        scope = scope_of(node)
        assert (scope.fence, scope.holds, scope.waits) == (6, (), ())


@pytest.mark.req("VX-06")
@on_a_loop
async def test_a_wait_ends_with_its_budget_and_leaves_the_queue(home: Path) -> None:
    async with hocket.open(home) as node, node.lock("k", agent="one"):
        with pytest.raises(LockHeld, match="held by one"):
            async with node.lock("k", agent="two", wait="50ms"):
                pass
        assert scope_of(node).waits == ()
        task = asyncio.create_task(node.lock("k", agent="three", wait="1m").__aenter__())
        await eventually(node, lambda: scope_of(node).waits, "a wait")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert scope_of(node).waits == ()


@pytest.mark.req("VX-04")
@on_a_loop
async def test_a_waiting_agent_takes_over_an_expired_lock_by_itself(home: Path) -> None:
    async with hocket.open(home) as node:
        granted = await lock_client(node, node.lock_processes).acquire(wanted(["k"], "dead", 300), is_bound=False)
        async with node.lock("k", agent="next", wait="1m") as held:
            assert held.fence == granted.hold.fence + 1


@on_a_loop
async def test_a_deadlock_is_told_and_not_waited_for(home: Path) -> None:
    async with hocket.open(home) as node, node.lock("a", agent="one"), node.lock("b", agent="two"):
        waiting = asyncio.create_task(node.lock("b", agent="one", wait="1m").__aenter__())
        await eventually(node, lambda: scope_of(node).waits, "a wait")
        with pytest.raises(LockHeld, match=r"deadlock: two on .* would wait for one on .*, which waits for two on"):
            async with node.lock("a", agent="two", wait="1m"):
                pass
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


@on_a_loop
async def test_a_deadlock_across_scopes_is_told_and_not_waited_for(home: Path) -> None:
    async with (
        hocket.open(home) as node,
        node.lock("k", agent="one", scope="a"),
        node.lock("k", agent="two", scope="b"),
        node.lock("k", agent="three", scope="c"),
    ):
        tasks = [asyncio.create_task(node.lock("k", agent="one", scope="b", wait="1m").__aenter__())]
        await eventually(node, lambda: scope_of(node, "b").waits, "a wait")
        tasks.append(asyncio.create_task(node.lock("k", agent="two", scope="c", wait="1m").__aenter__()))
        await eventually(node, lambda: scope_of(node, "c").waits, "another")
        told = r"deadlock: three on .* would wait for one on .*, which waits for two on .*, which waits for three on"
        with pytest.raises(LockHeld, match=told):
            async with node.lock("k", agent="three", scope="a", wait="1m"):
                pass
        async with node.lock("free", agent="three", scope="a", wait="1m"):
            pass  # what need not wait is granted
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        waiting = asyncio.create_task(node.lock("k", agent="three", scope="a", wait="1m").__aenter__())
        await eventually(node, lambda: scope_of(node, "a").waits, "a wait that is no deadlock")
        waiting.cancel()
        await asyncio.wait([waiting])


@on_a_loop
async def test_scopes_do_not_disturb_each_other(home: Path) -> None:
    async with (
        hocket.open(home) as node,
        node.lock("k", agent="one", scope="a"),
        node.lock("k", agent="one", scope="b"),
    ):
        assert scope_of(node, "a").holds[0].fence == scope_of(node, "b").holds[0].fence == 1


@on_a_loop
async def test_a_lock_is_renewed_while_it_is_held(home: Path) -> None:
    async with hocket.open(home) as node, node.lock("k", agent="one", ttl="2s") as held:
        first = scope_of(node).holds[0].deadline
        await eventually(node, lambda: scope_of(node).holds[0].deadline > first + 2_000, "two renewals")
        assert not held.lost.is_set()


@pytest.mark.parametrize("cancel", [False, True])
@on_a_loop
async def test_a_broken_lock_is_lost_at_once(home: Path, cancel: bool) -> None:
    async with hocket.open(home) as node:

        async def hold() -> None:
            async with node.lock("k", agent="one", ttl="1h", cancel=cancel) as held:
                begun.set()
                await (asyncio.sleep(3600) if cancel else held.lost.wait())

        begun = asyncio.Event()
        task = asyncio.create_task(hold())
        await begun.wait()
        broken = await lock_client(node, node.lock_processes).break_("", "k", "it hangs")
        assert [hold.agent for hold in broken] == ["one"]
        async with asyncio.timeout(PATIENCE_S):
            if cancel:
                with pytest.raises(LockLost, match="the lock under fence 1 was lost"):
                    await task
            else:
                await task


@on_a_loop
async def test_a_holder_that_cannot_renew_gives_up_before_its_time_is_over(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hocket.open(home) as node:
        client = lock_client(node, node.lock_processes)

        async def nothing(*_: object) -> None:
            await asyncio.sleep(3600)

        async with node.lock("k", agent="one", ttl="500ms") as held:
            monkeypatch.setattr(type(client), "renew", nothing)
            deadline = scope_of(node).holds[0].deadline
            async with asyncio.timeout(PATIENCE_S):
                await held.lost.wait()
            # A busy machine may look late. Without its own clock it would wait for the renewal.
            assert node.log.physical() <= deadline + 1_000


@pytest.mark.req("VX-04")
@on_a_loop
async def test_a_waiting_agent_is_woken_by_its_own_grant_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come and go in the same scope, and nobody polls."""
    looks, read = 0, locks.read_scope

    def counted(session: Session, scope: str) -> Scope | None:
        nonlocal looks
        looks += 1
        return read(session, scope)

    async with hocket.open(home) as node, hocket.open(home) as elsewhere:
        async with elsewhere.lock("k", agent="holder", ttl="1h"):
            monkeypatch.setattr(locks, "LOOK_S", 3600.0)
            waiting = asyncio.create_task(node.lock("k", agent="next", wait="1h").__aenter__())
            await eventually(node, lambda: scope_of(node).waits, "a wait")
            monkeypatch.setattr(locks, "read_scope", counted)
            for _ in range(20):
                async with elsewhere.lock("other", agent="third"):
                    pass
            # One look may still belong to the beginning of the wait.
            assert looks <= 2 and not waiting.done()
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).fence == scope_of(node).fence


@pytest.mark.req("VX-19")
@on_a_loop
async def test_a_waiter_that_was_killed_makes_no_deadlock_and_is_in_nobodys_way(home: Path) -> None:
    """No process of the home stays that would sweep."""
    async with hocket.open(home) as node:
        async with node.lock("a", agent="alive", ttl="1h"):
            async with node.lock("b", agent="other", ttl="1h"):
                dead = holder(home, "other", "a")
                await eventually(node, lambda: scope_of(node).waits, "the wait")
                with pytest.raises(LockHeld, match="deadlock"):
                    async with node.lock("b", agent="alive", wait="1m"):
                        pass
                dead.kill()
                dead.wait()
                waiting = asyncio.create_task(node.lock("b", agent="alive", wait="1m").__aenter__())
                await eventually(node, lambda: [wait.agent for wait in scope_of(node).waits] == ["alive"], "the living")
            assert (await waiting).fence == 3
        held = await lock_client(node, node.lock_processes).acquire(wanted(["a"], "next"), is_bound=False)
        assert held.hold.fence == 4, "the dead request got nothing"


@pytest.mark.req("VX-19")
@on_a_loop
async def test_a_wait_that_another_process_has_withdrawn_makes_no_deadlock(home: Path) -> None:
    """The arbiter may not have heard of that yet."""
    async with hocket.open(home) as node, node.lock("a", agent="alive"), node.lock("b", agent="other"):
        waiting = asyncio.create_task(node.lock("a", agent="other", wait="1m").__aenter__())
        await eventually(node, lambda: scope_of(node).waits, "the wait")
        (wait,) = scope_of(node).waits
        await node.run(lambda tx: tx.session.drop_lock_request(wait.op))
        with pytest.raises(LockHeld, match="b is held by other on"):
            async with node.lock("b", agent="alive", wait="1s"):
                pass
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.req("VX-19", "VX-05")
@on_a_loop
async def test_a_request_without_a_wait_does_not_stop_before_a_dead_holder(home: Path) -> None:
    async with hocket.open(home) as node:
        with pytest.raises(LockHeld):
            async with node.lock("a", agent="one"), node.lock("a", agent="two"):
                pass
        dead = holder(home, "dead", "a")
        assert fence_of(dead) == 2
        dead.kill()
        dead.wait()
        async with node.lock("a", agent="next") as held:
            assert held.fence == 3


@pytest.mark.req("VX-04")
@on_a_loop
async def test_the_lock_of_a_killed_process_is_free_for_those_that_wait(home: Path) -> None:
    """Its time to live is an hour, and no worker or server runs here: the waiting process itself finds it dead."""
    process = holder(home, "victim", "k")
    try:
        assert fence_of(process) == 1
        async with hocket.open(home) as node:
            waiting = asyncio.create_task(node.lock("k", agent="next", wait="1m").__aenter__())
            await eventually(node, lambda: scope_of(node).waits, "a wait")
            assert not waiting.done()
            process.kill()
            process.wait()
            held = await waiting
            assert held.fence == 2
    finally:
        process.kill()


@on_a_loop
async def test_a_suspended_process_keeps_its_lock(home: Path) -> None:
    process = holder(home, "sleeper", "k")
    try:
        assert fence_of(process) == 1
        suspend(process.pid, home)
        async with hocket.open(home) as node:
            with pytest.raises(LockHeld, match="held by sleeper"):
                async with node.lock("k", agent="next", wait="1500ms"):
                    pass
    finally:
        process.kill()


@on_a_loop
async def test_the_sweep_releases_the_locks_of_dead_processes_and_expired_ones(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_processes, "EXPIRED_S", 0.0)
    process = holder(home, "victim", "k")
    fence_of(process)
    async with hocket.open(home) as node:
        client = lock_client(node, node.lock_processes)
        await client.acquire(wanted(["old"], "agent", 1), is_bound=False)
        await client.acquire(wanted(["new"], "agent"), is_bound=False)
        process.kill()
        process.wait()
        await eventually(node, lambda: node.log.physical() > scope_of(node).holds[1].deadline, "the end of its time")
        sweep = LockSweep(node, node.environment, ignore)
        await sweep.look()
        assert [hold.keys for hold in scope_of(node).holds] == [("new",)]
        with node.runtime.read() as session:
            before = session.head().seq
            assert session.lock_requests(node.log.node.to_bytes(8, "big")) == []
        await sweep.look()
        with node.runtime.read() as session:
            assert session.head().seq == before, "a sweep that finds nothing writes nothing"
        assert not list(node.runtime.home.processes.glob("lock-*")), "nothing is left of the dead process"


@on_a_loop
async def test_the_sweep_releases_what_a_process_asked_for_just_before_it_died(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process takes a lock after the sweep has read the requests, and dies before the sweep looks whether it is
    alive.
    """
    arguments = [sys.executable, "-c", TWICE_HOLDER, str(home), "victim"]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert fence_of(process) == 1
    async with hocket.open(home) as node:
        sweeper = LockProcesses(node.environment)
        is_running = sweeper._is_running

        def dies_meanwhile(request: BoundRequest) -> bool | None:
            if process.poll() is None:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert fence_of(process) == 2
                process.kill()
                process.communicate()
            return is_running(request)

        monkeypatch.setattr(sweeper, "_is_running", dies_meanwhile)
        await sweeper.sweep_dead(node)
        assert scope_of(node).holds == ()


@on_a_loop
async def test_a_request_that_was_given_up_is_released_when_it_gets_the_lock(home: Path) -> None:
    async with hocket.open(home) as node:
        processes = LockProcesses(node.environment)
        op = await node.run(lambda tx: tx.author(AcquireLocks("", ("k",), "gone", 0, 60_000, 0)))  # type: ignore[arg-type]
        request = BoundRequest(op.id, node.log.node.to_bytes(8, "big"), "", "", 2**60, node.environment.liveness.place)  # type: ignore[union-attr]
        await node.run(lambda tx: tx.session.put_lock_request(request))
        assert await processes.sweep_dead(node) == 1
        assert scope_of(node).holds == ()


def test_a_plain_block_holds_a_lock_too(home: Path) -> None:
    with hocket.open(home) as node:
        with node.lock("file:a", agent="one", ttl="600ms") as held:
            assert held.fence == 1
            deadline = time.monotonic() + PATIENCE_S
            with node.runtime.read() as session:
                first = read_scope(session, "")
            assert first is not None
            while True:
                with node.runtime.read() as session:
                    state = read_scope(session, "")
                if state is not None and state.holds[0].deadline > first.holds[0].deadline:
                    break
                assert time.monotonic() < deadline, "it is not renewed"
                time.sleep(0.01)
            with pytest.raises(LockHeld), node.lock("file:a", agent="two"):
                pass
            assert not held.lost.is_set()
        with node.lock("file:a", agent="two") as held:
            assert held.fence == 2
        with pytest.raises(Usage, match="cannot be cancelled"), node.lock("file:a", agent="two", cancel=True):
            pass


@pytest.mark.req("VX-04")
@pytest.mark.parametrize("is_lost", [True, False])
@on_a_loop
async def test_a_row_that_was_lost_or_restored_does_not_turn_the_fence_back(home: Path, is_lost: bool) -> None:
    """The log is the truth: no fence is given from a row that is behind it, and a rebuild brings the row back."""
    lock = Subject(LOCK, b"")
    async with hocket.open(home) as node:
        with closing(apsw.Connection(str(home / "log.db"))) as connection:
            async with node.lock("k", agent="one"):
                pass
            backup = connection.execute("SELECT * FROM subjects WHERE family = ?", (lock.family,)).fetchall()
            for _ in range(2):
                async with node.lock("k", agent="one"):
                    pass
            last = scope_of(node)
            connection.execute("DELETE FROM subjects WHERE family = ?", (lock.family,))
            if not is_lost:
                connection.executemany("INSERT INTO subjects VALUES (?, ?, ?, ?)", backup)
        with pytest.raises(StoreError, match="behind the log; run `hocket log rebuild`"):
            async with node.lock("k", agent="one"):
                pytest.fail("its fence was given before")
        node.runtime.rebuild()
        assert scope_of(node) == last
        async with node.lock("k", agent="one") as held:
            assert held.fence == 4


@pytest.mark.req("VX-06")
@on_a_loop
async def test_a_round_costs_the_store_no_more_with_a_longer_history(home: Path) -> None:
    taken: list[int] = []

    def note(event: dict[str, Any]) -> None:
        taken.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    async def steps() -> int:
        """How many steps SQLite's machine takes for a round."""
        taken.clear()
        async with node.lock("k", agent="one"):
            pass
        return sum(taken)

    async with hocket.open(home) as node:
        node.runtime.store._store._writer.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)  # type: ignore[attr-defined]
        first = min([await steps() for _ in range(20)])
        for _ in range(300):
            await steps()
        assert min([await steps() for _ in range(20)]) <= first * 1.2


@pytest.mark.req("VX-04")
@pytest.mark.parametrize("request_", ["renew", "release", "acquire"])
@on_a_loop
async def test_a_request_is_not_refused_because_the_lock_of_another_agent_has_not_expired(
    home: Path, request_: str
) -> None:
    """The clock of the log is ahead, by the op of a node with a fast clock. An agent waits for a hold that is over by
    that clock, but not by the machine's own clock.
    """
    async with hocket.open(home) as node:
        await node.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        client = lock_client(node, node.lock_processes)
        held = (await client.acquire(wanted(["held"], "agent", 30_000), is_bound=False)).hold
        dead = (await client.acquire(wanted(["k"], "dead", 1_500), is_bound=False)).hold
        waiting = asyncio.create_task(node.lock("k", agent="next", wait="1m").__aenter__())
        await eventually(node, lambda: scope_of(node).waits, "a wait")
        await node.run(lambda tx: tx.hear(Hlc(tx.physical + 5_000, 0, tx.node)))
        match request_:
            case "renew":
                assert (await client.renew("", "held", "agent", held.fence, 60_000)).deadline > held.deadline
            case "release":
                await client.release("", "held", "agent", held.fence)
            case _:
                await client.acquire(wanted(["free"], "agent"), is_bound=False)
        assert node.log.physical() > dead.deadline, "the lock of the dead agent has lasted for its time"
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).fence > dead.fence
