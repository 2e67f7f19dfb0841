"""Contested rows and their conflicts: read, list, watch, write, delete, resolve."""

from collections.abc import Iterator
from typing import Any

import msgspec

from hocket.coordination import rows
from hocket.coordination.rows import (
    PAGE,
    ConflictDetails,
    RowChange,
    RowConflict,
    RowOutcome,
    StoredRow,
    parse_version,
    row_value,
    row_write,
)
from hocket.errors import NotFound, Usage
from hocket.kernel.ids import parse_ulid
from hocket.node.rows import sync_decided
from hocket.service import ListPage, Service, ServiceAnswer
from hocket.store import Session


class RowShown(ServiceAnswer, frozen=True):
    """A row and its version. `agent` on `node` wrote that version; `conflicts` wait for a decision."""

    table: str
    key: str
    value: Any
    version: str
    agent: str
    node: str
    node_name: str | None
    written_ms: int
    conflicts: int
    deleted: bool


class RowWritten(ServiceAnswer, frozen=True):
    """The row after a write, and what became of the write. `conflict` is the id of the conflict, if there is one."""

    row: RowShown
    outcome: RowOutcome
    conflict: str | None

    def check(self) -> None:
        """Raises RowConflict if the row does not have the value of the write."""
        if not self.outcome.is_stored:
            fields = msgspec.structs.asdict(self.row)
            del fields["node_name"]
            raise RowConflict(StoredRow(**fields), self.conflict)


class ConflictShown(ServiceAnswer, frozen=True):
    """A conflict: `left` is the value of the write; `right` is what is stored now, or what the write has replaced;
    `base` is what the author of the write had read, as far as it is known. A side that `deletes` has no value. The
    write was of `agent` on `node`. `met` is the version that it found, `version` the one that is stored now. A conflict
    that is not `open` needs no decision, since its strategy has decided.
    """

    id: str
    table: str
    key: str
    strategy: str
    open: bool
    agent: str
    node: str
    node_name: str | None
    at_ms: int
    left: Any
    left_deletes: bool
    right: Any
    right_deletes: bool
    base: Any
    met: str | None
    version: str


def get(service: Service, table: str, key: str) -> RowShown:
    """Raises Usage if there is no such row."""
    with service.runtime.store.read() as session:
        row = rows.find(session, table, key)
        if row is None:
            raise NotFound(f"there is no row {table}/{key}")
        return _row(service, session, row)


def put(
    service: Service,
    table: str,
    key: str,
    value: Any,
    *,
    version: str | None = None,
    strategy: str = "take-right",
    agent: str = "",
) -> RowWritten:
    """Writes a row. `version` is the one that the writer has read, None if there was no row."""
    return _write(service, table, key, row_value(value), version, strategy, agent)


def delete(
    service: Service, table: str, key: str, *, version: str | None, strategy: str = "take-right", agent: str = ""
) -> RowWritten:
    return _write(service, table, key, None, version, strategy, agent)


def listing(
    service: Service, table: str, prefix: str = "", *, after: str = "", limit: int = PAGE
) -> ListPage[RowShown]:
    """The rows whose keys begin with the prefix, in the order of their keys, after this key."""
    with service.runtime.store.read() as session:
        found = rows.listed(session, table, prefix, after, limit + 1)
        shown = [_row(service, session, row) for row in found[:limit]]
    return ListPage(shown, shown[-1].key if len(found) > limit and shown else None)


def watch(service: Service, table: str, prefix: str = "") -> Iterator[RowShown]:
    """First the rows that there are, then each row that changes. It does not end."""
    for row in service.node.rows(table).watch(prefix):
        with service.runtime.store.read() as session:
            shown = _row(service, session, row)
        yield shown


def conflicts(
    service: Service, *, open_only: bool = False, after: str = "", limit: int = PAGE
) -> ListPage[ConflictShown]:
    """The recorded conflicts of at most `limit` rows, after this row. Those of a row stand together."""
    with service.runtime.store.read() as session:
        found, last = rows.conflicts(session, after, limit)
        shown = [_conflict(service, session, each) for each in found if each.is_open or not open_only]
    return ListPage(shown, last)


def conflict(service: Service, conflict_id: str) -> ConflictShown:
    with service.runtime.store.read() as session:
        return _conflict(service, session, rows.conflict(session, _id(conflict_id)))


def resolve(
    service: Service,
    conflict_id: str,
    *,
    take: str | None = None,
    value: Any = msgspec.UNSET,
    version: str | None = None,
    agent: str = "",
) -> RowWritten:
    """Ends a conflict: the row gets the value, or that of the side to `take`, "left" or "right". `version` is the one
    that the caller has read, if the row has changed since the conflict.
    """
    service.check_writer()
    if (take is None) == (value is msgspec.UNSET) or take not in (None, "left", "right"):
        raise Usage("a conflict is resolved with the side left, the side right, or a value")
    found, at = _id(conflict_id), None if version is None else parse_version(version)
    encoded = None if value is msgspec.UNSET else row_value(value)
    change = sync_decided(service.node, lambda tx: rows.resolve(tx, found, agent, value=encoded, side=take, version=at))
    return _written(service, change)


def _write(
    service: Service, table: str, key: str, value: bytes | None, version: str | None, strategy: str, agent: str
) -> RowWritten:
    service.check_writer()
    wanted = row_write(table, key, value, version=version, strategy=strategy, agent=agent)
    return _written(service, sync_decided(service.node, lambda tx: rows.write(tx, wanted)))


def _written(service: Service, change: RowChange) -> RowWritten:
    with service.runtime.store.read() as session:
        return RowWritten(_row(service, session, change.row), change.outcome, change.conflict)


def _row(service: Service, session: Session, row: StoredRow) -> RowShown:
    return RowShown(**msgspec.structs.asdict(row), node_name=service.names(session).get(row.node))


def _conflict(service: Service, session: Session, each: ConflictDetails) -> ConflictShown:
    return ConflictShown(
        each.id,
        each.table,
        each.key,
        each.strategy,
        each.is_open,
        each.agent,
        each.node,
        service.names(session).get(each.node),
        each.at_ms,
        _decoded(each.left),
        each.left is None,
        _decoded(each.right),
        each.right is None,
        _decoded(each.base),
        each.met,
        each.version,
    )


def _decoded(value: bytes | None) -> Any:
    return None if value is None else msgspec.json.decode(value)


def _id(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError:
        raise Usage(f"{text[:60]!r} is not the id of a conflict; see `hocket conflicts list`") from None
