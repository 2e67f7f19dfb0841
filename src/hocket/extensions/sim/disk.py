"""A node's disk. It survives the node's crashes, and it can be slow. A power cut hits at a commit: just before it, and
the transaction is rolled back; or just after it, and everything is kept but nothing was acknowledged.

How long ops from other nodes take in write transactions, in virtual time. The real time would make a seed come out
differently each time; so the model counts what an op is compared with. The arbiter compares a request for locks, key by
key, with the holds and the waits of the same node, which its keys may meet; the rules' limits bound that.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol, TypeVar

from hocket.extensions.sim.loop import Inline, Life
from hocket.families.locks.facts import LOCK, AcquireLocks
from hocket.kernel.arbitration import Reason
from hocket.kernel.keys import RowMac
from hocket.kernel.ops import Op
from hocket.log.intake import Intake
from hocket.log.sealing import link_anew
from hocket.store import MEMORY, NO_SEAL, RowChecks, Session, Store
from hocket.store import open as open_store
from hocket.store.statements import EndedMacs

# What every op takes, what one comparison takes, and what an op takes at most.
OP_S = 0.0005
COMPARED_S = 0.002
OP_S_MAX = 0.04


class StoreTime:
    """The seconds that the transactions of a run have taken; the stopwatch of all its nodes."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __call__(self) -> float:
        return self.spent_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the ops that any node admits, while the run lasts."""
        plain = Intake.take

        def take(intake: Intake, raw: bytes, op: Op, reason: Reason | None) -> None:
            plain(intake, raw, op, reason)
            self.spent_s += cost_s(intake, op)

        Intake.take = take  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Intake.take = plain  # type: ignore[method-assign]


def cost_s(intake: Intake, op: Op) -> float:
    payload, projection = op.payload, intake.tx.projection
    if not isinstance(payload, AcquireLocks) or projection.arbiter(op.timestamp) != intake.tx.node:
        return OP_S
    scope = projection.projectors[LOCK].state(payload.scope.encode())
    rivals = () if scope is None else (*scope.holds, *scope.waits)
    compared = sum(len(each.keys) for each in rivals if each.node == op.node_id)
    return min(OP_S_MAX, OP_S + COMPARED_S * len(payload.keys) * compared)


T = TypeVar("T")
Cut = Literal["before", "after"]

# How long a good disk takes to acknowledge a commit.
COMMIT_S = (0.0002, 0.002)


class PowerCut(BaseException):
    """Ends a commit, and with it the node."""


class SimStore:
    """A real store. `cut` tells how to cut the next commit short; `committed` is called after each."""

    server_clock = None

    def __init__(self, store: Store, committed: Callable[[], None]) -> None:
        self.store = store
        self.cut: Cut | None = None
        self.commits = 0
        self.copied = 0
        """How many ops of the log came with `copy`."""
        self.committed = committed

    def check_rows(self, checks: RowChecks) -> None:
        """A simulated disk is one node's own."""

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "SimWrite":
        return SimWrite(self)

    def read(self) -> AbstractContextManager[Session]:
        return self.store.read()

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self._mac = mac
        self.store.mac_rows(mac)

    def copy(self, other: "SimStore", signed: Callable[[bytes], bytes]) -> None:
        """Replaces the log here by a copy of one that has all of it: to take it in op by op takes much longer. The
        other node has `signed` the ops that leave it.
        """
        with self.read() as session:
            own = session.head().last
        here = open_store(MEMORY)
        with vars(here)["_writer"].backup("main", vars(other.store)["_writer"], "main") as copying:
            copying.step()
        with here.write() as session:
            head, rows = session.head(), session.entries_after(0, 1_000)
            chain = link_anew(session, bytes(32), [(row.seq, signed(row.body)) for row in rows])
            session.put_head(head._replace(last=own, chain=chain, seal=NO_SEAL))
        here.mac_rows(self._mac)
        self.copied = head.seq
        self.store.close()
        self.store = here

    def trim(self) -> bool:
        return self.store.trim()

    def close(self) -> None:
        self.store.close()


class SimWrite:
    """A write transaction of the wrapped store, which a power cut may end."""

    __slots__ = ("_disk", "_transaction")

    def __init__(self, disk: SimStore) -> None:
        self._disk = disk
        self._transaction = disk.store.write()

    def __enter__(self) -> Session:
        return self._transaction.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._transaction.__exit__(kind, error, trace)
            return
        disk = self._disk
        cut, disk.cut = disk.cut, None
        if cut == "before":
            failure = PowerCut()
            self._transaction.__exit__(PowerCut, failure, None)
            raise failure
        self._transaction.__exit__(None, None, None)
        disk.commits += 1
        disk.committed()
        if cut == "after":
            raise PowerCut


class DiskOwner(Protocol):
    """The owner of a disk. `slow_s` is how slow the disk is now. `store_time` counts the seconds that transactions
    take, and `busy_until` is when the last one ends: the next waits for that.
    """

    store: SimStore
    slow_s: float
    store_time: StoreTime
    busy_until: float

    def crash(self) -> None: ...


class Disk(Inline):
    """Runs store calls on the spot, or after a while if the disk is slow; a commit is acknowledged a little later. A
    node whose life is over gets no answers.
    """

    def __init__(self, machine: DiskOwner, chance: random.Random, life: Life) -> None:
        self._machine = machine
        self._chance = chance
        self._life = life
        self._loop = asyncio.get_running_loop()

    def start(self, done: "asyncio.Future[T] | Future[T]", work: Callable[..., T], *args: Any) -> None:
        if self._machine.slow_s:
            self._loop.call_later(self._chance.uniform(0, self._machine.slow_s), self._do, done, work, args)
        else:
            self._do(done, work, args)

    def _do(self, done: "asyncio.Future[T] | Future[T]", work: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self._life.is_over:
            done.cancel()
            return
        before, spent_s = self._machine.store.commits, self._machine.store_time()
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
            self._loop.call_later(took + self._queued_s(self._machine.store_time() - spent_s), answer, done, value)

    def _queued_s(self, held_s: float) -> float:
        """How long a transaction that takes so long waits for those before it, and takes. Readers wait for none."""
        now, machine = self._loop.time(), self._machine
        machine.busy_until = max(now, machine.busy_until) + held_s
        return machine.busy_until - now


def _give(done: "asyncio.Future[Any] | Future[Any]", value: Any) -> None:
    """There may be no waiter: the node has crashed, or the caller has given up."""
    if not done.done():
        done.set_result(value)


def _raise(done: "asyncio.Future[Any] | Future[Any]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
