"""The rows beside the log that are of one node. Each has a MAC of that node (`kernel.signing`), because a store that
nodes share can be written to by all of them: a row with a wrong MAC is as if it were not there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from hocket.kernel.signing import MAC_BYTES, RowMac


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
