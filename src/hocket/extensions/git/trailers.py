"""Trailers, the lines at the end of a commit's message: writing them, and reading them strictly. `git
interpret-trailers --parse` reads ours alike.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from hocket.kernel.keys import KEY_BYTES, SIGNATURE_BYTES

MESSAGE_BYTES_MAX = 16_384
NUMBER_MAX = 2**53 - 1

_LINE = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)*): ([!-~]+(?: +[!-~]+)*)$", re.MULTILINE)
_ANY_LINE = re.compile(r"^([A-Za-z0-9-]+) ?: *([!-~]+(?: +[!-~]+)*)[ \t\r]*$", re.MULTILINE)
_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_FOR_ADDRESSES = str.maketrans("+/", "-_")
_NUMBER = re.compile("0|[1-9][0-9]{0,15}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class BadTrailer(ValueError):
    """A commit with a missing or bad trailer. The message names the trailer and its value."""


def message(subject: str, trailers: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"{name}: {value}" for name, value in trailers]
    for line in lines:
        if _LINE.fullmatch(line) is None:
            raise ValueError(f"not a trailer: {line!r}")
    return "\n".join([subject, "", *lines, ""]).encode("ascii")


def read_trailers(text: bytes, known: frozenset[str], needed: frozenset[str]) -> dict[str, str]:
    """The trailers of a message by name. Each may appear once; unknown ones and missing needed ones are errors."""
    if len(text) > MESSAGE_BYTES_MAX:
        raise BadTrailer(f"the message has {len(text)} bytes, more than {MESSAGE_BYTES_MAX}")
    try:
        whole = text.decode("ascii")
    except UnicodeDecodeError:
        raise BadTrailer("the message is not plain ASCII") from None
    if not whole.endswith("\n") or "\n\n" not in whole[:-1]:
        raise BadTrailer("the message does not end in a paragraph of trailers")
    paragraph = whole[:-1].rsplit("\n\n", 1)[1]
    pairs = _LINE.findall(paragraph)
    if len(pairs) != paragraph.count("\n") + 1:
        wrong = next(line for line in paragraph.split("\n") if _LINE.fullmatch(line) is None)
        raise BadTrailer(f"{wrong[:80]!r} is not a trailer")
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name in found if sum(name == each for each, _ in pairs) > 1)
        raise BadTrailer(f"the trailer {twice} is there twice")
    if not found.keys() <= known:
        raise BadTrailer(f"the trailer {min(found.keys() - known)} is not known here")
    if not needed <= found.keys():
        raise BadTrailer(f"the trailer {min(needed - found.keys())} is missing")
    return found


def find_trailers(text: bytes, wanted: frozenset[str]) -> dict[str, str]:
    """The wanted trailers of a message from any writer, each at most once. Ignores other lines of the last paragraph,
    as git does.
    """
    if len(text) > MESSAGE_BYTES_MAX:
        raise BadTrailer(f"the message has {len(text)} bytes, more than {MESSAGE_BYTES_MAX}")
    paragraph = text.decode("latin-1").strip().rsplit("\n\n", 1)[-1]
    found: dict[str, str] = {}
    for name, value in _ANY_LINE.findall(paragraph):
        if name in wanted and found.setdefault(name, value) is not value:
            raise BadTrailer(f"the trailer {name} is there twice")
    return found


def prefixed(name: str, value: str, algorithm: str, size: int) -> bytes:
    """The bytes of `algorithm:<hex>`, lower case."""
    start, _, digits = value.partition(":")
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if start != algorithm or len(found) != size or found.hex() != digits:
        raise BadTrailer(f"{name} is not {algorithm}: and {2 * size} lower-case hex digits: {value[:160]!r}")
    return found


def hash_of(name: str, value: str) -> bytes:
    return prefixed(name, value, "blake3", 32)


@lru_cache(maxsize=1_024)
def key_of(name: str, value: str) -> bytes:
    return prefixed(name, value, "ed25519", KEY_BYTES)


def signature_of(name: str, value: str) -> bytes:
    return prefixed(name, value, "ed25519", SIGNATURE_BYTES)


@lru_cache(maxsize=1_024)
def any_key_of(name: str, value: str, size: int = KEY_BYTES) -> bytes:
    """A key or a signature as any writer may spell it: in hex, in base64, or in URL-safe base64."""
    start, _, text = value.partition(":")
    padding = "=" * (-size % 3)
    digits = text.translate(_FOR_ADDRESSES).removesuffix(padding)
    try:
        found = urlsafe_b64decode(digits + padding)
    except ValueError:
        found = b""
    # The last digit has spare bits, and the decoder drops invalid digits: accept only the canonical spelling.
    if start == "ed25519" and len(found) == size and urlsafe_b64encode(found).decode() == digits + padding:
        return found
    return prefixed(name, value, "ed25519", size)


def number_of(name: str, value: str) -> int:
    if _NUMBER.fullmatch(value) is None or int(value) > NUMBER_MAX:
        raise BadTrailer(f"{name} is not a whole number: {value[:160]!r}")
    return int(value)


def time_text(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03}Z"


def time_of(name: str, value: str) -> int:
    try:
        if _TIME.fullmatch(value) is None:
            raise ValueError
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise BadTrailer(f"{name} is not a time like 2025-11-08T12:00:00.000Z: {value[:160]!r}") from None
    return (moment - _EPOCH) // _MS
