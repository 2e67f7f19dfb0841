"""Keeps the log and everything derived from it. This is the contract of every store, by concern; `sqlite` is the
default store, `postgres` and `libsql` are those in a database server. A store decides nothing: it runs write
transactions, which exclude each other or lock what they decide on, and remembers. The ops are the truth, together with
the head (the clock and the chain's end). Jobs, dependencies, routes, nodes, schedules and artifacts are derived: they
can be dropped and rebuilt. Worker processes, rate counters, peers, invitations, presence and the tokens of programs
concern this node alone and are on no log.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from hocket.errors import Usage
from hocket.kernel.keys import RowMac
from hocket.store.artifact_rows import Artifact, ArtifactSession, BlobTable
from hocket.store.connections import DB_TOKEN, NOTE_BYTES_MAX, Compacted, Migration, NoteListener, WakeUp
from hocket.store.intake import IntakeSession, LateOp, OverQuota, Refusal, WrittenTotals
from hocket.store.job_pages import JobCount, JobPage
from hocket.store.job_rows import IsLeft, JobEntry, JobFilter, Stage
from hocket.store.local import (
    PEER_NEW,
    PEER_OK,
    AnswerRow,
    BoundRequest,
    Invitation,
    LocalSession,
    Peer,
    Place,
    TokenRow,
    WorkerRow,
)
from hocket.store.message_rows import DeliveryStage, MessageSession, QueuedDelivery
from hocket.store.op_rows import NO_LINK, NO_SEAL, EndSeal, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.presence_rows import AgentRow, Presence, PresenceSession, ProgressRow
from hocket.store.registers import Coordinator, Delegated, Fork, RegisterSession, Revoked, Schedule, SuccessionRow
from hocket.store.roster import JobSession
from hocket.store.session import RowCheck, RowChecks, Session
from hocket.store.statements import EndedMacs, LockMisuse, LockSession, MustBeAlone, Outdated, RowWithoutMac
from hocket.store.subjects import SubjectRow, SubjectSession

__all__ = [
    "MEMORY",
    "NOTE_BYTES_MAX",
    "NO_LINK",
    "NO_SEAL",
    "PEER_NEW",
    "PEER_OK",
    "SERVER_FORMS",
    "AgentRow",
    "AnswerRow",
    "Artifact",
    "ArtifactSession",
    "Backend",
    "BlobTable",
    "BoundRequest",
    "Compacted",
    "Coordinator",
    "Delegated",
    "DeliveryStage",
    "EndSeal",
    "Fork",
    "Head",
    "IntakeSession",
    "Invitation",
    "IsLeft",
    "JobCount",
    "JobEntry",
    "JobFilter",
    "JobPage",
    "JobSession",
    "LateOp",
    "LocalSession",
    "LockMisuse",
    "LockSession",
    "MessageSession",
    "Migration",
    "MustBeAlone",
    "NewOp",
    "NoteListener",
    "OpRow",
    "OpSession",
    "Outdated",
    "OverQuota",
    "Peer",
    "Place",
    "Presence",
    "PresenceSession",
    "ProgressRow",
    "QueuedDelivery",
    "ReadReplica",
    "Refusal",
    "RegisterSession",
    "Revoked",
    "RowCheck",
    "RowChecks",
    "RowWithoutMac",
    "Schedule",
    "SealedOp",
    "Session",
    "Stage",
    "Store",
    "SubjectRow",
    "SubjectSession",
    "SuccessionRow",
    "TokenRow",
    "WakeUp",
    "WorkerRow",
    "WrittenTotals",
    "backend",
    "open",
]

# The address of a store in memory, which is gone when it is closed.
MEMORY = ":memory:"
# What an address of a store in a database server looks like.
SERVER_FORMS = "postgresql://user@host/database or libsql://host"


class Store(Protocol):
    @property
    def server_clock(self) -> Callable[[], float] | None:
        """The seconds since the epoch by the clock of a server whose store nodes share. None for a store of one node,
        which goes by its machine's clock.
        """

    def check_rows(self, checks: RowChecks) -> None:
        """From now on sessions of a store that nodes share leave out rows that do not stand these checks."""

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> AbstractContextManager[Session]:
        """A write transaction: excludes every other one, is durable when it ends, and is undone when it raises. With
        the id of the node that writes, a shared store lets it run beside those of other authors. `at_end` is for a
        transaction that only appends to the log: it begins with the end of the log locked.
        """

    def read(self) -> AbstractContextManager[Session]:
        """One consistent view; it does not block writers."""

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        """Says which node uses the store. Rows beside the log that are of one node get its MAC, and it sees no others.
        In a store of one node it adds the MACs to those of an older program. `ended` are rows that count no more.
        """

    def trim(self) -> bool:
        """Gives back disk space that earlier transactions took, if it is much. Blocks writers only briefly. Whether it
        has more to give back.
        """

    def close(self) -> None: ...


class ReadReplica(Protocol):
    """A copy of a store, which another program keeps."""

    def read(self) -> AbstractContextManager[Session] | None:
        """A view, or None if the copy cannot give one now that has what this home wrote."""

    def close(self) -> None:
        """Call it after the last write, before the store is closed."""


class Backend(NamedTuple):
    """A kind of database, and what it offers. An address is of the one that `backend` gives for it."""

    name: str
    open: Callable[[str, bool], Store]
    """Opens the store at an address, which may be created."""
    migration: Callable[[str], Migration]
    """What opening the store would do to the tables there, or creating it if there are none. Changes nothing."""
    is_server: bool = True
    """Whether the database is in a server, so that nodes can share it."""
    token: str | None = None
    """The variable with the token that the server wants."""
    blobs: Callable[[str], BlobTable] | None = None
    """The blobs in the store at an address. Connects when it is first used."""
    listener: Callable[[str, str | None], NoteListener] | None = None
    """Hears the notes of the store at an address. A second address is the way past a pooler."""
    compact: Callable[[str, Callable[[int, int], None]], Compacted] | None = None
    """Makes the file at an address anew without its free space; it gives the progress in bytes."""
    replica: Callable[[Store, str, Path], ReadReplica] | None = None
    """A streaming replica of a store. In the file the processes of a home tell each other how far the primary was when
    they last wrote to it.
    """


def _open_file(url: str, create: bool) -> Store:
    from hocket.store.sqlite import SqliteStore

    return SqliteStore(_path(url), create=create)


def _compact_file(url: str, progress: Callable[[int, int], None]) -> Compacted:
    from hocket.store.sqlite.space import compact

    return compact(Path(_path(url)), progress)


def _migration_of_file(url: str) -> Migration:
    from hocket.store.sqlite import planned

    return planned(_path(url))


def _path(url: str) -> str:
    """The path in an address of SQLite."""
    address = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(.*)", url) if "://" in url else None
    if address is None:
        return url
    if address[1] != "sqlite" or not address[2].startswith("/"):
        raise Usage(
            f"unknown store address {address[1]}://…; give a path, sqlite:///path with an absolute path, {SERVER_FORMS}"
        )
    return unquote(address[2])


def _open_libsql(url: str, create: bool) -> Store:
    from hocket.store.libsql import LibsqlStore

    return LibsqlStore(url, create=create)


def _migration_in_libsql(url: str) -> Migration:
    from hocket.store.libsql import planned

    return planned(url)


def _open_postgres(url: str, create: bool) -> Store:
    with _needs_psycopg():
        from hocket.store.postgres import PostgresStore
    return PostgresStore(url, create=create)


def _migration_in_postgres(url: str) -> Migration:
    with _needs_psycopg():
        from hocket.store.postgres import planned
    return planned(url)


def _blobs_in_postgres(url: str) -> BlobTable:
    from hocket.store.postgres.blobs import PostgresBlobs

    return PostgresBlobs(url)


def _listener_in_postgres(url: str, direct: str | None) -> NoteListener:
    from hocket.store.postgres.listening import PostgresListener

    return PostgresListener(url, direct)


def _replica_of_postgres(primary: Store, url: str, noted: Path) -> ReadReplica:
    from hocket.store.postgres import PostgresStore
    from hocket.store.postgres.read_replica import StreamingReplica

    assert isinstance(primary, PostgresStore)
    return StreamingReplica(primary, url, noted)


@contextmanager
def _needs_psycopg() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise Usage("a store in PostgreSQL needs psycopg; install hocket[postgres]") from error


_SQLITE = Backend("SQLite", _open_file, _migration_of_file, is_server=False, compact=_compact_file)
_LIBSQL = Backend("libSQL", _open_libsql, _migration_in_libsql, token=DB_TOKEN)
_POSTGRES = Backend(
    "PostgreSQL",
    _open_postgres,
    _migration_in_postgres,
    blobs=_blobs_in_postgres,
    listener=_listener_in_postgres,
    replica=_replica_of_postgres,
)
# How the addresses begin: libpq knows both of its own, and libSQL's programs write all three.
_SCHEMES = {
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "libsql": _LIBSQL,
    "https": _LIBSQL,
    "http": _LIBSQL,
}


def backend(url: Path | str) -> Backend:
    """What the database of an address offers. An address of no known kind is a path."""
    scheme, separator, _ = str(url).partition("://")
    return _SCHEMES.get(scheme, _SQLITE) if separator else _SQLITE


def open(url: Path | str, *, create: bool = False) -> Store:
    """The store at an address: `sqlite:///srv/log.db`, or a plain path, which means SQLite too, or
    `postgresql://user@host/database`, or `libsql://host`. Brings its tables to the current version. Creates a missing
    store only with `create`. Raises Usage for an unknown kind of address.
    """
    return backend(url).open(str(url), create)
