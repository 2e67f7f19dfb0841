"""A simulated mesh whose log is pruned during the run: what was written long before it, how nodes sign checkpoints,
move and follow the horizon, and what must hold at the end. One more node joins in the middle of the run, when what it
lacks is gone everywhere.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hocket.errors import StoreError
from hocket.events import Event
from hocket.extensions.sim.checks import Violation
from hocket.extensions.sim.hiding import HidingNode
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.locks.facts import LOCK, AcquireLocks, LockMode, ReleaseLocks
from hocket.families.locks.rules import LOCKS
from hocket.families.retention.facts import KEEP_MS_MIN, Retained, SetRetention
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.kernel.authority import Standing, revoke_root
from hocket.kernel.ids import content_hash, node_id, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, Payload, Subject
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.checkpoints import verification
from hocket.log.snapshots.own_late import write_late_again
from hocket.store import Session
from hocket.store.checkpoint_rows import CheckpointState

OLD = "sim.old"
SCOPE, LOCKED, TABLE = "sim.old", "file:old", "sim/old"
# The history is so old when the run begins, and its second half so old.
LONG_AGO_S = 3 * 3_600.0
HALF_S = 2 * 3_600.0 - 5.0
ENDED, FENCES = 8, 3
# How often a node looks after its log, how many horizons are moved, and with which pause.
KEEP_S = 1.0
HORIZONS = 3
MOVE_MS = 4_000
STEPS = 50
# One node joins after this part of the run.
JOINS_AT = 0.5


class OldHistory(NamedTuple):
    """What must not be lost: `ended` may go, and nothing else."""

    ended: frozenset[bytes]
    row: bytes
    revoked: int


def write_history(arbiter: Log, user: SigningKey, revoked: SigningKey, wait: Callable[[], None]) -> OldHistory:
    """`wait` lets the time pass until the second half is written."""

    def say(payload: Payload) -> None:
        written = arbiter.run(lambda tx: tx.author(payload))
        assert isinstance(written, Op), written

    token = issue(user, revoked.public, ROOT, 0, None)
    say(DelegateUcan(content_hash(token), token))
    say(revoke_root(user, content_hash(token)))
    say(SetRetention(Retained.JOBS, "", KEEP_MS_MIN, None, True, 1))
    ended: list[bytes] = []
    for half in range(2):
        if half:
            wait()
        for fence in range(FENCES):
            say(AcquireLocks(SCOPE, (LOCKED,), "ann", LockMode.EXCLUSIVE, 1_000, 0))
            say(ReleaseLocks(SCOPE, "ann", half * FENCES + fence + 1))
        made = arbiter.run(lambda tx: jobs.submit(tx, [Draft(OLD, b"{}", Policy()) for _ in range(ENDED)]))
        arbiter.run(lambda tx, made=made: [jobs.cancel(tx, each.job_id, "") for each in made])  # type: ignore[misc]
        ended += [each.job_id for each in made]
    say(PutRow(TABLE, "ann", None, b'{"n":1}', Strategy.TAKE_RIGHT))
    with arbiter.store.read() as session:
        row = session.subject_state(Subject(ROW, TABLE.encode()))
    assert row is not None
    return OldHistory(frozenset(ended), row, node_id(revoked.public))


async def keep(up: Up) -> None:
    """What the maintenance of a node does for its log."""
    while True:
        await asyncio.sleep(KEEP_S)
        try:
            for event in await up.call(lambda: _kept(up.log, up.node)):
                up.emit(event)
        except StoreError:
            continue


def _kept(log: Log, node: SimNode) -> list[Event]:
    events: list[Event] = []
    has_more = True
    while has_more:
        has_more, found = log.checkpoints.step(at_once=True)
        events += found
    if node.horizons_to_move:
        _move(log, node)
    write_late_again(log)
    for _ in range(STEPS):
        has_more, found = log.horizons.step()
        events += found
        if not has_more:
            break
    return events


def _move(log: Log, node: SimNode) -> None:
    with log.store.read() as session:
        retention = log.horizons.retention(session)
        moved = 0 if retention is None or retention.horizon is None else retention.horizon.moved.wall
        plan = log.horizons.plan(session) if log.physical() - moved >= MOVE_MS else None
    if plan is not None and log.horizons.move(plan):
        node.horizons_to_move -= 1


def is_quiet(nodes: Sequence[SimNode], hiding: Sequence[HidingNode]) -> bool:
    """Whether all nodes have followed the last horizon, and have heard of what they found."""
    ends = set()
    for node in nodes:
        with node.store.read() as session:
            row = session.horizon()
        ends.add(row)
        if node.horizons_to_move or row is None or not row.is_deleted:
            return False
        if any(each.lied_to and not _is_found(node, each) for each in hiding):
            return False
    return len(ends) == 1


def _is_found(node: SimNode, member: HidingNode) -> bool:
    with node.store.read() as session:
        return session.checkpoint(member.node.to_bytes(8, "big"), CheckpointState.CONFLICT) is not None


def violations(nodes: Sequence[SimNode], hiding: Sequence[HidingNode], history: OldHistory) -> Iterator[Violation]:
    mover = node_id(nodes[0].key.public)
    for node in nodes:
        log = Up(node).log
        with node.store.read() as session:
            yield from _horizon_faults(session, node, mover)
            yield from _lost_states(session, node, history)
            differing = {row.author for row in session.checkpoints() if row.state == CheckpointState.CONFLICT}
        if log.authority().standing(history.revoked, log.physical()) is Standing.ACTIVE:
            yield Violation("a revocation is never pruned", None, f"node {node.number} has forgotten one")
        accused = differing - {each.node.to_bytes(8, "big") for each in hiding}
        if accused:
            yield Violation("no honest node is accused", None, f"node {node.number} accuses {accused}")
        for each in hiding:
            if each.lied_to and not _is_found(node, each):
                sentence = f"node {node.number} has not heard that {each.number} signed another tree"
                yield Violation("two trees of one author are found", None, sentence)
        for finding in verify(node.store, user=log.user, marks=log.signer, is_bound=True).findings:
            yield Violation("the log verifies", None, f"node {node.number}: {finding.what}")
        for finding in verification.check(node.store, log.node, log.user):
            if not any(author.hex() in finding.what for author in differing):
                yield Violation("checkpoints agree with the log", None, f"node {node.number}: {finding.what}")


def _horizon_faults(session: Session, node: SimNode, mover: int) -> Iterator[Violation]:
    row = session.horizon()
    op = None if row is None else session.op(row.op)
    if row is not None and (op is None or op.hlc[12:] != mover.to_bytes(8, "big")):
        yield Violation("only the coordinator moves the horizon", row.op, f"node {node.number} follows another one")


def _lost_states(session: Session, node: SimNode, history: OldHistory) -> Iterator[Violation]:
    state = session.subject_state(Subject(LOCK, SCOPE.encode()))
    fence = 0 if state is None else LOCKS.decode(state).fence
    if fence != 2 * FENCES:
        yield Violation("fences never fall", None, f"at node {node.number} fence {fence} is the last of {2 * FENCES}")
    if session.subject_state(Subject(ROW, TABLE.encode())) != history.row:
        yield Violation("the last word on a row stays", None, f"node {node.number} has another one")
    left = [entry.job.id for entry in session.each_job() if entry.job.id in history.ended]
    if session.horizon() is not None and left:
        yield Violation("what has ended goes", left[0], f"node {node.number} keeps job {ulid_text(left[0])}")
