"""PostgreSQL's errors as sentences for the user. They name the store by its address without the password, and say what
to do.
"""

from typing import NoReturn

import psycopg
from psycopg import errors

from hocket.errors import HocketError, StoreAway, StoreError, StoreLocked, StoreStarting, Usage

LOCK_WAIT_S = 30
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
_SENTENCES: tuple[tuple[tuple[type[psycopg.Error], ...], str], ...] = (
    (
        (errors.ReadOnlySqlTransaction,),
        "is read-only, as a replica is; give the address of the primary server",
    ),
    ((errors.DiskFull,), "has no space left on its disk; the change was not kept, free some space and repeat it"),
    (
        (errors.InsufficientPrivilege,),
        "does not let this role do that ({error}); grant it the rights that docs/postgres.md lists",
    ),
    (
        (errors.UndefinedTable, errors.UndefinedColumn, errors.DataCorrupted, errors.IndexCorrupted),
        "is damaged ({error}); run `hocket doctor` to see what is wrong, and restore a backup if need be",
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
