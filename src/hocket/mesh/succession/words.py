"""What the coordinator, a successor and the named nodes say to each other."""

from typing import Any, TypeVar

import msgspec

from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.ops import Op, decode, encode_sequence, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.kernel.succession.chain import Candidacy

WITNESS, VOTE, KEPT = "/v1/succession/witness", "/v1/succession/vote", "/v1/succession/kept"
PATHS = (WITNESS, VOTE, KEPT)
# Entries that a named node gives a successor at once.
KEPT_ROWS_MAX = 500
# The most bytes of entries in one request to a named node, or in its answer.
KEPT_BYTES = 4 * 1024 * 1024
_SETTLED_CONTEXT = b"hocket succession settled\0"

T = TypeVar("T")


class Settled(msgspec.Struct, frozen=True):
    """The coordinator of a tenure has acted under this succession. A successor must know it, so named nodes keep it."""

    tenure: bytes
    succession: bytes
    signature: bytes

    @staticmethod
    def text(tenure: bytes, succession: bytes) -> bytes:
        return _SETTLED_CONTEXT + b"".join(len(each).to_bytes(1, "big") + each for each in (tenure, succession))

    @classmethod
    def signed(cls, key: SigningKey, tenure: bytes, succession: bytes) -> "Settled":
        return cls(tenure, succession, key.sign(cls.text(tenure, succession)))

    def is_signed(self, public: bytes) -> bool:
        return verify(public, self.signature, self.text(self.tenure, self.succession))


class WitnessAsk(msgspec.Struct, frozen=True):
    """The coordinator of this `tenure` asks a named node to keep entries: its own, and those of coordinators before it
    that are on no log yet, are `aside`; those of other nodes come before them and go on the log. All are in order.
    `takeover` is the op that began the tenure, if none of the owner's did. `clock_ms` is the coordinator's clock, by
    which it ends leases.
    """

    tenure: bytes
    takeover: bytes = b""
    settled: Settled | None = None
    clock_ms: int = 0
    aside: bytes = b""
    others: bytes = b""


class WitnessAnswer(msgspec.Struct, frozen=True):
    """Why the node confirms nothing, if so. Otherwise it `has` the coordinator's entries up to that time, and promises
    not to vote for `after_ms` from now. `succession` is the newest that it knows.
    """

    fault: str = ""
    has: bytes = b""
    frontier: bytes = b""
    succession: bytes = b""
    after_ms: int = 0


class VoteAsk(msgspec.Struct, frozen=True):
    root: bytes
    succession: bytes
    follows: bytes
    term: int

    def candidacy(self, node: int) -> Candidacy:
        return Candidacy(self.root, self.succession, self.follows, self.term, node)


class VoteAnswer(msgspec.Struct, frozen=True):
    """The signature over the candidacy, or why there is none. `term` is the highest in which the node has voted or
    which it knows.
    """

    fault: str = ""
    signature: bytes = b""
    term: int = 0


class WitnessedAsk(msgspec.Struct, frozen=True):
    """Asks a named node for the entries that it keeps, after this author and time."""

    author: bytes = b""
    hlc: bytes = b""


class WitnessedAnswer(msgspec.Struct, frozen=True):
    """The next entries, and after which author and time the ones after them come; nothing if there are no others.
    The coordinator's clock has passed `clock_ms`.
    """

    entries: bytes
    following: WitnessedAsk | None
    settled: tuple[Settled, ...] = ()
    term: int = 0
    clock_ms: int = 0


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def read(body: bytes, kind: type[T]) -> T:
    """Raises Malformed."""
    if (decoder := _decoders.get(kind)) is None:
        decoder = _decoders[kind] = msgpack_decoder(kind)
    try:
        found: T = decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(f"not a word about succession: {error}") from None
    return found


def write(word: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(word)


def entries_of(sequence: bytes) -> list[tuple[bytes, Op]]:
    """Raises Malformed."""
    found: list[tuple[bytes, Op]] = []
    for raw, op in read_sequence(sequence) if sequence else ():
        if isinstance(op, Malformed):
            raise op
        found.append((raw, op))
    return found


def sequence_of(bodies: list[bytes]) -> bytes:
    return encode_sequence(bodies) if bodies else b""


def author_of(body: bytes) -> int:
    return decode(body).node_id


def in_pages(bodies: list[bytes]) -> list[list[bytes]]:
    """These entries in parts that a request can have."""
    pages: list[list[bytes]] = []
    size = 0
    for body in bodies:
        if not pages or size + len(body) > KEPT_BYTES:
            pages.append([])
            size = 0
        pages[-1].append(body)
        size += len(body)
    return pages
