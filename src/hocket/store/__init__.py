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
from typing import Protocol
from urllib.parse import unquote

from hocket.errors import Usage
from hocket.kernel.row_mac import RowMac
from hocket.store.artifacts import Artifact, ArtifactSession
from hocket.store.blobs import BlobTable
from hocket.store.intake import IntakeSession, LateOp, OverQuota, Refusal, WrittenTotals
from hocket.store.jobs import IsLeft, JobEntry, JobFilter, Stage
from hocket.store.listening import NOTE_BYTES_MAX, NoNotes, NoteListener, NoteSession, WakeUp
from hocket.store.local import LocalSession, Place, WorkerRow
from hocket.store.lock_requests import BoundRequest, LockRequestSession
from hocket.store.locks import LockMisuse, LockSession, MustBeAlone, Outdated
from hocket.store.messages import DeliveryStage, MessageSession, QueuedDelivery
from hocket.store.migration import Migration
from hocket.store.ops import NO_LINK, NO_SEAL, EndSeal, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.peers import PEER_NEW, PEER_OK, Invitation, Peer, PeerSession
from hocket.store.presence import AgentRow, Presence, PresenceSession, ProgressRow
from hocket.store.registers import Coordinator, Delegated, Fork, RegisterSession, Revoked, Schedule
from hocket.store.roster import JobSession
from hocket.store.row_check import RowCheck, RowChecks
from hocket.store.row_macs import EndedMacs, RowWithoutMac
from hocket.store.rows import RowSession
from hocket.store.session import Session
from hocket.store.subjects import SubjectRow, SubjectSession
from hocket.store.tokens import AnswerRow, TokenRow, TokenSession
from hocket.store.unlogged import UnloggedSession

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
    "BlobTable",
    "BoundRequest",
    "Coordinator",
    "Delegated",
    "DeliveryStage",
    "EndSeal",
    "Fork",
    "Head",
    "IntakeSession",
    "Invitation",
    "IsLeft",
    "JobEntry",
    "JobFilter",
    "JobSession",
    "LateOp",
    "LocalSession",
    "LockMisuse",
    "LockRequestSession",
    "LockSession",
    "MessageSession",
    "Migration",
    "MustBeAlone",
    "NewOp",
    "NoteListener",
    "NoteSession",
    "OpRow",
    "OpSession",
    "Outdated",
    "OverQuota",
    "Peer",
    "PeerSession",
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
    "RowSession",
    "RowWithoutMac",
    "Schedule",
    "SealedOp",
    "Session",
    "Stage",
    "Store",
    "SubjectRow",
    "SubjectSession",
    "TokenRow",
    "TokenSession",
    "UnloggedSession",
    "WakeUp",
    "WorkerRow",
    "WrittenTotals",
    "blob_table",
    "has_blob_table",
    "is_libsql",
    "is_server",
    "listener",
    "open",
    "planned",
    "read_replica",
]

# The address of a store in memory, which is gone when it is closed.
MEMORY = ":memory:"
# How the addresses of stores in PostgreSQL begin: libpq knows both.
_POSTGRES_SCHEMES = ("postgresql", "postgres")
# How those of stores in libSQL begin, as its own programs write them.
_LIBSQL_SCHEMES = ("libsql", "https", "http")
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

    def trim(self) -> None:
        """Gives back disk space that earlier transactions took, if it is much. Blocks writers only briefly."""

    def close(self) -> None: ...


class ReadReplica(Protocol):
    """A copy of a store, which another program keeps."""

    def read(self) -> AbstractContextManager[Session] | None:
        """A view, or None if the copy cannot give one now that has what this home wrote."""

    def close(self) -> None:
        """Call it after the last write, before the store is closed."""


def open(url: Path | str, *, create: bool = False) -> Store:
    """The store at an address: `sqlite:///srv/log.db`, or a plain path, which means SQLite too, or
    `postgresql://user@host/database`, or `libsql://host`. Brings its tables to the current version. Creates a missing
    store only with `create`. Raises Usage for an unknown kind of address.
    """
    if is_libsql(url):
        from hocket.store.libsql import LibsqlStore

        return LibsqlStore(str(url), create=create)
    if is_server(url):
        with _needs_psycopg():
            from hocket.store.postgres import PostgresStore
        return PostgresStore(str(url), create=create)
    path = _file(url)
    from hocket.store.sqlite import SqliteStore

    return SqliteStore(path, create=create)


def planned(url: Path | str) -> Migration:
    """What `open` would do to the tables there, with `create` if there are none. Changes nothing."""
    if is_libsql(url):
        from hocket.store.libsql import planned as planned_in_libsql

        return planned_in_libsql(str(url))
    if is_server(url):
        with _needs_psycopg():
            from hocket.store.postgres import planned as planned_there
        return planned_there(str(url))
    path = _file(url)
    from hocket.store.sqlite import planned as planned_here

    return planned_here(str(path))


def read_replica(primary: Store, url: str, noted: Path) -> ReadReplica:
    """A streaming replica of a store in PostgreSQL. In the file `noted` the processes of a home tell each other how far
    the primary was when they last wrote to it.
    """
    from hocket.store.postgres import PostgresStore
    from hocket.store.postgres.read_replica import StreamingReplica

    assert isinstance(primary, PostgresStore)
    return StreamingReplica(primary, url, noted)


def is_server(url: Path | str) -> bool:
    """Whether a database server has the store of this address."""
    return _scheme(url) in (*_POSTGRES_SCHEMES, *_LIBSQL_SCHEMES)


def is_libsql(url: Path | str) -> bool:
    """Whether that is a libSQL server."""
    return _scheme(url) in _LIBSQL_SCHEMES


def _scheme(url: Path | str) -> str:
    scheme, separator, _ = str(url).partition("://")
    return scheme if separator else ""


def _file(url: Path | str) -> Path | str:
    """The path in an address of SQLite."""
    address = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(.*)", str(url)) if "://" in str(url) else None
    if address is None:
        return url
    if address[1] != "sqlite" or not address[2].startswith("/"):
        raise Usage(
            f"unknown store address {address[1]}://…; give a path, sqlite:///path with an absolute path, {SERVER_FORMS}"
        )
    return unquote(address[2])


def listener(url: Path | str, direct: str | None = None) -> NoteListener | None:
    """Hears the notes of the store at an address; `direct` is the way past a pooler. None for a store of one machine,
    which carries none.
    """
    if not is_server(url):
        return None
    if is_libsql(url):
        return NoNotes()
    from hocket.store.postgres.listening import PostgresListener

    return PostgresListener(str(url), direct)


def has_blob_table(url: Path | str) -> bool:
    """Whether the store of this address can keep blobs."""
    return _scheme(url) in _POSTGRES_SCHEMES


def blob_table(url: str) -> BlobTable:
    """The blobs in the store that a database server has. Connects when it is first used."""
    from hocket.store.postgres.blobs import PostgresBlobs

    return PostgresBlobs(url)


@contextmanager
def _needs_psycopg() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise Usage("a store in PostgreSQL needs psycopg; install hocket[postgres]") from error
