"""Keeps the scopes of locks inside one transaction. On the arbiter's node it also protects holders from clocks that are
ahead: whatever other nodes' ops say, the arbiter ends a hold only by its own machine's clock. It gives no fence from a
state that is behind the log, as a row that was lost or restored from a backup is, and it finds deadlocks that span
scopes. For these it also keeps a row for each scope in which agents wait, so that the other scopes are not read.
"""

from collections import Counter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from hocket.errors import StoreError
from hocket.families.locks.facts import LOCK, LOCK_WAIT, AcquireLocks
from hocket.families.locks.rules import LOCKS, Scope, ends_early, excess, is_deadlock
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import ACCEPTANCES, Subject, subject_of
from hocket.log.citations import Memory
from hocket.log.limits import is_given_up
from hocket.log.projectors import Engine, SubjectProjector
from hocket.store import Session, SubjectRow
from hocket.store.subjects import LOCK_QUEUE

# In how many scopes the waits of one node are looked at for a deadlock.
SCOPES_MAX = 16
# A scope with more holds and waits than this is read again in each transaction.
REQUESTS_KEPT_MAX = 64


class ScopeQueue(NamedTuple):
    """A scope in which agents of these nodes wait."""

    scope: bytes
    nodes: tuple[int, ...]


# In place of the nodes that a row names, if these are not known.
_ANY = (-1,)
_encode_queue = msgspec.msgpack.Encoder().encode
_decode_queue = msgpack_decoder(ScopeQueue).decode


def waited_in(session: Session, without: bytes) -> list[Scope]:
    """The scopes in which agents wait, but one; some for each node, so that no node hides the waits of another."""
    counts: Counter[int] = Counter()
    scopes: dict[bytes, Scope] = {}
    for row in session.subject_states(LOCK_QUEUE, without):
        queue = _read_queue(session, row)
        if queue is None or queue.scope in (without, *scopes):
            continue  # in a store that nodes share, another program wrote it
        if any(counts[node] < SCOPES_MAX for node in queue.nodes):
            state = session.subject_state(Subject(LOCK, queue.scope))
            if state is not None:
                scopes[queue.scope] = scope = LOCKS.decode(state)
                counts.update(_waiting_nodes(scope))
    return list(scopes.values())


def _read_queue(session: Session, row: bytes) -> ScopeQueue | None:
    try:
        return _decode_queue(row)
    except msgspec.MsgspecError:
        if session.row_check is None:
            raise
        session.row_check.refuse("subjects", LOCK_QUEUE, "it cannot be read")
        return None


def _waiting_nodes(scope: Scope | None) -> tuple[int, ...]:
    return () if scope is None else tuple(sorted({wait.node for wait in scope.waits}))


def _is_large(scope: Scope | None) -> bool:
    return scope is not None and len(scope.holds) + len(scope.waits) > REQUESTS_KEPT_MAX


class LockProjector(SubjectProjector):
    """It also answers the lock rules' questions about the rest of the log."""

    def __init__(self, session: Session, engine: Engine) -> None:
        super().__init__(session, engine, LOCK)
        self._engine = engine
        self._checked: set[bytes] = set()
        self.refusal, self.arbiter = engine.refusal, engine.arbiter
        self.is_overtaken, self.offered = engine.is_overtaken, engine.offered
        # The ops that asked for locks and waited in the queue until now.
        self.no_longer_waiting: set[bytes] = set()
        self.topics = {LOCK_WAIT: self.no_longer_waiting}
        # The nodes that wait in a scope, according to the store, of scopes whose queue has changed.
        self._stored_nodes: dict[bytes, tuple[int, ...]] = {}
        self.memory = Memory(
            (self.touched, self._dirty, self.no_longer_waiting, self._stored_nodes), (self._states, self._checked)
        )

    @property
    def context(self) -> "LockProjector":
        return self

    def keep(self, key: bytes, state: Scope | None) -> None:
        before: Scope | None = self.state(key)
        if before is not None and before.waits:
            waiting = () if state is None else state.waits
            self.no_longer_waiting |= {wait.op for wait in before.waits} - {wait.op for wait in waiting}
        if (before is not None and before.waits) or (state is not None and state.waits):
            self._stored_nodes.setdefault(key, _waiting_nodes(before))
        super().keep(key, state)

    def _put_right(self, key: bytes) -> None:
        super()._put_right(key)
        self._stored_nodes[key] = _ANY

    def flush(self) -> None:
        if not self._dirty:
            return
        super().flush()
        for key, before in self._stored_nodes.items():
            nodes, subject = _waiting_nodes(self._states[key]), Subject(LOCK_QUEUE, key)
            if nodes and nodes != before:
                self._session.put_subject(SubjectRow(subject, b"", _encode_queue(ScopeQueue(key, nodes))))
            elif not nodes and before:
                self._session.drop_subject(subject)
        self._stored_nodes.clear()
        for key in [key for key in self.touched if _is_large(self._states.get(key))]:
            del self._states[key]

    def _forget_unchanged(self) -> None:
        super()._forget_unchanged()
        self._checked.intersection_update(self._states)

    def designations(self, at: Hlc) -> int:
        return self._engine.permissions.designations(at)

    def own_fault(self, state: Scope | None, op: Op) -> Reason | None:
        if self.arbiter(op.timestamp) != op.node_id:
            return None
        subject = subject_of(op.payload)
        assert subject is not None
        self._check_row(subject, state)
        if type(op.payload) in ACCEPTANCES:
            offered = self.offered(op.payload.offer, subject)  # type: ignore[union-attr]
            if offered is None:
                return None
            if self._is_given_up(offered):
                return Reason.GIVEN_UP
            op = replace(offered, id=op.id, timestamp=op.timestamp)
        if fault := excess(state, op):
            return fault
        early = ends_early(state, op, self, self._engine.physical)
        return early or (Reason.DEADLOCK if is_deadlock(state, op, self, lambda: self._others(subject)) else None)

    def _others(self, subject: Subject) -> list[Scope]:
        self.flush()
        return waited_in(self._session, subject.key)

    def _check_row(self, subject: Subject, state: Scope | None) -> None:
        if subject.key in self._checked or self._session.row_check is not None:
            return  # where nodes share a store, each state is compared with the ops when it is read
        if self._session.has_op_after(subject, b"" if state is None else pack(state.last)):
            raise StoreError(
                f"the locks of scope {subject.key.decode()!r} are behind the log; run `hocket log rebuild`"
            )
        self._checked.add(subject.key)

    def _is_given_up(self, offered: Op) -> bool:
        """Whether a request has taken so long to get here that its author no longer counts on it."""
        payload, engine = offered.payload, self._engine
        if offered.deadline is None and not isinstance(payload, AcquireLocks):
            return False
        good_for_ms = payload.wait_ms + payload.ttl_ms if isinstance(payload, AcquireLocks) else 0
        return is_given_up(offered, good_for_ms, engine.physical, engine.now)
