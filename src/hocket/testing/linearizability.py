"""Whether a recorded history is linearizable: whether each call can have taken effect at one moment between its start
and its end, in an order that a sequential model allows. The algorithm is Wing and Gong's, which tries orders in depth,
with Lowe's memory of configurations (calls made, state reached) that led nowhere.

A call whose client died before the answer has the result UNKNOWN: it may have taken effect, until its `end`, or not.
What the world does by itself, such as the end of a lease, is such a call too.

    check(RegisterModel(), [Call(Write(1), None, 0, 2), Call(Read(), 1, 1, 3)]).is_linearizable

The models are a compare-and-set register, and locks with modes. Time is only order here: a hold ends when it is
released, or when an Expire takes effect.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

# A search that gets longer than this is given up: no history of ours needs a hundredth of it.
CONFIGURATIONS_MAX = 500_000


class NoAnswer(Enum):
    UNKNOWN = "unknown"


UNKNOWN = NoAnswer.UNKNOWN


class Call(NamedTuple):
    """What a client asked for, what it got, and when. `client` is only for the reader."""

    op: Any
    result: Any
    start: float
    end: float = inf
    client: str = ""


class Model(Protocol[S]):
    """A sequential specification."""

    @property
    def initial(self) -> S: ...

    def step(self, state: S, op: Any, result: Any) -> Iterable[S]:
        """The states in which the call can leave this state. None of them if it cannot give the result here."""


@dataclass(frozen=True)
class Linearization:
    """`order` is an order that the model allows: of the whole history, or the longest that was found. `blocked` are
    then the calls of which none can come next.
    """

    is_linearizable: bool
    order: tuple[Call, ...]
    blocked: tuple[Call, ...] = ()

    def __str__(self) -> str:
        if self.is_linearizable:
            return f"linearizable: {len(self.order)} calls"
        lines = ["not linearizable; after", *map(str, self.order[-12:]), "none of these calls can come next:"]
        return "\n  ".join([*lines, *map(str, self.blocked)])


class TooLong(Exception):
    """The search was given up."""


def check(model: Model[S], history: Iterable[Call], configurations_max: int = CONFIGURATIONS_MAX) -> Linearization:
    return _Search(model, history, configurations_max).run()


class _Branch(NamedTuple, Generic[S]):
    """A configuration, and the ways on from it that were not tried yet. Calls before `first` are made, and those after
    it whose bit is set in `made`. `left` is how many calls with a known result are not made.
    """

    first: int
    made: int
    state: S
    left: int
    ways: Iterator[tuple[int, S]]


class _Search(Generic[S]):
    def __init__(self, model: Model[S], history: Iterable[Call], configurations_max: int) -> None:
        self._model = model
        self._calls = sorted(history, key=lambda call: (call.start, call.end))
        self._max = configurations_max
        self._seen: set[tuple[int, int, S]] = set()

    def run(self) -> Linearization:
        known = sum(call.result is not UNKNOWN for call in self._calls)
        path = [self._branch(0, 0, self._model.initial, known)]
        order: list[int] = []
        longest: tuple[list[int], _Branch[S]] = [], path[0]
        while path:
            top = path[-1]
            if top.left == 0:
                return Linearization(True, tuple(self._calls[each] for each in order))
            way = next(top.ways, None)
            if way is None:
                path.pop()
                order and order.pop()
                continue
            following = self._after(top, *way)
            if following is None:
                continue
            path.append(following)
            order.append(way[0])
            if len(order) > len(longest[0]):
                longest = order.copy(), following
        made, last = longest
        blocked = tuple(self._calls[each] for each in self._next(last.first, last.made))
        return Linearization(False, tuple(self._calls[each] for each in made), blocked)

    def _branch(self, first: int, made: int, state: S, left: int) -> _Branch[S]:
        return _Branch(first, made, state, left, self._ways(first, made, state))

    def _ways(self, first: int, made: int, state: S) -> Iterator[tuple[int, S]]:
        for number in sorted(self._next(first, made), key=lambda each: self._calls[each].end):
            call = self._calls[number]
            for after in self._model.step(state, call.op, call.result):
                if call.result is not UNKNOWN or after != state:
                    yield number, after

    def _next(self, first: int, made: int) -> Iterator[int]:
        """The calls that may come next: no other one has ended before they started."""
        horizon = inf
        for number in range(first, len(self._calls)):
            call = self._calls[number]
            if call.start > horizon:
                return
            if not made >> (number - first) & 1:
                yield number
                if call.result is not UNKNOWN:
                    horizon = min(horizon, call.end)

    def _after(self, branch: _Branch[S], number: int, state: S) -> _Branch[S] | None:
        """The configuration after this call; None if it has been tried. Calls with an unknown result that ended before
        this one started did not take effect.
        """
        call, first = self._calls[number], branch.first
        made = branch.made | 1 << (number - first)
        for other in range(first, number):
            if self._calls[other].result is UNKNOWN and self._calls[other].end < call.start:
                made |= 1 << (other - first)
        passed = (~made & (made + 1)).bit_length() - 1
        first, made = first + passed, made >> passed
        configuration = first, made, state
        if configuration in self._seen:
            return None
        if len(self._seen) >= self._max:
            raise TooLong(f"{self._max} configurations of {len(self._calls)} calls were tried without a result")
        self._seen.add(configuration)
        return self._branch(first, made, state, branch.left - (call.result is not UNKNOWN))


# A register.


class Read(NamedTuple):
    """Gives the value."""


class Write(NamedTuple):
    """Gives None."""

    value: Hashable


class CompareAndSet(NamedTuple):
    """Gives whether the value was the expected one, and was replaced."""

    expected: Hashable
    value: Hashable


class RegisterModel:
    def __init__(self, initial: Hashable = None) -> None:
        self.initial = initial

    def step(self, state: Hashable, op: Read | Write | CompareAndSet, result: Any) -> Iterator[Hashable]:
        match op:
            case Read():
                right, after = state, state
            case Write(value):
                right, after = None, value
            case CompareAndSet(expected, value):
                right = state == expected
                after = value if right else state
        if result is UNKNOWN or result == right:
            yield after


# Locks, and claims on jobs: a claim is an exclusive hold.


class Acquire(NamedTuple):
    """Gives the fence, or None if it was refused. `hold` names the hold in an Expire; it is the call's own."""

    hold: Hashable
    agent: str
    keys: frozenset[str]
    is_shared: bool = False


