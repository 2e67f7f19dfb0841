"""Snapshots: a node that takes one has what a node with the whole log has, whatever it had before; what is damaged,
foreign, forged or unwitnessed is refused with its reason, and changes nothing.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hocket.errors import Conflict, Failed, StoreError, Usage
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ops import Op
from hocket.kernel.snapshots import chunks
from hocket.kernel.snapshots.chunks import SnapshotManifest
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.retention.proof import check_remains
from hocket.log.snapshots.checking import SnapshotAudit, check_snapshot
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot
from hocket.log.snapshots.own_late import note_old_given, write_late_again
from hocket.log.snapshots.writing import write_snapshot
from tests.log.pruning_world import DAY, HOUR, Member, World, take_over


def busy(world: World, rounds: int = 3) -> None:
    """Every member writes of everything; some jobs end, some stay open."""
    for number in range(rounds):
        for each in world.members:
            each.run_job("acme.render")
            each.submit("acme.open")
            each.acquire(f"key {each.number} {number}")
            each.release()
            each.put(f"row {each.number}", b"%d" % number)
            message = each.send()
            claim = each.take_message(message)
            if claim is not None:
                each.acknowledge(message, claim)
            world.wait(HOUR // 8)
        world.exchange(2)


def pruned(world: World, witnesses: int = 0) -> None:
    """The owner's rule lets go what has ended a day ago; all members follow the horizon."""
    world.owner.retain(ms=DAY, witnesses=witnesses)
    world.wait(3 * DAY)
    world.owner.submit("acme.later")
    world.exchange()
    assert world.owner.move_horizon(world.now - 2 * HOUR)
    world.exchange()
    for each in world.members:
        each.follow()


def snapshot(member: Member, path: Path) -> SnapshotFolder:
    write_snapshot(member.log, path)
    return SnapshotFolder(path)


def check(folder: SnapshotFolder, member: Member) -> SnapshotAudit:
    return check_snapshot(folder, member.log.user, member.log.rules, member.log.physical())


def refusal(folder: SnapshotFolder, member: Member) -> str:
    before = member.digests(), member.entries()
    with pytest.raises(Failed) as refused:
        load_snapshot(member.log, folder)
    assert (member.digests(), member.entries()) == before
    return str(refused.value)


@pytest.fixture
def world() -> World:
    made = World(2)
    busy(made)
    pruned(made)
    return made


