"""Which histories there are: who is in the mesh, by a setup, and what happens, by a list of moves. A setup and a move
are a few small numbers each, so hypothesis can make and shrink a history, and a plain seed can make a hundred thousand
of them. tests/trust/moves.py explains the numbers.
"""

from random import Random
from typing import NamedTuple

from hocket.kernel.ucan import ROOT, Capability
from tests.trust.members import READS, WORKER, job

MOVES_MAX = 20
PASSING = Capability("Registration", "Write", {})
WRITES = Capability("Artifact", "Write", {})
ACME = tuple(job(action, "acme.") for action in ("Schedule", "Claim", "Complete"))
HONEST_GRANTS = ((*WORKER, *READS), ROOT, (*ACME, WRITES, *READS))
ROGUE_GRANTS = (
    READS,
    (*ACME, WRITES, *READS),
    (job("Claim", "acme."), job("Complete", "acme."), *READS),
    (job("Schedule", "acme."), *READS),
    (*WORKER, *READS),
    (*ACME, WRITES, PASSING, *READS),
    ROOT,
)
# How many values each number of a move has.
SIZES = (6, 40, 6, 12, 8, 12)
SETUPS = 3 << 12


class Move(NamedTuple):
    """`who` acts, by `verb`; the rest choose a target, a date, an audience and a variation."""

    who: int
    verb: int
    target: int
    date: int
    seen_by: int
    way: int


class Setup(NamedTuple):
    """Who is in the mesh: the grants of honest members and of rogues, whether the first rogue's grant ends, and whether
    that rogue never was the coordinator (0), was replaced (1) or still is (2).
    """

    honest: tuple[int, int]
    rogues: tuple[int, ...]
    ends: bool
    tenure: int


def read_setup(number: int) -> Setup:
    honest = number % len(HONEST_GRANTS), (number >> 2) % len(HONEST_GRANTS)
    rogues = (number >> 5) % len(ROGUE_GRANTS), (number >> 8) % len(ROGUE_GRANTS)
    return Setup(honest, rogues[: 1 + (number >> 4) % 2], bool(number >> 11 & 1), number >> 12)


def random_moves(seed: int) -> tuple[Setup, list[Move]]:
    chance, count, setup = _begun(seed)
    return setup, [Move(*(chance.randrange(size) for size in SIZES)) for _ in range(count)]


def random_setup(seed: int) -> Setup:
    return _begun(seed)[2]


def _begun(seed: int) -> tuple[Random, int, Setup]:
    chance = Random(seed)
    count = chance.randint(4, MOVES_MAX)
    return chance, count, read_setup(chance.randrange(SETUPS))
