"""A small mesh for tests: one user, a few nodes that the user has introduced, signed ops, and a log to put them in."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, derived_ulid, make_ulid, node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import UNBOUND, encode_rules
from hocket.kernel.ops import Op, encode, sign
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, Payload
from hocket.log import RULES, Log
from hocket.store import Store
from tests.stores import new_store

USER = SigningKey(b"user" * 8)
STRANGER = SigningKey(b"else" * 8)
KEYS = tuple(SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
NODES = tuple(node_id(key.public) for key in KEYS)
# The node whose log takes the others' ops in; none of the histories is its own.
READER = SigningKey(b"read" * 8)
KEY_OF = {node_id(key.public): key for key in (*KEYS, READER)}
START = 1_000_000
NOW = START + 10_000_000


def op_id(number: int) -> bytes:
    return derived_ulid(START, b"op", number.to_bytes(4, "big"))


def job_id(number: int) -> bytes:
    return derived_ulid(START, b"job", number.to_bytes(4, "big"))


def introduction(key: SigningKey, user: SigningKey = USER, wall: int = 1) -> Op:
    """A node's first op: the user's root delegation to it."""
    token = issue(user, key.public, ROOT, 0, None)
    node = node_id(key.public)
    return Op(make_ulid(wall, key.public[:10]), Hlc(wall, 0, node), node, (), DelegateUcan(content_hash(token), token))


INTRODUCTIONS = tuple(introduction(key) for key in KEYS)


def signed(op: Op, key: SigningKey | None = None) -> tuple[bytes, Op]:
    """The op as its author sends it, bytes and all."""
    whole = sign(op, key or KEY_OF[op.node_id])
    return encode(whole), whole


def sent(ops: Iterable[Op]) -> list[tuple[bytes, Op]]:
    return [signed(op) for op in ops]


class Clock:
    """A wall clock that stands where a test puts it."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self, floor: int) -> int:
        return max(self.now, floor)


def randomness(salt: bytes) -> Callable[[int], bytes]:
    numbers = count(1)
    return lambda size: content_hash(salt + next(numbers).to_bytes(8, "big"))[:size]


def new_log(store: Store | None = None, key: SigningKey = READER, wall: Callable[[int], int] | None = None) -> Log:
    """A log of the user's, in a new store unless one is given. Its rules bind no ids: tests may write any history."""
    store = store or new_store()
    with store.write() as session:
        if session.meta(RULES) is None:
            session.set_meta(RULES, encode_rules(UNBOUND))
    return Log(
        store,
        key,
        did_key(USER.public),
        wall=wall or Clock(),
        randomness=randomness(key.public),
    )


class Script:
    """Writes a history by hand, op after op, each at a time of one's choosing."""

    def __init__(self, first: int = 1) -> None:
        """`first` numbers the first op; two scripts for one log count from different numbers."""
        self.ops: list[Op] = []
        self._numbers = count(first)

    def say(
        self,
        node: int,
        wall: int,
        payload: Payload,
        deps: Sequence[bytes] = (),
        logical: int = 0,
        number: int | None = None,
    ) -> Op:
        """`wall` counts from the start of the world; `number` fixes the op's id beforehand."""
        author = NODES[node]
        identity = op_id(next(self._numbers) if number is None else number)
        op = Op(identity, Hlc(START + wall, logical, author), author, tuple(deps), payload)
        self.ops.append(op)
        return op
