"""The postcard codec: how values become bytes and back, by small codecs that are combined into larger ones. Every value
has exactly one encoding; any other is refused, so that bytes can be signed, compared and kept. vocabulary.py and ops.py
define the values. There is no recursive codec here, so input cannot make the reader nest deeper than the declared types
do.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from struct import Struct as Packed
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
E = TypeVar("E", bound=IntEnum)
S = TypeVar("S", bound=msgspec.Struct)

SEQ_LIMIT = 65_536
_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1
_F64 = Packed("<d")


class Malformed(ValueError):
    """These bytes are not the encoding of a value, or this value has no encoding."""


class UnknownVariant(Malformed):
    """A tagged union has a discriminant that is not in its table; the body's shape is therefore unknown."""

    def __init__(self, discriminant: int) -> None:
        super().__init__(f"unknown variant {discriminant}")
        self.discriminant = discriminant


class Reader:
    """Bytes and a position in them."""

    __slots__ = ("data", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data = bytes(data)
        self.pos = pos

    def remaining(self) -> int:
        return len(self.data) - self.pos

    def take(self, size: int) -> bytes:
        start = self.pos
        end = start + size
        if end > len(self.data):
            raise Malformed(f"input ends {end - len(self.data)} bytes early")
        self.pos = end
        return self.data[start:end]

    def varint(self, limit: int = _U64_MAX) -> int:
        data, at = self.data, self.pos
        if at < len(data) and data[at] <= 0x7F <= limit:
            self.pos = at + 1
            return data[at]
        value, size = _varint(data[at : at + 10])
        if value > limit:
            raise Malformed(f"a varint is beyond its width: {value}")
        self.pos += size
        return value


def _varint(window: bytes) -> tuple[int, int]:
    """The number that these bytes begin with, and how many bytes it takes. Ten bytes hold 64 bits, so a caller passes
    no more, and an endless varint costs no more than one that ends.
    """
    value = shift = 0
    for byte in window:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte <= 0x7F:
            if byte == 0 and shift > 7:
                raise Malformed("a varint is longer than it need be")
            return value, shift // 7
    raise Malformed("a varint does not end")


# Node ids take nine or ten bytes and occur in every op, which makes caching them worthwhile.
_varint_remembered = lru_cache(maxsize=4096)(_varint)


class Codec(Generic[T]):
    """A pair of functions. They are attributes, not methods, so that a call costs one look-up."""

    __slots__ = ("read", "write")

    def __init__(self, write: Callable[[bytearray, T], None], read: Callable[[Reader], T]) -> None:
        self.write = write
        self.read = read


class StructCodec(Codec[T]):
    """A codec that knows its class, by which a union finds it. As for a dataclass, its functions are generated as
    source: a loop over the fields takes twice as long. They are generated when they are first used, since a command
    uses a few of the many structs.
    """

    __slots__ = ("_codecs", "cls")

    def __init__(self, cls: type[T], names: tuple[str, ...], codecs: tuple[Codec[Any], ...]) -> None:
        super().__init__(self._first_write, self._first_read)
        self.cls = cls
        self._codecs = dict(zip(names, codecs, strict=True))

    def _first_write(self, out: bytearray, value: T) -> None:
        self._generate()
        self.write(out, value)

    def _first_read(self, r: Reader) -> T:
        self._generate()
        return self.read(r)

    def _generate(self) -> None:
        if self.write != self._first_write:
            return
        known: dict[str, Any] = {"cls": self.cls}
        for number, codec in enumerate(self._codecs.values()):
            if isinstance(codec, StructCodec):
                codec._generate()
            known[f"write_{number}"], known[f"read_{number}"] = codec.write, codec.read
        writes = "; ".join(f"write_{number}(out, value.{name})" for number, name in enumerate(self._codecs))
        reads = ", ".join(f"read_{number}(r)" for number in range(len(self._codecs)))
        exec(f"def write(out, value): {writes}\ndef read(r): return cls({reads})", known)
        self.read, self.write = known["read"], known["write"]


def encode(codec: Codec[T], value: T) -> bytes:
    out = bytearray()
    codec.write(out, value)
    return bytes(out)


def decode(codec: Codec[T], data: bytes) -> T:
    """Decodes all of data as one value."""
    r = Reader(data)
    value = codec.read(r)
    if r.pos != len(r.data):
        raise Malformed(f"{r.remaining()} bytes follow the value")
    return value


@lru_cache(maxsize=4096)
def varint_bytes(n: int) -> bytes:
    """Times that follow each other share all but their first bytes, which come from this cache then."""
    if not 0 <= n <= _U64_MAX:
        raise Malformed(f"not an unsigned 64-bit integer: {n}")
    return bytes((n,)) if n <= 0x7F else bytes((n & 0x7F | 0x80,)) + varint_bytes(n >> 7)


def write_varint(out: bytearray, n: int) -> None:
    if 0 <= n <= 0x7F:
        out.append(n)
    else:
        out += varint_bytes(n)


def _read_u64(r: Reader) -> int:
    pos = r.pos
    data = r.data
    if pos < len(data) and (byte := data[pos]) <= 0x7F:
        r.pos = pos + 1
        return byte
    return r.varint()


def _read_node(r: Reader) -> int:
    value, size = _varint_remembered(r.data[r.pos : r.pos + 10])
    if value > _U64_MAX:
        raise Malformed(f"a varint is beyond its width: {value}")
    r.pos += size
    return value


def _read_u32(r: Reader) -> int:
    pos = r.pos
    data = r.data
    if pos < len(data) and (byte := data[pos]) <= 0x7F:
        r.pos = pos + 1
        return byte
    return r.varint(_U32_MAX)


def _write_u32(out: bytearray, n: int) -> None:
    if n > _U32_MAX:
        raise Malformed(f"not an unsigned 32-bit integer: {n}")
    write_varint(out, n)


def _write_bool(out: bytearray, value: bool) -> None:
    if value is not True and value is not False:
        raise Malformed(f"not a boolean: {value!r}")
    out.append(value)


def _read_flag(r: Reader) -> bool:
    """The byte of a boolean or of an option: 0 or 1 and nothing else."""
    pos = r.pos
    if pos >= len(r.data):
        raise Malformed("input ends before a flag")
    byte = r.data[pos]
    if byte > 1:
        raise Malformed(f"a flag is 0 or 1, not {byte}")
    r.pos = pos + 1
    return byte == 1


def _write_f64(out: bytearray, value: float) -> None:
    out += _F64.pack(value)


def _read_f64(r: Reader) -> float:
    value: float = _F64.unpack(r.take(8))[0]
    return value


def _write_str(out: bytearray, value: str) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"text that UTF-8 cannot carry: {error}") from None
    write_varint(out, len(data))
    out += data


