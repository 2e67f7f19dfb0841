"""When to try again after failures: the waits, and the circuit breaker. `backoff_ms` is for the retries of jobs, in
whole milliseconds, so that all replicas of a log compute the same. Everything that a process tries again by itself (the
store, peers, the arbiter, background tasks) waits by one of the policies here.

The breaker is a pure state machine. Closed, it lets every call out. Five failures in a row open it: then calls are
refused at once. After half a minute it lets exactly one call out, the probe, which closes it or opens it again. The
caller may shorten the half minute, as a holder of leases does. Each call that is let out gets a number and reports with
it. The number changes with each state, so a call that comes back late changes nothing. `now_ms` may be any clock that
counts milliseconds; if it was set back, the breaker does not stay open for longer.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

# After this many failures the wait grows no more, whatever its cap.
GROWTHS_MAX = 64
# No process waits longer between two tries.
RETRY_S_MAX = 30.0
_HALF = 1 << 16


def backoff_ms(failures: int, base_ms: int, cap_ms: int, jitter: int = 0, factor: int = 2) -> int:
    """The wait after that many failures in a row: the base after the first, `factor` times as long after each further
    one, never more than the cap. `jitter` makes it shorter (down to -65536, by a half) or longer (up to 65536).
    """
    growth: int = factor ** min(max(failures - 1, 0), GROWTHS_MAX)
    rest = min(cap_ms, base_ms * growth)
    return min(cap_ms, rest + rest * jitter // (2 * _HALF))


class RetryPolicy(NamedTuple):
    base_s: float
    cap_s: float = RETRY_S_MAX

    def delay_s(self, failures: int, chance: float) -> float:
        """The wait after that many failures in a row: the base, doubled after each further failure, plus a random part
        of up to as much again, never more than the cap. `chance`, from 0 to 1, chooses the random part. It stays as
        large when the cap is reached, so that many nodes do not try at the same moment.
        """
        growth = 2.0 ** min(max(failures - 1, 0), GROWTHS_MAX)
        return min(self.cap_s / 2, self.base_s * growth) * (1 + chance)


PEER_RETRIES = RetryPolicy(1.0)
# Claims wait for the arbiter, and leases for the store, so both are tried more often.
ARBITER_RETRIES = RetryPolicy(0.2, 5.0)
STORE_RETRIES = RetryPolicy(0.25, 5.0)
TASK_RETRIES = RetryPolicy(0.5)
PROCESS_RETRIES = RetryPolicy(0.25)
GIT_RETRIES = RetryPolicy(0.5)
# Another worker was faster.
RACE_RETRIES = RetryPolicy(0.05, 5.0)

FAILURES_MAX = 5
OPEN_MS = 30_000
# A probe that has not reported for this long is given up: its process has died.
PROBE_MS_MAX = 90_000
ERROR_CHARS_MAX = 300


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """`failures` counts those in a row, and `error` is the last one. `since_ms` is when the breaker opened first,
    `opened_ms` when it opened last, and `probe_ms` when the probe began that is under way.
    """

    failures: int = 0
    error: str = ""
    since_ms: int | None = None
    opened_ms: int | None = None
    probe_ms: int | None = None
    call: int = 0

    @property
    def state(self) -> BreakerState:
        if self.opened_ms is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.probe_ms is None else BreakerState.HALF_OPEN

    def wait_ms(self, now_ms: int, open_ms: int | None = None) -> int:
        """How long no call goes out, unless the probe reports before; 0 if one may go out now."""
        if self.opened_ms is None:
            return 0
        rest_ms = OPEN_MS if open_ms is None else open_ms
        begun, span = (self.opened_ms, rest_ms) if self.probe_ms is None else (self.probe_ms, PROBE_MS_MAX)
        return max(0, begun + span - now_ms) if now_ms >= begun else 0

    def admit(self, now_ms: int, open_ms: int | None = None) -> "Admitted":
        """Asks to let a call out."""
        if self.opened_ms is None:
            return Admitted(self, self.call)
        if self.wait_ms(now_ms, open_ms):
            return Admitted(self, None)
        probing = replace(self, probe_ms=now_ms, call=self.call + 1)
        return Admitted(probing, probing.call)

    def succeeded(self, call: int) -> "Breaker":
        if call != self.call:
            return self
        return Breaker(call=self.call + (self.opened_ms is not None))

    def failed(self, call: int, now_ms: int, error: str) -> "Breaker":
        if call != self.call:
            return self
        counted = replace(self, failures=self.failures + 1, error=error[:ERROR_CHARS_MAX])
        if counted.failures < FAILURES_MAX and self.opened_ms is None:
            return counted
        since = now_ms if self.since_ms is None else self.since_ms
        return replace(counted, since_ms=since, opened_ms=now_ms, probe_ms=None, call=self.call + 1)

    def abandoned(self, call: int) -> "Breaker":
        """The call ended without a verdict: it was cancelled, or failed for a reason of its own. If it was the probe,
        the next call is.
        """
        if call != self.call or self.probe_ms is None:
            return self
        return replace(self, probe_ms=None, call=self.call + 1)

    def hastened(self, now_ms: int) -> "Breaker":
        """Lets the next call be the probe, without waiting any longer."""
        if self.opened_ms is None:
            return self
        return replace(self, opened_ms=now_ms - OPEN_MS, probe_ms=None, call=self.call + 1)


class Admitted(NamedTuple):
    """The breaker after a request to let a call out, and the number of the call; None if it may not go out."""

    breaker: Breaker
    call: int | None
