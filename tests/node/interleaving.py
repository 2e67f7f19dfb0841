"""Runs the transactions of several nodes on one real PostgreSQL in an order that a seed decides, statement after
statement. Each node has a thread; a thread goes on only when its turn comes, and stops again before its next statement.
One that waits for a lock of PostgreSQL loses its turn until it gets the lock.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

# A statement that has no answer after this long may wait for a lock: PostgreSQL is asked.
PROMPT_S = 0.003
PATIENCE_S = 60.0
_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class Actor:
    """One node's thread. `is_ready`: it stands before a statement, and waits for its turn."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.go, self.is_ready, self.is_over = threading.Event(), False, False
        self.pid = 0
        self.error: BaseException | None = None
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        _ACTORS[threading.get_ident()] = self
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            del _ACTORS[threading.get_ident()]
            self.is_over = True
            _CHANGED.set()


_ACTORS: dict[int, Actor] = {}
# An actor has come to its next statement, or to its end.
_CHANGED = threading.Event()


@contextmanager
def gates() -> Iterator[None]:
    """While this lasts, each statement of an actor waits for its turn."""
    execute = psycopg.Connection.execute

    def gated(connection: Any, *asked: Any, **more: Any) -> Any:
        actor = _ACTORS.get(threading.get_ident())
        if actor is not None:
            actor.pid = connection.info.backend_pid
            actor.is_ready = True
            _CHANGED.set()
            if not actor.go.wait(PATIENCE_S):
                raise TimeoutError("its turn never came")
            actor.go.clear()
        return execute(connection, *asked, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", gated)
        yield


def interleave(address: str, works: Sequence[Callable[[], None]], chance: random.Random) -> list[BaseException]:
    """Runs them all to their ends, and gives their errors."""
    actors = [Actor(work) for work in works]
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(address, autocommit=True) as watch:
        for actor in actors:
            actor.thread.start()
        while not all(actor.is_over for actor in actors):
            assert time.monotonic() < deadline, "they wait for each other"
            _CHANGED.clear()
            moving = [actor for actor in actors if not actor.is_over and not actor.is_ready]
            if moving and not _CHANGED.wait(PROMPT_S):
                waiting = {pid for (pid,) in psycopg.Cursor(watch).execute(_WAITING)}
                moving = [actor for actor in moving if actor.pid not in waiting]
            ready = [actor for actor in actors if actor.is_ready]
            if ready and not moving:
                chosen = chance.choice(ready)
                chosen.is_ready = False
                chosen.go.set()
    return [actor.error for actor in actors if actor.error is not None]
