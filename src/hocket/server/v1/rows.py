"""The routes about contested rows and their conflicts."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hocket.kernel.rows import AGENT_BYTES_MAX, KEY_BYTES_MAX, TABLE_BYTES_MAX
from hocket.server.v1.routes import PAGE_DEFAULT, ULID, After, ApiCall, ApiRoute, Limit, RouteNeed, bounded_page
from hocket.service import ListPage, rows
from hocket.service.rows import ConflictShown, RowShown, RowWritten

TableName = Annotated[str, msgspec.Meta(min_length=1, max_length=TABLE_BYTES_MAX, description="A table.")]
RowKey = Annotated[
    str, msgspec.Meta(min_length=1, max_length=KEY_BYTES_MAX, description="A key; write a slash in it as %2F.")
]
ConflictId = Annotated[str, msgspec.Meta(pattern=ULID, description="A conflict's id.")]
RowVersion = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=128, description="The version that was read; none for a new row."),
]
RowAgent = Annotated[
    str, msgspec.Meta(min_length=1, max_length=AGENT_BYTES_MAX, description="The agent; default: the token's name.")
]
RowStrategy = Literal["take-left", "take-right", "defer-to-agent", "manual"]


class RowsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Annotated[str, msgspec.Meta(max_length=KEY_BYTES_MAX, description="Only keys that begin with this.")] = ""
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class RowToPut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`value` is any JSON. `strategy` says what happens if the row has another version than `version`."""

    value: Any
    version: RowVersion | None = None
    strategy: RowStrategy = "take-right"
    agent: RowAgent | None = None


class DeleteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: RowVersion
    strategy: RowStrategy = "take-right"
    agent: RowAgent | None = None


class ConflictsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    open_only: Annotated[bool, msgspec.Meta(description="Only conflicts that need a decision.")] = False
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class Resolution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either the side to `take` or a `value`. `version` is the row's own, if it has changed since the conflict."""

    take: Literal["left", "right"] | None = None
    value: Any | UnsetType = UNSET
    version: RowVersion | None = None
    agent: RowAgent | None = None


def list_rows(call: ApiCall, table: TableName, query: RowsQuery) -> ListPage[RowShown]:
    """List the rows of a table, in the order of their keys."""

    def fetch(limit: int, after: str | None) -> ListPage[RowShown]:
        return rows.listing(call.service, table, query.prefix, after=after or "", limit=limit)

    return bounded_page(fetch, query.limit, query.after)


def get_row(call: ApiCall, table: TableName, key: RowKey) -> RowShown:
    """Get a row and its version."""
    return rows.get(call.service, table, key)


def put_row(call: ApiCall, table: TableName, key: RowKey, body: RowToPut) -> RowWritten:
    """Write a row. If it has another version than the one that was read, the strategy decides; a value that was not
    stored is answered with 409 and recorded as a conflict.
    """
    agent = call.agent(body.agent)
    written = rows.put(call.service, table, key, body.value, version=body.version, strategy=body.strategy, agent=agent)
    written.check()
    return written


def delete_row(call: ApiCall, table: TableName, key: RowKey, query: DeleteQuery) -> RowWritten:
    """Delete a row. The same rules apply as for writing it."""
    agent = call.agent(query.agent)
    written = rows.delete(call.service, table, key, version=query.version, strategy=query.strategy, agent=agent)
    written.check()
    return written


def list_conflicts(call: ApiCall, query: ConflictsQuery) -> ListPage[ConflictShown]:
    """List the recorded conflicts of the rows that the token may read. A page has those of at most `limit` rows."""

    def fetch(limit: int, after: str | None) -> ListPage[ConflictShown]:
        return rows.conflicts(call.service, open_only=query.open_only, after=after or "", limit=limit)

    found = bounded_page(fetch, query.limit, query.after, step=1)
    shown = [each for each in found.items if call.program.may("Row", "Read", (_row(each),))]
    return ListPage(shown, found.next)


def show_conflict(call: ApiCall, conflict: ConflictId) -> ConflictShown:
    """Show a conflict: the value that was written, the one that is stored, and the one that both had read."""
    found = rows.conflict(call.service, conflict)
    call.check("Row", "Read", _row(found))
    return found


def resolve_conflict(call: ApiCall, conflict: ConflictId, body: Resolution) -> RowWritten:
    """End a conflict with one of its sides, or with a new value."""
    call.check("Row", "Write", _row(rows.conflict(call.service, conflict)))
    agent = call.agent(body.agent)
    return rows.resolve(call.service, conflict, take=body.take, value=body.value, version=body.version, agent=agent)


def _row(conflict: ConflictShown) -> str:
    return f"{conflict.table}/{conflict.key}"


READ_ONE = RouteNeed("Row", "Read", lambda call, asked: [f"{asked['table']}/{asked['key']}"])
WRITE = RouteNeed("Row", "Write", lambda call, asked: [f"{asked['table']}/{asked['key']}"])
READ_MANY = RouteNeed("Row", "Read", lambda call, asked: [f"{asked['table']}/{asked['query'].prefix}"])
READ_CONFLICTS = RouteNeed("Row", "Read", is_judged_later=True)

ROUTES = (
    ApiRoute("GET", "/v1/rows/{table}", list_rows, READ_MANY),
    ApiRoute("GET", "/v1/rows/{table}/{key}", get_row, READ_ONE),
    ApiRoute("PUT", "/v1/rows/{table}/{key}", put_row, WRITE),
    ApiRoute("DELETE", "/v1/rows/{table}/{key}", delete_row, WRITE),
    ApiRoute("GET", "/v1/conflicts", list_conflicts, READ_CONFLICTS),
    ApiRoute("GET", "/v1/conflicts/{conflict}", show_conflict, READ_CONFLICTS),
    ApiRoute(
        "POST", "/v1/conflicts/{conflict}/resolve", resolve_conflict, RouteNeed("Row", "Write", is_judged_later=True)
    ),
)
