"""The checker of histories: known good and bad ones, and a brute-force checker that it must agree with."""

from collections.abc import Iterable, Sequence
from itertools import permutations
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.testing.linearizability import (
    UNKNOWN,
    Acquire,
    Call,
    CompareAndSet,
    Expire,
    LockModel,
    Model,
    Read,
    RegisterModel,
    Release,
    Renew,
    TooLong,
    Write,
    apart,
    check,
    falling_fences,
)

A, B = frozenset({"a"}), frozenset({"b"})
BOTH = A | B


def acquire(hold: str, result: Any, start: float, end: float, keys: frozenset[str] = A, shared: bool = False) -> Call:
    return Call(Acquire(hold, hold[0], keys, shared), result, start, end)


def release(agent: str, fence: int, result: Any, start: float, end: float, for_good: bool = False) -> Call:
    return Call(Release(agent, fence, A, for_good), result, start, end)


GOOD_REGISTERS: dict[str, list[Call]] = {
    "nothing happened": [],
    "one after the other": [Call(Write(1), None, 0, 1), Call(Read(), 1, 2, 3)],
    "a read during a write sees the old value": [Call(Write(1), None, 0, 9), Call(Read(), None, 1, 2)],
    "a read during a write sees the new value": [Call(Write(1), None, 0, 9), Call(Read(), 1, 1, 2)],
    "one of two swaps wins": [
        Call(CompareAndSet(None, 1), True, 0, 5),
        Call(CompareAndSet(None, 2), False, 1, 4),
        Call(Read(), 1, 6, 7),
    ],
    "a swap against its start": [Call(CompareAndSet(1, 2), True, 0, 9), Call(Write(1), None, 1, 8)],
    "a write without an answer took effect late": [
        Call(Write(1), UNKNOWN, 0, inf),
        Call(Read(), None, 1, 2),
        Call(Read(), 1, 8, 9),
    ],
    "a write without an answer took no effect": [Call(Write(1), UNKNOWN, 0, inf), Call(Read(), None, 1, 2)],
    "calls that touch in time overlap": [Call(Write(1), None, 0, 1), Call(Read(), None, 1, 2)],
}
BAD_REGISTERS: dict[str, list[Call]] = {
    "a lost write": [Call(Write(1), None, 0, 1), Call(Read(), None, 2, 3)],
    "a value from nowhere": [Call(Read(), 7, 0, 1)],
    "a value from the future": [Call(Read(), 1, 0, 1), Call(Write(1), None, 2, 3)],
    "two winners": [Call(CompareAndSet(None, 1), True, 0, 9), Call(CompareAndSet(None, 2), True, 1, 8)],
    "no winner": [Call(CompareAndSet(None, 1), False, 0, 9), Call(CompareAndSet(None, 2), False, 1, 8)],
    "back and forth": [
        Call(Write(1), None, 0, 9),
        Call(Read(), 1, 1, 2),
        Call(Read(), None, 3, 4),
    ],
    "two readers disagree about the order": [
        Call(Write(1), None, 0, 9),
        Call(Write(2), None, 0, 9),
        Call(Read(), 1, 1, 2),
        Call(Read(), 2, 3, 4),
        Call(Read(), 1, 5, 6),
    ],
    "a write of a client that had died": [
        Call(Write(1), UNKNOWN, 0, 3),
        Call(Read(), None, 4, 5),
        Call(Read(), 1, 6, 7),
    ],
}
GOOD_LOCKS: dict[str, list[Call]] = {
    "in turn": [acquire("x1", 1, 0, 1), release("x", 1, True, 2, 3), acquire("y1", 2, 4, 5)],
    "refused while held": [acquire("x1", 1, 0, 1), acquire("y1", None, 2, 3), release("x", 1, True, 4, 5)],
    "granted at the release": [acquire("x1", 1, 0, 1), acquire("y1", 2, 2, 9), release("x", 1, True, 4, 5)],
    "fences with gaps": [acquire("x1", 7, 0, 1), release("x", 7, True, 2, 3), acquire("y1", 1 << 33, 4, 5)],
    "two readers": [acquire("x1", 1, 0, 1, shared=True), acquire("y1", 2, 2, 3, shared=True)],
    "a reader refused, for a writer waits": [
        acquire("x1", 1, 0, 1, shared=True),
        acquire("w1", None, 2, 9),
        acquire("y1", None, 3, 4, shared=True),
    ],
    "other keys": [acquire("x1", 1, 0, 1), acquire("y1", 2, 2, 3, keys=B)],
    "taken over after its deadline": [
        acquire("x1", 1, 0, 1),
        Call(Expire("x1", A), UNKNOWN, 5),
        acquire("y1", None, 2, 3),
        acquire("y2", 2, 6, 7),
        Call(Renew("x", 1, A), False, 8, 9),
        release("x", 1, False, 8, 9),
    ],
    "released in time, although it could have expired": [
        acquire("x1", 1, 0, 1),
        Call(Expire("x1", A), UNKNOWN, 5),
        release("x", 1, True, 6, 7),
    ],
    "granted to a client that died": [
        acquire("x1", UNKNOWN, 0, 2),
        acquire("y1", None, 3, 4),
        Call(Expire("x1", A), UNKNOWN, 3),
        acquire("y2", 2, 5, 6),
    ],
    "a release without an answer": [
        acquire("x1", 1, 0, 1),
        release("x", 1, UNKNOWN, 2, 3),
        acquire("y1", 2, 4, 5),
    ],
    "a job that ends": [acquire("x1", 1, 0, 1), release("x", 1, True, 2, 3, True), acquire("y1", None, 4, 5)],
}
BAD_LOCKS: dict[str, list[Call]] = {
    "two holders": [acquire("x1", 1, 0, 1), acquire("y1", 2, 2, 3)],
    "two agents of one node": [acquire("x1", 1, 0, 9), acquire("y1", 2, 0, 9)],
    "a fence that begins again": [
        acquire("x1", 1, 0, 1),
        release("x", 1, True, 2, 3),
        acquire("y1", 1, 4, 5),
    ],
    "a fence that falls": [acquire("x1", 5, 0, 1), release("x", 5, True, 2, 3), acquire("y1", 4, 4, 5)],
    "refused although free": [acquire("y1", None, 0, 1)],
    "refused after the release": [
        acquire("x1", 1, 0, 1),
        release("x", 1, True, 2, 3),
        acquire("y1", None, 4, 5),
    ],
    "a reader beside a writer": [acquire("x1", 1, 0, 1), acquire("y1", 2, 2, 3, shared=True)],
    "a writer beside a reader": [acquire("x1", 1, 0, 1, shared=True), acquire("y1", 2, 2, 3)],
    "taken over before its deadline": [
        acquire("x1", 1, 0, 1),
        Call(Expire("x1", A), UNKNOWN, 5),
        acquire("y1", 2, 2, 3),
    ],
    "released by another agent": [acquire("x1", 1, 0, 1), release("y", 1, True, 2, 3)],
    "released twice": [acquire("x1", 1, 0, 1), release("x", 1, True, 2, 3), release("x", 1, True, 4, 5)],
    "renewed after it was taken over": [
        acquire("x1", 1, 0, 1),
        Call(Expire("x1", A), UNKNOWN, 1),
        acquire("y1", 2, 2, 3),
        Call(Renew("x", 1, A), True, 4, 5),
    ],
    "one of two keys is held": [acquire("x1", 1, 0, 1, keys=B), acquire("y1", 2, 2, 3, keys=BOTH)],
    "a job that begins again": [
        acquire("x1", 1, 0, 1),
        release("x", 1, True, 2, 3, True),
        acquire("y1", 2, 4, 5),
    ],
    "granted to a client that had died": [
        acquire("x1", UNKNOWN, 0, 1),
        acquire("y1", 1, 2, 3),
        release("y", 1, True, 4, 5),
        acquire("z1", None, 6, 7),
    ],
}


