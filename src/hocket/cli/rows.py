"""`hocket rows`: contested rows, which several agents write. A write names the version that its author has read."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.job import moment
from hocket.cli.options import payload
from hocket.cli.output import emit, fields, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service

if TYPE_CHECKING:
    from hocket.service.rows import RowShown, RowWritten

app = new_app()

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The row's key in the table.")]
PrefixArgument = Annotated[
    str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin with this.", show_default=False)
]
VersionOption = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="The version that you have read; none if no row was.")
]
AgentOption = Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent that writes.", show_default=False)]


class StrategyName(StrEnum):
    take_left = "take-left"
    take_right = "take-right"
    defer_to_agent = "defer-to-agent"
    manual = "manual"


StrategyOption = Annotated[
    StrategyName,
    typer.Option("--strategy", help="What happens if the row has changed since. Left is your write, right the store."),
]


@app.callback()
def rows_group(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Read and write rows that several agents share. A row is a JSON value in a table, under a key. A write names the
    version that its author has read, and does not overwrite what others have written since.

    \b
      hocket rows put memories sky '{"colour": "blue"}'
      hocket rows get memories sky
    """


@app.command()
def get(table: TableArgument, key: KeyArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show a row: its value and its version, and who wrote it.

    \b
      hocket rows get memories sky
      hocket rows get memories sky --json | jq -r .version
    """
    from hocket.service import rows

    with open_service() as service:
        _show(rows.get(service, table, key))


@app.command()
def put(
    table: TableArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="JSON|@FILE|-", help="The value.", show_default=False)],
    version: VersionOption = None,
    strategy: StrategyOption = StrategyName.take_right,
    agent: AgentOption = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a row. Without --version there must be no such row yet.

    If the row has changed since that version, and both sides have changed different members of an object, the row gets
    the changes of both. Otherwise the two are in conflict, which is recorded, and the strategy decides. take-right, the
    default: what is stored stays, and your write is not made. take-left: your write replaces what is stored.
    defer-to-agent: what is stored stays until the agent has decided, which gets a message. manual: the same without a
    message. If your value is not stored, the exit code is 3.

    \b
      hocket rows put memories sky '{"colour": "blue"}' --agent editor
      hocket rows put memories sky @sky.json --version "$version"
    """
    from hocket.service import rows

    given = payload(value)
    with open_service() as service:
        written = rows.put(service, table, key, given, version=version, strategy=strategy, agent=agent)
    _tell(written)


@app.command()
def delete(
    table: TableArgument,
    key: KeyArgument,
    version: VersionOption = None,
    strategy: StrategyOption = StrategyName.take_right,
    agent: AgentOption = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a row. It is a write: if the row has changed since the version, the strategy decides.

    \b
      hocket rows delete memories sky --version "$version"
    """
    from hocket.service import rows

    with open_service() as service:
        written = rows.delete(service, table, key, version=version, strategy=strategy, agent=agent)
    _tell(written)


@app.command("list")
def list_rows(
    table_name: TableArgument,
    prefix: PrefixArgument = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="How many at most.")] = 100,
    after: Annotated[
        str, typer.Option("--after", metavar="KEY", help="Begin after this key.", show_default=False)
    ] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rows of a table, in the order of their keys.

    \b
      hocket rows list memories
      hocket rows list memories sky/ --json
    """
    from hocket.service import rows

    with open_service() as service:
        page = rows.listing(service, table_name, prefix, after=after, limit=limit)
    emit(page.items)
    table(
        ("key", "value", "version", "written by", "conflicts"),
        [(each.key, _json(each.value), each.version, _author(each), each.conflicts or "-") for each in page.items],
        "no rows",
    )
    if page.next is not None:
        say(f"there are more: continue with --after {page.next!r}", "dim")


@app.command()
def watch(
    table: TableArgument, prefix: PrefixArgument = "", home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Show the rows of a table, then each row that changes, until Ctrl-C; with --json one object a line.

    \b
      hocket rows watch memories
    """
    from hocket.service import rows

    with open_service() as service:
        for row in rows.watch(service, table, prefix):
            emit(row)
            say(f"{row.key}  {'deleted' if row.deleted else _json(row.value)}  {row.version}  {_author(row)}")
            sys.stdout.flush()


def _show(row: "RowShown") -> None:
    emit(row)
    conflicts = [("conflicts", f"{row.conflicts} wait for a decision: hocket conflicts list")] if row.conflicts else []
    fields(
        [
            ("value", _json(row.value)),
            ("version", row.version),
            ("written by", _author(row)),
            ("written at", moment(row.written_ms)),
            *conflicts,
        ]
    )


def _tell(written: "RowWritten") -> None:
    emit(written)
    written.check()
    row = written.row
    how = {"merged": "merged with the changes of others", "took-left": "replaced what others wrote"}.get(
        written.outcome, "deleted" if row.deleted else "written"
    )
    say(f"{row.table}/{row.key} {how}: version {row.version}")


def _author(row: "RowShown") -> str:
    node = row.node_name or row.node
    return f"{row.agent}@{node}" if row.agent else node


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
