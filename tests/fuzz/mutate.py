"""Making bad input out of good: a stream of damaged samples that one seed always gives alike. A sample knows where its
fields begin, so that much of the damage falls where a reader decides something: a count, a length, a flag, a tag; two
samples are put together there, too. What is right and wrong about the result is for the targets to say.
"""

import base64
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from hocket.kernel.postcard import U64 as VARINT
from hocket.kernel.postcard import Malformed, Reader, encode

Stream = Callable[[], bytes]

SIZE_MAX = 64 * 1024
CLAIMS = (0, 1, 2, 127, 128, 255, 256, 1024, 1025, 16_383, 65_535, 65_536, 2**31, 2**32 - 1, 2**32, 2**53, 2**60)
VARINTS = (
    *(encode(VARINT, n) for n in (*CLAIMS, 2**63, 2**64 - 1)),
    *(
        b"\x80\x00",
        b"\x81\x00",
        b"\xff\x80\x00",
        b"\x80" * 9 + b"\x02",
        b"\xff" * 9 + b"\x7f",
        b"\xff" * 11,
        b"\x80" * 64,
    ),
)
FLOATS = tuple(
    bytes.fromhex(text)
    for text in (
        *("000000000000f07f", "000000000000f0ff", "000000000000f87f", "010000000000f07f", "efbeaddeefbef47f"),
        *("ffffffffffffffff", "0000000000000080", "0100000000000000", "ffffffffffffef7f"),
    )
)
NESTED = (b"[" * 2_000, b'{"a":' * 2_000, b"[" * 40 + b"]" * 40, b'{"a":' * 30 + b"1" + b"}" * 30)
JSON_WORDS = (
    *(b"null", b"true", b"-0", b"0", b"1.0", b"1e5", b"1e999", b"9007199254740993", b"1" * 400, b"-1", b"NaN"),
    *(
        b'""',
        b'"a"',
        b'"\\ud800"',
        b'"\\u0000"',
        b"[]",
        b"{}",
        b",",
        b":",
        b" ",
        b"\n",
        b"\\",
        b'"',
        b"\xff",
        b"\xc0\x80",
    ),
    b"\xef\xbb\xbf",
    *NESTED,
)
_DIGITS = b"0123456789"
_ALPHANUMERIC = _DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PUNCTUATION = re.compile(rb'[{}\[\],:".&=;%\-]')


class Sample(NamedTuple):
    """Good input, and the places in it where something begins."""

    data: bytes
    cuts: tuple[int, ...]


class _Watched(Reader):
    """A reader that remembers where it has been."""

    __slots__ = ("_at", "been")

    def __init__(self, data: bytes) -> None:
        self.been: set[int] = set()
        super().__init__(data)

    @property
    def pos(self) -> int:  # type: ignore[override]
        return self._at

    @pos.setter
    def pos(self, at: int) -> None:
        self._at = at
        self.been.add(at)


def by_fields(data: bytes, read: Callable[[Reader], object]) -> Sample:
    """A postcard sample, with its cuts where this reader goes from one field to the next."""
    watched = _Watched(data)
    try:
        read(watched)
    except Malformed:
        pass
    return Sample(data, tuple(sorted(watched.been)))


def by_punctuation(data: bytes) -> Sample:
    """A sample of text."""
    found = {at for match in _PUNCTUATION.finditer(data) for at in match.span()}
    return Sample(data, tuple(sorted(found | {0, len(data)})))


class Damage:
    """Samples with one to a few changes, without end."""

    def __init__(self, rng: Random, samples: Sequence[Sample], words: Sequence[bytes] = ()) -> None:
        self._random, self._bits = rng.random, rng.getrandbits
        self._samples, self._words = samples, (*VARINTS, *words)
        self._ways = (
            *(self._flip, self._byte, self._insert, self._delete, self._repeat, self._claim, self._claim),
            *(
                self._word,
                self._word,
                self._float,
                self._splice,
                self._splice,
                self._cut_off,
                self._letter,
                self._letter,
            ),
        )

    def __call__(self) -> bytes:
        sample = self._pick(self._samples)
        data = bytearray(sample.data)
        while True:
            self._pick(self._ways)(data, self._place(sample, data))
            # Half of all inputs have one change, a quarter two, and so on.
            if self._random() < 0.5:
                return bytes(data[:SIZE_MAX])

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._random() * len(choices))]

    def _place(self, sample: Sample, data: bytearray) -> int:
        if self._bits(1):
            return int(self._random() * len(data))
        return min(self._pick(sample.cuts), len(data))

    def _few(self) -> int:
        return 1 << self._bits(2) if self._bits(2) else 1 << self._bits(3)

    def _flip(self, data: bytearray, at: int) -> None:
        if at < len(data):
            data[at] ^= 1 << self._bits(3)

    def _byte(self, data: bytearray, at: int) -> None:
        if at < len(data):
            data[at] = self._bits(8)

    def _letter(self, data: bytearray, at: int) -> None:
        """The next letter or digit becomes another one, which leaves text in shape."""
        while at < len(data) and data[at] not in _ALPHANUMERIC:
            at += 1
        if at < len(data):
            data[at] = self._pick(_DIGITS if data[at] in _DIGITS else _ALPHANUMERIC)

    def _insert(self, data: bytearray, at: int) -> None:
        size = self._few()
        data[at:at] = self._bits(8 * size).to_bytes(size, "big")

    def _delete(self, data: bytearray, at: int) -> None:
        del data[at : at + self._few()]

    def _repeat(self, data: bytearray, at: int) -> None:
        data[at:at] = data[at : at + self._few()]

    def _claim(self, data: bytearray, at: int) -> None:
        """Another number in the place of the one that begins here."""
        end = at
        while end < len(data) and data[end] > 0x7F:
            end += 1
        data[at : end + 1] = self._pick(VARINTS)

    def _word(self, data: bytearray, at: int) -> None:
        data[at : at + (self._few() if self._bits(1) else 0)] = self._pick(self._words)

    def _float(self, data: bytearray, at: int) -> None:
        data[at : at + 8] = self._pick(FLOATS)

    def _splice(self, data: bytearray, at: int) -> None:
        other = self._pick(self._samples)
        data[at:] = other.data[self._place(other, other.data) :]

    def _cut_off(self, data: bytearray, at: int) -> None:
        del data[at:]


