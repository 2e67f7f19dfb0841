"""`hocket store`: the database behind a node."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import HomeOption, JsonOption, settings

app = new_app()


@app.callback()
def store() -> None:
    """Bring the tables of a store to the current version."""


@app.command()
def migrate(
    address: Annotated[
        str | None,
        typer.Argument(metavar="ADDRESS", help="postgresql://user@host/database, or a file; default: the home's."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and change nothing.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the tables of a store to the version of this program, in one transaction.

    Every command does so when it opens the store. This one is for a role that may not: an administrator runs it, or the
    SQL that --dry-run prints. At a new ADDRESS in PostgreSQL it creates the tables.

    \b
      hocket store migrate --dry-run
      hocket store migrate postgresql://admin@db.example/hocket --dry-run | psql ...
    """
    from hocket.node.home import Home, default_home
    from hocket.node.store_migration import migrate

    where, done = migrate(Home(settings.home or default_home()), address, dry_run=dry_run)
    emit({"store": where, "from": done.version, "to": done.current, "sql": list(done.statements), "dry_run": dry_run})
    if dry_run:
        say(done.script or f"-- {where} has version {done.current}; nothing to do", lines=True)
    elif done.statements:
        say(f"{where} has version {done.current} now; it had {done.version or 'none'}")
    else:
        say(f"{where} has version {done.current}; nothing to do")
