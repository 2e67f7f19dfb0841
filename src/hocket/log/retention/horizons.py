"""The horizons of one node's log: which comes next, whether this node has computed the same root, and the steps in
which its subjects follow and what has gone is deleted. Each step is a small transaction, and what is left to do is in
the store, so a process that was killed, or another one, goes on.
"""

import threading
from collections.abc import Callable, Sequence
from secrets import token_bytes
from typing import NamedTuple, Protocol, TypeVar

from hocket.events import Event
from hocket.events.nodes import HorizonDiffers, HorizonMoved, OpsPruned
from hocket.families.retention.facts import (
    HEADS_MAX,
    KEEP_MS_MIN,
    KEPT_MAX,
    RETENTION,
    RETENTION_KEY,
    SETTLED_MS,
    AuthorHead,
    MoveHorizon,
    SetRetention,
)
from hocket.families.retention.rules import RETENTIONS, Horizon, Retention, RetentionRule, forgotten_ms, rule_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc, pack
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.ops import Op
from hocket.kernel.signing import OpSigner
from hocket.kernel.vocabulary import Subject
from hocket.log.archives.reached import archived_heads
from hocket.log.checkpoints.horizon_notes import cosign_horizon, horizon_checkpoint, horizon_witnesses, members_of
from hocket.log.citations import keyed
from hocket.log.permissions import Permissions
from hocket.log.retention.horizon_projection import enter_horizon, follow_horizon
from hocket.log.retention.remaining import references
from hocket.log.retention.settling import NEVER_COUNTS, Settlement, heads_at, later_ops, settle
from hocket.log.transaction import GAPS, Transaction
from hocket.store import Session, Store
from hocket.store.checkpoint_rows import CheckpointState
from hocket.store.horizon_rows import PREPARING, GapRow, HorizonRow
from hocket.store.op_rows import BUNDLE

T = TypeVar("T")
SUBJECT = Subject(RETENTION, RETENTION_KEY)
# So many subjects follow a horizon, and so many entries are deleted, in one transaction.
STEP_SUBJECTS = 20
STEP_ENTRIES = 50
PREPARE_STEP = 1_000
# The horizon moves so often while the shortest rule keeps something, within these bounds.
MOVES_PER_KEEP = 24
EVERY_MS_MIN, EVERY_MS_MAX = 3_600_000, 86_400_000


class RetentionLog(Protocol):
    """What is needed of the log."""

    node: int
    author: bytes
    user: str
    store: Store
    physical: Callable[[], int]

    @property
    def rules(self) -> Rules: ...
    @property
    def signer(self) -> OpSigner: ...
    def permissions(self, session: Session | None = None) -> Permissions: ...
    def sharers(self, session: Session) -> set[int]: ...
    def run(self, request: Callable[[Transaction], T]) -> T: ...


class NextHorizon(NamedTuple):
    """A horizon that this node has yet to follow."""

    op: Op
    payload: MoveHorizon
    rules: tuple[RetentionRule, ...]


class HorizonStep(NamedTuple):
    """`has_more`: something is left to do. `events` are to be reported."""

    has_more: bool
    events: list[Event]


_DONE = HorizonStep(False, [])


class Plan(NamedTuple):
    """A horizon that could be moved now, and the number of the last op that was looked at."""

    at_ms: int
    heads: list[AuthorHead]
    rules: tuple[RetentionRule, ...]
    before: bytes | None
    settlement: Settlement
    seq: int


