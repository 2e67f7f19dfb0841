"""`hocket conflicts`: writes of rows that met another version than their author had read."""

from hocket.cli.declarations import new_app
from hocket.cli.derived import add_operations
from hocket.service import rows

app = new_app()


@app.callback()
def conflicts_group() -> None:
    """List, show and resolve conflicts of rows. Left is the write that came with an older version, right is what is
    stored. An open conflict waits for a decision; the others were decided by their strategy, and are kept for review.

    \b
      hocket conflicts list
      hocket conflicts resolve ID --take left
    """


add_operations(app, rows.conflicts, rows.conflict, rows.resolve)
