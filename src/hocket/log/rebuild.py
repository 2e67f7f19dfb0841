"""Drops every projection and rebuilds it from the ops, in HLC order. It works in steps; each is a transaction that
stores its progress, so a stopped rebuild can continue. Until it ends, the log accepts no other change.
"""

import struct
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.family import FAMILIES
from hocket.kernel.vocabulary import JOB, CreateArtifact, DesignateCoordinator, ReportFork, Subject, number_of
from hocket.log.citations import ID_BYTES, keyed
from hocket.log.limits import add_charges, charged
from hocket.log.permissions import Permissions, PermissionsReader, trace, writers
from hocket.log.projection import Projection
from hocket.log.projectors import rules_of
from hocket.log.registers import GrantRegister
from hocket.store import Head, OpRow, Session, Store, WrittenTotals

if TYPE_CHECKING:
    from hocket.kernel.snapshots.horizon import SettledCut

STEP = 2_000
START = bytes(20)
_ARTIFACT = number_of(CreateArtifact)
_PROOFS = (number_of(ReportFork),)
_GRANTS = tuple(number_of(each) for each in GrantRegister.payloads)


class Rebuilt(NamedTuple):
    """`before` and `after` are digests of the roster; there is none before if it was unreadable, or if a rebuild was
    interrupted. `changed` are the families whose states are others than before.
    """

    ops: int
    before: bytes | None
    after: bytes
    changed: tuple[str, ...]

    @property
    def unchanged(self) -> bool:
        return self.before == self.after and not self.changed


def roster_digest(session: Session) -> bytes:
    """One hash over the fold's result for every job. Equal digests mean equal rosters."""
    hasher = blake3()
    encoder = msgspec.msgpack.Encoder()
    for entry in session.each_job():
        hasher.update(encoder.encode(without_keys(entry.job)))
    return hasher.digest()


def without_keys(job: Job) -> Job:
    """A job as every node shows it: by the ids of ops, since an op's key can depend on the order of arrival."""
    if all(key is None or len(key) == ID_BYTES for key in (job.schedule_op, job.claim_op, job.error_op)):
        return job
    claim, error = (None if key is None else key[:ID_BYTES] for key in (job.claim_op, job.error_op))
    return replace(job, schedule_op=job.schedule_op[:ID_BYTES], claim_op=claim, error_op=error)


def family_digests(session: Session) -> dict[str, bytes]:
    """One hash for each family over the states of its subjects."""
    hashers: defaultdict[str, blake3] = defaultdict(blake3)
    for row in session.each_subject():
        for part in (row.subject.key, row.last, row.state):
            hashers[row.subject.family].update(len(part).to_bytes(8, "big") + part)
    for family in FAMILIES.values():
        if family.table is not None:
            for state in family.table.states(session):
                hashers[family.name].update(state)
    return {JOB: roster_digest(session)} | {name: hasher.digest() for name, hasher in hashers.items()}


def _digests_if_readable(session: Session) -> dict[str, bytes] | None:
    """A damaged state may be unreadable; a rebuild repairs that."""
    try:
        return family_digests(session)
    except (ValueError, struct.error, IndexError, msgspec.MsgspecError):
        return None