def named(*groups: tuple[Model[Any], dict[str, list[Call]]]) -> list[Any]:
    return [pytest.param(model, history, id=name) for model, each in groups for name, history in each.items()]


@pytest.mark.parametrize(("model", "history"), named((RegisterModel(), GOOD_REGISTERS), (LockModel(), GOOD_LOCKS)))
def test_good_histories(model: Model[Any], history: list[Call]) -> None:
    found = check(model, history)
    assert found.is_linearizable, found
    known = [call for call in history if call.result is not UNKNOWN]
    assert [call for call in known if call not in found.order] == []
    assert brute_force(model, history)


@pytest.mark.parametrize(("model", "history"), named((RegisterModel(), BAD_REGISTERS), (LockModel(), BAD_LOCKS)))
def test_bad_histories(model: Model[Any], history: list[Call]) -> None:
    found = check(model, history)
    assert not found.is_linearizable
    assert found.blocked and set(found.blocked) <= set(history)
    assert "none of these calls can come next" in str(found)
    assert not brute_force(model, history)


# The brute-force checker tries every order of every selection.


def brute_force(model: Model[Any], history: Sequence[Call]) -> bool:
    known = [call for call in history if call.result is not UNKNOWN]
    unknown = [call for call in history if call.result is UNKNOWN]
    return any(
        _respects_time(order) and _is_allowed(model, order)
        for selection in range(1 << len(unknown))
        for order in permutations([*known, *(call for bit, call in enumerate(unknown) if selection >> bit & 1)])
    )


def _respects_time(order: Sequence[Call]) -> bool:
    return not any(later.end < earlier.start for at, earlier in enumerate(order) for later in order[at + 1 :])


def _is_allowed(model: Model[Any], order: Iterable[Call]) -> bool:
    states = {model.initial}
    for call in order:
        states = {after for state in states for after in model.step(state, call.op, call.result)}
    return bool(states)


