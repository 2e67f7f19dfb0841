"""Hints within one process. One pipe serves all waiters of a process through it, and a simulation uses it: on one event
loop, hints arrive in the order in which they were published.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hocket.bus.hints import NOTHING, Changes
from hocket.store import Session

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class MemoryBus:
    def __init__(self) -> None:
        self._subscriptions: dict[_Subscription, None] = {}
        self._lock = threading.Lock()

    def is_heard(self) -> bool:
        return bool(self._subscriptions)

    def publish(self, changes: Changes) -> None:
        with self._lock:
            for each in self._subscriptions:
                each.tell(changes)

    def announce(self, session: Session, changes: Changes) -> None:
        """`publish` reaches every listener."""

    def subscribe(self, topics: Changes) -> "_Subscription":
        made = _Subscription(topics, self._forget)
        with self._lock:
            self._subscriptions[made] = None
        return made

    def _forget(self, subscription: "_Subscription") -> None:
        with self._lock:
            self._subscriptions.pop(subscription, None)


class _Subscription:
    def __init__(self, topics: Changes, forget: "Callable[[_Subscription], None]") -> None:
        self._topics, self._forget = topics, forget
        self._came = NOTHING
        self._is_closed = False
        self._changed = threading.Condition()
        self._call: Callable[[], None] | None = None

    def tell(self, changes: Changes) -> None:
        if not changes.matches(self._topics):
            return
        with self._changed:
            is_first, self._came = not self._came, self._came | changes
            self._changed.notify_all()
        if is_first and self._call is not None:
            self._call()

    def wait(self, timeout_s: float | None) -> Changes:
        with self._changed:
            self._changed.wait_for(lambda: self._came or self._is_closed, timeout_s)
            came, self._came = self._came, NOTHING
            return came

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        thread = threading.get_ident()

        def deliver() -> None:
            if came := self.wait(0):
                heard(came)

        def call() -> None:
            with suppress(RuntimeError):  # the loop is closed, and its listener with it
                (loop.call_soon if threading.get_ident() == thread else loop.call_soon_threadsafe)(deliver)

        self._call = call
        call()

    def close(self) -> None:
        self._forget(self)
        with self._changed:
            self._is_closed, self._came = True, NOTHING
            self._changed.notify_all()