@pytest.fixture
def folder(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotFolder:
    monkeypatch.setattr(chunks, "CHUNK_LEAVES_MAX", 8)
    return snapshot(world.owner, tmp_path / "snapshot")


def newcomer(world: World) -> Member:
    """A member that has written its introduction alone. The owner has heard of it."""
    made = Member(world, len(world.members))
    world.members.append(made)
    return made


def test_nodes_write_the_same_snapshot(world: World, folder: SnapshotFolder, tmp_path: Path) -> None:
    other = snapshot(world.members[1], tmp_path / "other")
    assert folder.manifest().chunks == other.manifest().chunks
    assert len(folder.manifest().chunks) > 2
    audit = check(folder, world.owner)
    assert audit.entries < world.owner.entries() and audit.heads == 2 and audit.bases > 0


def test_a_new_node_has_what_the_others_have(world: World, folder: SnapshotFolder) -> None:
    new = newcomer(world)
    done = load_snapshot(new.log, folder)
    assert done.added > 0 and done.deleted == 0
    world.exchange()
    assert new.digests() == world.owner.digests() and new.shown() == world.owner.shown()
    assert new.entries() < 2 * world.owner.entries()
    for each in world.members:
        each.run_job("acme.render")
        world.exchange()
    assert new.digests() == world.owner.digests()
    with pytest.raises(Conflict, match="settled up to that horizon"):
        load_snapshot(new.log, folder)


def test_a_snapshot_brings_the_takeover_on_which_its_horizon_rests(tmp_path: Path, alone: None) -> None:
    world = World(3)
    owner, second, _ = world.members
    owner.retain(ms=HOUR)
    take_over(world, second)
    second.run_job("acme.render")
    world.wait(DAY)
    second.run_job("acme.render")
    world.exchange()
    assert second.move_horizon()
    for each in world.members:
        each.pull(second)
        each.follow()
    folder = snapshot(second, tmp_path / "snapshot")
    new = newcomer(world)
    assert load_snapshot(new.log, folder).added > 0
    world.exchange()
    assert new.digests() == owner.digests() and new.shown() == owner.shown()
    assert new.log.permissions().coordinators == second.log.permissions().coordinators


def test_the_next_horizon_has_the_same_root_on_a_node_that_took_a_snapshot(
    world: World, folder: SnapshotFolder, tmp_path: Path
) -> None:
    new = newcomer(world)
    load_snapshot(new.log, folder)
    world.exchange()
    busy(world, 2)
    world.wait(2 * DAY)
    world.owner.submit("acme.later")
    world.exchange()
    assert world.owner.move_horizon()
    world.exchange()
    for each in world.members:
        assert not [event for event in each.follow() if type(event).__name__ == "HorizonDiffers"]
    assert new.digests() == world.owner.digests()
    roots = {snapshot(each, tmp_path / f"next {each.number}").manifest().root() for each in world.members}
    assert len(roots) == 1


def test_a_node_that_was_away_joins_again_and_keeps_its_own_ops(tmp_path: Path) -> None:
    world = World(3)
    busy(world)
    away = world.members.pop()
    own = [away.submit("acme.mine"), away.submit("acme.mine")]
    lock = away.acquire("mine")
    busy(world)
    pruned(world)
    folder = snapshot(world.owner, tmp_path / "snapshot")
    done = load_snapshot(away.log, folder)
    assert done.deleted > 0 and done.rewritten == 3 and done.dropped == 0
    assert all(away.job(job_id) is None for job_id in own) and not isinstance(lock, Reason)
    world.members.append(away)
    world.exchange()
    assert [job.kind for job in away.shown()["jobs"].values()].count("acme.mine") == 2
    assert away.digests() == world.owner.digests()


def test_a_node_that_followed_an_earlier_horizon_takes_a_later_snapshot(tmp_path: Path) -> None:
    world = World(3)
    busy(world)
    pruned(world)
    away = world.members.pop()
    away.acquire("mine")
    busy(world)
    world.wait(3 * DAY)
    world.owner.submit("acme.later")
    world.exchange()
    assert world.owner.move_horizon(world.now - 2 * HOUR)
    world.exchange()
    for each in world.members:
        each.follow()
    done = load_snapshot(away.log, snapshot(world.owner, tmp_path / "snapshot"))
    assert done.deleted > 0 and done.added > 0 and done.rewritten == 1
    world.members.append(away)
    world.exchange()
    assert away.digests() == world.owner.digests() and away.shown() == world.owner.shown()
    assert away.read(check_remains) == []


def test_late_ops_are_written_again_behind_the_horizon() -> None:
    world = World(2)
    busy(world)
    away = world.members.pop()
    mine = away.submit("acme.mine")
    pruned(world)
    away.pull(world.owner)
    done = write_late_again(away.log)
    assert done is not None and (done.ops, done.dropped) == (1, 0)
    assert away.job(mine) is None
    world.members.append(away)
    world.exchange()
    assert [job.kind for job in world.owner.shown()["jobs"].values()].count("acme.mine") == 1
    away.follow()
    assert away.digests() == world.owner.digests()
    assert write_late_again(away.log) is None


@pytest.mark.parametrize("is_last", [True, False])
def test_a_node_that_follows_the_horizon_writes_its_late_ops_beside(is_last: bool) -> None:
    """What stood around them on its log is deleted, so they cannot be taken off it."""
    world = World(2)
    owner, away = world.members
    owner.retain(ms=HOUR)
    owner.run_job("acme.render")
    away.pull(owner)
    late = away.submit("acme.mine")
    assert away.claim(late)
    if not is_last:
        owner.run_job("acme.render")
    owner.submit("acme.open")
    away.pull(owner)
    world.wait(DAY)
    assert owner.move_horizon()
    away.pull(owner)
    assert isinstance(away.cancel(late), Op)
    away.submit("acme.after")
    away.follow()
    (row,) = away.read(lambda session: session.ops_by_id([late]))
    assert away.read(lambda session: session.gap_at(row.seq - 1)) and away.job(late) is None
    done = write_late_again(away.log)
    assert done is not None and (done.ops, done.dropped) == (3, 0)
    assert write_late_again(away.log) is None
    assert verify(away.log.store, user=away.log.user, marks=away.log.signer, is_bound=True).findings == []
    world.exchange()
    for each in world.members:
        each.follow()
        kinds = sorted(job.kind for job in each.shown()["jobs"].values())
        assert kinds == ["acme.after", "acme.mine", "acme.open"]
        assert [job.done is not None for job in each.shown()["jobs"].values() if job.kind == "acme.mine"] == [True]
    assert away.digests() == owner.digests() and away.read(check_remains) == []


def test_late_ops_that_another_node_may_have_stay_and_do_not_count() -> None:
    world = World(2)
    busy(world)
    away = world.members.pop()
    mine = away.submit("acme.mine")
    with away.log.store.read() as session:
        (row,) = session.entries_at(session.frontier()[away.log.author])
    world.wait(HOUR)
    note_old_given(away.log, unpack(row.hlc))
    pruned(world)
    away.pull(world.owner)
    assert write_late_again(away.log) is None
    away.follow()
    with away.log.store.read() as session:
        (row,) = session.entries_at(row.hlc)
    assert row.reason == Reason.BEHIND_HORIZON and away.job(mine) is None
    world.members.append(away)
    world.exchange()
    assert away.digests() == world.owner.digests()


# What does not hold good.


def change_chunk(change: Callable[[bytes], bytes], number: int = 0) -> Callable[[SnapshotFolder], None]:
    def damage(folder: SnapshotFolder) -> None:
        folder.put_chunk(number, change(folder.chunk(number)))

    return damage


def change_manifest(change: Callable[[SnapshotManifest], SnapshotManifest]) -> Callable[[SnapshotFolder], None]:
    return lambda folder: folder.put_manifest(change(folder.manifest()))


def swap(folder: SnapshotFolder) -> None:
    first, second = folder.chunk(0), folder.chunk(1)
    folder.put_chunk(0, second)
    folder.put_chunk(1, first)


def without(manifest: SnapshotManifest, **more: Any) -> SnapshotManifest:
    return msgspec.structs.replace(manifest, **more)


DAMAGES: dict[str, tuple[Callable[[SnapshotFolder], None], str]] = {
    "cut off": (change_chunk(lambda data: data[:-1]), "ends"),
    "one bit": (change_chunk(lambda data: data[:9] + bytes((data[9] ^ 1,)) + data[10:]), "signed root"),
    "goes on": (change_chunk(lambda data: data + b"\0"), "follow the last leaf"),
    "reordered": (swap, "belongs there"),
    "missing": (lambda folder: (folder.path / "00001.chunk").unlink(), "missing"),
    "signature": (
        lambda folder: folder.put_chunk(last := len(folder.manifest().chunks) - 2, bad_signature(folder.chunk(last))),
        "does not hold good",
    ),
    "fewer chunks": (change_manifest(lambda it: without(it, chunks=it.chunks[:-1])), "do not have the root"),
    "foreign": (change_manifest(lambda it: without(it, mesh="did:key:other")), "is of the mesh of"),
    "no rules": (change_manifest(lambda it: without(it, law=it.law[1:])), "missing"),
    "no law": (change_manifest(lambda it: without(it, law=it.law[:1])), "does not hold good"),
    "another op": (change_manifest(lambda it: without(it, horizon=it.law[0])), "moves no horizon"),
    "forged op": (
        change_manifest(lambda it: without(it, horizon=it.horizon[:-1] + bytes((it.horizon[-1] ^ 1,)))),
        "does not hold good",
    ),
    "later format": (change_manifest(lambda it: without(it, format=9)), "upgrade hocket"),
}


def bad_signature(data: bytes) -> bytes:
    """Another character in the signature of the last entry, which the tree does not cover."""
    return data[:-10] + (b"A" if data[-10:-9] != b"A" else b"B") + data[-9:]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_snapshot_is_refused(name: str, world: World, folder: SnapshotFolder) -> None:
    damage, reason = DAMAGES[name]
    new = newcomer(world)
    damage(folder)
    assert reason in refusal(folder, new)


def test_an_unfinished_snapshot_is_none(world: World, folder: SnapshotFolder) -> None:
    (folder.path / "manifest").unlink()
    with pytest.raises(Usage, match="written last"):
        load_snapshot(newcomer(world).log, folder)


def test_a_folder_with_other_files_is_left_alone(world: World, folder: SnapshotFolder) -> None:
    (folder.path / "notes.txt").write_text("mine")
    with pytest.raises(Usage, match="name a new folder"):
        write_snapshot(world.owner.log, folder.path)
    assert (folder.path / "notes.txt").read_text() == "mine"


def test_a_target_that_cannot_be_written_is_an_error(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_snapshot(world.owner.log, tmp_path / "file" / "snapshot")


def test_a_log_without_a_horizon_has_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="no horizon"):
        write_snapshot(World(1).owner.log, tmp_path / "snapshot")


def test_the_owner_says_how_many_witnesses_a_snapshot_needs(tmp_path: Path) -> None:
    world = World(2)
    busy(world, 1)
    pruned(world, witnesses=1)
    folder = snapshot(world.owner, tmp_path / "snapshot")
    new = newcomer(world)
    assert "cosignatures" in refusal(folder, new)
    share_notes(world.members[1].log, world.owner.log)
    shutil.rmtree(folder.path)
    folder = snapshot(world.owner, folder.path)
    assert check(folder, new).witnesses == (world.members[1].log.node,)
    load_snapshot(new.log, folder)


def share_notes(of: Log, to: Log) -> None:
    with of.store.read() as session:
        notes = [row.note for row in session.checkpoints() if row.note]
    to.checkpoints.receive(notes)
