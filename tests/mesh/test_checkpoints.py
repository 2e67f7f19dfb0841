"""Checkpoints between nodes: cosigned by who has computed them, passed on by who cannot, and never by two trees."""

from pathlib import Path

import msgspec
import pytest

from hocket.events.nodes import CheckpointsDiffer
from hocket.kernel.checkpoints.merkle import CompactRange, leaf_hash
from hocket.kernel.checkpoints.notes import Checkpoint, SignedNote, origin_of, read_note, signature
from hocket.kernel.ids import node_text
from hocket.kernel.ops import decode
from hocket.kernel.signing import signed_form
from hocket.log.checkpoints import verification
from hocket.log.checkpoints.keeper import cosigners
from hocket.mesh import wire
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState
from tests.mesh.test_restored import ACME
from tests.mesh.world import Guest, Place, delegation, enrolled, run, until


async def exchange(one: Place, other: Place) -> None:
    """One visits the other, and both have what the other has; then they share checkpoints twice."""
    await one.exchanges.visit(other.address)
    for _ in range(2):
        await one.exchanges.share_checkpoints(other.address, 0.0)


def stored(at: Place, of: int, state: str = CheckpointState.SIGNED) -> CheckpointRow | None:
    with at.runtime.store.read() as session:
        return session.checkpoint(of.to_bytes(8, "big"), state)


def witnesses(at: Place, of: int) -> set[int]:
    row = stored(at, of)
    return set() if row is None else {node for node, _ in cosigners(read_note(row.note), at.log.user)}


def entries_of(at: Place, author: int) -> list[bytes]:
    with at.runtime.store.read() as session:
        return [row.body for row in session.entries_of_author(author.to_bytes(8, "big"), bytes(20), 10_000)]


def findings(at: Place, *notes: bytes) -> list[str]:
    found = verification.check(at.runtime.store, at.log.node, at.log.user, notes)
    return [each.what for each in found]


@pytest.mark.req("VX-07")
def test_three_nodes_cosign_each_others_checkpoints(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for place in (a, b, c):
            place.submit(3)
            place.submit_bundle(5)
        for _ in range(3):
            await exchange(b, a)
            await exchange(c, a)
            for place in (a, b, c):
                place.log.checkpoints.make()
        for _ in range(2):
            await exchange(b, a)
            await exchange(c, a)
        for author in (a, b, c):
            row = stored(author, author.id)
            assert row is not None and row.size == len(entries_of(author, author.id))
            for place in (a, b, c):
                assert stored(place, author.id) is not None
                assert witnesses(place, author.id) == {a.id, b.id, c.id} - {author.id}
        assert [findings(place) for place in (a, b, c)] == [[], [], []]
        assert [place.log.checkpoints.make() for place in (a, b, c)] == [[], [], []]

    run(tmp_path, test, "a", "b", "c")


def forged(at: Place, guest: Guest, bodies: list[bytes]) -> bytes:
    """A checkpoint that a guest signs, over these entries."""
    tree = CompactRange()
    for each in bodies:
        tree.append(leaf_hash(signed_form(each, guest.id)))
    text = Checkpoint(origin_of(at.log.user, guest.id), tree.size, tree.root()).text
    line = signature(text, origin_of(at.log.user, guest.id), guest.key.public, guest.key.sign)
    return SignedNote(text, (line,)).encode()


@pytest.mark.req("VX-07")
def test_an_author_that_shows_two_trees_is_found_by_any_two_nodes_that_exchange(tmp_path: Path) -> None:
    """The author's ops themselves are shown to one node alone."""

    async def test(a: Place, b: Place) -> None:
        guest = Guest(7)
        raw = guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 30_000)
        assert a.log.admit([(raw, decode(raw))]).appended == 1
        shown = forged(a, guest, [raw])
        other = forged(a, guest, [b"another op" + raw[10:]])
        assert a.log.checkpoints.receive([shown]) == []
        assert witnesses(a, guest.id) == {a.id}
        await exchange(b, a)
        assert witnesses(b, guest.id) == {a.id, b.id}
        assert b.log.checkpoints.receive([other]) == [CheckpointsDiffer(node_text(guest.id), 1)]
        await exchange(b, a)
        for place in (a, b):
            row = stored(place, guest.id, CheckpointState.CONFLICT)
            assert row is not None and read_note(row.note) == read_note(other)
            assert witnesses(place, guest.id) == {a.id, b.id}, "nobody cosigns the other tree"
            assert findings(place) == [
                f"{node_text(guest.id)} has shown two histories: it signed a checkpoint of 1 entries that are not"
                " those here"
            ]
        assert [each for each in a.notices if "two histories" in each]
        assert b.log.checkpoints.receive([other]) == [], "it is reported once"

    run(tmp_path, test)


@pytest.mark.req("VX-07")
def test_a_tree_that_does_not_go_on_from_the_one_before_is_found(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        guest = Guest(7)
        raws = [guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 30_000)]
        a.log.admit([(raws[0], decode(raws[0]))])
        for _ in range(3):
            raws.append(guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 20_000))
        a.log.admit([(each, decode(each)) for each in raws[1:]])
        assert len(entries_of(a, guest.id)) == 4
        assert a.log.checkpoints.receive([forged(a, guest, raws)]) == []
        assert witnesses(a, guest.id) == {a.id}
        # Earlier ones say nothing new, if they are right.
        assert a.log.checkpoints.receive([forged(a, guest, raws[:2])]) == []
        row = stored(a, guest.id)
        assert row is not None and row.size == 4
        wrong = forged(a, guest, [raws[1], raws[0]])
        assert a.log.checkpoints.receive([wrong]) == [CheckpointsDiffer(node_text(guest.id), 2)]

    run(tmp_path, test)