class HorizonKeeper:
    """The horizons of a log, for one process. Safe to use from several threads."""

    def __init__(self, log: RetentionLog) -> None:
        self._log, self._lock = log, threading.Lock()
        # Horizons whose root differs from this node's, by how long the log was then.
        self._differing: dict[bytes, int] = {}
        self._deleted_to = 0
        # When this process last looked whether something may go.
        self._looked_ms = 0

    # What the log says.

    def retention(self, session: Session) -> Retention | None:
        state = session.subject_state(SUBJECT)
        return None if state is None else RETENTIONS.decode(state)

    def obstacle(self, session: Session) -> str | None:
        """Why this node deletes nothing, if so, as the end of a sentence."""
        log = self._log
        if log.rules.bounds is None:
            return "a mesh without bound ids keeps everything"
        permissions = log.permissions(session)
        if session.own_meta(GAPS) is not None or not permissions.authority.reads_everything(log.node, log.physical()):
            return "this node does not hold every op"
        if log.sharers(session):
            return "several nodes share this store"
        return None

    def may_move(self, session: Session) -> bool:
        """Whether this node is the one that moves the horizon."""
        permissions, log = self._log.permissions(session), self._log
        arbiter = permissions.arbiter(Hlc(log.physical(), U32_MAX, log.node))
        if arbiter is not None:
            return arbiter == log.node
        return not permissions.delegations or permissions.authority.is_owner(log.node, log.physical())

    # Moving the horizon.

    def plan(
        self, session: Session, at_ms: int | None = None, rules: tuple[RetentionRule, ...] | None = None
    ) -> Plan | None:
        """What a horizon would let go now, by the rules of the log or by others; None without rules, or if the one
        before is not followed yet.
        """
        retention, row = self.retention(session), session.horizon()
        before = None if retention is None else retention.horizon
        rules = rules or (() if retention is None else retention.rules)
        if all(each.is_removed for each in rules):
            return None
        if (None if before is None else before.op) != (None if row is None else row.op) or (row and not row.is_denied):
            return None
        latest = self._log.physical() - SETTLED_MS
        seq = session.head().seq
        forks = self._log.permissions(session).forks
        end, heads = heads_at(session, latest if at_ms is None else min(at_ms, latest), forks)
        if (before is not None and end <= before.at_ms) or not heads or len(heads) > HEADS_MAX:
            return None
        times = {each.node.to_bytes(8, "big"): pack(each.at) for each in heads}
        settlement = settle(
            *(session, heads, end, rules, self._log.user, self._log.rules), later=later_ops(session, times)
        )
        if len(settlement.remains.kept) > KEPT_MAX:
            return None
        return Plan(end, heads, rules, None if before is None else before.op, settlement, seq)

    def is_due(self, session: Session) -> bool:
        """Whether this node is to move the horizon: there are rules, and the one before is old enough."""
        retention = self.retention(session)
        rules = () if retention is None else [each for each in retention.rules if not each.is_removed]
        if retention is None or not rules or self.obstacle(session) is not None or not self.may_move(session):
            return False
        shortest = min(each.keep_ms or KEEP_MS_MIN for each in rules)
        every = min(max(shortest // MOVES_PER_KEEP, EVERY_MS_MIN), EVERY_MS_MAX)
        before = 0 if retention.horizon is None else retention.horizon.moved.wall
        return self._log.physical() >= max(before, self._looked_ms) + every

    def move_if_due(self) -> bool:
        """Moves the horizon if that lets something go. What is looked for in vain is looked for again later."""
        with self._lock:
            with self._log.store.read() as session:
                if not self.is_due(session):
                    return False
                self._looked_ms = self._log.physical()
                plan = self.plan(session)
            return plan is not None and plan.settlement.gone_ops > 0 and self.move(plan)

    def move(self, plan: Plan) -> bool:
        """Moves the horizon as planned. False if something has come meanwhile that changes what may go."""

        def request(tx: Transaction) -> bool:
            tx.settle()
            names = plan.settlement.remains.names
            heads = {each.node: each.at for each in plan.heads}
            for row in tx.session.ops_after(plan.seq, tx.session.head().seq):
                op = keyed(row)
                is_late = op.timestamp.wall <= plan.at_ms and op.timestamp > heads.get(op.node_id, Hlc(0, 0, 0))
                has_effect = row.reason not in NEVER_COUNTS
                if has_effect and (is_late or not names.isdisjoint(references(op))):
                    return False
            kept = plan.settlement.remains.kept
            is_archived = is_in_archive(tx.session, plan.heads)
            payload = MoveHorizon(plan.at_ms, plan.before, tuple(plan.heads), kept, plan.settlement.root, is_archived)
            written = tx.author(payload, tuple(each.op for each in plan.rules))
            return not isinstance(written, Reason)

        return self._log.run(request)

    # Following it.

    def next_horizon(self, session: Session) -> NextHorizon | None:
        """The horizon that comes right after the one in force; None if there is none, or the chain does not lead
        there.
        """
        retention, row = self.retention(session), session.horizon()
        in_force = None if row is None else row.op
        horizon = None if retention is None else retention.horizon
        op_id, later = (None if horizon is None else horizon.op), None
        while op_id is not None and op_id != in_force:
            stored = session.op(op_id)
            op = None if stored is None else keyed(stored)
            if op is None or not isinstance(op.payload, MoveHorizon):
                return None
            later, op_id = op, op.payload.before
        if later is None or op_id != in_force:
            return None
        assert isinstance(later.payload, MoveHorizon)
        return NextHorizon(later, later.payload, _rules_of(session, later))

    def step(self) -> HorizonStep:
        """Does the next thing that is to do, if any."""
        with self._lock:
            with self._log.store.read() as session:
                row = session.horizon()
                is_followed = row is None or row.is_denied
                coming = self.next_horizon(session) if is_followed and self.obstacle(session) is None else None
                settlement = None if coming is None else self._settlement(session, coming)
                may_delete = row is not None and not row.is_deleted and self.missing(session, row) is None
            if row is not None and not is_followed:
                return self._follow_some(row)
            if coming is not None and settlement is not None:
                if settlement.root == coming.payload.root:
                    return self._put_in_force(coming, settlement)
                return self._differs(coming)
            return self._delete_some(row) if row is not None and may_delete else _DONE

    def follow(self) -> list[Event]:
        """Does all that is left to do, and gives what happened."""
        events: list[Event] = []
        while True:
            step = self.step()
            events += step.events
            if not step.has_more:
                return events

    def _settlement(self, session: Session, coming: NextHorizon) -> Settlement | None:
        """What remains at the next horizon, if every entry up to it is here."""
        payload = coming.payload
        if self._differing.get(coming.op.id) == session.head().seq or not _has_heads(session, payload.heads):
            return None
        return settle(
            *(session, payload.heads, payload.at_ms, coming.rules, self._log.user, self._log.rules), kept=payload.kept
        )

    def _differs(self, coming: NextHorizon) -> HorizonStep:
        """Looks again when the log has changed."""
        is_new = coming.op.id not in self._differing
        with self._log.store.read() as session:
            self._differing[coming.op.id] = session.head().seq
        return HorizonStep(False, [HorizonDiffers(node_text(coming.op.node_id))] if is_new else [])

    def _put_in_force(self, coming: NextHorizon, settlement: Settlement) -> HorizonStep:
        """Stores what is left to do, and lets the horizon begin."""
        token = token_bytes(16)
        rows = settlement.remains.pruning

        def begin(tx: Transaction) -> None:
            tx.session.set_meta(PREPARING, token)
            tx.session.clear_pruning()

        def prepare(tx: Transaction, first: int) -> bool:
            if tx.session.meta(PREPARING) != token:
                return False
            tx.session.put_pruning(rows[first : first + PREPARE_STEP])
            return True

        def switch(tx: Transaction) -> bool:
            before = tx.session.horizon()
            is_next = (None if before is None else before.op) == coming.payload.before
            if tx.session.meta(PREPARING) != token or not is_next:
                return False
            tx.session.lock_permissions(exclusive=True)
            tx.settle()
            horizon = Horizon(coming.op.id, coming.payload.at_ms, coming.op.timestamp, coming.rules)
            tx.session.put_heads(settlement.heads)
            enter_horizon(tx.projection, HorizonRow(coming.op.id, coming.payload.at_ms, forgotten_ms(horizon)))
            self._cosign(tx.session, coming, settlement)
            return True

        self._log.run(begin)
        for first in range(0, len(rows), PREPARE_STEP):
            if not self._log.run(lambda tx, first=first: prepare(tx, first)):  # type: ignore[misc]
                return _DONE
        if not self._log.run(switch):
            return _DONE
        return HorizonStep(True, [HorizonMoved(coming.payload.at_ms, settlement.gone_ops)])

    def _cosign(self, session: Session, coming: NextHorizon, settlement: Settlement) -> None:
        log = self._log
        found = horizon_checkpoint(log.user, coming.op.id, settlement.leaves, settlement.root)
        cosign_horizon(session, found, log.node, log.user, log.signer.note_signature, log.physical())

    def _follow_some(self, row: HorizonRow) -> HorizonStep:
        def request(tx: Transaction) -> None:
            tx.settle()
            some = tx.session.pruning(STEP_SUBJECTS)
            for each in some:
                follow_horizon(tx.projection, each)
            tx.projection.settle()
            tx.session.drop_pruning([each.subject for each in some])
            if len(some) < STEP_SUBJECTS:
                tx.session.set_horizon(row._replace(is_denied=True))

        self._log.run(request)
        return HorizonStep(True, [])

    # Deleting.

    def missing(self, session: Session, row: HorizonRow) -> str | None:
        """What deleting waits for, if anything."""
        stored = session.op(row.op)
        op = None if stored is None else keyed(stored)
        if op is None or not isinstance(op.payload, MoveHorizon):
            return "the op that moved the horizon is not here"
        rules = [each for each in _rules_of(session, op) if not each.is_removed]
        is_archived = op.payload.is_archived or is_in_archive(session, op.payload.heads)
        if not is_archived and not all(each.waives_archive for each in rules):
            return "an archive that reaches the horizon: run `hocket log archive`"
        wanted = max((each.witnesses for each in rules), default=0)
        log, permissions = self._log, self._log.permissions(session)
        members = members_of(session.nodes(), permissions.authority, permissions.forks, log.physical())
        cosigned = len(horizon_witnesses(session, row.op, log.user, members) - {op.node_id})
        if cosigned < wanted:
            return f"the cosignatures of {wanted - cosigned} more nodes"
        return None

    def _delete_some(self, row: HorizonRow) -> HorizonStep:
        """Deletes entries of which every fact has gone, except the last settled one of each author."""

        def request(tx: Transaction) -> tuple[int, int, int]:
            session = tx.session
            session.lock_all()
            before = self._read_to(session)
            heads = {each.entry for each in session.heads().values()}
            rows = session.dead_entries(self._deleted_to, before, STEP_ENTRIES)
            ops = size = 0
            for each in rows:
                if each.id[:16] in heads:
                    continue
                facts = len(session.facts_of(each.seq)) if each.variant == BUNDLE else 0
                session.delete_ops(each.seq, each.seq + facts)
                session.put_gap(GapRow(each.seq, each.seq + facts, each.chain))
                ops, size = ops + max(1, facts), size + len(each.body)
            is_over = len(rows) < STEP_ENTRIES
            left = session.dead_entries(0, session.head().seq + 1, len(heads) + 1) if is_over else []
            if is_over and all(each.id[:16] in heads for each in left):
                session.set_horizon(row._replace(is_deleted=True))
            return (0 if is_over else rows[-1].seq), ops, size

        self._deleted_to, ops, size = self._log.run(request)
        return HorizonStep(self._deleted_to > 0, [OpsPruned(ops, size)] if ops else [])

    def _read_to(self, session: Session) -> int:
        """Only entries below this number are deleted: the trees of authors are read entry by entry."""
        read = session.checkpoint(self._log.author, CheckpointState.READ)
        return session.head().seq + 1 if read is None else read.size


def _rules_of(session: Session, op: Op) -> tuple[RetentionRule, ...]:
    named = [keyed(row) for dep in op.cited if (row := session.op(dep)) is not None]
    return tuple(rule_of(each, each.payload) for each in named if isinstance(each.payload, SetRetention))


def is_in_archive(session: Session, heads: Sequence[AuthorHead]) -> bool:
    """Whether every entry up to these is in an archive of this node."""
    reached = archived_heads(session)
    authors = ((each.node.to_bytes(8, "big"), each.at) for each in heads)
    return all(author in reached and pack(at) <= reached[author].hlc for author, at in authors)


def _has_heads(session: Session, heads: Sequence[AuthorHead]) -> bool:
    """Whether every entry up to these is here: of an author there are no gaps."""
    found = session.known_ops([each.entry for each in heads])
    return all(found.get(each.entry) for each in heads)
