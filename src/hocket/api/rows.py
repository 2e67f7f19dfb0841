"""Contested rows and their conflicts: read, list, watch, write, delete, resolve."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.operation import PAGE_DEFAULT, ULID, After, InShell, Limit, OperationGroup, TokenNeed, operation
from hocket.api.views import Line, Pairs, View, at, json_text, moment, table
from hocket.errors import NotFound, Usage
from hocket.families.rows import requests as rows
from hocket.families.rows.requests import (
    ConflictDetails,
    RowConflict,
    RowOutcome,
    RowRequest,
    StoredRow,
    parse_version,
    row_value,
    row_write,
)
from hocket.families.rows.rules import AGENT_BYTES_MAX, KEY_BYTES_MAX, TABLE_BYTES_MAX
from hocket.kernel.ids import parse_ulid
from hocket.node.rows import decided
from hocket.store import Session

TableName = Annotated[str, Meta(min_length=1, max_length=TABLE_BYTES_MAX, description="The table.")]
RowKey = Annotated[
    str,
    Meta(min_length=1, max_length=KEY_BYTES_MAX, description="The row's key in the table; in a path, a slash is %2F."),
    InShell(help="The row's key in the table."),
]
KeyPrefix = Annotated[
    str,
    Meta(max_length=KEY_BYTES_MAX, description="Only keys that begin with this."),
    InShell(metavar="[PREFIX]", is_argument=True),
]
RowVersion = Annotated[
    str, Meta(min_length=1, max_length=128, description="The version that you have read; none if no row was.")
]
RowAgent = Annotated[
    str,
    Meta(min_length=1, max_length=AGENT_BYTES_MAX, description="The agent that writes; default: the token's name."),
    InShell(metavar="NAME", help="The agent that writes."),
]
RowStrategy = Annotated[
    Literal["take-left", "take-right", "defer-to-agent", "manual"],
    Meta(description="What happens if the row has changed since. Left is your write, right the store."),
]
ConflictId = Annotated[str, Meta(pattern=ULID, description="The conflict's id."), InShell(metavar="ID")]


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

    def ensure(self) -> None:
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

    @property
    def row(self) -> str:
        return f"{self.table}/{self.key}"

    @property
    def state(self) -> str:
        return "open" if self.open else "settled"


READ_ONE = TokenNeed("Row", "Read", lambda service, asked: [f"{asked['table']}/{asked['key']}"])
READ_MANY = TokenNeed("Row", "Read", lambda service, asked: [f"{asked['table']}/{asked['prefix']}"])
READ_CONFLICTS = TokenNeed("Row", "Read", is_judged_later=True)
WRITE = TokenNeed("Row", "Write", lambda service, asked: [f"{asked['table']}/{asked['key']}"])
RESOLVE = TokenNeed("Row", "Write", is_judged_later=True)


def _show_row(row: RowShown) -> Iterator[View]:
    waiting = f"{row.conflicts} wait for a decision: hocket rows conflicts list"
    yield Pairs(
        [
            ("value", json_text(row.value)),
            ("version", row.version),
            ("written by", author(row)),
            ("written at", moment(row.written_ms)),
            *([("conflicts", waiting)] if row.conflicts else []),
        ]
    )


def _show_write(written: RowWritten) -> Iterator[View]:
    row = written.row
    how = {"merged": "merged with the changes of others", "took-left": "replaced what others wrote"}.get(
        written.outcome, "deleted" if row.deleted else "written"
    )
    yield Line(f"{row.table}/{row.key} {how}: version {row.version}")


_show_rows = table(
    RowShown,
    "no rows",
    {
        "key": "key",
        "value": lambda each: json_text(each.value),
        "version": "version",
        "written by": lambda each: author(each),
        "conflicts": lambda each: each.conflicts or "-",
    },
)


_show_conflicts = table(
    ConflictShown,
    "no conflicts",
    {
        "id": "id",
        "row": "row",
        "state": "state",
        "strategy": "strategy",
        "written by": lambda each: author(each),
        "at": at("at_ms"),
    },
)


def _show_conflict(conflict: ConflictShown) -> Iterator[View]:
    yield Pairs(
        [
            ("row", f"{conflict.table}/{conflict.key}"),
            ("state", conflict.state),
            ("strategy", conflict.strategy),
            ("written by", author(conflict)),
            ("at", moment(conflict.at_ms)),
            ("base", json_text(conflict.base)),
            ("left", "deleted" if conflict.left_deletes else json_text(conflict.left)),
            ("right", "deleted" if conflict.right_deletes else json_text(conflict.right)),
            ("version", conflict.version),
        ]
    )


@operation("get_row", "GET /v1/rows/{table}/{key}", READ_ONE, command="rows get", show=_show_row)
def get(service: Service, table: TableName, key: RowKey) -> RowShown:
    """Show a row: its value and its version, and who wrote it.

    \b
      hocket rows get memories sky
      hocket rows get memories sky --json | jq -r .version
    """
    with service.runtime.store.read() as session:
        row = rows.find(session, table, key)
        if row is None:
            raise NotFound(f"there is no row {table}/{key}")
        return _row(service, session, row)


@operation("put_row", "PUT /v1/rows/{table}/{key}", WRITE, command="rows put", show=_show_write)
def put(
    service: Service,
    table: TableName,
    key: RowKey,
    value: Annotated[Any, Meta(description="The value, any JSON."), InShell(metavar="JSON|@FILE|-", form="json")],
    version: RowVersion | None = None,
    strategy: RowStrategy = "take-right",
    agent: RowAgent | None = None,
) -> RowWritten:
    """Write a row. Without a version there must be no such row yet.

    If the row has changed since that version, and both sides have changed different members of an object, the row gets
    the changes of both. Otherwise the two are in conflict, which is recorded, and the strategy decides. take-right, the
    default: what is stored stays, and your write is not made. take-left: your write replaces what is stored.
    defer-to-agent: what is stored stays until the agent has decided, which gets a message. manual: the same without a
    message. A value that is not stored is a conflict: exit code 3, status 409.

    \b
      hocket rows put memories sky '{"colour": "blue"}' --agent editor
      hocket rows put memories sky @sky.json --version "$version"
    """
    return _write(service, table, key, row_value(value), version, strategy, agent)


@operation("delete_row", "DELETE /v1/rows/{table}/{key}", WRITE, command="rows delete", show=_show_write)
def delete(
    service: Service,
    table: TableName,
    key: RowKey,
    version: RowVersion | None = None,
    strategy: RowStrategy = "take-right",
    agent: RowAgent | None = None,
) -> RowWritten:
    """Delete a row. It is a write: if the row has changed since the version, the strategy decides.

    \b
      hocket rows delete memories sky --version "$version"
    """
    return _write(service, table, key, None, version, strategy, agent)


@operation("list_rows", "GET /v1/rows/{table}", READ_MANY, command="rows list", show=_show_rows)
def listing(
    service: Service,
    table: TableName,
    prefix: KeyPrefix = "",
    limit: Limit = PAGE_DEFAULT,
    after: After | None = None,
) -> ListPage[RowShown]:
    """List the rows of a table, in the order of their keys.

    \b
      hocket rows list memories
      hocket rows list memories sky/ --json
    """
    with service.runtime.store.read() as session:
        found = rows.listed(session, table, prefix, after or "", limit + 1)
        shown = [_row(service, session, row) for row in found[:limit]]
    return ListPage(shown, shown[-1].key if len(found) > limit and shown else None)


def _show_watched(row: RowShown) -> Iterator[View]:
    yield Line(f"{row.key}  {'deleted' if row.deleted else json_text(row.value)}  {row.version}  {author(row)}")


@operation("watch_rows", "GET", command="rows watch", show=_show_watched)
def watch(
    service: Service,
    table: Annotated[str, Meta(description="The table.")],
    prefix: Annotated[
        str, Meta(description="Only keys that begin with this."), InShell(metavar="[PREFIX]", is_argument=True)
    ] = "",
) -> Iterator[RowShown]:
    """Show the rows of a table, then each row that changes, until Ctrl-C; with --json one object a line.

    \b
      hocket rows watch memories
    """
    for row in service.node.rows(table).watch(prefix):
        with service.runtime.store.read() as session:
            shown = _row(service, session, row)
        yield shown


@operation("list_conflicts", "GET /v1/conflicts", READ_CONFLICTS, command="conflicts list", show=_show_conflicts)
def conflicts(
    service: Service,
    open_only: Annotated[bool, Meta(description="Only those that wait for a decision."), InShell("--open")] = False,
    limit: Limit = PAGE_DEFAULT,
    after: Annotated[After, InShell(metavar="TABLE/KEY", help="Begin after this row.")] | None = None,
) -> ListPage[ConflictShown]:
    """List the recorded conflicts, by row, as far as you may read the rows. A page has those of at most `limit` rows.
    Of those that need no decision, a row keeps the newest.

    \b
      hocket rows conflicts list --open
    """
    with service.runtime.store.read() as session:
        found, last = rows.conflicts(session, after or "", limit)
        shown = [_conflict(service, session, each) for each in found if each.is_open or not open_only]
    return ListPage([each for each in shown if service.may("Row", "Read", each.row)], last)


@operation(
    "show_conflict", "GET /v1/conflicts/{conflict}", READ_CONFLICTS, command="conflicts show", show=_show_conflict
)
def conflict(service: Service, conflict: ConflictId) -> ConflictShown:
    """Show a conflict: the value of the write, the stored value, and the value that both began with.

    \b
      hocket rows conflicts show 01M7HVJG9XMYB0FTGAN132HCK0
    """
    with service.runtime.store.read() as session:
        shown = _conflict(service, session, rows.conflict(session, _id(conflict)))
    service.check("Row", "Read", shown.row)
    return shown


@operation(
    "resolve_conflict",
    "POST /v1/conflicts/{conflict}/resolve",
    RESOLVE,
    command="conflicts resolve",
    show=lambda written: [Line(f"{written.row.table}/{written.row.key} resolved: version {written.row.version}")],
)
def resolve(
    service: Service,
    conflict: ConflictId,
    value: Annotated[
        Any | UnsetType,
        Meta(description="The row's new value."),
        InShell(metavar="[JSON|@FILE|-]", form="json", is_argument=True),
    ] = UNSET,
    take: Annotated[
        Literal["left", "right"], Meta(description="Instead of a value: left, the write, or right, the store.")
    ]
    | None = None,
    version: Annotated[RowVersion, InShell(help="The version that you have read, if the row has changed since.")]
    | None = None,
    agent: Annotated[RowAgent, InShell(metavar="NAME", help="The agent that decides.")] | None = None,
) -> RowWritten:
    """End a conflict: the row gets the value, or that of one side. If the row has changed since the conflict, this is
    refused as a conflict (exit code 3, status 409): look at the row, and give its version.

    \b
      hocket rows conflicts resolve 01M7HVJG9XMYB0FTGAN132HCK0 --take left
      hocket rows conflicts resolve 01M7HVJG9XMYB0FTGAN132HCK0 '{"colour": "grey"}'
    """
    service.check_writer()
    if (take is None) == (value is UNSET):
        raise Usage("give a value, or the side to take, left or right")
    found, at = _id(conflict), None if version is None else parse_version(version)
    with service.runtime.store.read() as session:
        details = rows.conflict(session, found)
    service.check("Row", "Write", f"{details.table}/{details.key}")
    encoded, decider = None if value is UNSET else row_value(value), service.agent(agent, "")
    return _decided(service, lambda tx: rows.resolve(tx, found, decider, value=encoded, side=take, version=at))


def _write(
    service: Service, table: str, key: str, value: bytes | None, version: str | None, strategy: str, agent: str | None
) -> RowWritten:
    service.check_writer()
    wanted = row_write(table, key, value, version=version, strategy=strategy, agent=service.agent(agent, ""))
    return _decided(service, lambda tx: rows.write(tx, wanted))


def _decided(service: Service, request: RowRequest) -> RowWritten:
    change = service.node.direct(lambda node: decided(node, request))
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
        raise Usage(f"{text[:60]!r} is not the id of a conflict; see `hocket rows conflicts list`") from None


def author(written: RowShown | ConflictShown) -> str:
    node = written.node_name or written.node
    return f"{written.agent}@{node}" if written.agent else node


commands = OperationGroup(
    """Read and write rows that several agents share. A row is a JSON value in a table, under a key. A write names the
    version that its author has read, and does not overwrite what others have written since.

    \b
      hocket rows put memories sky '{"colour": "blue"}'
      hocket rows get memories sky
    """,
    *(get, put, delete, listing, watch),
)
conflict_commands = OperationGroup(
    """List, show and resolve conflicts of rows. Left is the write that came with an older version, right is what is
    stored. An open conflict waits for a decision; the others were decided by their strategy, and are kept for review.

    \b
      hocket rows conflicts list
      hocket rows conflicts resolve ID --take left
    """,
    *(conflicts, conflict, resolve),
)