class Renew(NamedTuple):
    """Gives whether the agent still holds the keys under this fence."""

    agent: str
    fence: int
    keys: frozenset[str]


class Release(NamedTuple):
    """Gives whether the agent held the keys under this fence. With `for_good` nobody gets them any more, as after the
    completion of a job.
    """

    agent: str
    fence: int
    keys: frozenset[str]
    for_good: bool = False


class Expire(NamedTuple):
    """The world ends a hold. Its result is always UNKNOWN."""

    hold: Hashable
    keys: frozenset[str]


class ModelHold(NamedTuple):
    """`fence` is None if no client knows it."""

    hold: Hashable
    agent: str
    keys: frozenset[str]
    is_shared: bool
    fence: int | None


class ModelState(NamedTuple):
    """`fence` is the highest one so far, as far as clients know."""

    fence: int
    holds: frozenset[ModelHold]
    closed: frozenset[str]


class LockModel:
    """Locks with modes. Each fence is higher than all before it. A request is refused only if something is held. That
    need not be in its own way: a request for several keys that waits for one of them is in the way on the others.
    """

    initial = ModelState(0, frozenset(), frozenset())

    def step(self, state: ModelState, op: Acquire | Renew | Release | Expire, result: Any) -> Iterator[ModelState]:
        match op:
            case Acquire():
                yield from self._acquire(state, op, result)
            case Expire(hold):
                yield state._replace(holds=frozenset(each for each in state.holds if each.hold != hold))
            case Renew(agent, fence):
                if result is UNKNOWN or result == (_held(state, agent, fence) is not None):
                    yield state
            case Release(agent, fence, keys, for_good):
                held = _held(state, agent, fence)
                if result is UNKNOWN or result == (held is not None):
                    closed = state.closed | keys if held is not None and for_good else state.closed
                    yield state._replace(holds=state.holds - {held}, closed=closed)

    def _acquire(self, state: ModelState, op: Acquire, result: Any) -> Iterator[ModelState]:
        rivals = [each for each in state.holds if each.keys & op.keys]
        is_closed = bool(state.closed & op.keys)
        if result is None:
            if state.holds or is_closed:
                yield state
            return
        if is_closed or any(not (each.is_shared and op.is_shared) for each in rivals):
            return
        if result is UNKNOWN or result > state.fence:
            fence = None if result is UNKNOWN else result
            hold = ModelHold(op.hold, op.agent, op.keys, op.is_shared, fence)
            # A fence that no client knows was at least the next.
            yield state._replace(fence=fence or state.fence + 1, holds=state.holds | {hold})


def _held(state: ModelState, agent: str, fence: int) -> ModelHold | None:
    return next((each for each in state.holds if (each.agent, each.fence) == (agent, fence)), None)


# Whole histories.


def apart(history: Sequence[Call], keys_of: Callable[[Any], frozenset[str]]) -> list[list[Call]]:
    """The history in parts that share no key. Each part can be checked for itself, which is much less to try."""
    groups: list[tuple[set[str], list[Call]]] = []
    for call in history:
        keys, calls = set(keys_of(call.op)), [call]
        for group in [each for each in groups if each[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            calls = group[1] + calls
        groups.append((keys, calls))
    return [calls for _, calls in groups]


def falling_fences(history: Iterable[Call]) -> list[tuple[Call, Call]]:
    """Pairs of grants, of any keys, that show a fence which was repeated or fell: the second has a fence that is not
    higher, though the first had ended before it started; or both have the same.
    """
    grants = [call for call in history if isinstance(call.op, Acquire) and isinstance(call.result, int)]
    found = []
    by_fence: dict[int, Call] = {}
    for call in grants:
        if (other := by_fence.setdefault(call.result, call)) is not call:
            found.append((other, call))
    highest: Call | None = None
    ended = sorted(grants, key=lambda call: call.end)
    at = 0
    for call in sorted(grants, key=lambda call: call.start):
        while at < len(ended) and ended[at].end < call.start:
            if highest is None or ended[at].result > highest.result:
                highest = ended[at]
            at += 1
        if highest is not None and highest.result > call.result:
            found.append((highest, call))
    return found
