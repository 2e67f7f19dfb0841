"""A rogue among the members hands out snapshots: forged ones, old ones, ones from which something is missing, and ones
with cosignatures that nobody gave. No node takes one, whatever the rogue signs with its own key. Each check that
stands in its way is taken out once, and then a forgery comes through.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from hocket.errors import Conflict, Failed
from hocket.families.retention.facts import MoveHorizon, SetRetention
from hocket.kernel.arbitration import Reason
from hocket.kernel.checkpoints.notes import Checkpoint, SignedNote, cosignature, origin_of, read_note
from hocket.kernel.clock import Hlc
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, Op, bind, decode, encode, link_to, sign
from hocket.kernel.postcard import decode as decode_value
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.snapshots import chunks
from hocket.kernel.snapshots.chunks import SnapshotManifest, cut
from hocket.kernel.snapshots.leaf_contents import BASE
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.kernel.vocabulary import DesignateCoordinator, RevokeRoot, number_of
from hocket.log.checkpoints import horizon_notes
from hocket.log.checkpoints.horizon_notes import horizon_checkpoint
from hocket.log.retention.proof import check_remains
from hocket.log.snapshots import checking
from hocket.log.snapshots.folder import SnapshotFolder, write_folder
from hocket.log.snapshots.loading import load_snapshot
from tests.log import pruning_world
from tests.log.pruning_world import DAY, HOUR, Member, World
from tests.log.roster import world as roster
from tests.log.test_snapshots import busy, pruned, share_notes, snapshot

ROGUE = 2
KEYS = (*roster.KEYS, *(SigningKey(bytes((number,)) * 32) for number in (201, 202)))


@pytest.fixture(autouse=True)
def enough_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning_world, "KEYS", KEYS)


class Scene:
    """A pruned mesh of an owner, an honest member and a rogue worker, with a true snapshot; and a newcomer."""

    def __init__(self, path: Path, witnesses: int = 0) -> None:
        self.world, self.path = World(3, workers=True), path
        busy(self.world, 2)
        pruned(self.world, witnesses)
        share_notes(self.world.members[1].log, self.world.owner.log)
        self.rogue = self.world.members[ROGUE]
        self.folder = snapshot(self.world.owner, path / "true")
        self.newcomer = Member(self.world, 3)
        self._made = 0

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for part in self.folder.leaves(self.folder.manifest()) for leaf in part]

    @property
    def moved(self) -> MoveHorizon:
        payload = decode(self.folder.manifest().horizon).payload
        assert isinstance(payload, MoveHorizon)
        return payload

    def write(self, leaves: Iterable[Leaf], **changes: object) -> SnapshotFolder:
        """A folder with these leaves under the manifest of the true one, changed."""
        self._made += 1
        listed = list(leaves)
        ranges = tuple(each.range for each in cut(listed))
        manifest = msgspec.structs.replace(self.folder.manifest(), **({"chunks": ranges} | changes))
        path = self.path / f"forged {self._made}"
        whole = msgspec.structs.replace(manifest, chunks=ranges)
        write_folder(path, manifest, whole.root(), listed)
        return SnapshotFolder(path)

    def signed(self, payload: object, by: SigningKey = KEYS[ROGUE], deps: tuple[bytes, ...] = ()) -> Op:
        """An op that the rogue makes by hand, or who else has this key."""
        from hocket.kernel.ids import node_id

        node = node_id(by.public)
        op, _ = bind(Op(NO_ID, Hlc(self.world.now, 7, node), node, (*deps, link_to(bytes(16))), payload))  # type: ignore[arg-type]
        return sign(op, by)

    def moved_by_rogue(self, leaves: Iterable[Leaf], law: tuple[bytes, ...] | None = None) -> SnapshotFolder:
        listed = list(leaves)
        ranges = tuple(each.range for each in cut(listed))
        root = msgspec.structs.replace(self.folder.manifest(), chunks=ranges).root()
        true = decode(self.folder.manifest().horizon)
        op = self.signed(msgspec.structs.replace(self.moved, root=root), deps=true.cited)
        more = {} if law is None else {"law": law}
        return self.write(listed, horizon=encode(op), **more)


def without_an_entry(scene: Scene) -> list[Leaf]:
    """Hides an entry that is no head and no law."""
    heads = {each.entry for each in scene.moved.heads}
    hidden = [
        each
        for each in scene.leaves
        if each.tag is LeafTag.ENTRY
        and decode(each.data).id not in heads
        and not isinstance(decode(each.data).payload, checking.LAW)
    ]
    return [each for each in scene.leaves if each != hidden[-1]]


def changed_base(scene: Scene) -> list[Leaf]:
    """A lock whose fence has fallen, or any other state that no op has made."""
    leaves = scene.leaves
    at = next(number for number, each in enumerate(leaves) if each.tag is LeafTag.BASE)
    base = decode_value(BASE, leaves[at].data)
    forged = msgspec.structs.replace(base, state=base.state[:-1] + bytes((base.state[-1] ^ 1,)))
    return [*leaves[:at], Leaf(LeafTag.BASE, encode_value(BASE, forged)), *leaves[at + 1 :]]


def changed_signature(scene: Scene) -> list[Leaf]:
    leaves = scene.leaves
    at = max(number for number, each in enumerate(leaves) if each.tag is LeafTag.ENTRY)
    data = leaves[at].data
    forged = data[:-10] + (b"A" if data[-10:-9] != b"A" else b"B") + data[-9:]
    return [*leaves[:at], Leaf(LeafTag.ENTRY, forged), *leaves[at + 1 :]]


def hides_a_revocation(scene: Scene) -> SnapshotFolder:
    """The manifest is silent about a revocation that the snapshot has."""
    law = scene.folder.manifest().law
    kept = tuple(raw for raw in law if not isinstance(decode(raw).payload, RevokeRoot))
    assert len(kept) < len(law)
    return scene.write(scene.leaves, law=kept)


def makes_its_own_rule(scene: Scene) -> SnapshotFolder:
    """The rogue moves the horizon by a rule that it wrote itself."""
    law = scene.folder.manifest().law
    true = next(op for raw in law if isinstance((op := decode(raw)).payload, SetRetention))
    rule = scene.signed(true.payload)
    others = tuple(raw for raw in law if not isinstance(decode(raw).payload, SetRetention))
    op = scene.signed(scene.moved, deps=(rule.id,))
    return scene.write(scene.leaves, law=(*others, encode(rule)), horizon=encode(op))


def designates_itself(scene: Scene) -> SnapshotFolder:
    word = encode(scene.signed(DesignateCoordinator(scene.rogue.log.node)))
    return scene.moved_by_rogue(without_an_entry(scene), (*scene.folder.manifest().law, word))


FORGERIES: dict[str, Callable[[Scene], SnapshotFolder]] = {
    "an entry is hidden": lambda scene: scene.write(without_an_entry(scene)),
    "a base is another": lambda scene: scene.write(changed_base(scene)),
    "a signature is another": lambda scene: scene.write(changed_signature(scene)),
    "the rogue moves the horizon": lambda scene: scene.moved_by_rogue(without_an_entry(scene)),
    "the rogue designates itself": designates_itself,
    "the rogue makes a rule": makes_its_own_rule,
    "a revocation is withheld": hides_a_revocation,
}


def is_taken(scene: Scene, folder: SnapshotFolder) -> bool:
    before = scene.newcomer.shown(), scene.newcomer.entries()
    try:
        load_snapshot(scene.newcomer.log, folder)
    except Failed:
        assert (scene.newcomer.shown(), scene.newcomer.entries()) == before
        return False
    return True


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(chunks, "CHUNK_LEAVES_MAX", 8)

    def with_revocation(world: World) -> None:
        gone = Member(world, 4)
        world.members.append(gone)
        world.exchange(1)
        world.owner.revoke(gone)
        world.members.remove(gone)

    plain = World.__init__

    def started(self: World, *args: int, **more: bool) -> None:
        plain(self, *args, **more)  # type: ignore[arg-type]
        with_revocation(self)

    monkeypatch.setattr(World, "__init__", started)
    return Scene(tmp_path)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_snapshot_is_refused(name: str, scene: Scene) -> None:
    assert not is_taken(scene, FORGERIES[name](scene))
    assert is_taken(scene, scene.folder)


def nothing_is_hashed(patch: pytest.MonkeyPatch) -> None:
    """The root of the chunks is not compared with the one that was signed."""
    patch.setattr(SnapshotManifest, "root", lambda self: decode(self.horizon).payload.root)


def anyone_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checking, "may_move", lambda op, permissions: True)


def rules_are_anybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checking, "_check_mover", lambda permissions, horizon, rules: None)


def signatures_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checking.SnapshotCheck, "_faults", lambda self, entries: [None] * len(entries))


def the_law_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checking, "LAW", (*checking.LAW, SetRetention))
    plain = checking.SnapshotCheck.__init__

    def believing(self: checking.SnapshotCheck, judged: checking.JudgedManifest, helpers: object = None) -> None:
        plain(self, judged)
        self._judged = judged._replace(law=_Everything(judged.law))

    patch.setattr(checking.SnapshotCheck, "__init__", believing)


class _Everything(dict[bytes, Op]):
    def __contains__(self, key: object) -> bool:
        return True


PLANTS = (nothing_is_hashed, anyone_moves, rules_are_anybodys, signatures_are_not_checked, the_law_is_not_compared)


@pytest.mark.parametrize("plant", PLANTS)
def test_without_a_check_a_forgery_comes_through(
    plant: Callable[[pytest.MonkeyPatch], None], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = [make(scene) for make in FORGERIES.values()]
    plant(monkeypatch)
    assert any(is_taken(scene, folder) for folder in forged)


# Witnesses.


def note_of(scene: Scene, lines: Iterable[tuple[str, SigningKey]]) -> bytes:
    """A note about the true root that these sign, under these names."""
    op_id = decode(scene.folder.manifest().horizon).id
    found: Checkpoint = horizon_checkpoint(scene.newcomer.log.user, op_id, len(scene.leaves), scene.moved.root)
    signed = [cosignature(found.text, name, by.public, by.sign, 1) for name, by in lines]
    return SignedNote(found.text, tuple(signed)).encode()


@pytest.fixture
def witnessed(tmp_path: Path) -> Scene:
    return Scene(tmp_path, witnesses=1)


def test_a_cosignature_counts_if_another_member_has_given_it(witnessed: Scene) -> None:
    scene, user = witnessed, witnessed.newcomer.log.user
    owner, honest, rogue = (each.log.node for each in scene.world.members)
    wrong = {
        "none": [],
        "the mover": [(origin_of(user, owner), KEYS[0])],
        "another's name": [(origin_of(user, honest), KEYS[ROGUE])],
        "a stranger": [(origin_of(user, scene.newcomer.log.node), KEYS[3])],
    }
    for lines in wrong.values():
        note = note_of(scene, lines) if lines else b""
        assert not is_taken(scene, scene.write(scene.leaves, note=note))
    twice = read_note(scene.folder.manifest().note)
    assert {each.name for each in twice.signatures} == {origin_of(user, owner), origin_of(user, honest)}
    assert is_taken(scene, scene.write(scene.leaves, note=note_of(scene, [(origin_of(user, rogue), KEYS[ROGUE])])))


def test_without_a_look_at_signatures_a_witness_is_invented(witnessed: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = witnessed
    note = note_of(scene, [(origin_of(scene.newcomer.log.user, scene.world.members[1].log.node), KEYS[ROGUE])])
    monkeypatch.setattr(horizon_notes, "cosigned_at", lambda line, text, key: 1)
    assert is_taken(scene, scene.write(scene.leaves, note=note))


def replaced(tmp_path: Path, *, is_settled: bool, witnesses: int = 0) -> tuple[World, SnapshotFolder]:
    """A coordinator that was replaced moves a horizon that nobody follows, and gives a snapshot whose law is silent
    about its successor, which was designated before the horizon or after it.
    """
    world = World(2)
    busy(world, 2)
    old, new = world.members
    old.retain(ms=DAY, witnesses=witnesses)
    if is_settled:
        new.say(DesignateCoordinator(new.log.node))
    world.wait(3 * DAY)
    if not is_settled:
        new.say(DesignateCoordinator(new.log.node))
    world.wait(1)
    old.submit("acme.later")
    assert old.move_horizon(world.now - 2 * HOUR)
    old.follow()
    return world, snapshot(old, tmp_path / "snapshot")


def test_a_replaced_coordinator_finds_no_witness(tmp_path: Path) -> None:
    world, folder = replaced(tmp_path, is_settled=True, witnesses=1)
    world.exchange()
    assert not any(type(each).__name__ == "HorizonMoved" for each in world.members[1].follow())
    with pytest.raises(Failed, match="0 cosignatures"):
        load_snapshot(Member(world, 2).log, folder)


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_replaced_coordinator_that_hides_it_is_found_out(is_settled: bool, tmp_path: Path) -> None:
    """Without witnesses a newcomer believes it, until it hears of the successor."""
    world, folder = replaced(tmp_path, is_settled=is_settled)
    old, new = world.members
    newcomer = Member(world, 2)
    load_snapshot(newcomer.log, folder)
    assert newcomer.read(check_remains) == []
    world.members.append(newcomer)
    world.exchange()
    assert not new.read(lambda session: session.horizon()), "nobody else follows it"
    late = newcomer.read(lambda session: session.ops_refused_for((Reason.BEHIND_HORIZON,)))
    if is_settled:
        assert number_of(DesignateCoordinator) in {row.variant for row in late}
    else:
        finding = "the op that moved the horizon is not on the log, or does not count"
        assert newcomer.read(check_remains) == [finding] and old.read(check_remains) == [finding]


def test_an_old_snapshot_takes_nobody_back(tmp_path: Path) -> None:
    world = World(2)
    busy(world, 2)
    pruned(world)
    old = snapshot(world.owner, tmp_path / "old")
    world.wait(2 * DAY)
    world.owner.submit("acme.later")
    world.exchange()
    assert world.owner.move_horizon(world.now - HOUR)
    for each in world.members:
        each.pull(world.owner)
        each.follow()
    newcomer = Member(world, 2)
    load_snapshot(newcomer.log, snapshot(world.owner, tmp_path / "new"))
    for each in (newcomer, world.members[1]):
        before = each.digests()
        with pytest.raises(Conflict):
            load_snapshot(each.log, old)
        assert each.digests() == before
