"""Hints between machines that share a store. On this machine they go through pipes, as always. To the others they
travel as a note with the commit; each process that has listeners hears the notes in a thread of its own and tells its
listeners. A note says from which home it comes, whose processes the pipes have told already. After a new connection
anything may have changed. If no connection can be made, listeners look on their own, as slowly as they do on any bus.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hocket.breakers import CircuitBreaker
from hocket.bus.hints import ANYTHING, Changes, Pipes, PipeSubscription, decode_or_anything, encode_within
from hocket.errors import CircuitOpen, StoreError
from hocket.kernel.retrying import STORE_RETRIES
from hocket.store import NOTE_BYTES_MAX, NoteListener, Session, WakeUp

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ORIGIN_BYTES = 8
# How long closing waits for a thread that is about to connect.
CLOSE_S = 1.0


class SharedSubscription:
    def __init__(self, pipe: PipeSubscription, forget: Callable[[PipeSubscription], None]) -> None:
        self._pipe, self._forget = pipe, forget
        self.wait = pipe.wait

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        self._pipe.attach(loop, heard)

    def close(self) -> None:
        self._forget(self._pipe)
        self._pipe.close()


class SharedBus:
    """`origin` is the same for all processes that `pipes` reaches, and for no others."""

    def __init__(self, pipes: Pipes, listener: NoteListener, origin: bytes) -> None:
        assert len(origin) == ORIGIN_BYTES
        self._pipes, self._listener, self._origin = pipes, listener, origin
        self._own: dict[PipeSubscription, None] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._breaker = CircuitBreaker("the store's notifications", time.monotonic)

    def is_heard(self) -> bool:
        """Another machine may listen."""
        return True

    def announce(self, session: Session, changes: Changes) -> None:
        session.carry_note(self._origin + encode_within(changes, NOTE_BYTES_MAX - ORIGIN_BYTES))

    def publish(self, changes: Changes) -> None:
        self._pipes.publish(changes)

    def subscribe(self, topics: Changes) -> SharedSubscription:
        pipe = self._pipes.subscribe(topics)
        with self._lock:
            self._own[pipe] = None
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._listen, name="hocket-listen", daemon=True)
                self._thread.start()
        return SharedSubscription(pipe, self._forget)

    def close(self) -> None:
        with self._lock:
            self._closing.set()
        self._listener.close()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._pipes.close()

    def _forget(self, pipe: PipeSubscription) -> None:
        with self._lock:
            self._own.pop(pipe, None)

    def _tell(self, changes: Changes) -> None:
        with self._lock:
            for pipe in self._own:
                pipe.tell(changes)

    # The thread.

    def _listen(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                with self._breaker.guard(StoreError):
                    way = self._listener.open()
                if way is WakeUp.POLLING:
                    return
                failures = 0
                self._tell(ANYTHING)
                self._hear()
            except CircuitOpen as refused:
                self._closing.wait(refused.wait_s)
            except StoreError:
                failures += 1
                self._closing.wait(STORE_RETRIES.delay_s(failures, random.random()))

    def _hear(self) -> None:
        while notes := self._listener.wait():
            for note in notes:
                if note[:ORIGIN_BYTES] != self._origin:
                    self._tell(decode_or_anything(note[ORIGIN_BYTES:]) or ANYTHING)
