"""What goes wrong in a run, and when: a plan that is drawn from the seed before the run begins. All faults end before
the quiet time begins.
"""

import random
from collections.abc import Iterable
from typing import Literal, NamedTuple

# Faults among honest nodes; and a dishonest member, costly ones, or one that hides something while the log is pruned,
# which take part only if requested.
HONEST_FAULTS = ("partition", "loss", "duplicate", "reorder", "crash", "skew", "slow-disk")
HOSTILE = "hostile"
COSTLY = "costly"
HIDING = "hiding"
FAULTS = (*HONEST_FAULTS, HOSTILE, COSTLY, HIDING)

# How wrong a clock may be, and how much faster than another it may run, before it counts as broken.
RATE_MAX = 0.002

What = Literal["cut", "heal", "loss", "duplicate", "jitter", "crash", "restart", "slow", "clock"]


class Fault(NamedTuple):
    """One event at a time: for a node, or for the network (-1). `size` is how bad it is; for a cut, the nodes on the
    other side, as bits.
    """

    at: float
    what: What
    node: int
    size: float
    mode: str = ""


class FaultPlan(NamedTuple):
    rates: tuple[float, ...]
    skews: tuple[float, ...]
    faults: tuple[Fault, ...]


def check(names: Iterable[str]) -> tuple[str, ...]:
    """The names in a fixed order. Raises ValueError for an unknown one."""
    given = set(names)
    unknown = sorted(given - set(FAULTS))
    if unknown:
        raise ValueError(f"unknown fault {unknown[0]!r}; known are {', '.join(FAULTS)}")
    return tuple(name for name in FAULTS if name in given)


def draw(
    chance: random.Random, nodes: int, seconds: float, names: Iterable[str], skew_s: float, arbiters: int = 1
) -> FaultPlan:
    """`skew_s` is how much the mesh's rules let clocks differ. Only the first nodes, so many, may be the arbiter."""
    kinds = set(names)
    rates, skews = [1.0] * nodes, [0.0] * nodes
    faults: list[Fault] = []
    windows = max(1, round(seconds / 40))

    def window(longest: float) -> tuple[float, float]:
        length = chance.uniform(0.1, 1) * min(longest, seconds * 0.6)
        start = chance.uniform(0, seconds - length)
        return start, start + length

    if "skew" in kinds:
        rates = [1 + chance.uniform(-RATE_MAX, RATE_MAX) for _ in range(nodes)]
        skews = [chance.uniform(-skew_s, skew_s) / 2 for _ in range(nodes)]
        if nodes > arbiters and chance.random() < 0.3:
            # One clock is wrong beyond the limit, and is corrected in the end. It is not the arbiter's.
            node = chance.randrange(arbiters, nodes)
            faults.append(Fault(seconds * chance.uniform(0.5, 1), "clock", node, skews[node]))
            skews[node] += chance.choice((-1, 1)) * skew_s * chance.uniform(1.1, 2)
    if "partition" in kinds and nodes > 1:
        for _ in range(windows):
            start, end = window(30)
            faults += [Fault(start, "cut", -1, chance.randrange(1, 2**nodes - 1)), Fault(end, "heal", -1, 0)]
    for name, what, worst in (("loss", "loss", 0.4), ("duplicate", "duplicate", 0.3), ("reorder", "jitter", 1.5)):
        if name in kinds:
            for _ in range(windows):
                start, end = window(60)
                bad = chance.uniform(0.1, 1) * worst
                faults += [Fault(start, what, -1, bad), Fault(end, what, -1, 0)]  # type: ignore[arg-type]
    if "crash" in kinds:
        for _ in range(windows * max(1, nodes // 3)):
            start, end = window(15)
            node, mode = chance.randrange(nodes), chance.choice(("now", "before", "after"))
            faults += [Fault(start, "crash", node, 0, mode), Fault(end, "restart", node, 0)]
    if "slow-disk" in kinds:
        for _ in range(windows):
            start, end = window(30)
            node = chance.randrange(nodes)
            slow = chance.choice((0.05, 0.5, 4.0)) * chance.uniform(0.2, 1)
            faults += [Fault(start, "slow", node, slow), Fault(end, "slow", node, 0)]
    return FaultPlan(tuple(rates), tuple(skews), tuple(sorted(faults)))
