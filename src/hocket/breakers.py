"""A circuit breaker for the calls of one process, safe for threads and for tasks. `kernel.retrying` decides; this keeps
the state, reads the clock and emits an event at each change of state.

    with breaker.guard(Unreachable):
        await ask_the_server()
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hocket.errors import CircuitOpen
from hocket.kernel.retrying import OPEN_MS, Breaker, BreakerState

if TYPE_CHECKING:
    from hocket.events import Emit, Event


class CircuitBreaker:
    """`what` names for people what is called: "the store". `refusal` is the error of a call that may not go out;
    `changed` is called with every new state, and `pause_ms` for how long an open breaker lets no call out.
    """

    def __init__(
        self,
        what: str,
        monotonic: Callable[[], float],
        emit: "Emit | None" = None,
        *,
        refusal: type[CircuitOpen] = CircuitOpen,
        changed: Callable[[Breaker], None] = lambda breaker: None,
        pause_ms: Callable[[], int] = lambda: OPEN_MS,
    ) -> None:
        self.pause_ms = pause_ms
        self._what, self._monotonic, self._refusal, self._changed = what, monotonic, refusal, changed
        self.emit: Emit | None = emit
        self.breaker = Breaker()
        self._lock = threading.Lock()

    def admit(self) -> int:
        """The number of a call that may go out now. Raises `refusal` if none may. Every call must be reported with its
        number: `succeeded`, `failed`, or `abandoned` if it says nothing about what was called.
        """
        breaker = self.breaker
        if breaker.opened_ms is None:
            return breaker.call
        with self._lock:
            before = self.breaker
            self.breaker, call = before.admit(self._now_ms(), self.pause_ms())
            after = self.breaker
        self._report(before, after)
        if call is None:
            raise refusal(self._what, after, self._now_ms(), self._refusal, self.pause_ms())
        return call

    def succeeded(self, call: int) -> None:
        if self.breaker.failures:
            self._change(lambda breaker: breaker.succeeded(call))

    def failed(self, call: int, error: BaseException) -> None:
        self._change(lambda breaker: breaker.failed(call, self._now_ms(), str(error)))

    def abandoned(self, call: int) -> None:
        if self.breaker.opened_ms is not None:
            self._change(lambda breaker: breaker.abandoned(call))

    @contextmanager
    def guard(self, *failures: type[BaseException]) -> Iterator[None]:
        """Guards the block. These errors in it are failures; any other error says nothing."""
        call = self.admit()
        try:
            yield
        except failures as error:
            self.failed(call, error)
            raise
        except BaseException:
            self.abandoned(call)
            raise
        self.succeeded(call)

    def _change(self, change: Callable[[Breaker], Breaker]) -> None:
        with self._lock:
            before = self.breaker
            self.breaker = after = change(before)
        self._report(before, after)

    def _report(self, before: Breaker, after: Breaker) -> None:
        if (event := transition(self._what, before, after, self.pause_ms())) is not None:
            self._changed(after)
            if self.emit is not None:
                self.emit(event)

    def _now_ms(self) -> int:
        return int(self._monotonic() * 1000)


def transition(what: str, before: Breaker, after: Breaker, pause_ms: int = OPEN_MS) -> "Event | None":
    """The event of a change of state; None if the state is the same."""
    if after.call == before.call:
        return None
    from hocket.events.workers import BreakerClosed, BreakerOpened, BreakerProbing

    if after.state is BreakerState.CLOSED:
        return BreakerClosed(what)
    if after.state is BreakerState.HALF_OPEN:
        return BreakerProbing(what)
    if after.failures == before.failures:
        return None  # the probe was abandoned
    return BreakerOpened(what, after.failures, after.error, pause_ms / 1000)


def refusal(
    what: str, breaker: Breaker, now_ms: int, error: type[CircuitOpen] = CircuitOpen, pause_ms: int = OPEN_MS
) -> CircuitOpen:
    """The error of a call that may not go out."""
    wait_s = breaker.wait_ms(now_ms, pause_ms) / 1000
    last = f"{what} has failed {breaker.failures} times, the last time with: {breaker.error}"
    if breaker.state is BreakerState.HALF_OPEN:
        return error(f"{last}; it is being tried again now", wait_s)
    return error(f"{last}; the next try is in {wait_s:.0f} seconds", wait_s)
