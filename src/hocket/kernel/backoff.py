"""How long to wait after failures: the one formula for retries of jobs, for unreachable peers and arbiters, for failing
background tasks and for lost races. In whole milliseconds, so that every replica of a log computes the same.
"""

# After this many failures the wait grows no more, whatever its cap.
GROWTHS_MAX = 64
_HALF = 1 << 16


def backoff_ms(failures: int, base_ms: int, cap_ms: int, jitter: int = 0, factor: int = 2) -> int:
    """The wait after that many failures in a row: the base after the first, `factor` times as long after each further
    one, never more than the cap. `jitter` makes it shorter (down to -65536, by a half) or longer (up to 65536).
    """
    growth: int = factor ** min(max(failures - 1, 0), GROWTHS_MAX)
    rest = min(cap_ms, base_ms * growth)
    return min(cap_ms, rest + rest * jitter // (2 * _HALF))


def backoff_s(failures: int, base_s: float, cap_s: float, chance: float) -> float:
    """The same in seconds, for what is not on a log: between half and the whole of the wait, depending on `chance` (0
    to 1).
    """
    return backoff_ms(failures, round(base_s * 1000), round(cap_s * 1000), round(chance * _HALF) - _HALF) / 1000
