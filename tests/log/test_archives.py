"""Archives of the log: the same files on every node, whatever order and however often they are written; and whatever
is changed in one behind its back is found.
"""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.errors import Conflict, Failed, StoreError, Usage
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.postcard import Malformed
from hocket.log import Log
from hocket.log.archives import day_file
from hocket.log.archives.checking import ArchiveAudit, verify_archive
from hocket.log.archives.day_file import DAY_MS, DayFile, decode, encode, start_of
from hocket.log.archives.writing import Archived, write_archive
from hocket.log.copies import import_ops
from tests.log.roster.world import KEYS, READER, USER, Clock, introduction, new_log, randomness
from tests.log.test_archive import exported
from tests.stores import new_store

FIRST_DAY = start_of("2026-01-30")


class Author:
    """A node with a log of its own, whose ids are bound."""

    def __init__(self, key: SigningKey) -> None:
        self.clock = Clock(FIRST_DAY)
        store = new_store()
        self.log = Log(store, key, did_key(USER.public), wall=self.clock, randomness=randomness(key.public))
        self.log.run(lambda tx: tx.author(introduction(key).payload))

    def on_day(self, day: int, count: int = 1) -> None:
        self.clock.now = max(self.clock.now, FIRST_DAY + day * DAY_MS) + 1
        for _ in range(count):
            self.log.append_plain("k", b"{}")

    def learn(self, other: "Author") -> None:
        self.clock.now = max(self.clock.now, other.clock.now)
        assert import_ops(self.log, io.BytesIO(exported(other.log))).rejected == 0


def write(log: Log, path: Path, day: int = 1_000, **options: bool) -> list[Archived]:
    """Archives the days before that one."""
    return list(write_archive(log, path, FIRST_DAY + day * DAY_MS, **options))


def files(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def found(path: Path) -> list[str]:
    return [each.what for each in verify_archive(path).findings]


@pytest.fixture
def pair() -> tuple[Author, Author]:
    """Two nodes with the same ops: of one on three days, of the other on two."""
    one, other = Author(READER), Author(KEYS[0])
    one.on_day(0, 3)
    other.on_day(1, 2)
    one.learn(other)
    one.on_day(1)
    one.on_day(3, 2)
    other.learn(one)
    return one, other


def test_two_nodes_write_the_same_files(pair: tuple[Author, Author], tmp_path: Path) -> None:
    one, other = pair
    written = write(one.log, tmp_path / "one")
    write(other.log, tmp_path / "other")
    assert files(tmp_path / "one") == files(tmp_path / "other")
    days = ["2026-01-30", "2026-01-31", "2026-02-02"]
    mine = [f"{one.log.node:016x}/{day}.ops.zst" for day in days]
    theirs = [f"{other.log.node:016x}/{day}.ops.zst" for day in days[:2]]
    assert sorted(files(tmp_path / "one")) == sorted(mine + theirs) == sorted(each.file for each in written)
    audit = verify_archive(tmp_path / "one", mesh=one.log.user)
    with one.log.store.read() as session:
        assert audit == ArchiveAudit(5, session.entry_count(), one.log.user, days[0], days[2], [])


def test_days_that_have_not_ended_stay_out(pair: tuple[Author, Author], tmp_path: Path) -> None:
    one, _ = pair
    assert {each.file.rpartition("/")[2] for each in write(one.log, tmp_path, 1)} == {"2026-01-30.ops.zst"}
    later = one.log, tmp_path
    assert len(write(*later, dry_run=True)) == 3 and len(files(tmp_path)) == 2
    assert len(write(*later)) == 3 and not write(*later)
    assert not found(tmp_path)


@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=6),
    archived_after=st.sets(st.integers(0, 5)),
    part=st.integers(1, 4),
)
def test_an_archive_written_bit_by_bit_is_the_one_written_at_once(
    steps: list[tuple[int, int]],
    archived_after: set[int],
    part: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    author = Author(READER)
    bit_by_bit, at_once = tmp_path_factory.mktemp("bits"), tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day_file, "PART_OPS_MAX", part)
        for number, (day, count) in enumerate(sorted(steps)):
            author.on_day(day, count)
            if number in archived_after:
                write(author.log, bit_by_bit)
        write(author.log, bit_by_bit)
        write(author.log, at_once)
        assert files(bit_by_bit) == files(at_once)
        assert not found(at_once)
        with author.log.store.read() as session:
            raws = [author.log.signed(row.body) for row in session.stored_entries(0, 1_000)]
        assert [op for each in _in_order(at_once) for op in each.ops] == raws
    author.log.store.close()