TIMES = st.tuples(st.integers(0, 8), st.integers(1, 6)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
VALUES = st.sampled_from([None, 1, 2])
REGISTER_OPS = st.one_of(
    st.tuples(st.just(Read()), VALUES),
    st.tuples(st.builds(Write, VALUES), st.none()),
    st.tuples(st.builds(CompareAndSet, VALUES, VALUES), st.booleans()),
)
KEYS = st.sampled_from([A, A, A, B, BOTH])
LOCK_OPS = st.one_of(
    st.tuples(
        st.builds(Acquire, st.sampled_from(["x1", "y1", "x2"]), st.sampled_from("xy"), KEYS, st.booleans()),
        st.sampled_from([None, 1, 2, 3]),
    ),
    st.tuples(st.builds(Release, st.sampled_from("xy"), st.integers(1, 3), KEYS, st.booleans()), st.booleans()),
    st.tuples(st.builds(Renew, st.sampled_from("xy"), st.integers(1, 3), KEYS), st.booleans()),
    st.tuples(st.builds(Expire, st.sampled_from(["x1", "y1", "x2"]), KEYS), st.just(UNKNOWN)),
)


def histories(ops: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[list[Call]]:
    def call(op: tuple[Any, Any], time: tuple[int, int], fate: int) -> Call:
        """One in six has no answer, and half of those might take effect at any time."""
        result = UNKNOWN if fate < 2 else op[1]
        return Call(op[0], result, time[0], inf if fate == 0 else time[1])

    return st.lists(st.builds(call, ops, TIMES, st.integers(0, 11)), max_size=6)


@given(histories(REGISTER_OPS))
def test_registers_as_by_brute_force(history: list[Call]) -> None:
    assert check(RegisterModel(), history).is_linearizable == brute_force(RegisterModel(), history)


@given(histories(LOCK_OPS))
def test_locks_as_by_brute_force(history: list[Call]) -> None:
    assert check(LockModel(), history).is_linearizable == brute_force(LockModel(), history)


@given(st.data())
@settings(deadline=None)
def test_what_a_real_register_answers_is_linearizable_and_an_answer_from_nowhere_is_not(data: st.DataObject) -> None:
    """Calls take effect at a moment inside of their time, in the order of those moments."""
    state: Any = None
    history = []
    for moment in range(data.draw(st.integers(1, 40))):
        op, _ = data.draw(REGISTER_OPS)
        right = state if isinstance(op, Read) else state == op.expected if isinstance(op, CompareAndSet) else None
        (state,) = RegisterModel().step(state, op, right)
        before, after = data.draw(st.floats(0, 6)), data.draw(st.floats(0, 6))
        is_lost = data.draw(st.integers(0, 9)) == 0
        history.append(Call(op, UNKNOWN if is_lost else right, moment - before, moment + after))
    assert check(RegisterModel(), history).is_linearizable
    spoilt = Call(Read(), "never written", 0, 99)
    assert not check(RegisterModel(), [*history, spoilt]).is_linearizable


def test_a_long_history_of_many_clients_is_quick() -> None:
    """Eight clients at once, five thousand calls: what a run of two minutes records for one key."""
    history = []
    for number in range(5_000):
        start = number * 2.0
        history.append(Call(CompareAndSet(number or None, number + 1), True, start, start + 15))
        history.append(Call(Read(), number + 1, start + 1, start + 14))
    assert check(RegisterModel(), history).is_linearizable


def test_a_search_that_grows_too_long_is_given_up() -> None:
    history = [Call(Write(number), None, 0, 9) for number in range(12)] + [Call(Read(), "never written", 0, 9)]
    with pytest.raises(TooLong):
        check(RegisterModel(), history, configurations_max=500)


# Parts and fences.


def test_keys_that_no_call_takes_together_are_apart() -> None:
    history = [
        acquire("x1", 1, 0, 1),
        acquire("y1", 2, 2, 3, keys=B),
        acquire("z1", 3, 4, 5, keys=frozenset({"c"})),
        acquire("z2", 4, 6, 7, keys=frozenset({"c", "d"})),
    ]
    parts = apart(history, lambda op: op.keys)
    assert sorted(len(part) for part in parts) == [1, 1, 2]
    joined = apart([*history, acquire("w1", 5, 8, 9, keys=BOTH)], lambda op: op.keys)
    assert sorted(len(part) for part in joined) == [2, 3]
    assert {call.op.hold for call in max(joined, key=len)} == {"x1", "y1", "w1"}


def test_fences_that_repeat_or_fall_across_keys_are_found() -> None:
    first, second = acquire("x1", 5, 0, 1), acquire("y1", 5, 0, 1, keys=B)
    assert falling_fences([first, second]) == [(first, second)]
    lower = acquire("y1", 4, 2, 3, keys=B)
    assert falling_fences([first, lower]) == [(first, lower)]
    assert falling_fences([first, acquire("y1", 4, 1, 3, keys=B), acquire("z1", UNKNOWN, 0, 9)]) == []
