"""Mistakes of systems that compact a log, planted in the code: each is found by what a pruned log must show. A node
that never follows the horizon has everything; those that do, and one that begins with a snapshot, must show no less.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.errors import Failed
from hocket.families.locks.rules import LOCKS
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import RevokeRoot
from hocket.log.retention import remaining, scratch
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot
from hocket.log.snapshots.writing import write_snapshot
from hocket.store.horizon_rows import HorizonSession
from tests.log.pruning_world import DAY, HOUR, Member, World
from tests.log.test_pruning import is_sound, rebuilt, states
from tests.stores import STORES

Plant = Callable[[pytest.MonkeyPatch], None]
FENCES = 3


def play(directory: Path) -> None:
    """Members write of everything, one is revoked, the log is pruned at the time of an op, and the members go on."""
    world = World(4)
    owner, other, whole, rogue = world.members
    for _ in range(FENCES):
        owner.acquire("file:a")
        owner.release()
    first = owner.put("t/a", b'{"n":1}')
    assert isinstance(first, Op)
    old, waited_for = owner.run_job("k"), owner.run_job("k")
    waiting = owner.submit("open", f'{{"after":["{ulid_text(waited_for)}"]}}'.encode())
    rogue.run_job("k")
    world.exchange()
    owner.revoke(rogue)
    world.members.remove(rogue)
    world.wait(HOUR)
    # The last op up to the horizon ends a job, and one millisecond later another begins.
    at_border = owner.submit("k")
    owner.cancel(at_border)
    border = world.now
    world.wait(1)
    beyond = owner.run_job("k")
    owner.retain(ms=HOUR, match="k")
    world.wait(DAY)
    world.exchange()
    expected = whole.shown()
    assert owner.move_horizon(border + HOUR) or owner.move_horizon()
    world.exchange()
    for each in (owner, other):
        each.follow()
    newcomer = beginner(world, directory)
    for each in (owner, other, newcomer):
        shown = each.shown()
        assert states(shown) == states(expected)
        assert old not in shown["jobs"] and at_border not in shown["jobs"]
        kept = {waited_for, waiting, beyond}
        assert {job_id: shown["jobs"].get(job_id) for job_id in kept} == {k: expected["jobs"][k] for k in kept}
        assert not each.log.authority().may(rogue.log.node, "Job", "Schedule", "k", world.now)
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other) == rebuilt(newcomer)
    for each in (owner, other, newcomer):
        assert not each.log.authority().may(rogue.log.node, "Job", "Schedule", "k", world.now)
    # They go on: a fence is the next one, and a version of a row is known.
    assert isinstance(newcomer.acquire("file:b"), Op)
    assert isinstance(owner.put("t/a", b'{"n":1,"m":2}', first.id), Op)
    for member in (whole, *world.members):
        for one in world.members:
            if one is not member:
                member.pull(one)
    world.exchange()
    for each in (whole, owner, other, newcomer):
        scope = each.scope()
        assert scope is not None and scope.fence == FENCES + 1
        assert states(each.shown()) == states(owner.shown())


def beginner(world: World, directory: Path) -> Member:
    """A new member that begins with the owner's snapshot. A store in a server takes none."""
    write_snapshot(world.owner.log, directory / "snapshot")
    new = Member(world, len(world.members) + 1, store=next(iter(STORES.values())).new())
    load_snapshot(new.log, SnapshotFolder(directory / "snapshot"))
    world.members.append(new)
    world.exchange()
    return new


def test_a_pruned_log_shows_no_less(tmp_path: Path) -> None:
    play(tmp_path)


# What goes wrong.


def fences_fall(patch: pytest.MonkeyPatch) -> None:
    """The state in the place of a scope's ops has the holds, and not the fence."""
    plain = remaining._Decision._based_row

    def based_row(self: Any, subject: Any, going: Any) -> Any:
        row = plain(self, subject, going)
        if subject.family != "lock" or row.state is None:
            return row
        return row._replace(state=LOCKS.encode(replace(LOCKS.decode(row.state), fence=0)))

    patch.setattr(remaining._Decision, "_based_row", based_row)


def states_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Nothing stands in the place of the ops that go."""
    plain = remaining._Decision._based_row
    patch.setattr(
        remaining._Decision,
        "_based_row",
        lambda self, subject, going: plain(self, subject, going)._replace(last=None, state=None),
    )


def revocations_go(patch: pytest.MonkeyPatch) -> None:
    plain = remaining._Decision._unit_of

    def unit_of(self: Any, op: Op, reason: int) -> Any:
        return self._alone(op) if isinstance(op.payload, RevokeRoot) else plain(self, op, reason)

    patch.setattr(remaining._Decision, "_unit_of", unit_of)


def the_op_at_the_border_is_lost(patch: pytest.MonkeyPatch) -> None:
    """The last settled entry of an author is not folded, as if it came after the horizon."""
    plain = scratch._settled

    def settled(source: Any, heads: Any) -> Any:
        for rows in plain(source, heads):
            yield [row for row in rows if row.hlc < heads.get(row.hlc[12:], b"")]

    patch.setattr(scratch, "_settled", settled)


def the_first_op_behind_the_border_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Deleting goes one row too far."""
    plain = HorizonSession.delete_ops
    patch.setattr(HorizonSession, "delete_ops", lambda self, first, last: plain(self, first, last + 1))


def names_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A job goes although another one comes after it."""
    patch.setattr(remaining, "dependencies", lambda policy: ())


PLANTS: dict[str, Plant] = {
    "fences fall": fences_fall,
    "states are forgotten": states_are_forgotten,
    "revocations go": revocations_go,
    "the op at the border is lost": the_op_at_the_border_is_lost,
    "the first op behind the border is lost": the_first_op_behind_the_border_is_lost,
    "names are ignored": names_are_ignored,
}


@pytest.mark.req("LW-52")
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    with pytest.raises((AssertionError, Failed)):
        play(tmp_path)
