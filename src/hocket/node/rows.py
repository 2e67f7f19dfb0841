"""The rows of one table, as `node.rows(table)` gives them to programs."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from hocket.bus.changes import about
from hocket.errors import Unreachable
from hocket.families.rows import requests as rows
from hocket.families.rows.facts import ROW
from hocket.families.rows.requests import PAGE, RowChange, RowConflict, RowRequest, StoredRow, row_value, row_write
from hocket.node.handles import SyncNodeAccess, WaitingNode
from hocket.node.requests import kept
from hocket.store import Session


class ConsultingNode(SyncNodeAccess, Protocol):
    """A `SyncNode`, as its tables see it."""

    def consult(self) -> None:
        """Exchanges ops with the coordinator, so that it decides on what was offered. Raises Unreachable."""


class RowTable:
    """The rows of one table. A write names the version that its author has read: None if there was no row. `agent` is
    the name under which this table is written.
    """

    def __init__(self, node: WaitingNode, table: str, agent: str = "") -> None:
        rows.row_name(table, "-")
        self._node, self._table, self._agent = node, table, agent

    async def get(self, key: str) -> StoredRow | None:
        return await self._node.peek(lambda session: rows.find(session, self._table, key))

    async def put(self, key: str, value: Any, version: str | None = None, *, strategy: str = "take-right") -> StoredRow:
        """Writes the row and returns it. If others have changed other members of the same object, the row has the
        changes of both. Raises RowConflict if the value is not stored.
        """
        return await self._write(key, row_value(value), version, strategy)

    async def delete(self, key: str, version: str | None, *, strategy: str = "take-right") -> StoredRow:
        """Deletes the row and returns it as deleted. Raises RowConflict if it is not deleted."""
        return await self._write(key, None, version, strategy)

    async def _write(self, key: str, value: bytes | None, version: str | None, strategy: str) -> StoredRow:
        wanted = row_write(self._table, key, value, version=version, strategy=strategy, agent=self._agent)
        return stored(await decided(self._node, lambda tx: rows.write(tx, wanted)))

    async def list(self, prefix: str = "") -> AsyncIterator[StoredRow]:
        """The rows whose keys begin with the prefix, in the order of their keys."""
        after, is_last = "", False

        def read(session: Session) -> list[StoredRow]:
            return rows.listed(session, self._table, prefix, after)

        while not is_last:
            page = await self._node.peek(read)
            for row in page:
                yield row
            is_last = len(page) < PAGE
            after = page[-1].key if page else ""

    async def watch(self, prefix: str = "") -> AsyncIterator[StoredRow]:
        """First the rows that there are, then each row that changes; a deleted one has no value. Of several changes of
        a row in quick succession, it returns only the last.
        """
        seen: int = await self._node.peek(lambda session: session.head().seq)
        async for row in self.list(prefix):
            yield row

        async def look() -> tuple[bool, tuple[int, list[StoredRow]]]:
            found = await self._node.peek(lambda session: rows.changed(session, self._table, prefix, seen))
            return found[0] > seen, found

        while True:
            seen, found = await self._node.until(look, None, about(ROW))
            for row in found:
                yield row


class SyncRowTable:
    """A table of contested rows, for synchronous code. `RowTable` has the meanings of its methods."""

    def __init__(self, node: ConsultingNode, table: str, agent: str = "") -> None:
        rows.row_name(table, "-")
        self._node, self._table, self._agent = node, table, agent

    def get(self, key: str) -> StoredRow | None:
        def read() -> StoredRow | None:
            with self._node.runtime.store.read() as session:
                return rows.find(session, self._table, key)

        return self._node.call(read)

    def put(self, key: str, value: Any, version: str | None = None, *, strategy: str = "take-right") -> StoredRow:
        """Writes the row and returns it, as `RowTable.put` does."""
        return self._write(key, row_value(value), version, strategy)

    def delete(self, key: str, version: str | None, *, strategy: str = "take-right") -> StoredRow:
        """Deletes the row and returns it as deleted. Raises RowConflict if it is not deleted."""
        return self._write(key, None, version, strategy)

    def _write(self, key: str, value: bytes | None, version: str | None, strategy: str) -> StoredRow:
        wanted = row_write(self._table, key, value, version=version, strategy=strategy, agent=self._agent)
        return stored(sync_decided(self._node, lambda tx: rows.write(tx, wanted)))

    def list(self, prefix: str = "") -> Iterator[StoredRow]:
        """The rows whose keys begin with the prefix, in the order of their keys."""

        after, is_last = "", False

        def read() -> list[StoredRow]:
            with self._node.runtime.store.read() as session:
                return rows.listed(session, self._table, prefix, after)

        while not is_last:
            yield from (page := self._node.call(read))
            is_last = len(page) < PAGE
            after = page[-1].key if page else ""

    def watch(self, prefix: str = "") -> Iterator[StoredRow]:
        """First the rows that there are, then each row that changes, as `RowTable.watch` does."""
        with self._node.runtime.store.read() as session:
            seen = session.head().seq

        def look(session: Session) -> tuple[bool, tuple[int, list[StoredRow]]]:
            found = rows.changed(session, self._table, prefix, seen)
            return found[0] > seen, found

        yield from self.list(prefix)
        while True:
            seen, found = self._node.until(look, None, about(ROW))
            yield from found


def stored(change: RowChange) -> StoredRow:
    """The row, if it has the value of the write. Raises RowConflict if not."""
    if not change.outcome.is_stored:
        raise RowConflict(change.row, change.conflict)
    return change.row


async def decided(node: WaitingNode, request: RowRequest) -> RowChange:
    """What became of a request: decided here, or by the coordinator."""
    said = await rows.asked(node, request)
    node.wrote()
    if isinstance(said, RowChange):
        return said
    try:
        await node.consult(())
    except Unreachable as error:
        raise kept(error) from error
    return await node.peek(lambda session: rows.decision(session, said))


def sync_decided(node: ConsultingNode, request: RowRequest) -> RowChange:
    """What became of a request, in synchronous code: decided here, or by the coordinator."""
    write = lambda: node.runtime.log.run(request)  # noqa: E731
    said = node.call(write)
    if said is None:
        node.call(node.consult)
        said = node.call(write)
    offer = rows.informed(said)
    if isinstance(offer, RowChange):
        node.wrote()
        return offer
    try:
        node.call(node.consult)
    except Unreachable as error:
        raise kept(error) from error
    with node.runtime.store.read() as session:
        return rows.decision(session, offer)