def rebuild(
    store: Store,
    permissions_reader: PermissionsReader,
    now: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Rebuilt:
    """`now` decides which pending jobs are shown as delayed; it changes nothing else."""
    with store.write() as session:
        session.lock_permissions(exclusive=True)
        head = session.head()
        before = None if head.rebuilding is not None else _digests_if_readable(session)
        session.order_ops()
        count = session.op_count()
        if head.rebuilding in (None, START):
            _begin(session, permissions_reader, now)
    done = 0
    while taken := _step_of(store, permissions_reader, now):
        done += taken
        progress(min(done, count), count)
    with store.write() as session:
        session.lock_permissions(exclusive=True)
        session.put_head(session.head()._replace(rebuilding=None))
        after = family_digests(session)
    families = after.keys() | (before or {}).keys()
    changed = () if before is None else tuple(sorted(each for each in families if before.get(each) != after.get(each)))
    return Rebuilt(count, None if before is None else before[JOB], after[JOB], changed)


def rebuild_at_once(session: Session, permissions_reader: PermissionsReader, now: int) -> None:
    """Derives everything anew in the transaction of a caller, who has changed the log. All of it is kept, or none."""
    session.order_ops()
    _begin(session, permissions_reader, now)
    while _step(session, permissions_reader, now):
        pass
    session.put_head(session.head()._replace(rebuilding=None))


def _begin(session: Session, permissions_reader: PermissionsReader, now: int) -> None:
    head = session.head()
    session.drop_projections()
    session.mark_settled([op.seq for op in session.unsettled_ops(head.settled, None)])
    permissions = _legislate(session, permissions_reader, now)
    _lay_bases(session, permissions_reader, now, permissions)
    session.put_head(head._replace(settled=head.seq, unsettled=0, rebuilding=START, permissions_state=permissions))


def _legislate(session: Session, permissions_reader: PermissionsReader, now: int) -> int:
    """Enters every delegation, revocation and pinning designation: they change the meaning of earlier ops."""
    _replay(session)
    projection = Projection(session, permissions_reader)
    horizon = session.horizon()
    projection.begin(now, permissions_state=0 if horizon is None else trace(horizon.op))
    # Proofs of forks come first: they show whose delegations are in doubt.
    for variants in (_PROOFS, _GRANTS):
        for row in session.ops_of_variants(variants):
            projection.legislate(keyed(row), integrity=len(session.ops_at(row.hlc)) > 1)
    for row in session.ops_of_variants((number_of(DesignateCoordinator),)):
        projection.designate(keyed(row), integrity=len(session.ops_at(row.hlc)) > 1)
    return projection.permissions_state


def _lay_bases(session: Session, permissions_reader: PermissionsReader, now: int, permissions: int) -> None:
    """Begins each subject with what it was at the horizon, where that stands in the place of ops."""
    after = Subject("", b"")
    projection = Projection(session, permissions_reader)
    projection.begin(now, permissions)
    while bases := session.bases(after, STEP):
        for base in bases:
            subject = base.subject
            projection.projectors[subject.family].keep(subject.key, rules_of(subject.family).decode(base.state))
        projection.flush()
        after = bases[-1].subject


def _is_replayed(session: Session, cut: "SettledCut | None", row: OpRow) -> bool:
    """Whether an op is not in a base already, and was not let go."""
    if row.reason == Reason.PRUNED:
        return False
    if cut is None or row.subject is None or row.hlc > cut.end:
        return True
    base = session.base(row.subject)
    return base is None or row.hlc > base.last


def _step_of(store: Store, permissions_reader: PermissionsReader, now: int) -> int:
    with store.write() as session:
        session.lock_permissions(exclusive=True)
        return _step(session, permissions_reader, now)


def _step(session: Session, permissions_reader: PermissionsReader, now: int) -> int:
    head = session.head()
    if head.rebuilding is None:
        return 0  # another process was rebuilding too, and has finished
    rows = session.ops_in_order(head.rebuilding, STEP)
    if not rows:
        return 0
    _replay(session)
    # Ops that share a timestamp belong together; the last op of the batch may have twins after it.
    rows = [row for row in rows if row.hlc != rows[-1].hlc] + session.ops_at(rows[-1].hlc)
    count = len(rows)
    projection = Projection(session, permissions_reader)
    projection.begin(now, head.permissions_state)
    projection.jobs.is_rebuilding = True
    cut, end = projection.cut, rows[-1].hlc
    rows = [row for row in rows if _is_replayed(session, cut, row)]
    for index, row in enumerate(rows):
        twin = any(0 <= i < len(rows) and rows[i].hlc == row.hlc for i in (index - 1, index + 1))
        reason = int(projection.replayed(keyed(row), integrity=twin))
        if reason != row.reason:
            session.set_reasons([(reason, row.id)])
    projection.flush()
    _count(session, head, projection.permissions, rows)
    session.put_head(head._replace(rebuilding=end, permissions_state=projection.permissions_state))
    return count


def _replay(session: Session) -> None:
    """From now on the states in the store are those at some time in the past."""
    if session.row_check is not None:
        session.row_check.replays = True


def _count(session: Session, head: Head, permissions: Permissions, rows: list[OpRow]) -> None:
    """Adds up what each author has written, except the nodes whose log this is, which have no quota on it."""
    own = session.op(head.last)
    local = {node.to_bytes(8, "big") for node in writers(session, permissions)} if own is None else {own.hlc[12:]}
    sizes: dict[bytes, list[int]] = {}
    for row in rows:
        sizes.setdefault(row.hlc[12:], []).append(len(row.body))
    for node, found in sizes.items():
        if node not in local:
            session.add_written(node, WrittenTotals(len(found), sum(found)))
    outputs = [row for row in rows if row.variant == _ARTIFACT and row.hlc[12:] in local]
    job = partial(_job, session)
    add_charges(session, [charged(session, keyed(row), len(row.body), job) for row in outputs])


def _job(session: Session, job_id: bytes) -> Job | None:
    entry = session.job(job_id)
    return None if entry is None else entry.job
