"""The one way in. Every change of what a node knows is an op that comes through `commit` (this node's own,
written by requests inside one transaction) or `admit` (ops from elsewhere, each verified and then folded). Both
end in the same store; nothing else writes there.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from hocket.errors import StoreError
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import make_ulid, next_ulid, node_id
from hocket.kernel.jws import detached
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, plain_schedule, sealed
from hocket.kernel.postcard import Malformed, UnknownVariant
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import ScheduleJob, number_of
from hocket.log.door import judge
from hocket.log.parallel import in_parallel
from hocket.log.transaction import Transaction, Wall, being_rebuilt, link, next_stamp
from hocket.store import Head, OpRow, Session, Store

__all__ = ["SETTLE_STEP", "Admission", "Log", "Transaction"]

T = TypeVar("T")
Request = Callable[[Transaction], Any]

ADMIT_BATCH = 1_000
SETTLE_STEP = 1_000
SCHEDULE_JOB = number_of(ScheduleJob)


class Admission(NamedTuple):
    """What became of ops from elsewhere. Those turned away at the door are counted by reason; an op that is on
    the log but does not count there was appended. `collided` of those share their timestamp with another op of
    their author: an integrity failure, which must be loud. `unread` ones lie behind bytes that cannot be read,
    and nobody can tell where they begin.
    """

    appended: int
    duplicated: int
    refused: dict[Reason, int]
    collided: int = 0
    unread: int = 0

    @property
    def rejected(self) -> int:
        return sum(self.refused.values())


class Log:
    """`wall` gives the time and `randomness` that many random bytes; both come from outside, so that a
    simulation can choose them. `helpers` sign and verify in parallel; without them everything happens in the
    caller's thread.
    """

    def __init__(
        self,
        store: Store,
        key: SigningKey,
        user: str,
        *,
        wall: Wall,
        randomness: Callable[[int], bytes],
        helpers: Executor | None = None,
        committed: Callable[[bool], None] = lambda stirring: None,
    ) -> None:
        self.store = store
        self.node = node_id(key.public)
        self.user = user
        self._key = key
        self._wall = wall
        self._randomness = randomness
        self._helpers = helpers
        self._committed = committed
        self._last_id = bytes(16)
        self._last_id_ms = 0
        self._id_lock = threading.Lock()

    def commit(self, requests: Sequence[Request]) -> list[Any]:
        """Runs the requests in one durable transaction and gives their results in order. A request that raises
        gives that error as its result and leaves nothing behind; the others are not disturbed by it. An error
        of the store is everybody's, and is raised: nothing was kept.
        """
        try:
            return self.run(lambda tx: [request(tx) for request in requests])
        except StoreError:
            raise
        except Exception as error:
            if len(requests) == 1:
                return [error]
        results: list[Any] = []
        for request in requests:
            results += self.commit([request])
        return results

    def run(self, request: Callable[[Transaction], T]) -> T:
        """One request in a transaction of its own; its error is raised."""
        with self.store.write() as session:
            transaction = Transaction(session, self.node, self._wall, self.new_id)
            result = request(transaction)
            transaction.close(self._sign)
        self._committed(transaction.stirring)
        return result

    def append_plain(self, kind: str, payload: bytes) -> bytes:
        """Schedules one new job that asks for nothing special, and gives its id, which is that of the op. This
        is the short way for the commonest op of all: it always counts, so it is only signed, chained and put on
        the log. Folding and indexing it is left to the next transaction that looks at the roster, which does so
        for many at once.
        """
        with self.store.write() as session:
            head = session.head()
            if head.rebuilding is not None:
                raise being_rebuilt()
            stamp = next_stamp(Hlc(head.wall, head.logical, self.node), self._wall(head.wall))
            job_id = self.new_id(stamp.wall)
            body = plain_schedule(job_id, stamp, kind, payload)
            whole = sealed(body, detached(self._key.sign(body + b"\x00"), self.node))
            seq, chain = head.seq + 1, link(head.chain, whole)
            session.add_ops((OpRow(seq, job_id, pack(stamp), SCHEDULE_JOB, job_id, 0, 0, whole, chain),))
            settled = head.settled if head.unsettled else head.seq
            session.put_head(Head(stamp.wall, stamp.logical, seq, chain, settled, head.unsettled + 1, None, head.law))
        self._committed(True)
        return job_id

    def settle(self) -> None:
        """Brings the projections up to the log, in steps that do not hold up other writers for long."""
        with self.store.read() as session:
            unsettled = session.head().unsettled
        while unsettled > 0:
            unsettled = self.run(_settle_some)

    def new_id(self, ms: int) -> bytes:
        """A fresh ULID, later than every other one of this process."""
        with self._id_lock:
            if ms > self._last_id_ms:
                self._last_id_ms = ms
                self._last_id = make_ulid(ms, self._randomness(10))
            else:
                self._last_id = next_ulid(self._last_id)
            return self._last_id

    def _sign(self, bodies: Sequence[bytes]) -> list[bytes]:
        return in_parallel(self._helpers, self._sign_here, bodies)

    def _sign_here(self, bodies: Sequence[bytes]) -> list[bytes]:
        sign, node = self._key.sign, self.node
        return [detached(sign(body + b"\x00"), node) for body in bodies]

    def admit(self, ops: Iterable[tuple[bytes, Op | Malformed]]) -> Admission:
        """Takes in ops from elsewhere, in any order, any number of times. What cannot be verified is turned
        away and counted.
        """
        total = Admission(0, 0, {})
        batch: list[tuple[bytes, Op | Malformed]] = []
        for item in ops:
            batch.append(item)
            if len(batch) >= ADMIT_BATCH:
                total = _add(total, self._admit(batch))
                batch = []
        return _add(total, self._admit(batch)) if batch else total

    def _admit(self, batch: list[tuple[bytes, Op | Malformed]]) -> Admission:
        with self.store.read() as session:
            keys = self._keys(session)
        good = sorted(((raw, op) for raw, op in batch if isinstance(op, Op)), key=lambda item: item[1].timestamp)
        verdicts = judge(good, keys, self.user, self._helpers)

        def request(tx: Transaction) -> Admission:
            tx.session.order_ops()
            tx.settle()
            appended = duplicated = 0
            refused: dict[Reason, int] = {}

            def refuse(op_id: bytes, author: int, reason: Reason) -> None:
                tx.refuse(op_id, author, reason)
                refused[reason] = refused.get(reason, 0) + 1

            for raw, op in batch:
                if isinstance(op, Malformed):
                    unknown = isinstance(op, UnknownVariant)
                    refuse(raw[:16].ljust(16, b"\0"), 0, Reason.UNKNOWN_VARIANT if unknown else Reason.MALFORMED)
            taken: set[bytes] = set()
            for (raw, op), reason in zip(good, verdicts, strict=True):
                if reason is not Reason.BEYOND_TIME:
                    tx.hear(op.timestamp)
                if op.id in taken or tx.session.op(op.id) is not None:
                    duplicated += 1
                elif reason is not None:
                    refuse(op.id, op.node_id, reason)
                else:
                    tx.admit(op, raw)
                    taken.add(op.id)
                    appended += 1
            collided = sum(tx.projection.reason(op_id) == Reason.INTEGRITY for op_id in taken)
            return Admission(appended, duplicated, refused, collided)

        return self.run(request)

    def _keys(self, session: Session) -> dict[int, bytes]:
        return {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}


def _settle_some(tx: Transaction) -> int:
    tx.settle(SETTLE_STEP)
    return tx.unsettled


def _add(left: Admission, right: Admission) -> Admission:
    reasons = left.refused.keys() | right.refused.keys()
    refused = {reason: left.refused.get(reason, 0) + right.refused.get(reason, 0) for reason in reasons}
    collided = left.collided + right.collided
    return Admission(left.appended + right.appended, left.duplicated + right.duplicated, refused, collided)
