"""The rows beside the log that are of one node. Each has a seal of that node (`kernel.row_seal`), because a store that
nodes share can be written to by all of them: a row with a wrong seal is as if it were not there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from hocket.kernel.row_seal import SEAL_BYTES, RowSeal


class SealedTable(NamedTuple):
    """`owner` is the column of the node whose row it is. The seal covers that and the `columns`; others change often
    and give nothing to anybody. With the owner, the `key` tells rows apart. People are told the key, or `shown`.
    """

    columns: str
    key: str
    owner: str = "of_node"
    shown: str | None = None


SEALED = {
    "tokens": SealedTable("name, id, hash, grants, made, expires, revoked", "name"),
    "answers": SealedTable("token, key, request, status, body, made", "token, key"),
    "invitations": SealedTable("secret_hash, name, grants, expires, used_by, made", "secret_hash", shown="name"),
    "peers": SealedTable("address, node, pulled, state, detail, seen, added", "address"),
    "held": SealedTable("id, wall, body, author", "id"),
    "lock_requests": SealedTable("op, scope, process, until, host, boot, namespace, locks", "op", "node"),
    "workers": SealedTable("name, pid, started, host, boot, namespace, locks", "name", "node"),
}

# How many columns of a table are sealed.
SEALED_COLUMNS = {table: each.columns.count(",") + 1 for table, each in SEALED.items()}


class UnsealedRow(NamedTuple):
    """A row that its node does not believe. `is_old` if it has no node and no seal: an older program wrote it."""

    table: str
    key: str
    is_old: bool


class EndedSeals(Protocol):
    """The seals of rows that their node has ended, kept outside of the store."""

    def add(self, seal: bytes) -> None: ...
    def __contains__(self, seal: object, /) -> bool: ...


class SealingSession(Protocol):
    def end_row(self, table: str, row: Sequence[Any]) -> None:
        """A row that this node has written, as it was, counts no more, also if it is put back. This is durable at once,
        whatever becomes of the transaction. In a store of one node nobody puts rows back, and it does nothing.
        """

    def unsealed(self) -> list[UnsealedRow]:
        """The rows of this node, or of none, that have no right seal."""


class RowSeals:
    """The seal of the node that uses a store, for all its sessions."""

    __slots__ = ("_ended", "_seal")

    def __init__(self) -> None:
        self._seal: RowSeal | None = None
        self._ended: EndedSeals | None = None

    def use(self, seal: RowSeal, ended: EndedSeals | None = None) -> None:
        """A node that uses the store again may leave out what it has ended."""
        if ended is not None or self._seal is None or self._seal.node != seal.node:
            self._ended = ended
        self._seal = seal

    def end(self, table: str, values: Sequence[Any]) -> None:
        if self._ended is not None:
            self._ended.add(self.seal.of(table, self._stored(table, values[: SEALED_COLUMNS[table]])))

    def _stored(self, table: str, values: Sequence[Any]) -> Sequence[Any]:
        """The values as the store has them: whoever reads the key of an invitation could use it."""
        return (self.seal.conceal(values[0]), *values[1:]) if table == "invitations" else values

    @property
    def seal(self) -> RowSeal:
        if self._seal is None:
            raise RuntimeError("a store does not know yet which node uses it: call `seal_rows` first")
        return self._seal

    @property
    def node(self) -> bytes:
        return self.seal.node

    def sealed(self, table: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The node and the values of a row, and its seal."""
        seal, stored = self.seal, self._stored(table, values)
        return (seal.node, *stored, seal.of(table, stored))

    def right(self, table: str, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """The rows with a right seal. A row has the columns that are sealed, the seal, and any others."""
        size, seal, ended = SEALED_COLUMNS[table], self.seal, self._ended
        for row in rows:
            if seal.is_right(table, row[:size], row[size]) and (ended is None or row[size] not in ended):
                yield row

    def right_or_of_others(self, table: str, rows: Iterable[Sequence[Any]], node_at: int) -> list[Sequence[Any]]:
        """The same, and those of other nodes, whose seals nobody else can check."""
        size, seal = SEALED_COLUMNS[table], self.seal
        return [row for row in rows if row[node_at] != seal.node or seal.is_right(table, row[:size], row[size])]

    def sealed_value(self, name: str, value: bytes) -> bytes:
        """A setting of the node with its seal before it."""
        return self.seal.of("meta", (name, value)) + value

    def value(self, name: str, kept: bytes | None) -> bytes | None:
        """The setting, or None if its seal is wrong."""
        if kept is None:
            return None
        seal, value = kept[:SEAL_BYTES], kept[SEAL_BYTES:]
        return value if self.seal.is_right("meta", (name, value), seal) else None

    def wrong(self, table: str, rows: Iterable[Sequence[Any]]) -> Iterator[UnsealedRow]:
        """The rows without a right seal. A row has its node, the columns that are sealed, and the seal."""
        seal, each = self.seal, SEALED[table]
        at = [each.columns.split(", ").index(name) for name in (each.shown or each.key).split(", ")]
        for owner, *values, mac in rows:
            if owner != seal.node or not seal.is_right(table, values, mac):
                key = " ".join(_shown(values[number]) for number in at)
                yield UnsealedRow(table, key, not owner or not mac)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return "".join(each if each.isprintable() else "?" for each in text)[:80]
