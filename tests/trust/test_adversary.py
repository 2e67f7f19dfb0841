"""Members with narrow grants who forge, date back, fork, replay, squat and rename at will change nothing that their
grants do not allow, and honest members agree. Every mistake that a review found once is found again when it is planted
back.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trust import soak
from tests.trust.judge import Violation
from tests.trust.moves import play
from tests.trust.plants import PLANTS
from tests.trust.random_histories import MOVES_MAX, SETUPS, SIZES, Move, Setup, random_moves, read_setup

PARTS = 10
HISTORIES = 10
SOME = [pytest.param(part, marks=() if part < 4 else pytest.mark.soak) for part in range(PARTS)]
SOAK_PARTS = 100
SOAK_HISTORIES = 1_000
PLANTED_WITHIN = 2_000
# Found within a few histories, so that every run of the tests shows that the judge bites.
QUICK = ("ids are anybody's", "links are not checked", "any member revokes", "anybody evicts")
# Histories in which something went wrong once.
FOUND = (
    (Setup((0, 0), (4,), False, 1), [Move(3, 13, 0, 11, 7, 0), Move(5, 32, 5, 7, 3, 10)]),
    (Setup((0, 0), (1,), False, 1), [Move(4, 13, 0, 9, 4, 7), Move(4, 4, 0, 6, 4, 9)]),
    (Setup((0, 0), (1,), False, 1), [Move(4, 4, 5, 7, 7, 10), Move(3, 25, 4, 11, 4, 8), Move(4, 9, 4, 11, 6, 6)]),
    (Setup((0, 0), (1,), False, 0), [Move(3, 39, 5, 4, 4, 5), Move(5, 25, 3, 5, 3, 4)]),
    (Setup((0, 0), (3, 3), False, 0), [Move(3, 36, 5, 2, 1, 7), Move(5, 11, 5, 4, 0, 7), Move(5, 27, 2, 0, 4, 3)]),
    (
        Setup((0, 0), (0,), False, 0),
        [Move(1, 20, 4, 5, 4, 8), Move(3, 25, 1, 3, 7, 9), Move(4, 19, 5, 6, 2, 7), Move(4, 7, 0, 2, 7, 3)],
    ),
    (Setup((2, 0), (5,), False, 1), [Move(5, 9, 0, 3, 2, 4), Move(3, 14, 1, 2, 6, 5)]),
    (Setup((2, 2), (1, 3), True, 0), [Move(2, 15, 4, 6, 5, 5), Move(0, 22, 4, 11, 6, 11), Move(4, 6, 5, 4, 7, 8)]),
    (
        Setup((1, 1), (4,), True, 2),
        [
            *(Move(4, 3, 2, 7, 4, 3), Move(5, 9, 4, 5, 7, 0), Move(3, 27, 2, 7, 7, 2)),
            *(Move(2, 15, 0, 6, 5, 4), Move(4, 3, 5, 0, 5, 10)),
        ],
    ),
    (
        Setup((0, 1), (5,), False, 2),
        [
            *(Move(5, 1, 0, 1, 1, 1), Move(4, 25, 5, 10, 6, 9), Move(1, 5, 2, 5, 7, 8)),
            *(Move(0, 22, 0, 1, 0, 4), Move(5, 2, 2, 7, 2, 10)),
        ],
    ),
)

moves = st.builds(Move, *(st.integers(0, size - 1) for size in SIZES))


@pytest.mark.slow
@pytest.mark.req("LW-26", "LW-32", "LW-42", "LW-43")
@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(st.integers(0, SETUPS - 1), st.lists(moves, max_size=MOVES_MAX))
def test_members_do_what_they_were_granted_and_nothing_else(setup: int, history: list[Move]) -> None:
    play(read_setup(setup), history)


@pytest.mark.slow
@pytest.mark.req("LW-26", "LW-32", "LW-42", "LW-43")
@pytest.mark.parametrize("part", SOME)
def test_a_hundred_histories(part: int) -> None:
    for seed in range(part, PARTS * HISTORIES, PARTS):
        try:
            play(*random_moves(seed))
        except Violation as violation:
            raise Violation(f"seed {seed}: {violation}") from violation


@pytest.mark.slow
@pytest.mark.touches("LW-32", "LW-43")
@pytest.mark.parametrize(("setup", "history"), FOUND)
def test_what_went_wrong_once_goes_well(setup: Setup, history: list[Move]) -> None:
    play(setup, history)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_a_hundred_thousand_histories(part: int) -> None:
    seeds = soak.by_setup(range(SOAK_PARTS * SOAK_HISTORIES))[part * SOAK_HISTORIES :][:SOAK_HISTORIES]
    assert [(seed, said) for seed, said in soak.played(seeds) if said] == []


@pytest.mark.slow
@pytest.mark.req("LW-42", "LW-43")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_that_is_planted_back_is_found_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    assert found_within(50)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PLANTS)
def test_every_mistake_that_is_planted_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    assert found_within(PLANTED_WITHIN)


def found_within(histories: int) -> bool:
    for seed in range(histories):
        try:
            play(*random_moves(seed))
        except Violation:
            return True
    return False
