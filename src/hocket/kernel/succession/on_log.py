"""What the ops of a log about the coordinator make of each other, and with further ops that are not on it."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from hocket.kernel.keys import verify
from hocket.kernel.ops import Op
from hocket.kernel.succession.chain import Chain, Succession, TenureStart, chain_of
from hocket.kernel.vocabulary import SetSuccession, TakeOver


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