def _read_str(r: Reader) -> str:
    try:
        return str(r.take(_read_u64(r)), "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error}") from None


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_varint(out, len(value))
    out += value


U32: Codec[int] = Codec(_write_u32, _read_u32)
U64: Codec[int] = Codec(write_varint, _read_u64)
NODE: Codec[int] = Codec(write_varint, _read_node)
BOOL: Codec[bool] = Codec(_write_bool, _read_flag)
F64: Codec[float] = Codec(_write_f64, _read_f64)
STR: Codec[str] = Codec(_write_str, _read_str)
BYTES: Codec[bytes] = Codec(_write_bytes, lambda r: r.take(_read_u64(r)))


def fixed(size: int) -> Codec[bytes]:
    """Exactly size raw bytes, without a length."""

    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise Malformed(f"{size} bytes wanted, not {len(value)}")
        out += value

    return Codec(write, lambda r: r.take(size))


ULID = fixed(16)


def option(inner: Codec[T]) -> Codec[T | None]:
    inner_write, inner_read = inner.write, inner.read

    def write(out: bytearray, value: T | None) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(1)
            inner_write(out, value)

    return Codec(write, lambda r: inner_read(r) if _read_flag(r) else None)


def seq(inner: Codec[T], limit: int = SEQ_LIMIT) -> Codec[tuple[T, ...]]:
    inner_write, inner_read = inner.write, inner.read

    def write(out: bytearray, values: tuple[T, ...]) -> None:
        if not values:
            out.append(0)
            return
        if len(values) > limit:
            raise Malformed(f"a sequence of {len(values)} is longer than its bound of {limit}")
        write_varint(out, len(values))
        for value in values:
            inner_write(out, value)

    def read(r: Reader) -> tuple[T, ...]:
        count = _read_u64(r)
        if count == 0:
            return ()
        # Every element takes at least one byte, so a count beyond the input is false and allocates nothing.
        if count > limit or count > r.remaining():
            raise Malformed(f"a sequence of {count} is longer than its bound or its input")
        return tuple([inner_read(r) for _ in range(count)])

    return Codec(write, read)


