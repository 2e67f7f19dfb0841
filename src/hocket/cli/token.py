"""`hocket token`: the tokens of programs that use this node over HTTP."""

from hocket.api import programs
from hocket.cli.declarations import new_app
from hocket.cli.derived import add_operations

app = new_app()


@app.callback()
def token_group() -> None:
    """Tokens of programs that use this node over HTTP, while `hocket serve` runs.

    \b
      hocket token create ci --may lock:acquire:file:src/ --expires 30d
      hocket token list
      hocket token revoke ci
    """


add_operations(app, programs.create, programs.listing, programs.revoke)
