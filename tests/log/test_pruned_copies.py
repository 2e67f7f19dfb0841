"""A copy of a pruned log, in any store and at any time, has what the log has, and follows it over its horizons."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import Conflict, StoreError
from hocket.log import copies
from hocket.log.audit import verify
from hocket.log.copies import StoreCopy, copy_unlogged
from hocket.log.rebuild import rebuild
from tests.log.pruning_world import DAY, HOUR, Member, World
from tests.stores import StoreKind, new_store, raw


class Copied:
    """A copy of a member's log in a store of its own, with the key of the member's node."""

    def __init__(self, member: Member) -> None:
        self.member, self.log = member, member.opened(new_store())
        with member.log.store.read() as source, self.log.store.write() as target:
            copy_unlogged(source, target, member.log.node, {})
        self.copy = StoreCopy(member.log.store, self.log, "the copy")

    def follow(self) -> None:
        self.member.log.settle()
        while (done := self.copy.step()).ops < done.of:
            pass

    def is_equal(self) -> bool:
        """Whether the copy has the same ops with the same numbers, and the same states."""
        there, here = Shown(self.member.log), Shown(self.log)
        assert here.horizon == there.horizon and here.states == there.states
        assert here.ops == there.ops
        found = verify(self.log.store, user=self.log.user, marks=self.log.signer, is_bound=True)
        assert found.findings == [] and found.ops == there.count
        assert rebuild(self.log.store, self.log.permissions_reader, self.member.world.now).unchanged
        return True


class Shown:
    def __init__(self, log: Any) -> None:
        log.settle()
        with log.store.read() as session:
            self.horizon, self.count = session.horizon(), session.op_count()
            self.ops = [(row.seq, row.id, row.reason) for row in session.stored_rows(0, 100_000)]
            self.states = {row.subject: row.state for row in session.each_subject()}
            self.states |= {each.job.id: each.job for each in session.each_job()}  # type: ignore[misc]
            self.states |= {each.id: each for each in session.each_message()}  # type: ignore[misc]


def live(world: World, days: int = 1) -> None:
    owner = world.owner
    for n in range(days):
        owner.acquire(f"file:{n}")
        owner.release()
        owner.put(f"t/{n}", b"%d" % n)
        owner.run_batch("k", 2)
        for each in world.members:
            each.run_job("k")
        world.wait(DAY)
        world.exchange()


def prune(world: World, steps: int = 10_000) -> None:
    assert world.owner.move_horizon()
    world.exchange(1)
    for each in world.members:
        each.follow(steps)


@pytest.fixture
def world() -> World:
    made = World()
    made.owner.retain(ms=HOUR)
    live(made, 3)
    return made


@pytest.mark.req("VX-18")
@pytest.mark.req("LW-52")
def test_a_copy_of_a_pruned_log_has_what_the_log_has(world: World, store_kind: StoreKind) -> None:
    prune(world)
    live(world)
    copied = Copied(world.owner)
    copied.follow()
    assert copied.is_equal()
    with copied.log.store.read() as session:
        assert session.has_bases() and session.gaps()
    # It is a log like any other: ops are written behind it, and it is pruned.
    world.owner.log = copied.log
    live(world)
    world.owner.acquire("file:later")
    prune(world)
    assert verify(copied.log.store, user=copied.log.user, marks=copied.log.signer, is_bound=True).findings == []
    other = world.members[1]
    assert {**world.owner.digests(), "retention": b""} == {**other.digests(), "retention": b""}


@pytest.mark.req("VX-14")
@pytest.mark.req("LW-52")
def test_a_copy_follows_the_log_over_its_horizons(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPY_STEP", 7)
    copied, behind = Copied(world.owner), Copied(world.owner)
    copied.follow()
    behind.copy.step()
    for _ in range(2):
        prune(world)
        live(world)
        copied.follow()
        assert copied.is_equal()
    behind.follow()
    assert behind.is_equal()


@pytest.mark.req("LW-52")
@settings(deadline=None)
@given(st.lists(st.sampled_from(["live", "move", "step", "follow", "copy", "begin"]), max_size=25))
def test_whenever_it_is_copied_a_copy_ends_with_what_the_log_has(acts: list[str]) -> None:
    world = World()
    owner = world.owner
    owner.retain(ms=HOUR)
    live(world)
    copied = [Copied(owner)]
    for act in [*acts, "follow"]:
        if act == "live":
            live(world)
        elif act == "move":
            owner.move_horizon()
        elif act == "step":
            owner.follow(1)
        elif act == "follow":
            owner.follow()
        elif act == "begin":
            copied = [Copied(owner), *copied[:1]]
        else:
            for each in copied:
                try:
                    each.copy.step()
                except StoreError as error:
                    assert "is being pruned" in str(error)
    for each in copied:
        each.follow()
        assert each.is_equal()


@pytest.mark.req("LW-52")
def test_what_is_not_what_remains_is_not_copied(world: World) -> None:
    prune(world)
    raw(world.owner.log.store, "UPDATE bases SET state = ? WHERE family = 'lock'", b"\x94\x00\x90\x90\x93\x00\x00\x00")
    copied = Copied(world.owner)
    with pytest.raises(StoreError, match="the pruned log was not copied"):
        copied.follow()
    with copied.log.store.read() as session:
        assert session.head().seq == 0 and not list(session.each_job())


@pytest.mark.req("LW-52")
def test_a_copy_of_another_log_is_not_brought_up_to_date(world: World) -> None:
    other = Copied(world.members[1])
    other.follow()
    prune(world)
    other.copy = StoreCopy(world.owner.log.store, other.log, "the copy")
    with pytest.raises(Conflict, match="is a copy of another log"):
        other.copy.step()
