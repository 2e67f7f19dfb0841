"""A refusal is final: a request that its author has given up is not granted later, whoever delivers it and when. And
requests that cannot be decided leave little on the log.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.errors import Unreachable
from hocket.events import ignore
from hocket.families.inbox.rules import DeliveryState
from hocket.families.jobs import claiming
from hocket.families.jobs.rules import State
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import AcquireLocks
from hocket.families.locks.processes import LockProcesses, LockSweep
from hocket.families.locks.rules import Scope
from hocket.kernel.ids import parse_ulid
from hocket.kernel.ops import decode
from hocket.log import limits
from hocket.log.limits import known_offset
from hocket.work.handlers import kind
from tests.mesh.world import Place, run, until


def scope_of(place: Place) -> Scope:
    with place.runtime.read() as session:
        return read_scope(session, "") or Scope(0, (), (), place.log.reading())


async def acquainted(a: Place, b: Place) -> Callable[[], asyncio.Future[None]]:
    """b has exchanged with a, the coordinator. Gives how a's server comes back after it was stopped."""
    b.befriend(a.address, a.id)
    await b.exchanges.visit(a.address)
    b.node.reach = b.exchanges.consult
    port = int(a.address.rpartition(":")[2])
    return lambda: asyncio.ensure_future(a.serve(port=port))


async def passed(place: Place, deadline: int) -> None:
    await until(lambda: place.log.physical() > deadline, "the deadline")


@pytest.mark.req("LW-50", "VX-04")
def test_a_lock_request_that_was_refused_is_not_granted_later(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        serve_again = await acquainted(a, b)
        await a.stop_serving()
        with pytest.raises(Unreachable, match="no lock was taken"):
            async with b.node.lock("k", agent="hasty"):
                pass
        await serve_again()
        await b.exchanges.consult()
        assert scope_of(a).fence == scope_of(b).fence == 0
        async with b.node.lock("k", agent="patient") as held:
            assert held.fence == 1

    run(tmp_path, test)


@pytest.mark.req("LW-50")
@pytest.mark.parametrize("wait", [0, "1m"])
def test_a_request_of_a_killed_process_is_not_granted_after_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: str | float
) -> None:
    async def test(a: Place, b: Place) -> None:
        serve_again = await acquainted(a, b)
        await a.stop_serving()
        with monkeypatch.context() as dying:
            dying.setattr(LockProcesses, "give_up", lambda *_: None)
            dying.setattr(limits, "DECIDED_MS", 1)
            with pytest.raises(Unreachable):
                async with b.node.lock("k", agent="killed", ttl="1h", wait=wait):
                    pass
        (asked,) = [op for op in map(decode, bodies(b)) if isinstance(op.payload, AcquireLocks)]
        assert asked.deadline is not None and asked.pin is None and asked.cited == ()
        await passed(a, asked.deadline)
        await serve_again()
        await b.exchanges.consult()
        assert asked.id in a.ids()
        scope = scope_of(a)
        assert (scope.fence, scope.holds, scope.waits) == (0, (), ())

    run(tmp_path, test)


def bodies(place: Place) -> list[bytes]:
    with place.runtime.store.read() as session:
        return [row.body for row in session.ops_after(0, 1_000_000)]


@pytest.mark.req("LW-50")
def test_a_message_is_not_leased_later_to_a_claim_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(a: Place, b: Place) -> None:
        serve_again = await acquainted(a, b)
        sent = parse_ulid(await a.node.send("reader", "hello", agent="writer"))
        await b.exchanges.consult()
        await a.stop_serving()
        monkeypatch.setattr(limits, "DECIDED_MS", 1)
        for _ in range(3):
            with pytest.raises(Unreachable):
                await b.node.inbox("reader").claim(lease="1h")
        monkeypatch.undo()
        await passed(a, b.log.physical() + 1)
        await serve_again()
        await b.exchanges.consult()
        with a.runtime.read() as session:
            message = session.message(sent)
        assert message is not None and message.deliveries[0].state is DeliveryState.READY
        (received,) = await b.node.inbox("reader").claim()
        assert received.data.tries == 1

    run(tmp_path, test)


