"""A circuit breaker for each peer, around every request to it. The processes of a node share it through their store:
when one of them has found that a peer does not answer, the others do not wait for it, and only one of them probes. A
failure is a request without an answer, or an answer that says that the server or a proxy before it is broken. Every
other answer is a success, refusals included.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress

from hocket.breakers import refusal, transition
from hocket.bus.changes import Changes
from hocket.errors import StoreError, Unreachable
from hocket.events import Emit
from hocket.kernel.breaker import Breaker, BreakerState
from hocket.mesh import peers
from hocket.mesh.wire import Reply, Request, Transport, look, note
from hocket.store import Session
from hocket.work.environment import Environment
from hocket.work.node_access import NodeAccess

BROKEN = frozenset((500, 502, 504))


class GuardedTransport:
    """A transport that asks the breaker of an address before each request. Streams of hints are not guarded: a node
    listens only to a peer that has just answered. Use it on one event loop.
    """

    def __init__(self, transport: Transport, access: NodeAccess, environment: Environment, emit: Emit) -> None:
        self._transport, self._access, self._environment, self._emit = transport, access, environment, emit
        self._known: dict[str, Breaker] = {}

    async def send(self, address: str, request: Request) -> Reply:
        """Raises CircuitOpen if no request may go out now."""
        call = await self._admit(address)
        try:
            reply = await self._transport.send(address, request)
        except Unreachable as error:
            await self._fail(address, call, str(error))
            raise
        except BaseException:
            if self._known[address].probe_ms is not None:
                await self._change(address, lambda breaker: breaker.abandoned(call))
            raise
        if reply.status in BROKEN:
            await self._fail(address, call, f"{address} answered with status {reply.status}")
        elif self._known[address].failures:
            await self._change(address, lambda breaker: breaker.succeeded(call))
        return reply

    def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        return self._transport.hints(address, headers)

    async def blame(self, address: str, error: str) -> None:
        """Counts a failure of a peer that the caller has stopped waiting for."""
        await self._change(address, lambda breaker: breaker.failed(breaker.call, self._now_ms(), error))

    async def hasten(self, address: str) -> None:
        """Lets the next request out, whatever came before."""
        known = self._known.get(address)
        if known is None:
            known = self._known[address] = await look(self._access, lambda session: peers.breaker(session, address))
        if known.state is BreakerState.CLOSED:
            return
        await self._change(address, lambda breaker: breaker.hastened(self._now_ms()))

    async def _admit(self, address: str) -> int:
        known = self._known.get(address)
        if known is None or known.state is not BreakerState.CLOSED:
            known = await look(self._access, lambda session: peers.breaker(session, address))
            self._known[address] = known
        if known.wait_ms(self._now_ms()):
            raise refusal(_named(address), known, self._now_ms())
        if known.state is BreakerState.CLOSED:
            return known.call
        now_ms = self._now_ms()
        call: int | None = None

        def admit(breaker: Breaker) -> Breaker:
            nonlocal call
            admitted = breaker.admit(now_ms)
            call = admitted.call
            return admitted.breaker

        await self._change(address, admit)
        if call is None:  # another process was faster
            raise refusal(_named(address), self._known[address], now_ms)
        return call

    async def _fail(self, address: str, call: int, error: str) -> None:
        await self._change(address, lambda breaker: breaker.failed(call, self._now_ms(), error))

    async def _change(self, address: str, change: Callable[[Breaker], Breaker]) -> None:
        def changed(session: Session) -> tuple[Breaker, Breaker]:
            before = peers.breaker(session, address)
            after = change(before)
            if after != before:
                peers.set_breaker(session, address, after)
            return before, after

        before = self._known.get(address, Breaker())
        after = change(before)
        with suppress(StoreError):  # then this process alone knows
            before, after = await note(self._access, changed)
        self._known[address] = after
        if (event := transition(_named(address), before, after)) is not None:
            self._emit(event)

    def _now_ms(self) -> int:
        return self._environment.physical_ms()


def _named(address: str) -> str:
    return f"peer {address}"
