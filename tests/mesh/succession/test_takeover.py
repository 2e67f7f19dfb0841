"""The coordinator is gone, and a named node follows it: real nodes, real HTTP."""

import asyncio
from pathlib import Path

import pytest

from hocket.errors import Unconfirmed
from hocket.families.locks.decisions import read_scope
from hocket.mesh import outgoing
from hocket.mesh.outgoing import own_frontier
from tests.mesh.succession.successors import away, back, is_settled, leads, lock, succeed, successors, wait_for
from tests.mesh.world import Place


def locks_at(place: Place) -> set[str]:
    with place.runtime.read() as session:
        scope = read_scope(session, "")
    return set() if scope is None else {hold.agent for hold in scope.holds}


def test_a_successor_follows_a_silent_coordinator_and_that_one_comes_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with successors(tmp_path) as (a, b, c):
            succeed([a, b, c])
            await wait_for("the coordinator has the lead", lambda: is_settled(a))
            first = await lock(a, "k", "ada")
            await away(a)
            # It writes what it wants, and is told that nobody confirms it; or it decides nothing any more.
            with pytest.raises(Unconfirmed, match="named nodes confirm"):
                await lock(a, "other", "eve")
            await wait_for("another node has the lead", lambda: leads(b) or leads(c))
            b, c = (b, c) if leads(b) else (c, b)
            assert "ada" in locks_at(b), "what was told is known to the successor"
            assert "eve" not in locks_at(b)
            held = await lock(b, "other", "bob")
            assert held > first
            await back(a)
            head = b.log.permissions().chain.head
            assert head is not None and head.term >= 1
            await wait_for("the old coordinator follows", lambda: a.log.permissions().chain.head == head)
            await wait_for("it has what the new one decided", lambda: locks_at(a) == {"ada", "bob"})
            assert not leads(a)
            await a.exchanges.transport.revive(b.address)
            assert held < await lock(a, "third", "ada")
            await wait_for("all nodes agree", lambda: a.digest() == b.digest() == c.digest())
            assert any("this node is the coordinator now" in each for each in b.notices)

    asyncio.run(run())


def test_what_is_not_confirmed_is_not_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with successors(tmp_path) as (a, b, c):
            succeed([a, b, c])
            await wait_for("the coordinator has the lead", lambda: is_settled(a))
            for each in (b, c):
                await away(each)
            with pytest.raises(Unconfirmed):
                await lock(a, "k", "ada")
            with a.log.store.read() as session:
                last, known = session.latest_of(a.log.author)[0], own_frontier(session)
            reader = outgoing.reader(a.log, b.id)
            told = await asyncio.to_thread(outgoing.page, a.log, reader, {}, limit=1000)
            asked = await asyncio.to_thread(outgoing.page, a.log, reader, {}, limit=1000, is_named=True)
            row = a.log.lead.last_own()
            assert row == last and not a.log.lead.is_confirmed(last)
            assert len(told.bodies) < len(asked.bodies)
            assert told.ours[a.id] < known[a.id] == asked.ours[a.id]
            for each in (b, c):
                await back(each)
            await wait_for("it is confirmed", lambda: leads(a) and a.log.lead.is_confirmed(last))
            told = await asyncio.to_thread(outgoing.page, a.log, reader, {}, limit=1000)
            assert len(told.bodies) >= len(asked.bodies)

    asyncio.run(run())
