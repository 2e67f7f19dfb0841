"""Cosignatures on the root of a horizon: each node signs what it has computed itself, and takes the word of members
alone.
"""

from pathlib import Path

import pytest

from hocket.kernel.checkpoints.notes import SignedNote, cosignature, origin_of, read_note
from hocket.kernel.ids import make_ulid
from hocket.log.checkpoints import verification
from hocket.log.checkpoints.horizon_notes import (
    HORIZONS_KEPT,
    cosign_horizon,
    horizon_checkpoint,
    horizon_note,
    horizon_notes,
    horizon_of,
    horizon_origin,
    witnesses_of,
)
from tests.mesh.test_checkpoints import exchange
from tests.mesh.world import Guest, Place, run

OP_ID = make_ulid(1_000, bytes(10))
ROOT = b"r" * 32


def cosign(at: Place, op_id: bytes = OP_ID, root: bytes = ROOT) -> None:
    checkpoint = horizon_checkpoint(at.log.user, op_id, 7, root)
    with at.runtime.store.write() as session:
        cosign_horizon(session, checkpoint, at.id, at.log.user, at.log.signer.note_signature, at.log.physical())


def witnesses(at: Place, op_id: bytes = OP_ID, root: bytes = ROOT) -> set[int]:
    with at.runtime.store.read() as session:
        keys = {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}
        checkpoint = horizon_checkpoint(at.log.user, op_id, 7, root)
        return set(witnesses_of(horizon_note(session, op_id), checkpoint, at.log.user, keys))


@pytest.mark.req("VX-07")
def test_nodes_cosign_a_root_that_each_has_computed(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for place in (b, c):
            await exchange(place, a)
        cosign(a)
        cosign(b)
        for _ in range(2):
            await exchange(b, a)
            await exchange(c, a)
        assert witnesses(a) == witnesses(b) == {a.id, b.id}
        assert witnesses(c) == set(), "it has computed nothing"
        cosign(c)
        await exchange(c, a)
        await exchange(b, a)
        assert witnesses(a) == witnesses(b) == witnesses(c) == {a.id, b.id, c.id}
        for place in (a, b, c):
            assert verification.check(place.runtime.store, place.id, place.log.user) == []

    run(tmp_path, test, "a", "b", "c")


@pytest.mark.req("VX-07")
def test_another_root_and_another_key_are_left_out(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await exchange(b, a)
        cosign(a)
        cosign(b, root=b"x" * 32)
        for _ in range(2):
            await exchange(b, a)
        assert witnesses(a) == {a.id} and witnesses(b) == set()
        with a.runtime.store.read() as session:
            note = horizon_note(session, OP_ID)
        stranger = Guest(77)
        name, text = origin_of(a.log.user, stranger.id), read_note(note).text
        for claimed in (name, origin_of(a.log.user, b.id)):
            line = cosignature(text, claimed, stranger.key.public, stranger.key.sign, 1)
            a.log.checkpoints.receive([SignedNote(text, (line,)).encode()])
        assert witnesses(a) == {a.id}
        with a.runtime.store.read() as session:
            assert horizon_note(session, OP_ID) == note

    run(tmp_path, test, "a", "b")


def test_the_notes_of_the_last_horizons_are_kept(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        ids = [make_ulid(wall, bytes(10)) for wall in range(1, 6)]
        for each in ids:
            cosign(a, each)
        with a.runtime.store.read() as session:
            assert [row.author for row in horizon_notes(session)] == ids[-HORIZONS_KEPT:]

    run(tmp_path, test, "a")


def test_an_origin_names_one_op_of_one_mesh() -> None:
    origin = horizon_origin("did:key:one", OP_ID)
    assert horizon_of(origin, "did:key:one") == OP_ID
    assert horizon_of(origin, "did:key:other") is None
    assert horizon_of(origin.lower(), "did:key:one") is None
    assert horizon_of("hocket/did:key:one/0000000000000001", "did:key:one") is None
