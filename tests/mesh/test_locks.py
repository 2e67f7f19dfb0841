"""Locks in a mesh: the coordinator decides, whichever node asks, and waiting agents are woken across nodes."""

import asyncio
from pathlib import Path

import pytest

from hocket.errors import NotAuthorised, Unreachable, Usage
from hocket.families.locks import rules as lock_limits
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import LockMode
from hocket.families.locks.requests import LockHeld, LockLost, Wanted, wanted
from hocket.families.locks.rules import TENURE_BITS, Scope
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.log.projection import Projection
from hocket.node.locks import lock_client
from tests.mesh.world import WORKER, Place, enrolled, run, until


def scope_of(place: Place, scope: str = "") -> Scope:
    with place.runtime.read() as session:
        return read_scope(session, scope) or Scope(0, (), (), place.log.reading())


async def connected(a: Place, b: Place) -> None:
    """Both know each other, and sync from now on."""
    b.befriend(a.address, a.id)
    a.befriend(b.address, b.id)
    for place in (a, b):
        place.keep_in_touch()
        place.node.reach = place.exchanges.consult
    await until(lambda: a.ids() == b.ids(), "one log")


@pytest.mark.req("VX-01", "VX-03")
@pytest.mark.parametrize("turned", [False, True])
def test_two_nodes_exclude_each_other_and_wake_each_other(tmp_path: Path, turned: bool) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        one, other = (b, a) if turned else (a, b)
        async with one.node.lock("file:x", agent="editor") as held:
            assert held.fence == 1
            with pytest.raises(LockHeld, match=r"file:x is held by editor on .* since .* until .*fence 1"):
                async with other.node.lock("file:*", agent="editor"):
                    pass
            waiting = asyncio.create_task(other.node.lock("file:x", agent="second", wait="1m").__aenter__())
            await until(lambda: scope_of(a).waits, "a wait")
        assert (await waiting).fence == 2
        await until(lambda: scope_of(a) == scope_of(b), "one state")
        assert [hold.agent for hold in scope_of(a).holds] == ["second"]

    run(tmp_path, test)


