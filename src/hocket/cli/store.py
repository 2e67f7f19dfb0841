"""`hocket store`: the database behind a node. `hocket node doctor` checks a home and what it depends on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.printing import Progress, emit, notice, on_terminal, progress, say, table
from hocket.cli.settings import settings
from hocket.errors import Failed
from hocket.kernel.texts import counted
from hocket.store.artifact_rows import BlobPlace

app = App()


@app.callback()
def store() -> None:
    """Bring the tables of a store to the current version, give back its room, or move the log into another store.

    \b
      hocket store migrate --dry-run
      hocket store compact
      hocket store move ~/.hocket/log.db postgresql://hocket@db.example/hocket
    """


@app.command()
def migrate(
    address: Annotated[
        str | None, Argument("ADDRESS", "postgresql://user@host/database, or a file; default: the home's.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the SQL, and change nothing.")] = False,
) -> None:
    """Bring the tables of a store to the version of this program, in one transaction.

    Every command does so when it opens the store. This one is for a role that may not: an administrator runs it, or the
    SQL that --dry-run prints. At a new ADDRESS in PostgreSQL or libSQL it creates the tables.

    \b
      hocket store migrate --dry-run
      hocket store migrate postgresql://admin@db.example/hocket --dry-run | psql ...
    """
    from hocket.node.home import Home, default_home
    from hocket.node.home_store import migrate

    where, done = migrate(Home(settings.home or default_home()), address, dry_run=dry_run)
    emit({"store": where, "from": done.version, "to": done.current, "sql": list(done.statements), "dry_run": dry_run})
    if dry_run:
        say(done.script or f"-- {where} has version {done.current}; nothing to do", lines=True)
    elif done.statements:
        say(f"{where} has version {done.current} now; it had {done.version or 'none'}")
    else:
        say(f"{where} has version {done.current}; nothing to do")


@app.command()
def move(
    source: Annotated[str, Argument("FROM", "The home's store: its file, or postgresql://...")],
    target: Annotated[str, Argument("TO", "The new store, empty: postgresql://..., or the file.")],
    blobs: Annotated[
        BlobPlace | None,
        Option("--blobs", help="Where nodes of the new store keep large content; default: where they did."),
    ] = None,
) -> None:
    """Move the node's log into another store, from SQLite to a database server or back. Stop its workers and servers
    first.

    Every op is copied with its number, signature and link, and verified. Then the old store is marked as moved and
    refuses changes, and the home uses the new one. If the command was interrupted, repeat it: it goes on where it was.
    Blobs are copied if the old or the new store has them.

    \b
      hocket store move ~/.hocket/log.db postgresql://hocket@db.example/hocket --blobs store
      hocket store move postgresql://hocket@db.example/hocket ~/.hocket/log.db
    """
    from hocket.node.home import Home, default_home
    from hocket.node.store_move import move

    with _progress() as bar:
        done = move(Home(settings.home or default_home()), source, target, bar, blobs)
    emit(done._asdict())
    copied = f" and {counted(done.blobs, 'blob')}" if done.blobs else ""
    say(f"moved {counted(done.ops, 'op')}{copied} from {done.source} to {done.target}")
    if done.to_change is not None:
        notice(done.to_change)


@app.command()
def compact() -> None:
    """Make the file of this node's log anew, without the room that deleted rows have left. Stop its workers first.

    New files give such room back by themselves while they are used. A file of an earlier version does so once it was
    compacted. It takes room for two more copies meanwhile. If it is interrupted or killed, nothing has changed.

    \b
      hocket store compact
    """
    from hocket.cli.settings import open_runtime

    with open_runtime() as runtime, progress("compacting") as bar:
        done = runtime.compact(bar)
    emit(done._asdict())
    say(f"the file has {counted(done.after, 'byte')} now; it had {done.before}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, or else a line for each tenth."""
    if settings.as_json or on_terminal():
        with progress("moving") as bar:
            yield bar
        return
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if done * 10 // total > told:
            told = done * 10 // total
            say(f"copied {done} of {counted(total, 'op')}")

    yield tell


def doctor() -> None:
    """Check this node for problems and suggest fixes. Exit code 1 if a check fails.

    \b
      hocket node doctor
      hocket --home /srv/render node doctor --json
    """
    from hocket.api.checks import examine
    from hocket.node.home import Home, default_home

    findings = list(examine(Home(settings.home or default_home())))
    emit(findings)
    table(("", "check", "finding"), [(each.verdict, each.check, each.says) for each in findings], "")
    bad = sum(each.verdict == "bad" for each in findings)
    if bad:
        raise Failed(f"{bad} of {len(findings)} checks {'is' if bad == 1 else 'are'} bad")
