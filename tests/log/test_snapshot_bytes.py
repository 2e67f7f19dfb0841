"""No byte of a snapshot can be changed: what the signed root does not cover, the signature of an author does. Planted
in the code: leaves whose hash leaves something out.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from hocket.errors import HocketError
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.log.snapshots.checking import SnapshotCheck, check_snapshot
from hocket.log.snapshots.folder import MANIFEST, SnapshotFolder
from hocket.log.snapshots.writing import write_snapshot
from tests.log.pruning_world import DAY, HOUR, World

Plant = Callable[[pytest.MonkeyPatch], None]
TRIES = 200


def changed_bytes_are_refused(directory: Path, tries: int, only: LeafTag | None = None) -> None:
    """Changes single bytes of a snapshot, one at a time: those of leaves with one tag, or any."""
    world = World(2)
    owner, other = world.members
    for number in range(3):
        owner.acquire("file:a")
        owner.release()
        owner.put("t/a", b"%d" % number)
        owner.run_batch("k", number)
    owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    assert owner.move_horizon()
    world.exchange()
    for each in (owner, other):
        each.follow()
    write_snapshot(owner.log, directory)
    folder, chance = SnapshotFolder(directory), Random(tries)
    whole = {path: path.read_bytes() for path in sorted(directory.iterdir())}
    leaves = [leaf for part in folder.leaves(folder.manifest()) for leaf in part]
    assert {leaf.tag for leaf in leaves} == set(LeafTag)
    sound = check_snapshot(folder, owner.log.user, owner.log.rules, owner.log.physical())
    places = [
        (path, begin + at)
        for path, data in whole.items()
        for part in ([data] if only is None else [leaf.data for leaf in leaves if leaf.tag is only])
        if (begin := data.find(part)) >= 0
        for at in range(len(part))
    ]
    for _ in range(tries):
        path, at = chance.choice(places)
        data = whole[path]
        path.write_bytes(data[:at] + bytes((data[at] ^ chance.randrange(1, 256),)) + data[at + 1 :])
        try:
            found = check_snapshot(folder, owner.log.user, owner.log.rules, owner.log.physical())
        except HocketError:
            continue
        finally:
            path.write_bytes(data)
        # A cosignature may be damaged: then it does not count.
        assert path.name == MANIFEST and found._replace(witnesses=()) == sound._replace(witnesses=())


def test_no_byte_of_a_snapshot_can_be_changed(tmp_path: Path) -> None:
    changed_bytes_are_refused(tmp_path / "snapshot", TRIES)


def covered_without(tag: LeafTag, keep: int) -> Plant:
    """The hash of a leaf covers its first bytes alone."""
    plain = Leaf.covered.fget  # type: ignore[attr-defined]

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Leaf, "covered", property(lambda self: plain(self)[:keep] if self.tag is tag else plain(self)))

    return plant


def signatures_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SnapshotCheck, "_faults", lambda self, entries: [None] * len(entries))


UNCOVERED: dict[str, tuple[Plant, LeafTag]] = {
    "a state that the hash does not cover": (covered_without(LeafTag.BASE, 20), LeafTag.BASE),
    "a tree that the hash does not cover": (covered_without(LeafTag.HEAD, 40), LeafTag.HEAD),
    "facts that the hash does not cover": (covered_without(LeafTag.PARTIAL, 17), LeafTag.PARTIAL),
    "signatures are not checked": (signatures_are_not_checked, LeafTag.ENTRY),
}


@pytest.mark.req("LW-52")
@pytest.mark.parametrize("name", UNCOVERED)
def test_what_a_hash_does_not_cover_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, tag = UNCOVERED[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        changed_bytes_are_refused(tmp_path / "snapshot", TRIES * 100, tag)
