"""`hocket conflicts`: writes of rows that met another version than their author had read."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.declarations import new_app
from hocket.cli.job import moment
from hocket.cli.options import payload
from hocket.cli.output import emit, fields, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.service.rows import ConflictShown

app = new_app()

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The conflict's id.")]


class Side(StrEnum):
    left = "left"
    right = "right"


@app.callback()
def conflicts_group(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List, show and resolve conflicts of rows. Left is the write that came with an older version, right is what is
    stored. An open conflict waits for a decision; the others were decided by their strategy, and are kept for review.

    \b
      hocket conflicts list
      hocket conflicts resolve ID --take left
    """


@app.command("list")
def list_conflicts(
    open_only: Annotated[bool, typer.Option("--open", help="Only those that wait for a decision.")] = False,
    after: Annotated[
        str, typer.Option("--after", metavar="TABLE/KEY", help="Begin after this row.", show_default=False)
    ] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the recorded conflicts, by row. Of those that need no decision, a row keeps the newest.

    \b
      hocket conflicts list --open
    """
    from hocket.service import rows

    with open_service() as service:
        page = rows.conflicts(service, open_only=open_only, after=after)
    emit(page.items)
    table(
        ("id", "row", "state", "strategy", "written by", "at"),
        [
            (each.id, f"{each.table}/{each.key}", _state(each), each.strategy, _author(each), moment(each.at_ms))
            for each in page.items
        ],
        "no conflicts",
    )
    if page.next is not None:
        say(f"there are more: continue with --after {page.next!r}", "dim")


@app.command()
def show(conflict: IdArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show a conflict: the value of the write, the stored value, and the value that both began with.

    \b
      hocket conflicts show 01M7HVJG9XMYB0FTGAN132HCK0
    """
    from hocket.service import rows

    with open_service() as service:
        shown = rows.conflict(service, conflict)
    emit(shown)
    fields(
        [
            ("row", f"{shown.table}/{shown.key}"),
            ("state", _state(shown)),
            ("strategy", shown.strategy),
            ("written by", _author(shown)),
            ("at", moment(shown.at_ms)),
            ("base", _json(shown.base)),
            ("left", "deleted" if shown.left_deletes else _json(shown.left)),
            ("right", "deleted" if shown.right_deletes else _json(shown.right)),
            ("version", shown.version),
        ]
    )


@app.command()
def resolve(
    conflict: IdArgument,
    value: Annotated[
        str | None, typer.Argument(metavar="[JSON|@FILE|-]", help="The row's new value.", show_default=False)
    ] = None,
    take: Annotated[
        Side | None,
        typer.Option("--take", help="Instead of a value: left, the write, or right, the store.", show_default=False),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="VERSION", help="The version that you have read, if the row has changed since."
        ),
    ] = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="The agent that decides.", show_default=False)
    ] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a conflict: the row gets the value, or that of one side. If the row has changed since the conflict, the exit
    code is 3; look at the row, and give its version.

    \b
      hocket conflicts resolve 01M7HVJG9XMYB0FTGAN132HCK0 --take left
      hocket conflicts resolve 01M7HVJG9XMYB0FTGAN132HCK0 '{"colour": "grey"}'
    """
    from hocket.service import rows

    if (value is None) == (take is None):
        raise Usage("give a value, or --take left, or --take right")
    chosen: dict[str, Any] = {"take": take.value} if take is not None else {"value": payload(value)}
    with open_service() as service:
        written = rows.resolve(service, conflict, version=version, agent=agent, **chosen)
    emit(written)
    say(f"{written.row.table}/{written.row.key} resolved: version {written.row.version}")


def _state(conflict: "ConflictShown") -> str:
    return "open" if conflict.open else "settled"


def _author(conflict: "ConflictShown") -> str:
    node = conflict.node_name or conflict.node
    return f"{conflict.agent}@{node}" if conflict.agent else node


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
