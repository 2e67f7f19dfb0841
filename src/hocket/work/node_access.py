"""A node as its parts see it: the worker, the maintenance, the exchanges with peers and the job handles all get the
same object. `node.Node` is the real one; a simulated node runs on virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from hocket.bus.changes import ANYTHING, Changes
from hocket.work.arbiter import Arbiter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from hocket.bus.listener import Listener
    from hocket.families.jobs.rules import Job
    from hocket.log import Log, Transaction
    from hocket.store import Session
    from hocket.work.blobs import Blobs
    from hocket.work.jobs import Result
    from hocket.work.run_outputs import RunServices

T = TypeVar("T")


class NodeAccess(Arbiter, Protocol):
    """Requests and queries do not block the event loop. Requests that wait at the same time are committed together."""

    @property
    def log(self) -> Log: ...

    @property
    def blobs(self) -> Blobs: ...

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view whose roster has every submitted job."""

    async def peek(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view, without waiting until the roster has the newest submits."""

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a long blocking function off the event loop, in parallel with requests and queries."""

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""

    def listen(self, topics: Changes) -> Listener:
        """Listens for every change of this node that matches the topics, from now on."""

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""


class WorkerAccess(NodeAccess, Protocol):
    """A node that can run jobs."""

    def kit(self, kind: str) -> RunServices:
        """What a run of a job of that kind needs."""

    def holding(self, shortest_lease_s: Callable[[], float]) -> AbstractContextManager[None]:
        """While the block runs, a store that fails is tried again well within the shortest lease."""