def tuple_of(*inner: Codec[Any]) -> Codec[tuple[Any, ...]]:
    """A tuple with one codec for each place, without a length."""
    if not inner:
        raise TypeError("an empty tuple has no bytes, and a sequence of them no bound")
    writes = tuple(c.write for c in inner)
    reads = tuple(c.read for c in inner)

    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        if len(values) != len(writes):
            raise Malformed(f"{len(writes)} values wanted, not {len(values)}")
        for write_one, value in zip(writes, values, strict=True):
            write_one(out, value)

    return Codec(write, lambda r: tuple([read_one(r) for read_one in reads]))


def pair(first: Codec[A], second: Codec[B]) -> Codec[tuple[A, B]]:
    def write(out: bytearray, value: tuple[A, B]) -> None:
        a, b = value
        first.write(out, a)
        second.write(out, b)

    return Codec(write, lambda r: (first.read(r), second.read(r)))


def enum(cls: type[E]) -> Codec[E]:
    """A choice without a body, as the varint of its number."""
    members = {int(member): member for member in cls}

    def write(out: bytearray, value: E) -> None:
        if value not in members:
            raise Malformed(f"not a {cls.__name__}: {value!r}")
        write_varint(out, value)

    def read(r: Reader) -> E:
        number = _read_u64(r)
        member = members.get(number)
        if member is None:
            raise Malformed(f"not a {cls.__name__}: {number}")
        return member

    return Codec(write, read)


def struct(cls: type[S], *codecs: Codec[Any]) -> StructCodec[S]:
    """The fields of a struct in their declared order, one codec for each."""
    names = cls.__struct_fields__
    if len(names) != len(codecs) or not names:
        raise TypeError(f"{cls.__name__} has {len(names)} fields, and {len(codecs)} codecs were given")
    return StructCodec(cls, names, codecs)


def union(variants: Mapping[int, StructCodec[Any]]) -> Codec[Any]:
    """One of several structs, after the varint of its discriminant. When encoding, the class determines the
    discriminant. The mapping may grow.
    """

    def by_class() -> dict[type[Any], tuple[bytes, StructCodec[Any]]]:
        return {codec.cls: (encode(U64, number), codec) for number, codec in variants.items()}

    writes = by_class()
    if len(writes) != len(variants):
        raise TypeError("a class occurs twice in one union")

    def write(out: bytearray, value: object) -> None:
        found = writes.get(type(value))
        if found is None:
            writes.update(by_class())
            if (found := writes.get(type(value))) is None:
                raise Malformed(f"not a variant of this union: {type(value).__name__}")
        tag, codec = found
        out += tag
        codec.write(out, value)

    def read(r: Reader) -> Any:
        number = _read_u64(r)
        codec = variants.get(number)
        if codec is None:
            raise UnknownVariant(number)
        return codec.read(r)

    return Codec(write, read)