def _in_order(path: Path) -> list[DayFile]:
    decoded = [decode(each) for each in files(path).values()]
    return sorted(decoded, key=lambda each: (each.header.day, each.header.part))


Damage = Callable[[Path, list[Path]], object]


def _changed(path: Path, change: Callable[[DayFile], DayFile]) -> None:
    path.write_bytes(encode(change(decode(path.read_bytes()))))


def _with_ops(file: DayFile, ops: list[bytes]) -> DayFile:
    return DayFile(replace(file.header, ops=len(ops)), ops)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut off": (lambda _, of: of[1].write_bytes(of[1].read_bytes()[:-9]), "cut off"),
    "flipped": (lambda _, of: _flip(of[1], 40), "decompressed"),
    "longer": (lambda _, of: of[1].write_bytes(of[1].read_bytes() + b"x"), "bytes follow its end"),
    "empty": (lambda _, of: of[1].write_bytes(b""), "cut off"),
    "removed": (lambda _, of: of[1].unlink(), "missing before it"),
    "first removed": (lambda _, of: of[0].unlink(), "missing before it"),
    "renamed": (lambda _, of: of[1].rename(of[1].with_name("2026-02-01.ops.zst")), "its header says"),
    "reordered": (lambda _, of: _changed(of[0], lambda f: _with_ops(f, [f.ops[1], f.ops[0], *f.ops[2:]])), "missing"),
    "op removed": (lambda _, of: _changed(of[0], lambda f: _with_ops(f, [f.ops[0], *f.ops[2:]])), "missing"),
    "op at the border removed": (lambda _, of: _changed(of[0], lambda f: _with_ops(f, f.ops[:-1])), "missing"),
    "op twice": (lambda _, of: _changed(of[0], lambda f: _with_ops(f, [f.ops[0], *f.ops])), "missing"),
    "op changed": (
        lambda _, of: _changed(of[0], lambda f: _with_ops(f, [*f.ops[:-1], f.ops[-1][:-90] + b"x" + f.ops[-1][-89:]])),
        "",
    ),
    "another day": (
        lambda _, of: _changed(of[0], lambda f: DayFile(replace(f.header, day="2026-01-29"), f.ops)),
        "2026-01-29",
    ),
    "another mesh": (
        lambda _, of: _changed(of[1], lambda f: DayFile(replace(f.header, mesh=did_key(READER.public)), f.ops)),
        "another mesh",
    ),
    "another key": (
        lambda _, of: _changed(of[1], lambda f: DayFile(replace(f.header, key=USER.public.hex()), f.ops)),
        "not that of node",
    ),
    "a stranger": (lambda path, of: (of[0].parent / "notes.txt").write_text("x"), "no file of an archive"),
    "count": (lambda _, of: _changed(of[1], lambda f: DayFile(replace(f.header, ops=7), f.ops)), "counts 7"),
    "format": (lambda _, of: _changed(of[1], lambda f: DayFile(replace(f.header, archive=2), f.ops)), "format 2"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(pair: tuple[Author, Author], tmp_path: Path, damage: str) -> None:
    one, _ = pair
    write(one.log, tmp_path)
    of_one = sorted((tmp_path / f"{one.log.node:016x}").iterdir())
    do, says = DAMAGES[damage]
    do(tmp_path, of_one)
    assert any(says in what for what in found(tmp_path)), found(tmp_path)


def test_ops_of_a_node_that_the_user_has_not_admitted_are_found(pair: tuple[Author, Author], tmp_path: Path) -> None:
    """A stranger writes an archive of the user's mesh with another key: each file is good by itself."""
    one, _ = pair
    write(one.log, tmp_path)
    stranger = Author(READER)
    stranger.log.user = did_key(READER.public)
    stranger.on_day(0, 2)
    for each in tmp_path.rglob("*.zst"):
        if each.parent.name == f"{one.log.node:016x}":
            each.unlink()
    path = tmp_path / f"{one.log.node:016x}" / "2026-01-30.ops.zst"
    with stranger.log.store.read() as session:
        ops = [stranger.log.signed(row.body) for row in session.stored_entries(1, 10)]
    header = day_file.Header(1, one.log.user, path.parent.name, READER.public.hex(), "2026-01-30", 0, len(ops))
    path.write_bytes(encode(DayFile(header, ops)))
    assert verify_archive(path).findings == []
    assert "no delegation in this archive that leads back to the user admits this node" in found(tmp_path)


def test_each_file_can_be_verified_alone(pair: tuple[Author, Author], tmp_path: Path) -> None:
    one, _ = pair
    write(one.log, tmp_path)
    for each in tmp_path.rglob("*.zst"):
        audit = verify_archive(each)
        assert (audit.files, audit.findings) == (1, [])
        assert verify_archive(each, mesh=did_key(READER.public)).findings


def test_an_archive_of_other_ops_is_left_alone(pair: tuple[Author, Author], tmp_path: Path) -> None:
    one, _ = pair
    write(one.log, tmp_path)
    before = files(tmp_path)
    twin = Author(READER)
    twin.on_day(3, 9)
    with pytest.raises(Conflict, match="has ops that this log has not"):
        write(twin.log, tmp_path)
    assert files(tmp_path) == before
    last = sorted((tmp_path / f"{one.log.node:016x}").iterdir())[-1]
    _changed(last, lambda file: DayFile(replace(file.header, mesh=did_key(READER.public)), file.ops))
    with pytest.raises(Conflict, match="archive of another mesh"):
        write(one.log, tmp_path)


def test_what_cannot_be_archived_says_so(pair: tuple[Author, Author], tmp_path: Path) -> None:
    one, _ = pair
    with pytest.raises(Failed, match="strict Likewise"):
        write(new_log(), tmp_path / "strict")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write(one.log, tmp_path / "file" / "archive")
    with pytest.raises(Usage, match="no archive"):
        verify_archive(tmp_path)
    write(one.log, tmp_path / "damaged")
    last = tmp_path / "damaged" / f"{one.log.node:016x}" / "2026-02-02.ops.zst"
    _flip(last, 40)
    with pytest.raises(Conflict, match="is damaged"):
        write(one.log, tmp_path / "damaged")


@given(st.binary(max_size=300))
def test_random_bytes_are_no_file(frame: bytes) -> None:
    with pytest.raises(Malformed):
        decode(frame)


def test_an_archive_goes_on_after_what_it_has_was_pruned(tmp_path: Path) -> None:
    author = Author(READER)
    author.on_day(1, 3)
    write(author.log, tmp_path / "archive", 5)
    with author.log.store.write() as session:
        # As pruning does; the author's delegation stays.
        session.order_ops()
        session._put("DELETE FROM ops WHERE seq > 1")
    assert write(author.log, tmp_path / "archive", 5) == []
    with pytest.raises(Conflict, match="has ops that this log has not"):
        write(author.log, shutil.copytree(tmp_path / "archive", tmp_path / "copy"), 5)
    author.on_day(6, 2)
    (grown,) = write(author.log, tmp_path / "archive")
    assert grown.ops == 2 and found(tmp_path / "archive") == []
