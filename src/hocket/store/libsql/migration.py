"""The tables of a libSQL store: those of SQLite, by the same numbered steps, and a table with their version, because
the server lets nobody write SQLite's own marks. The write lock lets one process at a time look and change, however many
start at once. A database of a newer program, or with tables that are not ours, is refused and left as it is.
"""

from hocket.errors import StoreError
from hocket.store.libsql.connection import LibsqlConnection
from hocket.store.migration import Migration
from hocket.store.sqlite import VERSION, table_steps

_MARK = "hocket_version"
# Many nodes write here, so the sequences of authors are indexed from the start.
_AUTHORS = "CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc);"

# Rows of version 10 have no MAC. These end with the processes that wrote them.
_WITHOUT_MAC = "DELETE FROM workers WHERE mac = x''; DELETE FROM lock_requests WHERE mac = x'';"


def check_and_migrate(connection: LibsqlConnection, shown: str, create: bool) -> None:
    """Brings a new or an older store to the current version."""
    connection.begin_read()
    version = stored_version(connection, shown)
    connection.roll_back()
    if version == VERSION:
        return
    if version == 0 and not create:
        raise StoreError(f"{shown} has no Hocket store; create one with `hocket init --store`")
    connection.begin_write()
    version = stored_version(connection, shown)
    if version < VERSION:
        connection.run_script("\n".join(migration(version)))
    connection.commit()


def planned_migration(connection: LibsqlConnection, shown: str) -> Migration:
    connection.begin_read()
    version = stored_version(connection, shown)
    return Migration(version, VERSION, tuple(migration(version)))


def migration(version: int) -> list[str]:
    """The SQL that brings a store from this version to the current one."""
    if version == VERSION:
        return []
    mark = f"UPDATE {_MARK} SET version = {VERSION};"
    if version == 0:
        mark = f"CREATE TABLE {_MARK} (version INTEGER NOT NULL) STRICT; INSERT INTO {_MARK} VALUES ({VERSION});"
    return [*table_steps(version), _WITHOUT_MAC, _AUTHORS, mark]


def stored_version(connection: LibsqlConnection, shown: str) -> int:
    """The version of the store in the database, 0 for none."""
    sql = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'libsql_%'"
    names = {name for (name,) in connection.execute(sql)}
    if not names:
        return 0
    if _MARK not in names:
        raise StoreError(f"{shown} has tables of another program; choose another database")
    row = connection.execute(f"SELECT version FROM {_MARK}").fetchone()
    if row is None:
        raise StoreError(f"{shown} is damaged (it has lost its version); restore a backup")
    version = int(row[0])
    if version > VERSION:
        raise StoreError(
            f"{shown} has version {version}, this program knows up to {VERSION}; upgrade Hocket, nothing was changed"
        )
    return version
