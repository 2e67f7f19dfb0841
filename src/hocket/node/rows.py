"""The rows of one table, as `node.rows(table)` gives them to programs."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from hocket.bus.hints import about
from hocket.errors import Unreachable
from hocket.families.rows import requests as rows
from hocket.families.rows.facts import ROW
from hocket.families.rows.requests import PAGE, RowChange, RowConflict, RowRequest, StoredRow, row_value, row_write
from hocket.node.calls import Blocking, ProgramNode, each, kept
from hocket.store import Session


class RowTable:
    """The rows of one table. A write names the version that its author has read: None if there was no row. `agent` is
    the name under which this table is written.
    """

    def __init__(self, node: ProgramNode, table: str, agent: str = "") -> None:
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
    """A table of contested rows, for synchronous code."""

    def __init__(self, target: RowTable) -> None:
        self._target = target

    get = Blocking(RowTable.get)
    put = Blocking(RowTable.put)
    delete = Blocking(RowTable.delete)

    def list(self, prefix: str = "") -> Iterator[StoredRow]:
        """The rows whose keys begin with the prefix, in the order of their keys."""
        return each(self._target.list(prefix))

    def watch(self, prefix: str = "") -> Iterator[StoredRow]:
        """First the rows that there are, then each row that changes, as `RowTable.watch` does."""
        return each(self._target.watch(prefix))


def stored(change: RowChange) -> StoredRow:
    """The row, if it has the value of the write. Raises RowConflict if not."""
    if not change.outcome.is_stored:
        raise RowConflict(change.row, change.conflict)
    return change.row


async def decided(node: ProgramNode, request: RowRequest) -> RowChange:
    """What became of a request: decided here, or by the coordinator."""
    answer = await rows.asked(node, request)
    if isinstance(answer, RowChange):
        node.wrote()
        return answer
    try:
        await node.consult(())
    except Unreachable as error:
        raise kept(error) from error
    return await node.peek(lambda session: rows.decision(session, answer))
