"""The parts of a job's result: how they travel, how the whole is kept, and in which order a listener gives them. A run
numbers its parts from 0, under the fence of its claim. Messages with parts can be lost, come twice or come out of
order; the whole, an artifact on the log, has every part. So each part is given once and in order, whatever is lost.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.kernel.postcard import BOOL, BYTES, U32, U64, Malformed, decode, encode, tuple_of

FORM = 1
# A message carries up to 64 KiB, so a part fits into one.
PART_BYTES_MAX = 60 * 1024
PARTS_MAX = 1_000_000
WHOLE_BYTES_MAX = 64 * 1024 * 1024
# The type of the artifact with a result that is one value.
# The type of the artifact that is the payload of a job.
PAYLOAD_TYPE = "hocket.payload"
RESULT_TYPE = "hocket.result"
# The types of the artifact with the whole: a JSON list of the parts, where parts that are bytes are base64.
WHOLE_TYPE = "hocket.parts"
WHOLE_BYTES_TYPE = "hocket.parts.bytes"
WHOLE_TYPES = (WHOLE_TYPE, WHOLE_BYTES_TYPE)
# How many parts a listener keeps that came before their turn.
EARLY_MAX = 1_024

_MESSAGE = tuple_of(U32, U64, U64, BOOL, BYTES)
_WANTED = tuple_of(U32, U64, U64)


class Part(msgspec.Struct, frozen=True):
    """A part of a result: text, bytes, or any other JSON value. `fence` is that of the claim under which it was made
    and `number` counts from 0. With `is_restart`, the parts before it are void: another run has begun from the start.
    """

    value: Any
    number: int
    fence: int
    is_restart: bool = False

    def __str__(self) -> str:
        return self.value if isinstance(self.value, str) else str(self.value)


class PartsMessage(msgspec.Struct, frozen=True):
    """Consecutive parts of one run. `first` is the number of the first."""

    fence: int
    first: int
    values: list[Any]


class WantedParts(msgspec.Struct, frozen=True):
    """A listener's wish: the parts from `first` on."""

    fence: int
    first: int


def encode_message(fence: int, first: int, parts: Sequence[bytes], is_bytes: bool) -> bytes:
    """`parts` are the parts as JSON."""
    return encode(_MESSAGE, (FORM, fence, first, is_bytes, encode_whole(parts)))


def decode_message(data: bytes) -> PartsMessage:
    """Raises Malformed."""
    form, fence, first, is_bytes, content = decode(_MESSAGE, data)
    if form != FORM:
        raise Malformed(f"unknown form of parts: {form}")
    return PartsMessage(fence, first, decode_whole(content, is_bytes))


def encode_wanted(fence: int, first: int) -> bytes:
    return encode(_WANTED, (FORM, fence, first))


def decode_wanted(data: bytes) -> WantedParts:
    """Raises Malformed."""
    form, fence, first = decode(_WANTED, data)
    if form != FORM:
        raise Malformed(f"unknown form of a wish for parts: {form}")
    return WantedParts(fence, first)


def encode_whole(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


def decode_whole(content: bytes, is_bytes: bool) -> list[Any]:
    """Raises Malformed."""
    try:
        return decode_json(content, list[bytes] if is_bytes else list[Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"not a list of parts: {error}") from None


def joined(values: Sequence[Any]) -> Any:
    """The result that the parts are together: text or bytes joined, else the list. None if there are none."""
    if not values:
        return None
    if all(isinstance(each, str) for each in values):
        return "".join(values)
    if all(isinstance(each, bytes) for each in values):
        return b"".join(values)
    return list(values)


class PartsInOrder:
    """What a listener has given so far. The log says under which fence the job is held; messages under another one do
    not count.
    """

    def __init__(self) -> None:
        self.fence = 0
        self.next = 0
        self._early: dict[int, Any] = {}
        self._is_restarted = False

    @property
    def has_gap(self) -> bool:
        """Whether parts wait for one that has not come."""
        return bool(self._early)

    def begin(self, fence: int) -> bool:
        """The log has a claim under this fence. True if it is new: then the parts begin again from 0."""
        if fence <= self.fence:
            return False
        self._is_restarted = self._is_restarted or self.next > 0
        self.fence, self.next = fence, 0
        self._early.clear()
        return True

    def take(self, message: PartsMessage) -> Iterator[Part]:
        """The parts whose turn it is after this message."""
        if message.fence == self.fence:
            for number, value in enumerate(message.values, message.first):
                if number == self.next:
                    yield self._given(value)
                elif number > self.next and len(self._early) < EARLY_MAX:
                    self._early.setdefault(number, value)
        while self.next in self._early:
            yield self._given(self._early[self.next])

    def finish(self, fence: int, values: Sequence[Any]) -> Iterator[Part]:
        """The parts that the whole of the run with this fence has beyond those that were given."""
        self.begin(fence)
        self._early.clear()
        while self.next < len(values):
            yield self._given(values[self.next])

    def _given(self, value: Any) -> Part:
        part = Part(value, self.next, self.fence, self._is_restarted)
        self._is_restarted = False
        self._early.pop(self.next, None)
        self.next += 1
        return part
