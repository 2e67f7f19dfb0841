"""Admits ops from elsewhere: verifies their signatures and their authors in batches, by helper threads if there are
some, and hands the good ones to `intake`, inside transactions of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

from hocket.errors import NotAuthorised
from hocket.kernel.bundles import FACTS_KEPT, FACTS_MAX, count_of
from hocket.kernel.clock import WALL_MAX
from hocket.kernel.ops import Op, decode, verify_op
from hocket.kernel.postcard import Malformed
from hocket.log.author_check import AuthorCheck
from hocket.log.intake import Admission, Intake, add
from hocket.log.limits import Slice, WorkCharge

if TYPE_CHECKING:
    from hocket.kernel.arbitration import Reason
    from hocket.kernel.clock import Hlc
    from hocket.kernel.mesh_rules import Rules
    from hocket.log.parallel import Helpers
    from hocket.log.permissions import Permissions
    from hocket.log.transaction import Transaction
    from hocket.store import Session, Store

    Received = tuple[bytes, Op | Malformed]
    Decide = Callable[[Transaction, Sequence[Op]], object]

T = TypeVar("T")
ADMIT_BATCH = 1_000
# A batch ends after so many facts, so that those of two batches are kept: the next is verified while one is folded.
BATCH_FACTS = FACTS_KEPT // 2 - FACTS_MAX


class AdmittingLog(Protocol):
    """What is needed of the log."""

    node: int
    user: str
    store: Store
    helpers: Helpers | None
    is_shared: bool
    physical: Callable[[], int]
    stopwatch: Callable[[], float]

    @property
    def rules(self) -> Rules: ...
    def reading(self) -> Hlc: ...
    def permissions(self, session: Session | None = None) -> Permissions: ...
    def run(self, request: Callable[[Transaction], T]) -> T: ...
    def run_unconfirmed(self, request: Callable[[Transaction], T]) -> T: ...


class Admitter:
    def __init__(self, log: AdmittingLog) -> None:
        self._log = log
        self._authors: set[int] = set()

    def admit(
        self,
        ops: Iterable[Received],
        decide: Decide | None,
        *,
        sender: int | None,
        costs: WorkCharge | None,
        decide_held: Decide | None,
    ) -> Admission:
        """As `Log.admit`."""
        # Held ops of an author come before its later ops.
        self.release(decide_held or decide)
        return self._admit(ops, decide, sender, costs)

    def _admit(
        self,
        ops: Iterable[Received],
        decide: Decide | None,
        sender: int | None,
        costs: WorkCharge | None = None,
        *,
        is_vouched: bool = True,
    ) -> Admission:
        with self._log.store.read() as session:
            keys = {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}
            permissions = self._log.permissions(session)
        if sender not in (None, self._log.node):
            is_vouched = permissions.is_trusted(sender, self._log.reading().wall)
        door = AuthorCheck(
            self._log.user, keys, self._has_written, permissions, self._log.node, self._log.reading().wall
        )
        total = Admission(0, 0, {})
        waiting: Callable[[], Admission] | None = None
        for batch, is_costly in _batches(ops, costs):
            # While one batch is folded, the helpers verify the next.
            following = self._begin(batch, door, decide, is_vouched, sender, costs, is_costly)
            if waiting is not None:
                total = add(total, waiting())
            if total.is_stopped:
                return total
            waiting = following
        return total if waiting is None else add(total, waiting())

    def _has_written(self, node: int) -> bool:
        """Whether an op of this node is on the log. Ops stay on the log, so a yes is remembered."""
        if node not in self._authors:
            with self._log.store.read() as session:
                if session.ops_of_author(node.to_bytes(8, "big"), bytes(20), 1):
                    self._authors.add(node)
        return node in self._authors

    def _begin(
        self,
        batch: list[Received],
        door: AuthorCheck,
        decide: Decide | None,
        is_vouched: bool,
        sender: int | None,
        costs: WorkCharge | None,
        is_costly: bool,
    ) -> Callable[[], Admission]:
        """Begins to verify a batch. The returned function finishes that and admits the good ops. Ops that members send,
        or whose author is costly, are admitted in slices.
        """
        good = sorted(((raw, op) for raw, op in batch if isinstance(op, Op)), key=lambda item: item[1].timestamp)
        judging = door.judge(good, self._log.helpers)
        is_sliced = costs is not None and (is_costly or not is_vouched)
        # The time of an op is measured alone only if another author's could be beside it.
        is_mixed = costs is not None and len({op.node_id for _, op in good}) > 1

        def finish() -> Admission:
            rest = [(raw, op, reason) for (raw, op), reason in zip(good, judging.finish(), strict=True)]
            limit = self._log.physical() + self._skew
            unreadable = [(raw, op) for raw, op in batch if isinstance(op, Malformed)]
            total = Admission(0, 0, {})
            while True:
                slice_ = Slice(self._log.stopwatch, is_sliced)
                total = add(total, self._log.run_unconfirmed(partial(request, slice_, limit, rest, unreadable)))
                del rest[: slice_.taken]
                unreadable = []
                may_go_on = costs is None or costs.charge(slice_.work())
                if not rest:
                    return total
                if not may_go_on:
                    return total._replace(is_stopped=True)

        def request(
            slice_: Slice,
            limit: int,
            rest: list[tuple[bytes, Op, Reason | None]],
            unreadable: list[tuple[bytes, Malformed]],
            tx: Transaction,
        ) -> Admission:
            tx.lock_permissions_for(op.payload for _, op, _ in rest)
            tx.session.order_ops()
            tx.settle()
            slice_.begin()
            intake = Intake(tx, limit, [(raw, op) for raw, op, _ in rest], is_vouched, sender)
            for raw, error in unreadable:
                intake.unreadable(raw, error)
            for step in slice_.steps(rest):
                first = len(intake.taken)
                for raw, op, reason in step:
                    intake.take(raw, op, reason)
                    if is_mixed:
                        slice_.note(op.node_id)
                intake.settle()
                taken = intake.taken[first:]
                if decide is not None and taken and not is_mixed:
                    decide(tx, taken)
                elif decide is not None:
                    for op in taken:
                        decide(tx, (op,))
                        slice_.note(op.node_id)
                if not is_mixed:
                    slice_.note(op.node_id)
            return intake.admission()

        return finish

    def hear(self, ops: Iterable[tuple[bytes, Op]]) -> None:
        """Moves the clock past the times of these ops, as far as members have signed them."""
        with self._log.store.read() as session:
            ahead = session.head().wall
            keys = {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}
        # Only ops that would move the clock are worth a look at their signatures.
        later = [(raw, op) for raw, op in ops if ahead <= op.timestamp.wall <= WALL_MAX]
        signed = [
            op.timestamp for raw, op in later if (key := keys.get(op.node_id)) is not None and verify_op(raw, op, key)
        ]
        if signed:
            self._log.run(lambda tx: tx.hear(max(signed)))

    def release(self, decide: Decide | None = None) -> Admission | None:
        """As `Log.release`."""
        until = self._log.physical() + self._skew
        with self._log.store.read() as session:
            first = session.held()[1]
        if first is None or first > until:
            return None
        with self._log.store.read() as session:
            due = session.due(until, ADMIT_BATCH)
        # Where nodes share the store, any of them can have put an op there, so that nobody vouches for it.
        admission = self._admit(((body, _read(body)) for body in due), decide, None, is_vouched=not self._log.is_shared)
        self._log.run(lambda tx: tx.session.drop_held([body[:16] for body in due]))
        return admission

    def decide_late(self, node: int, accept: bool) -> int:
        """As `Log.decide_late`."""
        if not self._log.permissions().is_trusted(self._log.node, self._log.reading().wall):
            raise NotAuthorised("the owner decides on late ops; do this on the owner's node or on the coordinator")
        with self._log.store.read() as session:
            late = session.late_ops(node.to_bytes(8, "big"))
        if accept and late:
            self._admit(((each.body, _read(each.body)) for each in late), None, None)
        self._log.run(lambda tx: tx.session.drop_late([each.id for each in late]))
        return len(late)

    @property
    def _skew(self) -> int:
        """How far ahead of this machine's clock an op may be."""
        extensions = self._log.rules.extensions
        return WALL_MAX if extensions is None else extensions.skew_ms


def _read(body: bytes) -> Op | Malformed:
    """A held op, or why it cannot be read: a damaged op must not keep the others out."""
    try:
        return decode(body)
    except Malformed as error:
        return error


def _next_batch(ops: Iterator[Received]) -> Iterator[Received]:
    facts = 0
    for raw, op in islice(ops, ADMIT_BATCH):
        yield raw, op
        facts += count_of(raw, op) if isinstance(op, Op) else 1
        if facts >= BATCH_FACTS:
            return


def _batches(ops: Iterable[Received], costs: WorkCharge | None) -> Iterator[tuple[list[Received], bool]]:
    """The ops in batches, each with whether its authors are costly. Those come after the others."""
    ops = iter(ops)
    while batch := list(_next_batch(ops)):
        authors = set() if costs is None else {op.node_id for _, op in batch if isinstance(op, Op)}
        costly = {author for author in authors if costs is not None and costs.is_costly(author)}
        if costly:
            apart = [item for item in batch if isinstance(item[1], Op) and item[1].node_id in costly]
            batch = [item for item in batch if not isinstance(item[1], Op) or item[1].node_id not in costly]
            if batch:
                yield batch, False
            yield apart, True
        else:
            yield batch, False
