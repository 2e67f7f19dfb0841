"""A node's own checkpoints: when it signs one, what its trees survive, and that it never shows two."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.families.jobs.requests import Draft
from hocket.kernel.checkpoints.merkle import CompactRange, leaf_hash
from hocket.kernel.checkpoints.notes import (
    Checkpoint,
    SignedNote,
    origin_of,
    read_checkpoint,
    read_note,
    signature,
)
from hocket.kernel.mesh_rules import STRICT
from hocket.kernel.policy import Policy
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import signed_form
from hocket.log.checkpoints import keeper as keeping
from hocket.log.checkpoints import trees, verification
from hocket.log.checkpoints.keeper import CheckpointKeeper
from hocket.log.lost_past import rewind
from hocket.node.runtime import Runtime
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointSession, CheckpointState
from tests.log.processes import go, start


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.init(tmp_path / "home") as opened:
        yield opened


def write(runtime: Runtime, entries: int) -> None:
    for _ in range(entries):
        runtime.submit([Draft("test.kind", b"{}", Policy())])


def signed(runtime: Runtime) -> CheckpointRow | None:
    with runtime.store.read() as session:
        return session.checkpoint(runtime.log.author, CheckpointState.SIGNED)


def root(runtime: Runtime, size: int) -> bytes:
    """Computed from the entries as they leave the node."""
    tree = CompactRange()
    with runtime.store.read() as session:
        for row in session.entries_of_author(runtime.log.author, bytes(20), size):
            tree.append(leaf_hash(signed_form(runtime.log.signed(row.body), runtime.log.node)))
    assert tree.size == size
    return tree.root()


def count(runtime: Runtime) -> int:
    with runtime.store.read() as session:
        return session.entry_count()


def agrees(runtime: Runtime) -> bool:
    row = signed(runtime)
    assert row is not None
    checkpoint = read_checkpoint(read_note(row.note).text)
    found = verification.check(runtime.store, runtime.log.node, runtime.log.user)
    return found == [] and checkpoint.size == row.size and checkpoint.root == root(runtime, row.size)


@pytest.mark.req("VX-07")
def test_a_checkpoint_is_due_after_a_time_and_after_many_entries(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "CHECKPOINT_ENTRIES", 5)
    now_ms = runtime.log.physical()
    monkeypatch.setattr(runtime.log, "physical", lambda: now_ms)
    keeper = runtime.log.checkpoints
    write(runtime, 1)
    keeper.step()
    first = signed(runtime)
    assert first is not None and first.size == count(runtime)
    write(runtime, 4)
    keeper.step()
    assert signed(runtime) == first
    write(runtime, 1)
    keeper.step()
    second = signed(runtime)
    assert second is not None and second.size == first.size + 5
    now_ms += keeping.CHECKPOINT_MS
    keeper.step()
    assert signed(runtime) == second, "nothing was written"
    write(runtime, 1)
    keeper.step()
    third = signed(runtime)
    assert third is not None and third.size == second.size + 1 and agrees(runtime)


@pytest.mark.req("VX-07")
def test_trees_go_on_from_where_they_were_stored(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "STEP_ENTRIES", 3)
    monkeypatch.setattr(trees, "ANCHOR_ENTRIES", 4)
    for _ in range(4):
        write(runtime, 7)
        CheckpointKeeper(runtime.log).make()
        assert agrees(runtime)
    with runtime.store.read() as session:
        rows = session.checkpoints(runtime.log.author)
        anchors = [row.size for row in rows if row.state == CheckpointState.ANCHOR]
        assert anchors == list(range(4, count(runtime) + 1, 4))
        found = trees.earlier(session, runtime.log.author, 18, rows, 2)
        assert found is not None and found.tree.root() == root(runtime, 18)
        assert trees.earlier(session, runtime.log.author, 18, rows, 1) is None
        assert trees.earlier(session, runtime.log.author, 99, rows, 1_000) is None


@pytest.mark.req("VX-07")
def test_two_processes_keep_the_same_trees(runtime: Runtime) -> None:
    one, other = CheckpointKeeper(runtime.log), CheckpointKeeper(runtime.log)
    for _ in range(3):
        for keeper in (one, other):
            write(runtime, 2)
            keeper.step()
            keeper.make()
            assert agrees(runtime)
            row = signed(runtime)
            assert row is not None and row.size == count(runtime)


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("state", [CheckpointState.TREE, CheckpointState.READ])
def test_a_row_of_before_that_is_put_back_makes_no_other_tree(runtime: Runtime, state: CheckpointState) -> None:
    """It has a right MAC. In a store that nodes share, each of them can do this."""
    write(runtime, 3)
    CheckpointKeeper(runtime.log).make()
    with runtime.store.read() as session:
        old = session.checkpoint(runtime.log.author, state)
    write(runtime, 3)
    CheckpointKeeper(runtime.log).make()
    assert old is not None
    with runtime.store.write() as session:
        session.put_checkpoint(old)
    write(runtime, 3)
    CheckpointKeeper(runtime.log).make()
    assert agrees(runtime)
    row = signed(runtime)
    assert row is not None and row.size == count(runtime)


@pytest.mark.req("VX-08")
def test_a_node_whose_entries_are_others_than_it_signed_signs_no_more(runtime: Runtime) -> None:
    write(runtime, 3)
    CheckpointKeeper(runtime.log).make()
    before = signed(runtime)
    assert before is not None
    wrong = CompactRange()
    for number in range(before.size + 2):
        wrong.append(leaf_hash(b"%d" % number))
    keeper = CheckpointKeeper(runtime.log)
    keeper._trees.by_author[runtime.log.author] = trees.AuthorTree(wrong)
    with runtime.store.write() as session:
        keeper._sign(session)
        session.put_checkpoint(CheckpointRow(runtime.log.author, CheckpointState.READ, 0, 0))
    write(runtime, 9)
    events = CheckpointKeeper(runtime.log).make()
    assert [type(each).__name__ for each in events] == ["CheckpointsDiffer"]
    assert CheckpointKeeper(runtime.log).make() == [] and signed(runtime) is None


@pytest.mark.req("VX-07", "VX-08")
def test_a_process_killed_while_it_makes_checkpoints_never_shows_two_trees(tmp_path: Path) -> None:
    Runtime.init(tmp_path / "home").close()
    chance = random.Random(11)
    shown: dict[int, str] = {}
    for _ in range(6):
        child = start("checkpoints", tmp_path / "home")
        assert child.stdout is not None
        go(child)
        for _ in range(chance.randrange(1, 12)):
            size, found = child.stdout.readline().split()
            assert shown.setdefault(int(size), found) == found
        child.kill()
        child.communicate()
    with Runtime.open(tmp_path / "home") as runtime:
        assert runtime.verify().findings == []
        runtime.log.checkpoints.make()
        assert agrees(runtime) and len(shown) > 5
        assert {size: root(runtime, size).hex() for size in shown} == shown


def test_a_strict_mesh_has_no_checkpoints(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "home", strict=True) as runtime:
        assert runtime.log.rules == STRICT
        write(runtime, 3)
        assert not runtime.log.checkpoints.has_checkpoints and runtime.log.checkpoints.make() == []
        assert runtime.verify().findings == []
        with runtime.store.read() as session:
            assert session.checkpoints() == []


def test_an_op_that_was_changed_for_its_reader_has_no_signed_form(runtime: Runtime) -> None:
    write(runtime, 1)
    with runtime.store.read() as session:
        (row,) = session.last_ops(1)
    body = row.bundle or row.body
    assert signed_form(body, runtime.log.node) == signed_form(runtime.log.signed(body), runtime.log.node)
    for changed in (body[:-19] + b"\0", b"", runtime.log.signed(body)[:-1]):
        with pytest.raises(Malformed):
            signed_form(changed, runtime.log.node)


def last_op(runtime: Runtime) -> bytes:
    with runtime.store.read() as session:
        (row,) = session.last_ops(1)
    return row.id


@pytest.mark.req("VX-08")
@pytest.mark.parametrize("is_told", [True, False])
def test_trees_are_read_again_after_ops_were_taken_off_the_log(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """If they are not told, the link of the last entry shows it."""
    write(runtime, 2)
    with monkeypatch.context() as patched:
        if not is_told:
            patched.setattr(CheckpointSession, "drop_trees", lambda session, author: None)
        branch = last_op(runtime)
        write(runtime, 3)
        CheckpointKeeper(runtime.log).make()
        rewind(runtime.log, branch)
    if not is_told:
        with runtime.store.write() as session:
            session.drop_checkpoint(runtime.log.author, CheckpointState.SIGNED)
    write(runtime, 5)
    assert CheckpointKeeper(runtime.log).make() == []
    row = signed(runtime)
    assert row is not None and row.size == count(runtime) and agrees(runtime)


def own_note(runtime: Runtime, size: int, root: bytes) -> bytes:
    name = origin_of(runtime.log.user, runtime.log.node)
    text = Checkpoint(name, size, root).text
    line = signature(text, name, runtime.home.node_key().public, runtime.log.signer.note_signature)
    return SignedNote(text, (line,)).encode()


@pytest.mark.req("VX-08")
def test_a_node_that_has_lost_the_end_of_its_log_signs_nothing_until_it_has_it_back(runtime: Runtime) -> None:
    write(runtime, 2)
    runtime.log.checkpoints.make()
    before = signed(runtime)
    assert before is not None
    assert runtime.log.checkpoints.receive([own_note(runtime, before.size + 5, bytes(32))]) == []
    write(runtime, 1)
    runtime.log.checkpoints.make()
    assert signed(runtime) == before
    (found,) = runtime.verify().findings
    assert "the tail is cut" in found.what


@pytest.mark.req("VX-08")
def test_a_note_that_its_author_has_not_signed_changes_nothing(runtime: Runtime) -> None:
    write(runtime, 2)
    runtime.log.checkpoints.make()
    row = signed(runtime)
    assert row is not None
    lines = row.note.splitlines(keepends=True)
    for size in (b"2\n", b"999\n"):
        assert runtime.log.checkpoints.receive([b"".join((lines[0], size, *lines[2:]))]) == []
    with runtime.store.read() as session:
        states = {each.state for each in session.checkpoints()}
    assert states == {CheckpointState.READ, CheckpointState.SIGNED, CheckpointState.TREE}


@pytest.mark.req("VX-07")
def test_two_notes_of_one_size_beyond_the_log_are_in_conflict(runtime: Runtime) -> None:
    """So a node that cannot compute the roots of an author finds two trees of it."""
    write(runtime, 1)
    keeper = runtime.log.checkpoints
    assert keeper.receive([own_note(runtime, 99, bytes(32))]) == []
    events = keeper.receive([own_note(runtime, 99, b"\1" * 32)])
    assert [type(each).__name__ for each in events] == ["CheckpointsDiffer"]
    assert keeper.receive([own_note(runtime, 98, b"\1" * 32)]) == []
