"""Keeps the log and what is derived from it. This is the contract of every store, by concern; `sqlite` is the default
store. A store decides nothing: it gives out write transactions that exclude each other, and remembers. The ops are the
truth, together with the head (the clock and the chain's end); jobs, dependencies, routes, nodes, schedules and
artifacts are derived and can be dropped and made anew. Worker processes, rate counters, peers and invitations are this
node's own business and are on no log.
"""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from hocket.errors import Usage
from hocket.store.artifacts import Artifact, ArtifactSession
from hocket.store.intake import IntakeSession, LateOp, OverQuota, Refusal, WrittenTotals
from hocket.store.jobs import JobEntry, JobFilter, JobSession, QueueSession, Stage
from hocket.store.local import LocalSession, Place, WorkerRow
from hocket.store.locks import LockMisuse, LockSession
from hocket.store.ops import NO_LINK, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.peers import Invitation, Peer, PeerSession
from hocket.store.registers import Coordinator, Delegated, Fork, RegisterSession, Revoked, Schedule
from hocket.store.subjects import SubjectRow, SubjectSession

__all__ = [
    "MEMORY",
    "NO_LINK",
    "Artifact",
    "ArtifactSession",
    "Coordinator",
    "Delegated",
    "Fork",
    "Head",
    "IntakeSession",
    "Invitation",
    "JobEntry",
    "JobFilter",
    "JobSession",
    "LateOp",
    "LocalSession",
    "LockMisuse",
    "LockSession",
    "NewOp",
    "OpRow",
    "OpSession",
    "OverQuota",
    "Peer",
    "PeerSession",
    "Place",
    "QueueSession",
    "Refusal",
    "RegisterSession",
    "Revoked",
    "Schedule",
    "SealedOp",
    "Session",
    "Stage",
    "Store",
    "SubjectRow",
    "SubjectSession",
    "WorkerRow",
    "WrittenTotals",
    "open",
]

# The place of a store that lives and dies with its object.
MEMORY = ":memory:"


class Session(
    LockSession,
    OpSession,
    IntakeSession,
    JobSession,
    QueueSession,
    SubjectSession,
    RegisterSession,
    ArtifactSession,
    PeerSession,
    LocalSession,
    Protocol,
):
    """What can be read, and inside a write transaction written."""

    def drop_projections(self) -> None:
        """Empties all that is derived from the ops."""

    def damage(self) -> list[str]:
        """What the store itself finds wrong with what it holds; nothing, ordinarily."""


class Store(Protocol):
    def write(self) -> AbstractContextManager[Session]:
        """A write transaction: excludes every other one, durable when it ends, undone when it raises."""

    def read(self) -> AbstractContextManager[Session]:
        """One consistent view; writers are not held up."""

    def close(self) -> None: ...


def open(url: Path | str, *, create: bool = False) -> Store:
    """The store at an address: `sqlite:///srv/log.db`, or a plain path, which is SQLite's too. A store that does not
    exist is made only with `create`. Raises Usage for an address of another kind.
    """
    address = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(.*)", str(url))
    if address is not None and (address[1] != "sqlite" or not address[2].startswith("/")):
        raise Usage(f"no store is known at {url}; give a path, or sqlite:///path with the whole path")
    from hocket.store.sqlite import SqliteStore

    return SqliteStore(url if address is None else unquote(address[2]), create=create)
