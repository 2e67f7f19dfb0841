"""The base of all statements, and what each session has: MACs and locks.

A statement stands once, in the SQL that SQLite and PostgreSQL have in common, with `?` or `?1` for a value. The session
of a database says how it runs a statement, and has a `Dialect` for the words that differ. Node ids are eight big-endian
bytes, because the integers of both are signed.

The rows beside the log that are of one node have a MAC of that node (`kernel.keys`), because a store that nodes
share can be written to by all of them: a row with a wrong MAC is as if it were not there.

A write transaction locks what it will decide on before it reads it. All transactions lock in one order: the author, the
permissions, then subjects, then the end of the log. A transaction that is alone has nothing to lock, and only checks
the order. In a store that nodes share, transactions of different authors can run beside each other; such a one locks
what it names, and is undone if it turns out that it has to be alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

from hocket.kernel.keys import MAC_BYTES, RowMac
from hocket.kernel.vocabulary import Subject


class MacTable(NamedTuple):
    """`owner` is the column of the node whose row it is. The MAC covers that and the `columns`; others change often
    and give nothing to anybody. With the owner, the `key` tells rows apart. Messages name the key, or `shown`.
    """

    columns: str
    key: str
    owner: str = "of_node"
    shown: str | None = None


MAC_TABLES = {
    "tokens": MacTable("name, id, hash, grants, made, expires, revoked", "name"),
    "answers": MacTable("token, key, request, status, body, made", "token, key"),
    "invitations": MacTable("secret_hash, name, grants, expires, used_by, made", "secret_hash", shown="name"),
    "peers": MacTable("address, node, pulled, state, detail, seen, added", "address"),
    "held": MacTable("id, wall, body, author", "id"),
    "lock_requests": MacTable("op, scope, process, until, host, boot, namespace, locks", "op", "node"),
    "checkpoints": MacTable("author, state, place, size, hlc, peaks, note, made", "author, state, place"),
    "gaps": MacTable("first, last, chain", "first"),
    "bases": MacTable("family, key, last, state", "family, key"),
    "witnessed": MacTable("author, hlc, body", "author, hlc"),
    "workers": MacTable("name, pid, started, host, boot, namespace, locks", "name", "node"),
}

# How many columns of a table the MAC covers.
MAC_COLUMNS = {table: each.columns.count(",") + 1 for table, each in MAC_TABLES.items()}


class RowWithoutMac(NamedTuple):
    """A row that its node does not believe. `is_old` if it has no node and no MAC: an older program wrote it."""

    table: str
    key: str
    is_old: bool


class EndedMacs(Protocol):
    """The MACs of rows that their node has ended, kept outside of the store."""

    def add(self, mac: bytes) -> None: ...
    def __contains__(self, mac: object, /) -> bool: ...


class RowMacs:
    """What gives rows their MACs, for all sessions of a store: the node that uses it."""

    __slots__ = ("_ended", "_mac")

    def __init__(self) -> None:
        self._mac: RowMac | None = None
        self._ended: EndedMacs | None = None

    def use(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        """A node that uses the store again may leave out what it has ended."""
        if ended is not None or self._mac is None or self._mac.node != mac.node:
            self._ended = ended
        self._mac = mac

    def end(self, table: str, values: Sequence[Any]) -> None:
        if self._ended is not None:
            self._ended.add(self.mac.of(table, self._stored(table, values[: MAC_COLUMNS[table]])))

    def _stored(self, table: str, values: Sequence[Any]) -> Sequence[Any]:
        """The values as the store has them: a program that reads the key of an invitation could use it."""
        return (self.mac.conceal(values[0]), *values[1:]) if table == "invitations" else values

    @property
    def mac(self) -> RowMac:
        if self._mac is None:
            raise RuntimeError("a store does not know yet which node uses it: call `mac_rows` first")
        return self._mac

    @property
    def node(self) -> bytes:
        return self.mac.node

    def with_mac(self, table: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The node and the values of a row, and its MAC."""
        mac, stored = self.mac, self._stored(table, values)
        return (mac.node, *stored, mac.of(table, stored))

    def right(self, table: str, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """The rows with a right MAC. A row has the columns that the MAC covers, the MAC, and any others."""
        size, mac, ended = MAC_COLUMNS[table], self.mac, self._ended
        for row in rows:
            if mac.is_right(table, row[:size], row[size]) and (ended is None or row[size] not in ended):
                yield row

    def right_or_of_others(self, table: str, rows: Iterable[Sequence[Any]], node_at: int) -> list[Sequence[Any]]:
        """The rows with a right MAC, and the rows of other nodes, whose MACs only those nodes can check."""
        size, mac = MAC_COLUMNS[table], self.mac
        return [row for row in rows if row[node_at] != mac.node or mac.is_right(table, row[:size], row[size])]

    def value_with_mac(self, name: str, value: bytes) -> bytes:
        """A setting of the node with its MAC before it."""
        return self.mac.of("meta", (name, value)) + value

    def value(self, name: str, kept: bytes | None) -> bytes | None:
        """The setting, or None if its MAC is wrong."""
        if kept is None:
            return None
        mac, value = kept[:MAC_BYTES], kept[MAC_BYTES:]
        return value if self.mac.is_right("meta", (name, value), mac) else None

    def wrong(self, table: str, rows: Iterable[Sequence[Any]]) -> Iterator[RowWithoutMac]:
        """The rows without a right MAC. A row has its node, the columns that the MAC covers, and the MAC."""
        own, each = self.mac, MAC_TABLES[table]
        at = [each.columns.split(", ").index(name) for name in (each.shown or each.key).split(", ")]
        for owner, *values, mac in rows:
            if owner != own.node or not own.is_right(table, values, mac):
                key = " ".join(_shown(values[number]) for number in at)
                yield RowWithoutMac(table, key, not owner or not mac)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return "".join(each if each.isprintable() else "?" for each in text)[:80]


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


# The families of what spans jobs and has no ops of its own: the limit of a kind, and a unique key.
LIMIT, UNIQUE_KEY = "limit", "unique key"


class LockMisuse(RuntimeError):
    """The program locked in the wrong order, or outside a write transaction."""


class MustBeAlone(Exception):
    """Undoes a transaction that runs beside others, and would change more than those expect. Its request runs again in
    a transaction that is alone.
    """


class Outdated(Exception):
    """Undoes a transaction that relied on what its process knew, and others have changed that. Its request runs again,
    and reads.
    """


class LockSession(Statements):
    """Locks end with the transaction. Locking again has no effect. Each method raises LockMisuse."""

    is_beside = False
    """Whether transactions of other authors may run at the same time."""
    # What the transaction has locked.
    _author: bytes | None = None
    _has_permissions = False

    @property
    @abstractmethod
    def _is_writing(self) -> bool:
        """Whether a write transaction runs."""

    def lock_all(self) -> None:
        """Call it before changing something that transactions rely on without locking it. Raises MustBeAlone in a
        transaction that runs beside others.
        """
        self._check_writing()
        if self.is_beside:
            raise MustBeAlone

    def lock_author(self, node: bytes) -> None:
        """This node's clock and the end of its own history. It comes first, if the transaction writes ops of a node."""
        self._check_writing()
        if self._author != node and (self._author is not None or self._has_permissions):
            raise LockMisuse("a transaction has one author, and locks it first")
        self._author = node

    def lock_permissions(self, *, exclusive: bool) -> None:
        """A transaction that relies on the permissions takes the shared side. One that changes them (delegations,
        revocations, coordinator, routes) takes the exclusive side, even after the shared one.
        """
        self._check_writing()
        if exclusive:
            self.lock_all()
        self._has_permissions = True

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        """Call it before reading their state: the subjects of ops, and what spans several, a unique key or a kind's
        limit. Jobs are locked by the statement that reads them. Everything else changes only in transactions that are
        alone.
        """
        if not self._has_permissions:
            raise LockMisuse("lock the author and the permissions before a subject, in a write transaction")
        if self.is_beside and any(subject.family == UNIQUE_KEY for subject in subjects):
            raise MustBeAlone

    def try_lock(self, subject: Subject) -> bool:
        """Locks one subject without waiting: False if another transaction has locked it."""
        self.lock_subjects((subject,))
        return not self.is_beside or self._try_lock(subject)

    def _try_lock(self, subject: Subject) -> bool:
        """In a transaction that runs beside others."""
        return True

    def _check_writing(self) -> None:
        if not self._is_writing:
            raise LockMisuse("only a write transaction locks")
