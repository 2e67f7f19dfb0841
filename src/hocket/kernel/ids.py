"""Ids: ULIDs (16 bytes, in order of time), node ids and content hashes, and their text forms. The caller supplies the
milliseconds and the random bytes, and keeps the last ULID.
"""

import re

from blake3 import blake3

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_SHIFTS = tuple(range(120, -1, -10))
# Python reads base 32 with the digits 0-9a-v; Crockford's digits only need to be renamed.
_TO_PYTHON = str.maketrans(_ALPHABET + _ALPHABET.lower(), "0123456789abcdefghijklmnopqrstuv" * 2)
_DIGITS = "0-9A-HJKMNP-TV-Za-hjkmnp-tv-z"
_ULID = re.compile(f"[0-7][{_DIGITS}]{{25}}")
_PREFIX = re.compile(f"(?:[0-7][{_DIGITS}]{{0,25}})?")
_ENDING = re.compile(f"[{_DIGITS}]{{1,26}}")
_NODE = re.compile("[0-9a-fA-F]{16}")
_MS_MAX = 2**48 - 1
# The largest number that every reader of JSON keeps, also one whose numbers are floats, as JavaScript's are. No fence,
# no sequence number and no time is beyond it. Ids that have more bits are texts.
EXACT_MAX = (1 << 53) - 1


def ulid_text(b: bytes) -> str:
    if len(b) != 16:
        raise ValueError(f"a ULID has 16 bytes, not {len(b)}")
    n = int.from_bytes(b, "big")
    return "".join([_PAIRS[n >> shift & 1023] for shift in _SHIFTS])


def parse_ulid(text: str) -> bytes:
    if _ULID.fullmatch(text) is None:
        raise ValueError(f"not a ULID: {text!r}")
    return int(text.translate(_TO_PYTHON), 32).to_bytes(16, "big")


def ulid_prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The smallest and the greatest ULID whose text begins with prefix."""
    if _PREFIX.fullmatch(prefix) is None:
        raise ValueError(f"not the beginning of a ULID: {prefix!r}")
    return parse_ulid(prefix.ljust(26, "0")), parse_ulid((prefix or "7").ljust(26, "Z"))


def ulid_ending(ending: str) -> bytes:
    """The last whole bytes of every ULID whose text ends with this: a digit has five bits."""
    if _ENDING.fullmatch(ending) is None:
        raise ValueError(f"not the end of a ULID: {ending!r}")
    size = len(ending) * 5 // 8
    return int(ending.translate(_TO_PYTHON), 32).to_bytes(17, "big")[17 - size :]


def make_ulid(ms: int, randomness: bytes) -> bytes:
    if not 0 <= ms <= _MS_MAX:
        raise ValueError(f"milliseconds do not fit a ULID: {ms}")
    if len(randomness) != 10:
        raise ValueError(f"a ULID takes 10 random bytes, not {len(randomness)}")
    return ms.to_bytes(6, "big") + randomness


def next_ulid(previous: bytes) -> bytes:
    """The smallest ULID that is greater than previous: the next one in the same millisecond."""
    n = int.from_bytes(previous, "big") + 1
    if n >> 128:
        raise ValueError("there is no ULID after the last one")
    return n.to_bytes(16, "big")


def ulid_ms(b: bytes) -> int:
    return int.from_bytes(b[:6], "big")


def derived_ulid(ms: int, *parts: bytes) -> bytes:
    """A ULID that every node derives alike from the same parts. Each part is hashed after its length, so that moving a
    byte from one part to the next gives another id.
    """
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return make_ulid(ms, hasher.digest(10))


def node_id(public_key: bytes) -> int:
    return int.from_bytes(blake3(public_key).digest(8), "big")


def node_text(n: int) -> str:
    return f"{n:016x}"


def parse_node(text: str) -> int:
    if _NODE.fullmatch(text) is None:
        raise ValueError(f"not a node id: {text!r}")
    return int(text, 16)


def digest(data: bytes, length: int) -> bytes:
    """The beginning of the hash of these bytes."""
    return blake3(data).digest(length)


def content_hash(data: bytes) -> bytes:
    return blake3(data).digest()


def hash_text(h: bytes) -> str:
    return f"blake3:{h.hex()}"
