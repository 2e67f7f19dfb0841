"""The tables of a PostgreSQL store, in a schema of their own, by numbered steps. A lock lets one process at a time look
and change, however many start at once. A schema of a newer program, or with tables that are not ours, is refused and
left as it is.
"""

from importlib.resources import files

from psycopg import errors, sql

from hocket.errors import StoreError
from hocket.store.connections import Migration
from hocket.store.postgres.connecting import DatabaseAddress, first_line
from hocket.store.postgres.exchange import Connection

VERSION = 11
_STEPS = ("schema.sql", *(f"schema_{version}.sql" for version in range(2, VERSION + 1)))
# The first half of the key of the lock: "HOCK".
_LOCK = 0x484F434B
_MARK = "hocket_version"


def check_and_migrate(connection: Connection, address: DatabaseAddress, create: bool) -> None:
    """Brings a new or an older store to the current version."""
    version = None
    try:
        version = stored_version(connection, address)
        if version == VERSION:
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, address.schema))
            version = stored_version(connection, address)
            if version == 0 and not create:
                raise StoreError(f"{address.shown} has no Hocket store; create one with `hocket init --store`")
            _check_rights(connection, address.schema)
            for step in migration(address, version):
                connection.execute(step, prepare=False)
    except errors.InsufficientPrivilege as error:
        role = sql.Identifier(connection.info.user).as_string(connection)
        remedy = _remedy(connection, address.schema, version, role)
        raise StoreError(f"{address.shown} does not let role {role} do that ({first_line(error)}); {remedy}") from error


def _check_rights(connection: Connection, schema: str) -> None:
    """Without the right to use the schema, PostgreSQL would pass it over and create the tables as temporary ones."""
    may = "SELECT bool_and(has_schema_privilege(oid, each)) FROM pg_namespace, unnest(ARRAY['USAGE', 'CREATE']) AS each"
    ((is_allowed,),) = connection.execute(f"{may} WHERE nspname = %s", (schema,))
    if is_allowed is False:
        raise errors.InsufficientPrivilege(f"permission denied for schema {schema}")


def _remedy(connection: Connection, schema: str, version: int | None, role: str) -> str:
    """What lets a role use a store that it may not create, read or change. A `version` of None could not be read."""
    if version is None:
        rights = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        return f"an administrator can run: GRANT USAGE ON SCHEMA {schema} TO {role}; {rights}"
    if version > 0:
        return (
            f"its tables have version {version} and need version {VERSION}: their owner can run `hocket store migrate`,"
            " or the SQL that `hocket store migrate --dry-run` prints"
        )
    ((has_schema,),) = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (schema,))
    made = f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}" if has_schema else ""
    return f"an administrator can run: {made or f'CREATE SCHEMA {schema} AUTHORIZATION {role}'}"


def planned_migration(connection: Connection, address: DatabaseAddress) -> Migration:
    version = stored_version(connection, address)
    return Migration(version, VERSION, tuple(migration(address, version)))


def migration(address: DatabaseAddress, version: int) -> list[str]:
    """The SQL that brings a store from this version to the current one."""
    if version == VERSION:
        return []
    schema = address.schema
    # An administrator may have made the schema for a role that may not.
    missing = f"to_regnamespace('{schema}') IS NULL"
    start = [f"DO $$ BEGIN IF {missing} THEN CREATE SCHEMA {schema}; END IF; END $$"] if version == 0 else []
    start.append(f"SET LOCAL search_path = {schema}, pg_temp")
    steps = [files("hocket.store.postgres").joinpath(step).read_text() for step in _STEPS[version:]]
    mark = f"UPDATE {_MARK} SET version = {VERSION}"
    if version == 0:
        mark = f"CREATE TABLE {_MARK} (version INTEGER NOT NULL); INSERT INTO {_MARK} VALUES ({VERSION})"
    return [*start, *steps, mark]


def stored_version(connection: Connection, address: DatabaseAddress) -> int:
    """The version of the store in the schema, 0 for none."""
    names = {
        name
        for (name,) in connection.execute(
            "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s",
            (address.schema,),
        )
    }
    if not names:
        return 0
    if _MARK not in names:
        raise StoreError(
            f"{address.shown} has tables of another program in its schema {address.schema};"
            " add ?schema=NAME to the address to choose another one"
        )
    mark = sql.SQL("SELECT version FROM {}").format(sql.Identifier(address.schema, _MARK))
    version = int(next(iter(connection.execute(mark)))[0])
    if version > VERSION:
        raise StoreError(
            f"{address.shown} has version {version}, this program knows up to {VERSION};"
            " upgrade Hocket, nothing was changed"
        )
    return version