# JSON that stays JSON.

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53 - 1, 2**53, -(2**53) + 1, 0.5, 1e300, "", "a", "*", "\0", "é", "x" * 600),
    *([], {}, [[]], [""], ["a", "a"], [1, 2], [2, 1], [0, 2**53 - 1], [True, False], {"a": 1}, [None], "Ops", "Write"),
    *("StripGeo", ["StripGeo"], ["TruncateContent(1)"], ["acme."], [""] * 70),
)
VALUES = tuple(json.dumps(value) for value in _VALUES)


class JsonDamage:
    """Values with one to a few places changed, spelled as the caller spells them."""

    def __init__(self, rng: Random, values: Sequence[Any], spell: Callable[[Any], bytes], words: Sequence[str]) -> None:
        self._random, self._spell, self._words = rng.random, spell, words
        self._values = [json.dumps(value) for value in values]

    def __call__(self) -> bytes:
        value = json.loads(self._pick(self._values))
        while True:
            value = self._changed(value)
            if self._random() < 0.6:
                return self._spell(value)

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._random() * len(choices))]

    def _changed(self, value: Any) -> Any:
        if not value or not isinstance(value, dict | list) or self._random() < 0.1:
            return json.loads(self._pick(VALUES))
        key = self._pick(list(value) if isinstance(value, dict) else range(len(value)))
        way = self._random()
        if way < 0.7:
            value[key] = self._changed(value[key])
        elif way < 0.8:
            del value[key]
        elif isinstance(value, dict):
            value[self._pick(self._words)] = json.loads(self._pick(VALUES))
        else:
            value.insert(key, json.loads(self._pick(VALUES)))
        return value


# Compact tokens.


def unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def from_unpadded(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


class TokenDamage:
    """Compact tokens that were changed as text, inside one of their parts, by a part of another one, or in spelling;
    now and then an outsider signs the result. `payloads` makes further payloads."""

    def __init__(
        self,
        rng: Random,
        tokens: Sequence[bytes],
        sign: Callable[[bytes], bytes],
        payloads: Callable[[], bytes] | None = None,
        signed_share: float = 0.05,
    ) -> None:
        self._rng, self._sign, self._payloads, self._signed_share = rng, sign, payloads, signed_share
        self._parts = [tuple(from_unpadded(part) for part in token.split(b".")) for token in tokens]
        alphabet = (
            b"A",
            b"_",
            b"-",
            b"=",
            b"==",
            b"+",
            b"/",
            b".",
            b"..",
            b" ",
            b"\n",
            b"\0",
            b"\xc3\xa9",
            b"e30",
            b"bnVsbA",
        )
        self._text = Damage(rng, [by_punctuation(token) for token in tokens], alphabet)
        self._inside = [
            Damage(rng, [by_punctuation(parts[n]) for parts in self._parts], JSON_WORDS + repeated(self._parts))
            for n in range(2)
        ]

    def __call__(self) -> bytes:
        rng = self._rng
        way = rng.random()
        if way < 0.3:
            return self._text()
        parts = list(rng.choice(self._parts))
        if way < 0.4:
            for n in range(3):
                parts[n] = rng.choice(self._parts)[n]
        elif way < 0.5:
            return self._respelled(parts)
        elif way < 0.6:
            parts[0] = self._inside[0]()
        elif way < 0.85 or self._payloads is None:
            parts[1] = self._inside[1]()
        else:
            parts[1] = self._payloads()
        if rng.random() < 0.05:
            parts[2] = rng.randbytes(64)
        signing_input = unpadded(parts[0]) + b"." + unpadded(parts[1])
        if rng.random() < self._signed_share:
            parts[2] = self._sign(signing_input)
        return signing_input + b"." + unpadded(parts[2])

    def _respelled(self, parts: Sequence[bytes]) -> bytes:
        """Spells the parts in another base64: padded, by the other alphabet, with spare bits, with white space."""
        texts = [unpadded(part) for part in parts]
        n = int(self._rng.random() * 3)
        text = texts[n]
        way = int(self._rng.random() * 5)
        if way == 0:
            texts[n] = text + b"=" * (-len(text) % 4 or 4)
        elif way == 1:
            texts[n] = text.replace(b"-", b"+").replace(b"_", b"/")
        elif way == 2:
            texts[n] = text[:-1] + bytes([text[-1] ^ 1 << int(self._rng.random() * 4)])
        else:
            at = int(self._rng.random() * (len(text) + 1))
            texts[n] = text[:at] + self._rng.choice((b" ", b"\n", b"\r\n", b"=", b"\0", b"!")) + text[at:]
        return b".".join(texts)


def repeated(parts: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
    """Fields of JSON objects, to be put into them a second time."""
    return tuple({field + b"," for each in parts for field in re.findall(rb'"\w+":"[^"]*"', each[0] + each[1])})
