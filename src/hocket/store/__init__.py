"""Keeps the log and everything derived from it. This is the contract of every store, by concern; `sqlite` is the
default store. A store decides nothing: it runs write transactions that exclude each other, and remembers. The ops are
the truth, together with the head (the clock and the chain's end). Jobs, dependencies, routes, nodes, schedules and
artifacts are derived: they can be dropped and rebuilt. Worker processes, rate counters, peers and invitations concern
this node alone and are on no log.
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
from hocket.store.lock_requests import BoundRequest, LockRequestSession
from hocket.store.locks import LockMisuse, LockSession
from hocket.store.ops import NO_LINK, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.peers import Invitation, Peer, PeerSession, Presence
from hocket.store.registers import Coordinator, Delegated, Fork, RegisterSession, Revoked, Schedule
from hocket.store.subjects import SubjectRow, SubjectSession

__all__ = [
    "MEMORY",
    "NO_LINK",
    "Artifact",
    "ArtifactSession",
    "BoundRequest",
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
    "LockRequestSession",
    "LockSession",
    "NewOp",
    "OpRow",
    "OpSession",
    "OverQuota",
    "Peer",
    "PeerSession",
    "Place",
    "Presence",
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

# The address of a store in memory, which is gone when it is closed.
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
    LockRequestSession,
    Protocol,
):
    """What a transaction can read, and a write transaction also write."""

    def drop_projections(self) -> None:
        """Drops everything that is derived from the ops."""

    def damage(self) -> list[str]:
        """The faults that the store finds in its own data; normally none."""


class Store(Protocol):
    def write(self) -> AbstractContextManager[Session]:
        """A write transaction: excludes every other one, is durable when it ends, and is undone when it raises."""

    def read(self) -> AbstractContextManager[Session]:
        """One consistent view; it does not block writers."""

    def trim(self) -> None:
        """Gives back disk space that earlier transactions took, if it is much. Blocks writers only briefly."""

    def close(self) -> None: ...


def open(url: Path | str, *, create: bool = False) -> Store:
    """The store at an address: `sqlite:///srv/log.db`, or a plain path, which means SQLite too. Creates a missing store
    only with `create`. Raises Usage for an unknown kind of address.
    """
    address = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(.*)", str(url))
    if address is not None and (address[1] != "sqlite" or not address[2].startswith("/")):
        raise Usage(f"unknown store address {url}; give a path, or sqlite:///path with an absolute path")
    from hocket.store.sqlite import SqliteStore

    return SqliteStore(url if address is None else unquote(address[2]), create=create)
