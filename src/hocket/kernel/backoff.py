"""How long to wait after failures. `backoff_ms` is for the retries of jobs, in whole milliseconds, so that all replicas
of a log compute the same. Everything that a process tries again by itself (the store, peers, the arbiter, background
tasks) waits by one of the policies below.
"""

from typing import NamedTuple

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
