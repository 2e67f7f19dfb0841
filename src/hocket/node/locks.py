"""Locks for programs: `async with node.lock("file:src/lib.rs", agent="editor", wait="10s") as held`. The block begins
when the lock is held and ends with its release; meanwhile a task renews. The holder counts its time on its own clock,
from before it asked, so it stops before any other agent can get the lock. `held.lost` is set when the lock is lost.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Generic, TypedDict, TypeVar, Unpack

from hocket.bus.hints import about
from hocket.errors import HocketError, StoreError, Unreachable, Usage
from hocket.families.access import NodeAccess
from hocket.families.lease import Lease
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import LOCK
from hocket.families.locks.processes import LockProcesses
from hocket.families.locks.requests import Length, LockClient, LockLost, Wanted, length_at, wanted
from hocket.kernel.ids import node_text
from hocket.kernel.texts import duration_ms
from hocket.mesh.names import names

# A busy scope changes all the time; a holder looks at it no more often than this.
LOOK_S = 0.2
# A grant from the queue that has less time left is renewed before the block begins.
LEFT_S_MIN = 1.0

E = TypeVar("E", asyncio.Event, threading.Event)
L = TypeVar("L", int, Length)
_LOG = logging.getLogger("hocket")


class LockOptions(TypedDict, total=False):
    """`ttl`: how long the lock lasts if this program dies without a trace, or "4b" in beats of the home's tempo; by
    default 30 s if all keys begin with `file:`, else 5 minutes. `wait`: how long to wait in the queue; by default not
    at all. `shared`: with other shared holders. `scope`: what the keys belong to, such as a repository. `cancel`: if
    the lock is lost, the block is cancelled and raises LockLost.
    """

    ttl: str | float | None
    wait: str | float
    shared: bool
    scope: str
    cancel: bool


class HeldLock(Generic[E]):
    """A lock in force. `lost` is set when it no longer is."""

    def __init__(self, keys: tuple[str, ...], agent: str, fence: int, lost: E) -> None:
        self.keys, self.agent, self.fence = keys, agent, fence
        self.lost: E = lost


class NodeLock:
    """The context manager of one lock. Raises LockHeld if others have it, Unreachable if the coordinator does not
    answer. `length` is how long a hold lasts; one in beats ends at a beat, so each renewal has another length.
    """

    def __init__(
        self,
        access: NodeAccess,
        processes: LockProcesses,
        keys: Sequence[str],
        agent: str,
        length: Callable[[str | float], Length],
        **options: Unpack[LockOptions],
    ) -> None:
        self._access, self._length, self._ttl = access, length, options.get("ttl")
        wait_ms = _parsed(duration_ms, options["wait"], "wait") if "wait" in options else 0
        shared, scope = options.get("shared", False), options.get("scope", "")
        lasts = None if self._ttl is None else _parsed(length, self._ttl, "lease")
        self._wanted = wanted(keys, agent, lasts, shared=shared, wait_ms=wait_ms, scope=scope)
        self._cancels = options.get("cancel", False)
        self._client = lock_client(access, processes)
        self._was_cancelled = False
        self._request: bytes
        self._lease: Lease
        self._task: asyncio.Task[object] | None
        self._held: HeldLock[asyncio.Event]
        self._timer: asyncio.TimerHandle
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HeldLock[asyncio.Event]:
        loop, asked = asyncio.get_running_loop(), self._from_now()
        asked_at, lasts_s = loop.time(), self._lasts_s(asked)
        granted = await self._client.acquire(asked, is_bound=True)
        hold, self._request = granted.hold, granted.request
        # The answer may have come so late that the lock is over by now.
        is_late = loop.time() > asked_at + lasts_s / 2
        if granted.is_queued or is_late:
            asked_at, left_s = loop.time(), (hold.deadline - self._access.log.physical()) / 1000
            is_uneven = granted.is_queued and not isinstance(asked.lasts, int)
            if granted.is_elsewhere or is_uneven or left_s < min(LEFT_S_MIN, lasts_s / 2):
                # It was granted at a time that this clock does not know, or long ago, or does not end at a beat.
                try:
                    asked = self._from_now()
                    lasts_s = self._lasts_s(asked)
                    hold = await self._client.renew(asked.scope, None, asked.agent, hold.fence, asked.lasts)
                except BaseException:
                    await asyncio.shield(self._client.give_up(self._request))
                    raise
            else:
                lasts_s = left_s
        self._lease = Lease(lasts_s, asked_at)
        self._task = asyncio.current_task()
        self._held = HeldLock(hold.keys, hold.agent, hold.fence, asyncio.Event())
        # Most blocks end before there is anything to do.
        self._timer = loop.call_later(min(LOOK_S, lasts_s / 10), self._start_keeper)
        return self._held

    def _from_now(self) -> Wanted:
        """What is asked for. The tempo may have changed."""
        if self._ttl is not None:
            self._wanted = self._wanted._replace(lasts=self._length(self._ttl))
        return self._wanted

    def _lasts_s(self, asked: Wanted) -> float:
        """How long a hold lasts that is asked for now. One that is taken later ends at the same beat, or at a later
        one.
        """
        lasts = asked.lasts
        return (lasts if isinstance(lasts, int) else length_at(lasts, self._access.log.reading().wall)) / 1000

    def _start_keeper(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._lose_at_end()

    def _lose_at_end(self) -> None:
        """The lock is lost at its end, whatever the keeper waits for then."""
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._lease.ends_at, self._lose)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        try:
            await self._release()
        except Unreachable as error:
            _LOG.warning(
                "the release of %s waits here, and is sent when the coordinator answers: %s", self._held.keys, error
            )
        except LockLost:
            self._held.lost.set()
        if self._was_cancelled and kind is asyncio.CancelledError and self._task is not None:
            self._task.uncancel()
            raise LockLost(f"{', '.join(self._held.keys)}: the lock under fence {self._held.fence} was lost")

    async def _release(self) -> None:
        asked = self._wanted
        await self._client.release(asked.scope, None, asked.agent, self._held.fence, self._request)

    async def _keep(self) -> None:
        """Renews until the lock is lost. Nothing renews the lock of a node that is closed."""
        lease, loop, lost = self._lease, asyncio.get_running_loop(), self._held.lost
        with suppress(Usage), closing(self._access.listen(about(LOCK, self._wanted.scope.encode()))) as changes:
            while not lost.is_set() and not lease.is_over and await self._is_held():
                now = loop.time()
                if now >= lease.renews_at:
                    await self._renew(now)
                elif await changes.wait(lease.renews_at - now):
                    await asyncio.sleep(min(LOOK_S, max(0.0, lease.renews_at - loop.time())))
        self._lose()

    async def _renew(self, now: float) -> None:
        lease = self._lease
        lease.renewing()
        try:
            asked = self._from_now()
            lasts_s = self._lasts_s(asked)
            await self._client.renew(asked.scope, None, asked.agent, self._held.fence, asked.lasts)
        except LockLost:
            lease.end()
        except HocketError:
            lease.try_again(now)
        else:
            if not self._held.lost.is_set():
                lease.renewed(lasts_s, now)
                self._lose_at_end()

    async def _is_held(self) -> bool:
        try:
            scope = await self._access.peek(lambda session: read_scope(session, self._wanted.scope))
        except StoreError:
            return True  # as far as anybody knows; a renewal tries again
        return scope is not None and any(hold.fence == self._held.fence for hold in scope.holds)

    def _lose(self) -> None:
        if self._held.lost.is_set():
            return
        self._held.lost.set()
        if self._cancels and self._task is not None:
            self._was_cancelled = True
            self._task.cancel()


def lock_client(access: NodeAccess, processes: LockProcesses) -> LockClient:
    def name_of(number: int) -> str:
        return names(access.log.permissions()).get(number) or node_text(number)

    return LockClient(access, processes, name_of)


@asynccontextmanager
async def for_threads(
    lock: AbstractAsyncContextManager[HeldLock[asyncio.Event]],
) -> AsyncIterator[HeldLock[threading.Event]]:
    """Holds a lock whose loss other threads can wait for."""
    async with lock as held:
        shown = HeldLock(held.keys, held.agent, held.fence, threading.Event())
        watch = asyncio.create_task(_pass_on(held.lost, shown.lost))
        try:
            yield shown
        finally:
            watch.cancel()


async def _pass_on(lost: asyncio.Event, shown: threading.Event) -> None:
    await lost.wait()
    shown.set()


def _parsed(parse: Callable[[str | float], L], text: str | float, what: str) -> L:
    try:
        return parse(text)
    except ValueError as error:
        raise Usage(f"bad {what}: {error}") from None
