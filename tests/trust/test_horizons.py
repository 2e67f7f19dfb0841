"""Members that prune to hide, and those that hinder pruning: who may not move the horizon moves nothing, who may cannot
take away more than the owner allows, and no member keeps what has ended, or stops another one, by what it may not
write.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.errors import Conflict, Failed
from hocket.events.nodes import HorizonDiffers
from hocket.families.retention.facts import MoveHorizon, SetRetention
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.checkpoints.notes import NoteSignature, SignedNote, cosignature, origin_of, read_note
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, make_ulid
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, Op, bind, decode, encode, link_to, sign
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import CancelJob, ReportFork, RevokeRoot, ScheduleJob
from hocket.log.checkpoints import verification
from hocket.log.checkpoints.horizon_notes import horizon_note
from hocket.log.lost_past import own_history
from hocket.log.retention import remaining
from hocket.log.snapshots.checking import check_snapshot
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot
from hocket.log.snapshots.writing import write_snapshot
from hocket.store.checkpoint_rows import CheckpointState
from tests.log.pruning_world import DAY, HOUR, WORKER, Member, World, key_of
from tests.log.test_pruning import is_sound, prune, rebuilt

READS = (Capability("Ops", "Read", {}),)
MINUTE = 60_000


class Rogue:
    """A member with few grants, which signs what it likes."""

    def __init__(self, world: World, grants: Sequence[Capability] = READS) -> None:
        self.world = world
        self._member = Member(world, 9, grants)
        self.node, self._key = self._member.log.node, key_of(9)
        with self._member.log.store.read() as session:
            (self.said,) = [self._member.log.signed(row.body) for row in session.entries_after(0, 10)]
        self.last = decode(self.said).id
        self.tell(self.said)

    def sign(
        self, payload: Any, wall: int | None = None, deps: tuple[bytes, ...] = (), after: bytes | None = None
    ) -> bytes:
        stamp = Hlc(self.world.now if wall is None else wall, 0, self.node)
        link = link_to(self.last if after is None else after)
        op = sign(bind(Op(NO_ID, stamp, self.node, (*deps, link), payload))[0], self._key)
        if after is None:
            self.last = op.id
        return encode(op)

    def tell(self, *raws: bytes, only: Member | None = None) -> None:
        for each in self.world.members if only is None else [only]:
            each.log.admit([(raw, decode(raw)) for raw in raws])


def old_jobs(world: World, count: int = 2) -> list[bytes]:
    """Jobs that ended a day ago, for which there is a rule."""
    made = [world.owner.run_job("k") for _ in range(count)]
    world.owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    return made


def moved(member: Member) -> MoveHorizon:
    with member.log.store.read() as session:
        row = session.horizon()
        stored = None if row is None else session.op(row.op)
    assert stored is not None
    payload = decode(stored.body).payload
    assert isinstance(payload, MoveHorizon)
    return payload


# Who may not.


@pytest.mark.req("LW-43", "LW-52")
def test_a_horizon_of_a_member_that_may_not_move_it_counts_nowhere() -> None:
    world = World(2)
    rogue = Rogue(world)
    jobs = old_jobs(world)
    owner, other = world.members
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
        rules = [row.id for row in session.ops_of_variants((1055,))]
    assert plan is not None
    right = MoveHorizon(plan.at_ms, None, tuple(plan.heads), plan.settlement.remains.kept, plan.settlement.root, True)
    rogue.tell(rogue.sign(right, deps=tuple(rules)), rogue.sign(replace(right, root=bytes(32)), world.now + 1))
    rogue.tell(rogue.sign(SetRetention(0, "", HOUR, None, True, 0), world.now + 2))  # type: ignore[arg-type]
    # Neither does one of a node of the owner that is not the coordinator.
    with other.log.store.read() as session:
        plan = other.log.horizons.plan(session)
    assert plan is not None and not other.log.horizons.move(plan)
    for each in world.members:
        assert each.follow() == [] and each.read(lambda session: session.horizon()) is None
        assert set(jobs) <= each.shown()["jobs"].keys()
        counts = each.read(lambda session: session.refusal_counts())
        assert counts.keys() <= {Reason.NOT_COORDINATOR, *UNAUTHORISED} and is_sound(each)


@pytest.mark.req("LW-43", "LW-52")
def test_no_member_keeps_what_has_ended_by_what_it_may_not_write() -> None:
    """It names every ended job before the horizon is computed, and while it is."""
    world = World(2)
    rogue = Rogue(world)
    jobs = old_jobs(world)
    owner = world.owner
    rogue.tell(*(rogue.sign(CancelJob(each, ""), world.now + n) for n, each in enumerate(jobs)))
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
    assert plan is not None and plan.settlement.remains.kept == ()
    rogue.tell(*(rogue.sign(CancelJob(each, ""), world.now + 10 + n) for n, each in enumerate(jobs)))
    assert owner.log.horizons.move(plan)
    world.exchange()
    for each in world.members:
        each.follow()
        assert not each.shown()["jobs"].keys() & set(jobs) and is_sound(each)
    assert rebuilt(owner) == rebuilt(world.members[1])


@pytest.mark.req("LW-43", "LW-52")
def test_an_op_dated_to_just_before_the_horizon_does_not_count() -> None:
    world = World(2)
    rogue, owner = Rogue(world, WORKER), world.owner
    old_jobs(world)
    prune(world)
    border = moved(owner).at_ms
    sent = [rogue.sign(ScheduleJob(NO_ID, "k", b"{}", b""), border + ms) for ms in (-1, 0, 1)]
    rogue.tell(*sent)
    *back, after = (decode(each).id for each in sent)
    for each in world.members:
        assert each.shown()["jobs"].keys() & {*back, after} == {after} and is_sound(each)
    world.wait(DAY)
    prune(world)
    for each in world.members:
        assert each.shown()["jobs"].keys() & {*back, after} == {after} and is_sound(each)
    assert rebuilt(owner) == rebuilt(world.members[1])


@pytest.mark.req("LW-43", "LW-52")
def test_an_op_that_came_too_late_goes_whatever_refers_to_it(tmp_path: Path) -> None:
    """With the next horizon it is settled. A node that begins there could not tell that it does not count."""
    world = World(3)
    away = world.members.pop()
    owner = world.owner
    old_jobs(world)
    late = away.submit("k")
    world.wait(DAY)
    assert isinstance(away.cancel(late), Op)
    assert owner.move_horizon()
    world.members.append(away)
    world.exchange()
    for each in world.members:
        each.follow()
        assert late not in each.shown()["jobs"]
    world.wait(30 * MINUTE)
    owner.submit("other")
    assert owner.move_horizon()
    world.exchange()
    for each in world.members:
        each.follow()
    write_snapshot(owner.log, tmp_path / "snapshot")
    new = Member(world, 4)
    load_snapshot(new.log, SnapshotFolder(tmp_path / "snapshot"))
    world.members.append(new)
    world.exchange()
    for each in world.members:
        assert late not in each.shown()["jobs"] and is_sound(each)
    assert len({str(sorted(rebuilt(each).items())) for each in world.members}) == 1


@pytest.mark.req("LW-43", "LW-52")
def test_a_node_that_is_sent_what_it_has_let_go_has_lost_nothing() -> None:
    """It took its own ops for the end of a history that it had lost, and let nothing leave it any more."""
    world = World(3)
    owner, other, whole = world.members
    old_jobs(world)
    world.members.remove(whole)
    prune(world)
    with whole.log.store.read() as session:
        sent = [whole.log.signed(row.body) for row in session.entries_since({}, 1_000)]
    for each in (owner, other):
        before = each.entries()
        admission = each.log.admit([(raw, decode(raw)) for raw in sent], sender=whole.log.node)
        assert (admission.appended, admission.refused, admission.curable) == (0, {}, {})
        assert each.entries() == before and is_sound(each)
        assert not each.read(lambda session, each=each: own_history(session, each.log.node).is_behind)


# Who may, and wants to hide something.


def hides(patch: pytest.MonkeyPatch, *types: type) -> None:
    plain = remaining._Decision._unit_of

    def unit_of(self: Any, op: Op, reason: int) -> Any:
        return self._alone(op) if isinstance(op.payload, types) else plain(self, op, reason)

    patch.setattr(remaining._Decision, "_unit_of", unit_of)


@pytest.mark.req("LW-43", "LW-52")
def test_a_coordinator_cannot_prune_a_fork_or_a_revocation() -> None:
    """The others do not get its root, say so, and let nothing go."""
    world = World(3)
    rogue = Rogue(world)
    owner, other, revoked = world.members
    start = rogue.last
    branches = [rogue.sign(ScheduleJob(NO_ID, kind, b"", b""), after=start) for kind in ("a", "b")]
    rogue.tell(branches[0])
    rogue.tell(branches[1])
    owner.revoke(revoked)
    world.members.remove(revoked)
    jobs = old_jobs(world)
    assert owner.log.permissions().forks.keys() == {rogue.node}
    with pytest.MonkeyPatch.context() as patch:
        hides(patch, RevokeRoot, ReportFork)
        assert owner.move_horizon()
        owner.follow()
    other.pull(owner)
    assert [type(each) for each in other.follow()] == [HorizonDiffers]
    assert set(jobs) <= other.shown()["jobs"].keys()
    assert other.log.permissions().forks.keys() == {rogue.node}
    assert not other.log.authority().may(revoked.log.node, "Job", "Schedule", "k", world.now)
    assert is_sound(other)


@pytest.mark.req("LW-43", "LW-52")
def test_a_horizon_for_entries_that_nobody_else_has_is_not_followed() -> None:
    world = World(2)
    owner, jobs = world.owner, old_jobs(world)
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
    assert plan is not None
    heads = [replace(each, entry=make_ulid(each.wall, bytes(10))) for each in plan.heads]
    assert owner.log.horizons.move(plan._replace(heads=heads))
    for each in world.members:
        each.pull(owner)
        each.follow()
        assert each.read(lambda session: session.horizon()) is None and set(jobs) <= each.shown()["jobs"].keys()
        assert is_sound(each)


# Snapshots.


def witnessed(world: World, path: Path) -> SnapshotFolder:
    """A snapshot of which the owner wants two other members to have computed the root."""
    world.owner.retain(ms=HOUR, witnesses=2)
    world.owner.run_job("k")
    world.wait(DAY)
    world.exchange()
    assert world.owner.move_horizon()
    world.exchange()
    for each in world.members:
        each.follow()
    write_snapshot(world.owner.log, path)
    return SnapshotFolder(path)


def check(folder: SnapshotFolder, member: Member) -> tuple[int, ...]:
    return check_snapshot(folder, member.log.user, member.log.rules, member.log.physical()).witnesses


@pytest.mark.req("LW-43", "LW-52")
@pytest.mark.parametrize("who", ["strangers", "one node twice", "who moved it", "a revoked node", "in others' names"])
def test_the_word_of_who_has_none_is_no_witness(who: str, tmp_path: Path) -> None:
    world = World(3)
    owner, one, two = world.members
    folder = witnessed(world, tmp_path / "snapshot")
    manifest, user = folder.manifest(), owner.log.user
    with owner.log.store.read() as session:
        row = session.horizon()
    assert row is not None
    good = [read_note(each.read(lambda s: horizon_note(s, row.op))).signatures for each in (owner, one, two)]
    text = read_note(manifest.note).text

    def by(key: SigningKey, name: int, time_s: int = 1) -> NoteSignature:
        return cosignature(text, origin_of(user, name), key.public, key.sign, time_s)

    keys = [key_of(each.number) for each in world.members]
    strangers = [SigningKey(content_hash(b"stranger %d" % n)) for n in range(4)]
    lines: dict[str, list[NoteSignature]] = {
        "strangers": [by(each, 77 + n) for n, each in enumerate(strangers)],
        "one node twice": [by(keys[1], one.log.node, time_s) for time_s in (1, 2, 3)],
        "who moved it": [*good[0], *good[1], by(keys[0], owner.log.node, 5)],
        "a revoked node": [*good[1], *good[2]],
        "in others' names": [by(keys[1], each.log.node) for each in world.members],
    }
    law = list(manifest.law)
    if who == "a revoked node":
        # That it was revoked is in the manifest, as far as it was before the horizon's op.
        world.exchange()
        owner.revoke(two)
        (row_of,) = owner.read(lambda session: session.ops_of_variants((1033, 23, 24)))[-1:]
        law.append(owner.log.signed(row_of.body))
    folder.put_manifest(replace(manifest, law=tuple(law), note=SignedNote(text, tuple(lines[who])).encode()))
    with pytest.raises(Failed, match="the owner's rules ask for 2"):
        check(folder, one)
    if who != "a revoked node":
        folder.put_manifest(replace(manifest, note=SignedNote(text, (*good[1], *good[2])).encode()))
        assert set(check(folder, one)) == {one.log.node, two.log.node}


@pytest.mark.req("LW-43", "LW-52")
def test_an_old_snapshot_takes_nobody_back(tmp_path: Path) -> None:
    world = World(2)
    old_jobs(world)
    owner, other = world.members
    prune(world)
    write_snapshot(owner.log, tmp_path / "old")
    owner.run_job("k")
    world.wait(DAY)
    world.exchange()
    prune(world)
    later = owner.submit("k")
    world.exchange()
    before = other.digests(), other.entries()
    with pytest.raises(Conflict, match="settled up to that horizon already"):
        load_snapshot(other.log, SnapshotFolder(tmp_path / "old"))
    assert (other.digests(), other.entries()) == before and later in other.shown()["jobs"]


@pytest.mark.req("LW-43", "LW-52")
def test_trees_are_read_anew_after_a_snapshot(tmp_path: Path) -> None:
    """A node that had read its log before it took the snapshot accused everybody of two histories."""
    world = World(2)
    old_jobs(world)
    owner = world.owner
    prune(world)
    write_snapshot(owner.log, tmp_path / "snapshot")
    new = Member(world, 4)
    new.log.checkpoints.receive([])
    load_snapshot(new.log, SnapshotFolder(tmp_path / "snapshot"))
    world.members.append(new)
    world.exchange()
    owner.log.checkpoints.make()
    notes = owner.read(lambda session: [row.note for row in session.checkpoints(owner.log.author) if row.note])
    assert notes and new.log.checkpoints.receive(notes) == []
    assert new.log.checkpoints.make() == []
    signed = new.read(lambda session: session.checkpoint(owner.log.author, CheckpointState.SIGNED))
    assert signed is not None, "it has computed the same root"
    assert verification.check(new.log.store, new.log.node, new.log.user) == []
