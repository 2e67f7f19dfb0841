"""Checkpoints as signed notes: a public program's note, a second implementation that reads ours, what is refused."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from hocket.kernel.checkpoints.merkle import SIZE_MAX
from hocket.kernel.checkpoints.notes import (
    NOTE_BYTES_MAX,
    SIGNATURES_MAX,
    Checkpoint,
    NoteSignature,
    SignedNote,
    author_of,
    cosignature,
    cosigned_at,
    is_signed_by,
    origin_of,
    read_checkpoint,
    read_note,
    signature,
    verifier_key,
)
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.postcard import Malformed

# The example of Go's package golang.org/x/mod/sumdb/note.
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

AUTHOR, PEER = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))
USER = did_key(AUTHOR.public)
NAME, PEER_NAME = origin_of(USER, node_id(AUTHOR.public)), origin_of(USER, node_id(PEER.public))
CHECKPOINT = Checkpoint(NAME, 3, hashlib.sha256(b"root").digest())


def note_of(checkpoint: Checkpoint = CHECKPOINT, time_s: int = 1_700_000_000) -> SignedNote:
    text = checkpoint.text
    own = signature(text, NAME, AUTHOR.public, AUTHOR.sign)
    return SignedNote(text, (own, cosignature(text, PEER_NAME, PEER.public, PEER.sign, time_s)))


def verified_elsewhere(note: bytes, key: str, kind: int, has_time: bool) -> bool:
    """Whether a note is signed, by the words of C2SP: this shares nothing with our code."""
    name, key_hash, public = key.split("+", 2)
    raw = base64.b64decode(public)
    if hashlib.sha256(name.encode() + b"\n" + raw).hexdigest()[:8] != key_hash or raw[0] != kind:
        return False
    end = note.rindex(b"\n\n") + 1
    for line in note[end + 1 :].decode().splitlines():
        dash, signer, value = line.split(" ")
        data = base64.b64decode(value)
        if dash == "—" and signer == name and data[:4].hex() == key_hash:
            text = note[:end]
            if has_time:
                text = b"cosignature/v1\ntime %d\n" % int.from_bytes(data[4:12], "big") + text
            try:
                VerifyKey(raw[1:]).verify(text, data[12 if has_time else 4 :])
            except BadSignatureError:
                return False
            return True
    return False


@pytest.mark.req("VX-07")
def test_a_note_of_the_public_program_is_read_and_verified() -> None:
    note, public = read_note(GO_NOTE.encode()), base64.b64decode(GO_KEY.split("+", 2)[2])[1:]
    assert note.encode().decode() == GO_NOTE
    assert is_signed_by(note, "PeterNeumann", public) and not is_signed_by(note, "PeterNeumann", AUTHOR.public)
    assert verifier_key("PeterNeumann", public) == GO_KEY
    assert not is_signed_by(note._replace(text=note.text + "or\n"), "PeterNeumann", public)
    assert verified_elsewhere(GO_NOTE.encode(), GO_KEY, 1, False)


@pytest.mark.req("VX-07")
def test_a_second_implementation_verifies_our_notes() -> None:
    note = note_of().encode()
    assert verified_elsewhere(note, verifier_key(NAME, AUTHOR.public), 1, False)
    raw = b"\x04" + PEER.public
    key_hash = hashlib.sha256(PEER_NAME.encode() + b"\n" + raw).hexdigest()[:8]
    assert verified_elsewhere(note, f"{PEER_NAME}+{key_hash}+{base64.b64encode(raw).decode()}", 4, True)
    assert not verified_elsewhere(note.replace(b"\n3\n", b"\n4\n"), verifier_key(NAME, AUTHOR.public), 1, False)


@given(st.integers(0, SIZE_MAX), st.binary(min_size=32, max_size=32), st.integers(0, 2**40))
def test_a_note_comes_back_as_it_was_written(size: int, root: bytes, time_s: int) -> None:
    note = note_of(Checkpoint(NAME, size, root), time_s)
    again = read_note(note.encode())
    assert again == note and read_checkpoint(again.text) == (NAME, size, root)
    assert is_signed_by(again, NAME, AUTHOR.public)
    assert cosigned_at(again.signatures[1], again.text, PEER.public) == time_s


def test_a_signature_is_of_one_key_and_one_kind() -> None:
    text, (own, other) = note_of()
    assert cosigned_at(other, text, AUTHOR.public) is None
    assert cosigned_at(own, text, AUTHOR.public) is None
    assert cosigned_at(other, text.replace("3", "4"), PEER.public) is None
    later = other._replace(value=bytes(8) + other.value[8:])
    assert cosigned_at(later, text, PEER.public) is None
    # One good line does not vouch for a bad one of the same key.
    bad = own._replace(value=bytes(64))
    assert not is_signed_by(SignedNote(text, (own, bad)), NAME, AUTHOR.public)
    assert not is_signed_by(SignedNote(text, (other,)), NAME, AUTHOR.public)
    assert is_signed_by(SignedNote(text, (NoteSignature("unknown", b"1234", b"5"), own)), NAME, AUTHOR.public)


def test_an_origin_names_one_mesh_and_one_author() -> None:
    assert author_of(NAME, USER) == node_id(AUTHOR.public)
    assert author_of(NAME, did_key(PEER.public)) is None
    for other in ("", "example.com/log", NAME.upper(), f"{NAME}0", NAME.removeprefix("hocket/")):
        assert author_of(other, USER) is None


GOOD = note_of().encode().decode()


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n",
        GOOD.removesuffix("\n"),
        GOOD + "\n",
        GOOD + "text\n",
        GOOD.replace("— ", "- "),
        GOOD.replace("\n\n", "\n"),
        GOOD.replace("\n3\n", "\n3\t\n"),
        GOOD.replace("\n3\n", "\n3\r\n"),
        GOOD.replace(f"— {NAME} ", "—  "),
        GOOD.replace(f"— {NAME} ", f"— {NAME}  "),
        GOOD.replace(f"— {NAME} ", "— a+b "),
        GOOD.replace(f"— {NAME} ", "— a\u2003b "),
        GOOD[:-3] + "\n",
        f"{CHECKPOINT.text}\n",
        f"{CHECKPOINT.text}\n— a AAAA\n",
        f"{CHECKPOINT.text}\n— a AAAAAAB=\n",
        f"{CHECKPOINT.text}\n" + "— a AAAAAAA=\n" * (SIGNATURES_MAX + 1),
        "x" * NOTE_BYTES_MAX + GOOD,
    ],
)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(Malformed):
        read_note(note.encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(Malformed):
        read_note(b"\xff" + GOOD.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        CHECKPOINT.text.removesuffix("\n"),
        CHECKPOINT.text + "more\n",
        CHECKPOINT.text.replace(NAME, ""),
        *(CHECKPOINT.text.replace("\n3\n", f"\n{size}\n") for size in ("", "03", "-3", "3 ", "٣", "3.0")),
        CHECKPOINT.text.replace("\n3\n", f"\n{SIZE_MAX + 1}\n"),
        CHECKPOINT.text.replace("=", ""),
        f"{NAME}\n3\nAAAA\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        read_checkpoint(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for each in (data, CHECKPOINT.text.encode() + b"\n" + data, GOOD.encode()[: len(data)]):
        try:
            assert read_note(each).encode() == each
        except Malformed:
            pass