@pytest.mark.req("VX-04")
def test_a_waiting_node_takes_over_what_has_expired(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        await lock_client(a.node, a.node.lock_processes).acquire(wanted(["k"], "dead", 400), is_bound=False)
        async with b.node.lock("k", agent="next", wait="1m") as held:
            assert held.fence == 2

    run(tmp_path, test)


def test_a_deadlock_between_nodes_is_told(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        async with a.node.lock("a", agent="one"), b.node.lock("b", agent="two"):
            waiting = asyncio.create_task(a.node.lock("b", agent="one", wait="1m").__aenter__())
            await until(lambda: scope_of(a).waits, "a wait")
            with pytest.raises(LockHeld, match=r"deadlock: two on .* would wait for one on"):
                async with b.node.lock("a", agent="two", wait="1m"):
                    pass
        await waiting

    run(tmp_path, test)


@pytest.mark.parametrize("turned", [False, True])
def test_a_deadlock_across_scopes_and_nodes_is_told(tmp_path: Path, turned: bool) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        here, there = (b, a) if turned else (a, b)
        async with here.node.lock("k", agent="one", scope="x"), there.node.lock("k", agent="two", scope="y"):
            waiting = asyncio.create_task(here.node.lock("k", agent="one", scope="y", wait="1m").__aenter__())
            await until(lambda: scope_of(a, "y").waits, "a wait")
            with pytest.raises(LockHeld, match=r"deadlock: two on .* would wait for one on .*, which waits for two on"):
                async with there.node.lock("k", agent="two", scope="x", wait="1m"):
                    pass
        await waiting

    run(tmp_path, test)


@pytest.mark.req("VX-16")
def test_a_release_waits_here_while_the_coordinator_is_away(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address, a.id)
        await b.exchanges.visit(a.address)
        b.node.reach = b.exchanges.consult
        client, port = lock_client(b.node, b.node.lock_processes), int(a.address.rpartition(":")[2])
        held = await client.acquire(wanted(["k"], "agent"), is_bound=False)
        await a.stop_serving()
        with pytest.raises(Unreachable, match="the release waits here, and is sent when the coordinator answers"):
            await client.release("", "k", "agent", held.hold.fence)
        assert scope_of(a).holds
        await a.serve(port=port)
        await b.exchanges.consult()
        assert not scope_of(a).holds and not scope_of(b).holds

    run(tmp_path, test)


@pytest.mark.req("VX-04")
@pytest.mark.parametrize("turned", [False, True])
def test_an_agent_of_the_same_name_on_another_node_neither_renews_nor_releases(tmp_path: Path, turned: bool) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        one, other = (b, a) if turned else (a, b)
        async with one.node.lock("k", agent="editor") as held:
            await until(lambda: scope_of(other).holds, "the news")
            client = lock_client(other.node, other.node.lock_processes)
            with pytest.raises(LockLost, match="editor does not hold k under fence 1: k is held by editor on"):
                await client.release("", "k", "editor", held.fence)
            with pytest.raises(LockLost, match="editor does not hold k under fence 1"):
                await client.renew("", "k", "editor", held.fence, 1_000)
            assert scope_of(a).holds and not held.lost.is_set()

    run(tmp_path, test)


@pytest.mark.req("VX-06")
def test_a_hot_scope_is_not_folded_again_whatever_interleaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[str] = []
    refold = Projection.refold

    def counted(self: Projection, subject: object, permissions: bool) -> None:
        folded.append(subject.family)  # type: ignore[attr-defined]
        refold(self, subject, permissions)  # type: ignore[arg-type]

    async def test(a: Place, b: Place) -> None:
        await connected(a, b)

        async def rounds(place: Place, agent: str) -> None:
            for _ in range(10):
                async with place.node.lock("k", agent=agent, wait="1m"):
                    pass

        for place in (a, b):
            async with place.node.lock("k", agent="first"):
                pass
        monkeypatch.setattr(Projection, "refold", counted)
        await asyncio.gather(rounds(a, "one"), rounds(b, "two"), rounds(b, "three"))
        await until(lambda: scope_of(a) == scope_of(b), "one state")
        assert scope_of(a).fence == 32 and "lock" not in folded

    run(tmp_path, test)


@pytest.mark.req("VX-04")
def test_fences_rise_over_a_change_of_the_coordinator_that_does_not_know_the_last_grants(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address, a.id)
        await b.exchanges.visit(a.address)
        for _ in range(5):
            async with a.node.lock("k", agent="one") as held:
                pass
        assert held.fence == 5
        await b.node.run(lambda tx: tx.author(DesignateCoordinator(tx.node), about=a.id))
        async with b.node.lock("k", agent="two") as held:
            assert held.fence == (1 << TENURE_BITS) + 1
        await b.exchanges.visit(a.address)
        a.befriend(b.address, b.id)
        a.node.reach = a.exchanges.consult
        async with a.node.lock("k", agent="one") as held:
            assert held.fence == (1 << TENURE_BITS) + 2

    run(tmp_path, test)


def test_a_grant_bounds_which_keys_a_node_may_lock_and_break(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        grants = (
            *WORKER,
            Capability("Lock", "Acquire", {"key_prefix": ["file:src/"]}),
            Capability("Lock", "Read", {}),
        )
        b = await enrolled(tmp_path / "b", a, grants)
        try:
            b.befriend(a.address, a.id)
            await b.exchanges.visit(a.address)
            b.node.reach = b.exchanges.consult
            async with b.node.lock("file:src/**", agent="guest") as held:
                assert held.fence == 1
            for key in ("file:docs/a", "**", "file:*", "file:src"):
                with pytest.raises(NotAuthorised, match="may not lock"):
                    async with b.node.lock(key, agent="guest"):
                        pass
            async with a.node.lock("file:src/a", agent="owner"):
                with pytest.raises(NotAuthorised, match="may not break"):
                    await lock_client(b.node, b.node.lock_processes).break_("", "file:src/a", "mine now")
        finally:
            await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-49")
def test_a_member_that_reaches_its_limit_is_told_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_limits, "HOLDS_MAX", 3)

    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        greedy, owner = (lock_client(place.node, place.node.lock_processes) for place in (b, a))
        for number in range(3):
            await greedy.acquire(wanted([f"k{number}"], "greedy", 60_000), is_bound=False)
        for wait_ms in (0, 60_000):
            with pytest.raises(LockHeld, match="k3: its node has or wants more locks of this scope") as error:
                await greedy.acquire(wanted(["k3"], "greedy", 60_000, wait_ms=wait_ms), is_bound=False)
            assert error.value.exit_code == 3
        granted = await owner.acquire(wanted(["k3"], "owner", 60_000), is_bound=False)
        assert granted.hold.fence == 4
        await greedy.acquire(wanted(["k3"], "greedy", 60_000, scope="other"), is_bound=False)

    run(tmp_path, test)


@pytest.mark.req("LW-49")
def test_the_coordinator_takes_no_key_with_many_stars(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await connected(a, b)
        key = "*a" * (lock_limits.STARS_MAX + 1)
        with pytest.raises(Usage, match="it has 9 stars; use at most 8"):
            wanted([key], "hostile")
        request = Wanted("", (key,), "hostile", LockMode.EXCLUSIVE, 60_000, 60_000)
        with pytest.raises(Usage, match="cannot be locked: a key has too many stars"):
            await lock_client(b.node, b.node.lock_processes).acquire(request, is_bound=False)
        assert scope_of(a).fence == 0

    run(tmp_path, test)


@pytest.mark.req("LW-49")
def test_a_grant_to_break_below_a_prefix_ends_nothing_outside(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        grants = (*WORKER, Capability("Lock", "Break", {"key_prefix": ["mine/"]}), Capability("Lock", "Read", {}))
        b = await enrolled(tmp_path / "b", a, grants)
        try:
            b.befriend(a.address, a.id)
            await b.exchanges.visit(a.address)
            b.node.reach = b.exchanges.consult
            client = lock_client(b.node, b.node.lock_processes)
            async with a.node.lock("**", agent="owner") as held:
                with pytest.raises(NotAuthorised, match=r"may not break.*also covers keys.*\*\* is held by owner"):
                    await client.break_("", "mine/a", "mine now")
                assert [hold.fence for hold in scope_of(a).holds] == [held.fence]
            owner = lock_client(a.node, a.node.lock_processes)
            for agent, keys in (("inner", ["mine/*"]), ("outer", ["mine/a", "b"])):
                await owner.acquire(wanted(keys, agent, 3_600_000, shared=True), is_bound=False)
            ended = await client.break_("", "mine/a", "mine now")
            assert [hold.agent for hold in ended] == ["inner"]
            assert [hold.agent for hold in scope_of(a).holds] == ["outer"]
        finally:
            await b.close()

    run(tmp_path, test, "a")
