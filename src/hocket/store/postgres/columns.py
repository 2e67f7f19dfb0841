"""The columns of many rows, as arrays in PostgreSQL's binary form, so that one statement writes all rows. psycopg would
make a text of each value first.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

# An array of one dimension that counts from 1 and may contain nulls: its element's type, and how many there are.
_HEADER = Struct("!iiIii")
_LENGTH = Struct("!i")
_NUMBER = Struct("!iq")
_NULL = _LENGTH.pack(-1)
_BYTES_TYPE, _NUMBER_TYPE, _TEXT_TYPE = 17, 20, 25


class Column:
    """One column. Nulls are None."""

    __slots__ = ("data",)
    type: ClassVar[str]
    data: bytes


class Bytes(Column):
    __slots__ = ()
    type = "bytea"

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.data = _array(_BYTES_TYPE, values)


class Texts(Column):
    __slots__ = ()
    type = "text"

    def __init__(self, values: Sequence[str | None]) -> None:
        self.data = _array(_TEXT_TYPE, [None if value is None else value.encode() for value in values])


class Numbers(Column):
    __slots__ = ()
    type = "bigint"

    def __init__(self, values: Sequence[int | None]) -> None:
        first = values[0] if values else None
        if values.count(first) == len(values):
            data = _number(first) * len(values)
        else:
            data = b"".join([_number(value) for value in values])
        self.data = _HEADER.pack(1, 1, _NUMBER_TYPE, len(values), 1) + data


def _number(value: int | None) -> bytes:
    return _NULL if value is None else _NUMBER.pack(8, value)


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    """Most columns have the same value in each row, or values of one length: those are put together at once."""
    header = _HEADER.pack(1, 1, kind, len(values), 1)
    if not values:
        return header
    first = values[0]
    if values.count(first) == len(values):
        return header + (_NULL if first is None else _LENGTH.pack(len(first)) + first) * len(values)
    known = [value for value in values if value is not None]
    if len(known) == len(values) and len(lengths := set(map(len, known))) == 1:
        length = _LENGTH.pack(lengths.pop())
        return b"".join((header, length, length.join(known)))
    parts = [header]
    for value in values:
        parts += (_NULL,) if value is None else (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column) -> bytes:
        return obj.data


class BytesDumper(_ColumnDumper):
    oid = 1001


class NumbersDumper(_ColumnDumper):
    oid = 1016


class TextsDumper(_ColumnDumper):
    oid = 1009


DUMPERS: tuple[tuple[type[Column], type[Dumper]], ...] = (
    (Bytes, BytesDumper),
    (Numbers, NumbersDumper),
    (Texts, TextsDumper),
)


def unnested(types: Iterable[type[Column]]) -> str:
    """Rows from columns of these types."""
    return f"unnest({', '.join(f'?::{each.type}[]' for each in types)})"


def columns(types: Sequence[Any], rows: Iterable[Sequence[Any]]) -> list[Column]:
    """At least one row, by columns."""
    return [kind(values) for kind, values in zip(types, zip(*rows, strict=True), strict=True)]
