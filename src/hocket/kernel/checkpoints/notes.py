"""Checkpoints as C2SP writes them (tlog-checkpoint, signed-note, tlog-cosignature), so that public tools read them. A
checkpoint is a text of three lines: the origin, the number of entries, the root of their tree. The note is this text,
an empty line, and a line for each signature: the author's, and cosignatures of nodes that have computed the same root
from the entries. A line of an unknown key is no fault: it is kept, and proves nothing.

The origin names the mesh, by the DID of its user, and the author. It is the name of the author's key, too, and the
origin of a cosigner's own log is the name of its key.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

from hocket.kernel.checkpoints.merkle import HASH_BYTES, SIZE_MAX
from hocket.kernel.ids import node_text, parse_node
from hocket.kernel.keys import verify
from hocket.kernel.postcard import Malformed

NOTE_BYTES_MAX = 8 * 1024
# So many signatures a reader takes, and so many cosignatures a writer keeps.
SIGNATURES_MAX, COSIGNATURES_MAX = 32, 8
_ED25519, _COSIGNATURE = b"\x01", b"\x04"
_DASH = "\u2014 "
_LINE = re.compile(_DASH + r"([^\s+]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_KEY_HASH_BYTES, _TIME_BYTES, _SIGNATURE_BYTES = 4, 8, 64
_PREFIX = "hocket/"

Sign = Callable[[bytes], bytes]


class NoteSignature(NamedTuple):
    """One line of a note: the name of a key, the first bytes of the key's hash, and what the kind of key says."""

    name: str
    key_hash: bytes
    value: bytes

    @property
    def line(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_hash + self.value).decode()}\n"


class SignedNote(NamedTuple):
    """A text that ends with a line break, and its signatures, of which nothing is checked yet."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def encode(self) -> bytes:
        return (f"{self.text}\n" + "".join(each.line for each in self.signatures)).encode()


class Checkpoint(NamedTuple):
    """What an author says of its history: it has so many entries, and this is the root of their tree."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def origin_of(user: str, author: int) -> str:
    """The origin of an author's checkpoints in the mesh of this user, and the name of its key."""
    return f"{_PREFIX}{user}/{node_text(author)}"


def author_of(origin: str, user: str) -> int | None:
    """The author that an origin, or the name of a key, names; None if it is of another mesh, or of none."""
    begin = f"{_PREFIX}{user}/"
    try:
        author = parse_node(origin.removeprefix(begin))
    except ValueError:
        return None
    return author if origin == origin_of(user, author) else None


def read_note(data: bytes) -> SignedNote:
    """Raises Malformed unless these are the bytes of a signed note, spelled in the one way that there is."""
    if len(data) > NOTE_BYTES_MAX:
        raise Malformed(f"a note has at most {NOTE_BYTES_MAX} bytes")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise Malformed("a note is UTF-8") from None
    if any(each < " " and each != "\n" for each in whole):
        raise Malformed("a note has no control characters but line breaks")
    text, blank, lines = whole.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise Malformed("a note is a text, an empty line and signatures, each on a whole line")
    found = [_read_line(each) for each in lines[:-1].split("\n")]
    if len(found) > SIGNATURES_MAX:
        raise Malformed(f"a note has at most {SIGNATURES_MAX} signatures")
    return SignedNote(f"{text}\n", tuple(found))


def _read_line(line: str) -> NoteSignature:
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise Malformed("a signature of a note is a dash, a name and base64")
    value = _from_base64(parts[2])
    if len(value) <= _KEY_HASH_BYTES:
        raise Malformed("a signature of a note is longer than the hash of its key")
    return NoteSignature(parts[1], value[:_KEY_HASH_BYTES], value[_KEY_HASH_BYTES:])


def _from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("a note has bad base64") from None
    if base64.b64encode(data).decode() != text:
        raise Malformed("base64 in a note has one spelling")
    return data


def read_checkpoint(text: str) -> Checkpoint:
    """The checkpoint that the text of a note is. Raises Malformed, also for lines after the root, which have no meaning
    here.
    """
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0]:
        raise Malformed("a checkpoint has three lines: origin, size and root")
    origin, size, root = lines[0], lines[1], _from_base64(lines[2])
    if _SIZE.fullmatch(size) is None or int(size) > SIZE_MAX:
        raise Malformed("the size of a checkpoint is a decimal number")
    if len(root) != HASH_BYTES:
        raise Malformed(f"the root of a checkpoint has {HASH_BYTES} bytes")
    return Checkpoint(origin, int(size), root)


def signature(text: str, name: str, public: bytes, sign: Sign) -> NoteSignature:
    """The signature on a note by the holder of the key. `sign` signs any bytes."""
    return NoteSignature(name, _key_hash(name, _ED25519, public), sign(text.encode()))


def is_signed_by(note: SignedNote, name: str, public: bytes) -> bool:
    key_hash, text = _key_hash(name, _ED25519, public), note.text.encode()
    found = [each for each in note.signatures if (each.name, each.key_hash) == (name, key_hash)]
    return bool(found) and all(verify(public, each.value, text) for each in found)


def cosignature(text: str, name: str, public: bytes, sign: Sign, time_s: int) -> NoteSignature:
    """A cosignature says that its signer, at this time, has seen no other tree of the origin that does not agree."""
    value = time_s.to_bytes(_TIME_BYTES, "big") + sign(_cosigned(text, time_s))
    return NoteSignature(name, _key_hash(name, _COSIGNATURE, public), value)


def cosigned_at(line: NoteSignature, text: str, public: bytes) -> int | None:
    """The time, in seconds, of a cosignature by the holder of this key; None if it is none."""
    is_whole = len(line.value) == _TIME_BYTES + _SIGNATURE_BYTES
    if not is_whole or line.key_hash != _key_hash(line.name, _COSIGNATURE, public):
        return None
    time_s = int.from_bytes(line.value[:_TIME_BYTES], "big")
    return time_s if verify(public, line.value[_TIME_BYTES:], _cosigned(text, time_s)) else None


def verifier_key(name: str, public: bytes) -> str:
    """The key of an author as public tools take it."""
    key = base64.b64encode(_ED25519 + public).decode()
    return f"{name}+{_key_hash(name, _ED25519, public).hex()}+{key}"


def _cosigned(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def _key_hash(name: str, kind: bytes, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + kind + public).digest()[:_KEY_HASH_BYTES]
