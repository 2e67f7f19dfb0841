"""The base of all statements. Each stands once, in the SQL that SQLite and PostgreSQL have in common, with `?` or `?1`
for a value. The session of a database says how it runs a statement, and has a `Dialect` for the words that differ. Node
ids are eight big-endian bytes, because the integers of both are signed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

from hocket.store.row_macs import MAC_TABLES, RowMacs, RowWithoutMac

# A list that could be the whole table is read in pages of this many rows.
PAGE_ROWS = 1_000

Row = tuple[Any, ...]


class Dialect(NamedTuple):
    """Words that differ. A name, a hexadecimal number or a text goes into each."""

    using: str
    """Names the index that a statement needs, where the database does not find it by itself."""
    blob: str
    last_character: str
    position: str
    """Where the bytes of a value begin in a column."""


SQLITE = Dialect("INDEXED BY {}", "x'{}'", "substr({}, -1)", "instr({}, ?)")
POSTGRES = Dialect("", "'\\x{}'::bytea", "right({}, 1)", "position(?::bytea IN {})")


def insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})"


def insert_new(table: str, columns: str) -> str:
    """Leaves an existing row as it is."""
    return f"{insert(table, columns)} ON CONFLICT DO NOTHING"


def upsert(table: str, columns: str, key: str) -> str:
    """Adds a row, or replaces the one with this key."""
    return f"{insert(table, columns)} {replacing(columns, key)}"


def replacing(columns: str, key: str) -> str:
    names = [name.strip() for name in columns.split(",")]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key.split(", "))
    return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"


@cache
def _own_rows(table: str, tail: str, others: str) -> str:
    each = MAC_TABLES[table]
    return f"SELECT {each.columns}, mac{others} FROM {table} WHERE {each.owner} = ? {tail}"


@cache
def _put_own_row(table: str, others: str) -> str:
    each = MAC_TABLES[table]
    key = each.key if each.owner == "node" else f"{each.owner}, {each.key}"
    return upsert(table, f"{each.owner}, {each.columns}, mac{others}", key)


class Statements(ABC):
    """What runs statements, in one transaction after the other."""

    dialect: ClassVar[Dialect]
    _macs: RowMacs

    @abstractmethod
    def _rows(self, sql: str, *values: Any) -> list[Row]:
        """Waits for the rows of a statement, which may also change some."""

    @abstractmethod
    def _put(self, sql: str, values: Sequence[Any] = ()) -> None:
        """A change that nobody waits for. A database server gets it with the next statement that is waited for, or with
        the commit, and only then raises an error.
        """

    @abstractmethod
    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> Any:
        """A change, once with each of these values."""

    @abstractmethod
    def _among(self, sql: str, values: Sequence[bytes] | Sequence[str] | Sequence[int], *others: Any) -> list[Row]:
        """The rows of a statement in which `{}` stands for the condition that the column before it has one of the
        values. The `others` come after them.
        """

    def _one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        rows = self._rows(sql, *values)
        return rows[0][0] if rows else None

    def _column(self, sql: str, *values: Any) -> list[Any]:
        return [row[0] for row in self._rows(sql, *values)]

    def _pages(self, sql: str) -> Iterator[Row]:
        """All rows of a statement that takes an id and a limit, and returns rows in the order of ids, the id first."""
        after = b""
        while rows := self._rows(sql, after, PAGE_ROWS):
            yield from rows
            after = rows[-1][0]

    def _own(self, table: str, tail: str = "", *values: Any, others: str = "") -> Iterator[Sequence[Any]]:
        """The rows of this node for the end of a statement: the columns that the MAC covers, the MAC, and others."""
        return self._macs.right(table, self._rows(_own_rows(table, tail, others), self._macs.node, *values))

    def _put_own(self, table: str, values: Sequence[Any], others: str = "", *others_values: Any) -> None:
        """Adds a row of this node, or replaces the one with its key."""
        self._put(_put_own_row(table, others), (*self._macs.with_mac(table, values), *others_values))

    def end_row(self, table: str, row: Sequence[Any]) -> None:
        """A row that this node has written, as it was, counts no more, also if it is put back. This is durable at once,
        whatever becomes of the transaction. In a store of one node nobody puts rows back, and it does nothing.
        """
        self._macs.end(table, row)

    def without_mac(self) -> list[RowWithoutMac]:
        """The rows of this node, or of none, that have no right MAC."""
        found: list[RowWithoutMac] = []
        for table, each in MAC_TABLES.items():
            sql = f"SELECT {each.owner}, {each.columns}, mac FROM {table} WHERE {each.owner} IN (?, ?)"
            found += self._macs.wrong(table, self._rows(sql, self._macs.node, b""))
        return found
