"""Carries hints that something has changed. A hint can be lost, come twice or come out of order: it says where to look,
and the store has the truth. So every listener also looks on its own at intervals, and any failure of a bus causes
nothing but delay. `pipes` carries hints between the processes of one machine, `memory` within one process, and `shared`
between machines that share a store.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hocket.bus.changes import Changes
from hocket.store import Session

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Subscription(Protocol):
    """One listener's share of the hints: those that match its topics. Hints that come before the listener looks are
    merged into one, so a slow listener misses nothing and needs no queue.
    """

    def wait(self, timeout_s: float | None) -> Changes:
        """What has changed since the last call; blocks until there is something. NOTHING if the time is over, or if
        another thread closes the subscription. None waits without a limit.
        """

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        """From now on calls `heard` on that event loop instead. Call it there, once."""

    def close(self) -> None: ...


class Bus(Protocol):
    """Safe to use from several threads."""

    def is_heard(self) -> bool:
        """Whether there may be a listener. Ask before working out what to publish."""

    def publish(self, changes: Changes) -> None:
        """Tells every matching listener. Never blocks, and never fails because of a listener."""

    def announce(self, session: Session, changes: Changes) -> None:
        """Call this in the transaction that makes the changes, and `publish` after its commit: listeners that only the
        store reaches are told with the commit.
        """

    def subscribe(self, topics: Changes) -> Subscription:
        """Receives every change that matches the topics from now on. Subscribe first, then look."""
