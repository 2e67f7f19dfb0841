"""What a target of fuzzing is, and how one is run: bytes go in, and they are refused as the module documents it, or
accepted and then held against what must be true of anything that is accepted. Everything else is a finding: another
exception, something accepted that is not good, time or memory beyond what small input can be worth.
"""

import resource
import sys
from collections.abc import Callable, Sequence
from random import Random
from time import thread_time
from typing import Any, NamedTuple

from tests.fuzz.mutate import Sample, Stream

SECONDS_MAX = 0.5
GROWTH_BYTES_MAX = 128 * 1024 * 1024
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Target(NamedTuple):
    """`read` is the code under test and may raise only `refusals`. `hold` asserts what is true of anything that was
    read, and tells whether that was an acceptance. `samples` are good, and `stream` makes bad ones of them."""

    name: str
    read: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]
    hold: Callable[[bytes, Any], bool]
    samples: Sequence[Sample]
    stream: Callable[[Random], Stream]

    def __call__(self, data: bytes) -> bool:
        """Whether this input is accepted. AssertionError when something is wrong."""
        try:
            value = self.read(data)
        except self.refusals:
            return False
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}, which is not documented: {error}") from error
        try:
            return self.hold(data, value)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} over something accepted: {error}") from error


class Tally(NamedTuple):
    """`seconds` are those of the processor, so that a rate says the same on a busy machine."""

    inputs: int
    accepted: int
    seconds: float

    @property
    def refused(self) -> int:
        return self.inputs - self.accepted

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        return f"{self.inputs:>10,} inputs {self.accepted:>10,} accepted {self.refused:>10,} refused {rate:>9,.0f}/s"


class Found(AssertionError):
    """A finding, with the input that shows it."""

    def __init__(self, target: Target, data: bytes, why: str) -> None:
        super().__init__(f"{target.name}: {why}\ninput: {data!r}")
        self.data = data


def run(target: Target, runs: int, seed: int = 0) -> Tally:
    """Gives a target so many inputs; the same ones for the same seed. Raises Found at the first finding."""
    make = target.stream(Random(f"{target.name} {seed}"))
    accepted, before = 0, _peak()
    began = last = thread_time()
    for _ in range(runs):
        data = make()
        try:
            accepted += target(data)
        except AssertionError as error:
            raise Found(target, data, str(error)) from error
        now = thread_time()
        if now - last > SECONDS_MAX:
            raise Found(target, data, f"it took {now - last:.2f} seconds")
        last = now
    grown = _peak() - before
    if grown > GROWTH_BYTES_MAX:
        raise AssertionError(f"{target.name}: {grown // 1024**2} MiB more memory after {runs} small inputs")
    return Tally(runs, accepted, last - began)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
