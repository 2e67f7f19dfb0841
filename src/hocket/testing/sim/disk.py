"""A node's disk. It survives the node's crashes, and it can be slow. A power cut hits at a commit: just before it, and
the transaction is rolled back; or just after it, and everything is kept but nobody was told.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeVar

from hocket.store.sqlite import SqliteStore, WriteTransaction
from hocket.store.sqlite.session import SqliteSession
from hocket.testing.sim.loop import Inline, Life

T = TypeVar("T")
Cut = Literal["before", "after"]

# How long a good disk takes to acknowledge a commit.
COMMIT_S = (0.0002, 0.002)


class PowerCut(BaseException):
    """Ends a commit, and with it the node."""


class SimStore(SqliteStore):
    """A real store in memory. `cut` says how the next commit is to be cut short; `committed` is called after each."""

    def __init__(self, committed: Callable[[], None]) -> None:
        self.cut: Cut | None = None
        self.commits = 0
        self.committed = committed
        super().__init__(":memory:", create=True)

    def write(self) -> "_SimWrite":
        return _SimWrite(self)

    def read(self) -> "_SimRead":  # type: ignore[override]
        return _SimRead(self._write_session)

    def decided(self, kind: str) -> Iterable[tuple[bytes, int | None, int, bytes | None, bytes]]:
        """Of each job of that kind: id, outcome, fence, claim and results. It is asked for so often that it does not
        read whole jobs.
        """
        sql = "SELECT id, outcome, fence, claim_op, artifacts FROM jobs WHERE kind = ?"
        return self._writer.execute(sql, (kind,))


class _SimRead:
    """What reads does so between two steps of the loop: nobody can write meanwhile."""

    __slots__ = ("_session",)

    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def __enter__(self) -> SqliteSession:
        return self._session

    def __exit__(self, *_: object) -> None:
        pass


class _SimWrite(WriteTransaction):
    __slots__ = ("_store",)

    def __init__(self, store: SimStore) -> None:
        super().__init__(store._writer, store._write_session, store._write_lock, store.path)
        self._store = store

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        cut = self._store.cut if error is None else None
        if cut is not None:
            self._store.cut = None
        if cut == "before":
            error = PowerCut()
        super().__exit__(type(error) if error else None, error, trace)
        self._store.commits += 1
        self._store.committed()
        if cut == "after":
            raise PowerCut


class DiskOwner(Protocol):
    """What a disk belongs to. It is slow for as long as `slow_s` says by how much."""

    store: SimStore
    slow_s: float

    def crash(self) -> None: ...


class Disk(Inline):
    """Does on the spot what is asked of the store, or after a while when it is slow; a commit is acknowledged a
    little later. A node whose life is over gets no answers.
    """

    def __init__(self, machine: DiskOwner, chance: random.Random, life: Life) -> None:
        self._machine = machine
        self._chance = chance
        self._life = life
        self._loop = asyncio.get_running_loop()

    def start(self, work: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self._loop.create_future()
        if self._machine.slow_s:
            self._loop.call_later(self._chance.uniform(0, self._machine.slow_s), self._do, done, work, args)
        else:
            self._do(done, work, args)
        return done

    def _do(self, done: "asyncio.Future[T]", work: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self._life.is_over:
            done.cancel()
            return
        before = self._machine.store.commits
        value: Any
        try:
            answer, value = _give, work(*args)
        except PowerCut:
            done.cancel()
            self._machine.crash()
            return
        except Exception as error:
            answer, value = _raise, error  # type: ignore[assignment]
        if self._machine.store.commits == before:
            answer(done, value)
        else:
            took = self._chance.uniform(*COMMIT_S) + self._chance.uniform(0, self._machine.slow_s)
            self._loop.call_later(took, answer, done, value)


def _give(done: "asyncio.Future[Any]", value: Any) -> None:
    """Nobody may wait any more: the node has crashed, or whoever asked has given up."""
    if not done.done():
        done.set_result(value)


def _raise(done: "asyncio.Future[Any]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
