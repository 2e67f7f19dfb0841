"""Histories of locks, by eight processes that are killed and frozen at random, in one home and in a mesh whose
coordinator restarts. They are linearizable, no fence is given twice, and no stale write gets through the guard.
"""

from pathlib import Path

import pytest

from hocket.testing.linearizability import UNKNOWN, Acquire, Call, Expire, LockModel, apart, check, falling_fences
from tests.histories.locker import KEYS
from tests.histories.runs import SECONDS, Mesh, check_history, coordinated, one_home, record, without_guesses

A, B = frozenset({"file:a"}), frozenset({"file:b"})


@pytest.mark.req("VX-01", "VX-03", "VX-04", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_locks_in_one_home(tmp_path: Path, seconds: int) -> None:
    with one_home(tmp_path) as mesh:
        run(mesh, tmp_path, seconds)


@pytest.mark.req("VX-01", "VX-03", "VX-04", "VX-06")
@pytest.mark.parametrize("seconds", SECONDS)
def test_locks_in_a_mesh_whose_coordinator_restarts(tmp_path: Path, seconds: int) -> None:
    with coordinated(tmp_path, "lock:acquire:file:", "lock:acquire:other") as mesh:
        run(mesh, tmp_path, seconds)


def run(mesh: Mesh, directory: Path, seconds: int) -> None:
    history = record(mesh, directory, "locker", "", list(KEYS), seconds)
    check_history(history)
    assert not falling_fences(history)


@pytest.mark.parametrize(
    ("waited_for", "since", "is_explained"), [(A | B, 2, True), (A | B, 5, False), (A, 2, False), (B, 2, False)]
)
def test_a_lost_request_explains_a_refusal_for_another_key_only_behind_one_that_waits_for_both(
    waited_for: frozenset[str], since: float, is_explained: bool
) -> None:
    # Nobody waits for as long as a hold lasts.
    lost = [Call(Acquire("lost", "l", B), UNKNOWN, 0.01, 0.06), Call(Expire("lost", B), UNKNOWN, 0.01, 0.06)]
    refused = Call(Acquire("refused", "r", A), None, 0.03, 0.04)
    # By their fences, both were granted after the refusal.
    later = Call(Acquire("later", "s", A, True), 2, 0.05, 0.05)
    waits = Call(Acquire("waits", "w", waited_for, True), 3, since / 100, 0.07)
    kept = without_guesses([*lost, waits, refused, later], is_alone=True)
    assert set(kept) - {refused} == {waits, later}
    assert (refused not in kept) == is_explained
    parts = apart(kept, lambda op: op.keys)
    assert all(check(LockModel(), part).is_linearizable for part in parts) == is_explained


@pytest.mark.parametrize(("begun", "is_explained"), [(0.0, True), (1.9, False)])
def test_a_waiter_that_may_have_been_frozen_while_it_held_the_lock_explains_a_refusal(
    begun: float, is_explained: bool
) -> None:
    waits = Call(Acquire("waits", "w", A, True), 3, begun, 2.2)
    refused = Call(Acquire("refused", "r", A), None, 2.0, 2.1)
    later = Call(Acquire("later", "s", A, True), 2, 2.11, 2.12)
    kept = without_guesses([waits, refused, later], is_alone=True)
    assert (refused not in kept) == is_explained
    assert all(check(LockModel(), part).is_linearizable for part in apart(kept, lambda op: op.keys)) == is_explained
