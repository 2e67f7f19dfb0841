"""`hocket rows` and `hocket conflicts`: contested rows, which several agents write. A write names the version that its
author has read; in a conflict it met another one.
"""

import sys
from typing import Annotated

from hocket.api import rows
from hocket.api.views import json_text
from hocket.cli.declarations import Argument, new_app
from hocket.cli.derived import add_operations
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service

rows_app, conflicts_app = new_app(), new_app()


@rows_app.callback()
def rows_group() -> None:
    """Read and write rows that several agents share. A row is a JSON value in a table, under a key. A write names the
    version that its author has read, and does not overwrite what others have written since.

    \b
      hocket rows put memories sky '{"colour": "blue"}'
      hocket rows get memories sky
    """


add_operations(rows_app, rows.get, rows.put, rows.delete, rows.listing)


@rows_app.command()
def watch(
    table: Annotated[str, Argument("TABLE", "The table.")],
    prefix: Annotated[str, Argument("[PREFIX]", "Only keys that begin with this.", show_default=False)] = "",
) -> None:
    """Show the rows of a table, then each row that changes, until Ctrl-C; with --json one object a line.

    \b
      hocket rows watch memories
    """
    with open_service() as service:
        for row in rows.watch(service, table, prefix):
            emit(row)
            value = "deleted" if row.deleted else json_text(row.value)
            say(f"{row.key}  {value}  {row.version}  {rows.author(row)}")
            sys.stdout.flush()


@conflicts_app.callback()
def conflicts_group() -> None:
    """List, show and resolve conflicts of rows. Left is the write that came with an older version, right is what is
    stored. An open conflict waits for a decision; the others were decided by their strategy, and are kept for review.

    \b
      hocket conflicts list
      hocket conflicts resolve ID --take left
    """


add_operations(conflicts_app, rows.conflicts, rows.conflict, rows.resolve)
