"""A node as its parts reach it: the worker, the maintenance, the exchanges with peers and the handles of jobs are all
handed the same object. `node.Node` is the real one; a simulated node is one over virtual time.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from hocket.bus.changes import ANYTHING, Changes
from hocket.bus.listener import Listener
from hocket.kernel.roster import Job
from hocket.log import Log, Transaction
from hocket.store import Session
from hocket.work.arbiter import Arbiter
from hocket.work.blobs import Blobs
from hocket.work.jobs import Result
from hocket.work.run_outputs import RunServices

T = TypeVar("T")


class NodeAccess(Arbiter, Protocol):
    """Requests and queries do not block the event loop. Requests are grouped: those that wait at the same time are
    committed together.
    """

    @property
    def log(self) -> Log: ...

    @property
    def blobs(self) -> Blobs: ...

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query over one consistent view, in which every submitted job is in the roster."""

    async def peek(self, query: Callable[[Session], T]) -> T:
        """The same without waiting for the newest submits to be in the roster."""

    async def call(self, work: Callable[[], T]) -> T:
        """Runs what blocks for long, off the event loop and beside the requests and queries."""

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """What a request makes of a job, once it is decided. Raises Conflict when it was not accepted."""

    def listen(self, topics: Changes) -> Listener:
        """Hears of every change of this node that matches the topics, from now on."""

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        """Looks, and looks again after each change of the topics, until there is something to see. Raises
        TimeoutError.
        """

    def kit(self, kind: str) -> RunServices:
        """What a run of a job of that kind is handed."""
