"""An archive that is begun when the log is pruned already: it begins at the horizon, says so, and has all since."""

from pathlib import Path

import pytest

from hocket.api import ops
from hocket.errors import Conflict
from hocket.kernel.clock import pack
from hocket.log import Log
from hocket.log.archives.archive import Archive, archived_ops, target_at
from hocket.log.archives.checking import verify_archive
from hocket.log.archives.reached import archived_heads
from hocket.log.archives.writing import Archived, write_archive
from tests.log.pruning_world import DAY, HOUR, Member, World


def write(log: Log, path: Path | str, **options: bool) -> list[Archived]:
    return list(write_archive(log, path, log.physical(), **options))


def live(world: World) -> None:
    owner, other = world.members[:2]
    owner.run_job("k")
    other.run_job("k")
    owner.acquire("file:a")
    owner.release()
    world.wait(DAY)
    world.exchange()


def prune(world: World) -> None:
    assert world.owner.move_horizon()
    world.exchange(1)
    for each in world.members:
        each.follow()


@pytest.fixture
def world() -> World:
    made = World()
    made.owner.retain(ms=HOUR)
    live(made)
    live(made)
    prune(made)
    return made


@pytest.mark.req("LW-52")
@pytest.mark.parametrize("scheme", ["", "git+"])
def test_it_begins_at_the_horizon_and_goes_on_from_there(world: World, tmp_path: Path, scheme: str) -> None:
    log, address = world.owner.log, f"{scheme}{tmp_path / 'archive'}"
    live(world)
    assert next(each.file for each in write(log, address, dry_run=True)) == "snapshot"
    assert not Archive(target_at(address)).has_snapshot()
    written = write(log, address)
    assert written[0].file == "snapshot" and written[0].bytes > 0 and len(written) > 2
    audit = verify_archive(address, mesh=log.user)
    with log.store.read() as session:
        row, heads = session.horizon(), session.heads()
        assert all(archived_heads(session)[author].hlc >= head.hlc for author, head in heads.items())
    assert row is not None and audit.findings == [] and audit.begins_ms == row.at_ms
    assert all(pack(op.timestamp) > heads[pack(op.timestamp)[12:]].hlc for _, op in archived_ops(address))
    # What is archived may go, and the archive goes on behind it.
    prune(world)
    live(world)
    assert write(log, address) and verify_archive(address).findings == []
    assert write(log, address) == []


@pytest.mark.req("LW-52")
def test_another_node_begins_from_it(world: World, tmp_path: Path) -> None:
    live(world)
    write(world.owner.log, tmp_path)
    new = Member(world, 2)
    ops._begin_with(new.log, str(tmp_path))
    admitted = new.log.admit(archived_ops(tmp_path))
    assert admitted.refused == {} and admitted.appended > 0
    assert new.shown()["jobs"] == world.owner.shown()["jobs"]
    # It is not taken twice, and not by a log that needs none.
    ops._begin_with(new.log, str(tmp_path))
    ops._begin_with(world.members[1].log, str(tmp_path))


@pytest.mark.req("LW-52")
def test_a_missing_beginning_is_found(world: World, tmp_path: Path) -> None:
    live(world)
    live(world)
    write(world.owner.log, tmp_path)
    for name, what in (("manifest", "missing before it"), ("00000.chunk", "00000.chunk")):
        file = tmp_path / "snapshot" / name
        data = file.read_bytes()
        file.unlink()
        assert any(what in each.what for each in verify_archive(tmp_path).findings)
        file.write_bytes(data)
    author = Archive(target_at(tmp_path)).all_places()[0]
    (tmp_path / author.name).unlink()
    assert any("missing before it" in each.what for each in verify_archive(tmp_path).findings)


@pytest.mark.req("LW-52")
def test_what_could_not_be_whole_is_not_begun(world: World, tmp_path: Path) -> None:
    world.owner.retain(ms=HOUR, waives=False)
    live(world)
    prune(world)
    with pytest.raises(Conflict, match="waive it once"):
        write(world.owner.log, tmp_path)
    assert list(tmp_path.iterdir()) == []
