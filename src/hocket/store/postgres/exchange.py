"""A connection to PostgreSQL on which statements go out together and are answered together: one round trip, whatever
their number. This is psycopg's connection, with libpq's pipeline used directly: psycopg's own way takes more of the
processor for a statement than the server does. The columns of many rows go as arrays in PostgreSQL's binary form, so
that one statement writes all rows: psycopg would make a text of each value first.
"""

import re
import select
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import psycopg
from psycopg.adapt import Dumper, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

# How long an interrupted process waits for the server to give up a statement.
CANCEL_S = 5.0
# How long a transaction waits for the answer to its first and its last message. Each may wait for a lock before that,
# and a commit for a standby.
ANSWER_S = 90.0
# The function of the server that warns when a commit no longer waits for its synchronous standby.
_STANDBY_WAIT = "SyncRepWaitForLSN"

Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
_Key = tuple[str, tuple[int, ...]]
# The mark for a value: the next one, or the one with this number.
_MARK = re.compile(r"\?(\d*)")
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class StatementAnswer(NamedTuple):
    """`rowcount` is how many rows a statement has given or changed."""

    rows: list[Row]
    rowcount: int

    @property
    def first(self) -> Row | None:
        return self.rows[0] if self.rows else None


class _Sent(NamedTuple):
    """A statement as it goes out. With a `name` it is prepared, now if `is_new`."""

    key: _Key
    sql: bytes
    values: Sequence[Any]
    formats: Sequence[Format] | None
    name: bytes | None
    is_new: bool


class Connection(psycopg.Connection[Row]):
    """One thread at a time uses it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for column, dumper in DUMPERS:
            self.adapters.register_dumper(column, dumper)
        self._values = Transformer(self)
        # How often a statement was run, by its text and the types of its values; and its name once it is prepared.
        self._uses: dict[_Key, int] = {}
        self._names: dict[_Key, bytes] = {}
        self._numbers = count()
        self._is_unreplicated = False
        self.add_notice_handler(self._noticed)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        self._is_unreplicated |= notice.source_function == _STANDBY_WAIT

    def ask(self, statements: Iterable[Statement], limit_s: float | None = None) -> list[StatementAnswer]:
        """Runs statements in one round trip. Raises the error of the first that fails; the server skips those after it.
        They leave in one go: PostgreSQL's limit for idle transactions does not count while it waits for the rest. A
        server that has not answered within `limit_s` counts as lost, and so does a commit that its standby may lack.
        """
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")
        sent: list[_Sent] = []
        try:
            sent.extend(self._encoded(sql, values) for sql, values in statements)
        except BaseException:
            self._forget(each for each in sent if each.is_new)
            raise
        try:
            results = self._exchanged(sent, limit_s)
        except psycopg.Error:
            self.close()
            raise
        except BaseException:
            # The process was interrupted, and nobody will read what the server still answers.
            with suppress(Exception):
                self.cancel_safe(timeout=CANCEL_S)
            self.close()
            raise
        return self._answers(sent, iter(results))

    def _encoded(self, sql: str, values: Sequence[Any]) -> _Sent:
        numbered, formats = _numbered(sql)
        encoded = self._values.dump_sequence(values, formats)
        key = sql, tuple(self._values.types or ())
        name, is_new = self._names.get(key), False
        if name is None and self.prepare_threshold is not None:
            uses = self._uses[key] = self._uses.get(key, 0) + 1
            if uses > self.prepare_threshold:
                is_new = True
                name = self._names[key] = b"hocket_%d" % next(self._numbers)
        return _Sent(key, numbered, encoded, self._values.formats, name, is_new)

    def _exchanged(self, sent: Sequence[_Sent], limit_s: float | None) -> list[PGresult]:
        """The results of all statements, and of all preparations before theirs."""
        pgconn = self.pgconn
        pgconn.enter_pipeline_mode()
        for (_, types), sql, values, formats, name, is_new in sent:
            if name is None:
                pgconn.send_query_params(sql, values, types, formats, Format.BINARY)
                continue
            if is_new:
                pgconn.send_prepare(name, sql, types)
            pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        pgconn.pipeline_sync()
        results: list[PGresult] = []
        try:
            _receive(pgconn, results, limit_s)
        except psycopg.OperationalError as error:
            # The server may have said why it broke off.
            failed = [result for result in results if result.status not in _GOOD]
            raise error_from_result(failed[0]) if failed else error from None
        pgconn.exit_pipeline_mode()
        if self._is_unreplicated:
            raise psycopg.OperationalError("the wait for the synchronous standby was cancelled")
        return results

    def _answers(self, sent: Sequence[_Sent], results: Iterator[PGresult]) -> list[StatementAnswer]:
        answers: list[StatementAnswer] = []
        failure: PGresult | None = None
        for each in sent:
            if each.is_new and (made := next(results)).status not in _GOOD:
                self._forget((each,))
                failure = failure or made
            result = next(results)
            if failure is None and result.status in _GOOD:
                answers.append(self._answer(result))
            failure = failure or (None if result.status in _GOOD else result)
        if failure is not None:
            raise error_from_result(failure)
        return answers

    def _forget(self, unprepared: Iterable[_Sent]) -> None:
        """The server does not know these names."""
        for each in unprepared:
            del self._names[each.key]

    def _answer(self, result: PGresult) -> StatementAnswer:
        count = result.ntuples
        if not count:
            return StatementAnswer([], result.command_tuples or 0)
        self._values.set_pgresult(result)
        return StatementAnswer(self._values.load_rows(0, count, tuple), count)


def _receive(pgconn: PGconn, results: list[PGresult], limit_s: float | None) -> None:
    """Sends what waits, and reads the results up to the end of the pipeline."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    waiter = select.poll()
    waiter.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        if _polled(waiter, deadline) & ~select.POLLOUT:
            pgconn.consume_input()
    waiter.modify(pgconn.socket, select.POLLIN)
    while True:
        while pgconn.is_busy():
            _polled(waiter, deadline)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message())
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return
        else:
            results.append(result)


def _polled(waiter: select.poll, deadline: float | None) -> int:
    """What the connection is ready for, once it is."""
    for _, ready in waiter.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
        return ready
    raise psycopg.OperationalError("the server does not answer")


@cache
def _numbered(sql: str) -> tuple[bytes, list[PyFormat]]:
    """A statement with PostgreSQL's marks for its values, and in which form they go."""
    numbers = count(1)
    used = [0]

    def number(mark: re.Match[str]) -> str:
        used.append(int(mark[1] or next(numbers)))
        return f"${used[-1]}"

    marked = _MARK.sub(number, sql)
    return marked.encode(), [PyFormat.AUTO] * max(used)


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
