"""`hocket rows`: contested rows, which several agents write. A write names the version that its author has read."""

import sys
from typing import Annotated

from hocket.cli.declarations import Argument, new_app
from hocket.cli.derived import add_operations
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service
from hocket.service import rows

app = new_app()


@app.callback()
def rows_group() -> None:
    """Read and write rows that several agents share. A row is a JSON value in a table, under a key. A write names the
    version that its author has read, and does not overwrite what others have written since.

    \b
      hocket rows put memories sky '{"colour": "blue"}'
      hocket rows get memories sky
    """


add_operations(app, rows.get, rows.put, rows.delete, rows.listing)


@app.command()
def watch(
    table: Annotated[str, Argument(metavar="TABLE", help="The table.")],
    prefix: Annotated[
        str, Argument(metavar="[PREFIX]", help="Only keys that begin with this.", show_default=False)
    ] = "",
) -> None:
    """Show the rows of a table, then each row that changes, until Ctrl-C; with --json one object a line.

    \b
      hocket rows watch memories
    """
    with open_service() as service:
        for row in rows.watch(service, table, prefix):
            emit(row)
            value = "deleted" if row.deleted else rows.value_text(row.value)
            say(f"{row.key}  {value}  {row.version}  {rows.author(row)}")
            sys.stdout.flush()
