"""The tenures that designations, successions and takeovers make: which node decides when, and up to which op."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from hocket.kernel.clock import Hlc
from hocket.kernel.keys import verify
from hocket.kernel.ops import Op, pinned_time
from hocket.kernel.succession.chain import Chain, Succession, TenureStart, chain_of
from hocket.kernel.vocabulary import SetSuccession, TakeOver


class Tenure(NamedTuple):
    """A coordinator from a time on. `last` is the time of its last op that counts as the coordinator's, as its
    successor pins it; None for no bound.
    """

    since: Hlc
    node: int
    last: Hlc | None = None
    pin: bytes | None = None


class Successions:
    """The designations and the ops about successions, each of an author that may write it, and what they make of each
    other. `keys` are those of the nodes.
    """

    def __init__(self, designations: Iterable[TenureStart], ops: Iterable[Op], keys: Mapping[int, bytes]) -> None:
        self._designations, self._ops, self._keys = tuple(designations), tuple(ops), keys
        self.chain = self.chain_with(()) if self._ops else Chain(self._designations, (), {}, frozenset())

    def chain_with(self, ops: Iterable[Op]) -> Chain:
        """What these are together with ops that are not on the log, or not yet."""
        starts, successions = list(self._designations), []
        for op in {op.id: op for op in (*self._ops, *ops)}.values():
            payload, pin = op.payload, op.pin if len(op.cited) == 0 else None
            if isinstance(payload, TakeOver):
                about = payload.term, payload.succession, payload.follows, payload.votes
                starts.append(TenureStart(op.id, op.timestamp, op.node_id, pin, *about))
            elif isinstance(payload, SetSuccession):
                silence = payload.quorum, payload.after_ms
                successions.append(Succession(op.id, op.timestamp, payload.follows, payload.nodes, *silence))
        return chain_of(starts, successions, self._is_signed)

    def _is_signed(self, node: int, signature: bytes, text: bytes) -> bool:
        key = self._keys.get(node)
        return key is not None and _is_signed(key, signature, text)


@lru_cache(1024)
def _is_signed(key: bytes, signature: bytes, text: bytes) -> bool:
    """The votes of each takeover are read again with every change of the permissions."""
    return verify(key, signature, text)


def tenures_of(starts: Iterable[TenureStart]) -> list[Tenure]:
    tenures: list[Tenure] = []
    for each in starts:
        if tenures and each.pin is not None:
            before = tenures[-1]
            tenures[-1] = before._replace(last=pinned_time(each.pin, before.node), pin=each.pin)
        tenures.append(Tenure(each.at, each.node))
    return tenures


def changed_since(before: Sequence[Tenure], after: Sequence[Tenure]) -> Hlc | None:
    """Since when another node decides, or decisions count that did not, or the reverse; None if nothing differs."""
    times: list[Hlc] = []
    for one, other in zip_longest(before, after):
        if one != other:
            both = [each for each in (one, other) if each is not None]
            if len(both) == 1 or one[:2] != other[:2]:
                times += [each.since for each in both]
            times += [each.last for each in both if each.last is not None]
    return min(times, default=None)