@pytest.mark.req("LW-50")
def test_a_job_is_not_claimed_later_for_a_worker_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(a: Place, b: Place) -> None:
        serve_again = await acquainted(a, b)
        handle = await a.node.submit(kind("test.job"))
        job_id = parse_ulid(handle.job_id)
        await b.exchanges.consult()
        await a.stop_serving()
        sign = b.node.environment.liveness.announce("killed")
        monkeypatch.setattr(limits, "DECIDED_MS", 1)
        claims = await b.node.run(lambda tx: claiming.claim(tx, sign.row(tx), 1, lambda kind: 3_600_000, True))
        assert [each.offer.job_id for each in claims.wanted] == [job_id]
        await passed(a, b.log.physical() + 1)
        await serve_again()
        await b.exchanges.consult()
        with a.runtime.read() as session:
            entry = session.job(job_id)
        assert entry is not None and entry.job.state is State.PENDING

    run(tmp_path, test)


@pytest.mark.req("LW-50")
def test_tries_while_the_coordinator_is_away_leave_next_to_nothing_on_the_log(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        serve_again = await acquainted(a, b)
        await a.node.send("reader", "hello", agent="writer")
        await b.exchanges.consult()
        before = b.count()
        await a.stop_serving()
        for _ in range(20):
            with pytest.raises(Unreachable, match="no lock was taken"):
                async with b.node.lock("k", agent="stubborn", wait="1m"):
                    pass
            with pytest.raises(Unreachable):
                await b.node.inbox("reader").claim()
        assert b.count() - before <= 2, "one request that was under way, and its withdrawal"
        await serve_again()
        with b.runtime.store.write() as session:
            session.set_meta("breakers", b"{}")  # else the next half minute is a pause
        async with b.node.lock("k", agent="stubborn") as held:
            assert held.fence == 1

    run(tmp_path, test)


def test_a_lock_whose_grant_was_not_heard_is_released(tmp_path: Path) -> None:
    """The coordinator decided in time, but its answer was lost."""

    async def test(a: Place, b: Place) -> None:
        await acquainted(a, b)

        async def deaf(is_urgent: bool = False) -> None:
            await b.exchanges.deliver(a.address)
            raise Unreachable("the answer was lost")

        b.node.reach = deaf
        with pytest.raises(Unreachable, match="no lock was taken"):
            async with b.node.lock("k", agent="deaf"):
                pass
        assert [hold.agent for hold in scope_of(a).holds] == ["deaf"]
        b.node.reach = b.exchanges.consult
        sweep = LockSweep(b.node, b.node.environment, ignore)
        await b.exchanges.consult()
        await sweep.look()
        await b.exchanges.consult()
        scope = scope_of(a)
        assert (scope.fence, scope.holds, scope.waits) == (1, (), ())

    run(tmp_path, test)


@pytest.mark.req("LW-50")
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_node_whose_clock_is_wrong_gets_locks_and_its_requests_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    async def test(a: Place, b: Place) -> None:
        fast = b if is_ahead else a
        real = fast.node.environment.physical_ms
        shifted = lambda: real() + 45_000  # noqa: E731
        monkeypatch.setattr(fast.node.environment, "physical_ms", shifted)
        monkeypatch.setattr(fast.log, "physical", shifted)
        serve_again = await acquainted(a, b)
        with b.runtime.store.read() as session:
            assert abs(known_offset(session, b.id, a.id) - (-45_000 if is_ahead else 45_000)) < 5_000
        async with b.node.lock("k", agent="timeless") as held:
            assert held.fence == 1
        await a.stop_serving()
        with monkeypatch.context() as dying:
            dying.setattr(LockProcesses, "give_up", lambda *_: None)
            dying.setattr(limits, "DECIDED_MS", 1_000)
            with pytest.raises(Unreachable):
                async with b.node.lock("k", agent="killed"):
                    pass
        await passed(a, a.log.physical() + 5_000)
        await serve_again()
        await b.exchanges.consult()
        assert scope_of(a).fence == 1

    run(tmp_path, test)