@pytest.mark.req("VX-08")
def test_a_checkpoint_waits_for_the_entries_that_it_covers(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        guest = Guest(7)
        raws = [guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 30_000)]
        a.log.admit([(raws[0], decode(raws[0]))])
        raws.append(guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 20_000))
        assert a.log.checkpoints.receive([forged(a, guest, raws)]) == []
        assert witnesses(a, guest.id) == set() and stored(a, guest.id, CheckpointState.AHEAD) is not None
        a.log.admit([(raws[1], decode(raws[1]))])
        assert a.log.checkpoints.make() == []
        assert witnesses(a, guest.id) == {a.id} and stored(a, guest.id, CheckpointState.AHEAD) is None
        # And one that turns out to be wrong.
        raws.append(guest.op(delegation(a, guest.key.public, ()), a.log.physical() - 10_000))
        a.log.checkpoints.receive([forged(a, guest, [raws[0], raws[2], raws[1]])])
        a.log.admit([(raws[2], decode(raws[2]))])
        assert a.log.checkpoints.make() == [CheckpointsDiffer(node_text(guest.id), 3)]

    run(tmp_path, test)


@pytest.mark.req("VX-07")
def test_a_node_that_does_not_read_everything_passes_checkpoints_on_and_cosigns_none(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        reader = await enrolled(tmp_path / "reader", a, ACME)
        try:
            b.submit(3)
            await exchange(b, a)
            b.log.checkpoints.make()
            await exchange(b, a)
            await exchange(reader, a)
            row = stored(reader, b.id, CheckpointState.AHEAD)
            assert row is not None and stored(reader, b.id) is None
            assert {node for node, _ in cosigners(read_note(row.note), a.log.user)} == {a.id}
            reader.log.checkpoints.make()
            assert stored(reader, b.id) is None
            # Its own entries it knows.
            reader.submit(2, "acme.kind")
            await exchange(reader, a)
            reader.log.checkpoints.make()
            await exchange(reader, a)
            assert witnesses(reader, reader.id) == {a.id}
            assert findings(reader) == []
        finally:
            await reader.close()

    run(tmp_path, test)


@pytest.mark.req("VX-07")
def test_a_checkpoint_of_entries_that_no_other_node_has_is_not_given_away(tmp_path: Path) -> None:
    """The node may yet find that it was restored from a backup, and write these again."""

    async def test(a: Place, b: Place) -> None:
        await exchange(b, a)
        b.submit(2)
        a.submit(2)
        b.log.checkpoints.make()
        a.log.checkpoints.make()
        for _ in range(2):
            await b.exchanges.share_checkpoints(a.address, 0.0)
        assert stored(a, b.id) is None and stored(a, b.id, CheckpointState.AHEAD) is None
        assert stored(b, a.id) is None and stored(b, a.id, CheckpointState.AHEAD) is None
        await exchange(b, a)
        assert stored(a, b.id) is not None and stored(b, a.id) is not None

    run(tmp_path, test)


@pytest.mark.req("VX-18")
def test_a_peer_without_checkpoints_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(a: Place, b: Place) -> None:
        del a.gate._routes["POST", wire.CHECKPOINTS]
        b.submit(1)
        await b.exchanges.visit(a.address)
        b.log.checkpoints.make()
        await b.exchanges.share_checkpoints(a.address, 0.0)
        done = await b.exchanges.visit(a.address)
        assert done.state == "ok" and stored(a, b.id) is None

    run(tmp_path, test)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"has": "zz"}', b'{"has": "00"}', b'{"notes": [1]}', b'{"versions": []}', b"[" * 100_000],
)
def test_what_is_no_question_is_refused(tmp_path: Path, body: bytes) -> None:
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.visit(a.address)
        reply = await b.ask(a, "POST", wire.CHECKPOINTS, "", body)
        assert reply.status == 400 or body == b""

    run(tmp_path, test)


def test_notes_of_strangers_and_damaged_ones_change_nothing(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        a.submit(1)
        a.log.checkpoints.make()
        row = stored(a, a.id)
        assert row is not None
        stranger = Guest(9)
        await b.exchanges.visit(a.address)
        notes = [forged(a, stranger, []), row.note[:-5], row.note.replace(b"hocket/", b"hacket/"), b"\xff", b""]
        assert b.log.checkpoints.receive(notes) == []
        body = msgspec.json.encode({"notes": [each.decode("latin-1") for each in notes] * 20})
        assert (await b.ask(a, "POST", wire.CHECKPOINTS, "", body)).status == 200
        with b.runtime.store.read() as session:
            assert [each for each in session.checkpoints() if each.note and each.state != CheckpointState.READ] == []

    run(tmp_path, test)


@pytest.mark.req("VX-07")
def test_nodes_that_keep_in_touch_share_checkpoints_by_themselves(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        b.submit(2)
        b.log.checkpoints.make()
        b.keep_in_touch()
        await until(lambda: witnesses(b, b.id) == {a.id}, "the cosignature comes back")
        assert witnesses(a, b.id) == {a.id}

    run(tmp_path, test)
