"""The way to a PostgreSQL server: its address, connections to it, and its errors as sentences for the user, which name
the store by its address without the password and say what to do.

An address is one of libpq's, `postgresql://user@host:port/database?sslmode=require`, and libpq's variables (PGPASSFILE,
PGSERVICE, PGHOST, …) fill in the rest. The parameter `schema` is ours. A password never appears in a message.

Behind a pooler in transaction mode, such as PgBouncer, each transaction may get another session of the server, so
nothing may be kept in one: no prepared statement with a name.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hocket.errors import HocketError, StoreAway, StoreError, StoreLocked, StoreStarting, Usage
from hocket.store.connections import LOCK_WAIT_S
from hocket.store.postgres.exchange import Connection

# PostgreSQL ends a transaction whose process does nothing for this long: a process that is stopped holds up no others.
IDLE_S = 20

# Errors of a server that is about to restart, or has not started yet.
RESTARTING = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)

# What libpq says when it cannot connect, and what to do. Its errors have no code then. Other refusals may pass.
_REFUSALS = (
    (("password authentication failed", "no password supplied"), "check PGPASSFILE, PGPASSWORD or HOCKET_STORE"),
    (("no encryption", "does not support SSL", "SSL off", "certificate"), "check sslmode and sslrootcert"),
    (("no pg_hba.conf entry",), "ask its administrator to let this role and address in (pg_hba.conf)"),
    (("role ", "does not exist"), "check the role's name, or create it"),
    (("database ", "does not exist"), "check the database's name, or create it with `createdb`"),
    (("failed to resolve host", "translate host name"), "check the host's name, and this machine's name service"),
)
_FULL_HOUSE = ("too many clients", "connection slots", "too many connections")
_STARTING = ("starting up", "shutting down", "recovery", "not yet accepting connections")
# What libpq says of a server that takes no writes, if the address asks for one that does.
_READ_ONLY = ("session is read-only", "server is in hot standby mode")
_SENTENCES: tuple[tuple[tuple[type[psycopg.Error], ...], str], ...] = (
    (
        (errors.ReadOnlySqlTransaction,),
        "is read-only, as a replica is; give the address of the primary server, or all servers with"
        " target_session_attrs=read-write",
    ),
    ((errors.DiskFull,), "has no space left on its disk; the change was not kept, free some space and repeat it"),
    (
        (errors.InsufficientPrivilege,),
        "does not let this role do that ({error}); grant it the rights that docs/postgres.md lists",
    ),
    (
        (errors.UndefinedTable, errors.UndefinedColumn, errors.DataCorrupted, errors.IndexCorrupted),
        "is damaged ({error}); run `hocket node doctor` to see what is wrong, and restore a backup if need be",
    ),
    (
        (errors.IdleInTransactionSessionTimeout,),
        f"ended a transaction in which this process did nothing for {IDLE_S} seconds; repeat the change",
    ),
    ((psycopg.OperationalError,), "broke off ({error}); the change was not kept, check the server and repeat it"),
)

# What may pass by itself.
_PASSING = (errors.DiskFull,), (errors.IdleInTransactionSessionTimeout,), (psycopg.OperationalError,)


def connecting(shown: str, error: psycopg.Error) -> StoreError:
    """The error of a connection that could not be made."""
    if any(sign in str(error) for sign in _READ_ONLY):
        return StoreStarting(
            f"cannot connect to {shown}: none of these servers takes writes, and one is a standby; wait until it is"
            " promoted, or start the primary server"
        )
    reason = first_line(error).rpartition("FATAL:")[2].strip()
    for signs, remedy in _REFUSALS:
        if all(sign in reason for sign in signs) if signs[-1] == "does not exist" else any(s in reason for s in signs):
            return StoreError(f"cannot connect to {shown}: {reason}; {remedy}")
    if any(sign in reason for sign in _STARTING):
        return StoreStarting(f"cannot connect to {shown}: {reason}; repeat in a moment")
    is_full = any(sign in reason for sign in _FULL_HOUSE)
    remedy = "raise max_connections, or stop some programs" if is_full else "is the server running there?"
    return StoreAway(f"cannot connect to {shown}: {reason}; {remedy}")


def raise_explained(shown: str, error: BaseException) -> NoReturn:
    """Raises an error of PostgreSQL as a sentence for the user, and every other error as it is."""
    sentence = _explained(shown, error)
    if sentence is None:
        raise error
    raise sentence from error


def _explained(shown: str, error: BaseException) -> HocketError | None:
    if isinstance(error, errors.LockNotAvailable):
        return StoreLocked(
            f"{shown} was locked by another transaction for {LOCK_WAIT_S} seconds; find it in pg_stat_activity"
        )
    if isinstance(error, psycopg.DataError) and "NUL" in str(error):
        return Usage("a text contains the character NUL, which PostgreSQL cannot store; remove it")
    for kinds, sentence in _SENTENCES:
        if isinstance(error, kinds):
            kind = StoreStarting if isinstance(error, RESTARTING) else StoreAway if kinds in _PASSING else StoreError
            return kind(f"{shown} {sentence.format(error=first_line(error))}")
    return None


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


SCHEMA_DEFAULT = "hocket"
# How long to wait for a connection, unless the address or libpq's variable says so.
CONNECT_S = 10
# A machine that is lost says nothing. The system asks it after so many seconds without a word, and again, and ends the
# connection without an answer; unless the address says otherwise.
_KEEPALIVE: Mapping[str, int] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_SCHEMA = "schema"
_SESSION = "target_session_attrs"
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class DatabaseAddress(NamedTuple):
    """`conninfo` is for libpq and may contain a password; `shown` does not. With `has_standby` it names several hosts.
    `is_pooled` is known after the first connection: a pooler stands before the server.
    """

    conninfo: str
    schema: str
    shown: str
    has_standby: bool = False
    is_pooled: bool = False


def read_address(url: str, *, takes_writes: bool = True) -> DatabaseAddress:
    """Of several hosts, the one that `takes_writes` is used, unless the address or libpq's variable says otherwise."""
    base, _, query = url.partition("?")
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        rest = urlencode([(name, value) for name, value in given if name != _SCHEMA], quote_via=quote)
        conninfo = f"{base}?{rest}" if rest else base
        settings = conninfo_to_dict(conninfo)
        if not re.fullmatch(r"[0-9,]*", str(settings.get("port", ""))) or "@" in str(settings.get("dbname", "")):
            raise ValueError("the password has a slash, and a part of it passes for the port or the database")
    except (ValueError, psycopg.Error):
        # The reason would repeat a part of the address, which may be one of the password.
        raise Usage(
            "cannot read the store's address; write postgresql://user@host:port/database, with special characters"
            " percent-encoded and only parameters that libpq knows"
        ) from None
    schema = dict(given).get(_SCHEMA, SCHEMA_DEFAULT)
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise Usage(
            f"bad schema {schema!a} in the store's address: use small letters, digits and _, up to 63 characters"
        )
    if "connect_timeout" not in settings and "PGCONNECT_TIMEOUT" not in os.environ:
        conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_S)
    conninfo = make_conninfo(conninfo, **{name: each for name, each in _KEEPALIVE.items() if name not in settings})
    has_standby = "," in str(settings.get("host", os.environ.get("PGHOST", "")))
    if takes_writes and has_standby and not {_SESSION, "PGTARGETSESSIONATTRS"} & {*settings, *os.environ}:
        conninfo = make_conninfo(conninfo, target_session_attrs="read-write")
    known = make_conninfo(conninfo, fallback_application_name="hocket")
    return DatabaseAddress(known, schema, _shown(settings, schema), has_standby)


def _shown(settings: Mapping[str, object], schema: str) -> str:
    user = f"{settings['user']}@" if "user" in settings else ""
    hosts, ports = str(settings.get("host", "")).split(","), str(settings.get("port", "")).split(",")
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports * len(hosts), strict=False)]
    schema_used = "" if schema == SCHEMA_DEFAULT else f"?{_SCHEMA}={schema}"
    return f"postgresql://{user}{','.join(places)}/{settings.get('dbname', '')}{schema_used}"


# A statement that is repeated so often is prepared.
PREPARE_AFTER = 5


def connect(address: DatabaseAddress) -> Connection:
    try:
        prepare_threshold = None if address.is_pooled else PREPARE_AFTER
        return Connection.connect(address.conninfo, autocommit=True, prepare_threshold=prepare_threshold)
    except psycopg.Error as error:
        raise connecting(address.shown, error) from None


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler answers in place of the server: the pooler makes up the number of the server's process."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return row is not None and row[0] != connection.info.backend_pid
