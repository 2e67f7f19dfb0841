"""What the outputs of jobs cost their submitters. A node that runs a job of another node writes the outputs on its own
log, where it has no quota itself; so their bytes count against the quota of the node that submitted the job. They are
counted apart from what that node has written: every node that gets the log cuts an author at the same op, and outputs
of its jobs on one node must not move that.
"""

from collections.abc import Callable, Iterable

from hocket.families.jobs.rules import Job
from hocket.kernel.authority import payers, quota_of, sharing
from hocket.kernel.ops import Op
from hocket.kernel.rules import Bounds
from hocket.kernel.vocabulary import CreateArtifact
from hocket.log.permissions import Permissions
from hocket.store import IntakeSession, OpSession, Session, WrittenTotals


def output_key(node: int) -> bytes:
    """Under which the store counts the outputs of jobs that a node has submitted."""
    return node.to_bytes(8, "big") + b"o"


def submitter(session: OpSession, job: Job) -> int:
    """The node that submitted a job, or set the schedule of which the job is a tick."""
    set_by = job.policy.set_by()
    row = None if set_by is None else session.op(set_by)
    return job.scheduled.node if row is None else int.from_bytes(row.hlc[12:], "big")


def charged(
    session: OpSession, op: Op, size: int, job: Callable[[bytes], Job | None]
) -> tuple[bytes, WrittenTotals] | None:
    """Who is charged for an op of this node's own, and how much; None if nobody is."""
    payload = op.payload
    found = job(payload.source_job) if type(payload) is CreateArtifact and payload.source_job is not None else None
    if found is None or (node := submitter(session, found)) == op.node_id:
        return None
    assert isinstance(payload, CreateArtifact)
    return output_key(node), WrittenTotals(1, max(size, payload.size_bytes))


def add_charges(session: IntakeSession, charges: Iterable[tuple[bytes, WrittenTotals] | None]) -> None:
    totals: dict[bytes, WrittenTotals] = {}
    for each in charges:
        if each is not None:
            ops, size = totals.get(each[0], WrittenTotals())
            totals[each[0]] = WrittenTotals(ops + each[1].ops, size + each[1].bytes)
    for key, total in totals.items():
        session.add_written(key, total)


def add_written(
    session: Session,
    node: int,
    written: Iterable[tuple[Op, int]],
    sets: Iterable[tuple[bytes, WrittenTotals]],
    job: Callable[[bytes], Job | None],
) -> None:
    """Adds up what other authors have written, each op with its size or many at once, and the outputs of their jobs
    that this node has written. This node has no quota on its own log.
    """
    add_charges(
        session,
        [
            *sets,
            *(
                charged(session, op, size, job)
                if op.node_id == node
                else (op.node_id.to_bytes(8, "big"), WrittenTotals(1, size))
                for op, size in written
            ),
        ],
    )


def stored_totals(session: IntakeSession, nodes: Iterable[int]) -> dict[int, WrittenTotals]:
    """What each of these nodes has written here, with the bytes of the outputs of its jobs."""
    keys = {node: (node.to_bytes(8, "big"), output_key(node)) for node in nodes}
    found = session.written(key for pair in keys.values() for key in pair)
    nothing = WrittenTotals()
    return {
        node: WrittenTotals(found.get(own, nothing).ops, found.get(own, nothing).bytes + found.get(out, nothing).bytes)
        for node, (own, out) in keys.items()
    }


def stored_bytes(session: IntakeSession, nodes: Iterable[int]) -> int:
    """What these nodes have written here, and the outputs of their jobs."""
    return sum(each.bytes for each in stored_totals(session, nodes).values())


def output_room(session: Session, permissions: Permissions, job: Job, now_ms: int) -> int | None:
    """How many bytes the quota of a job's submitter leaves for outputs here; None if it has no quota."""
    node = submitter(session, job)
    if not permissions.delegations or permissions.is_trusted(node, now_ms):
        return None
    authority, bounds = permissions.authority, permissions.rules.bounds or Bounds()
    sharers = sharing(authority, permissions.delegations)
    rooms = [
        quota.bytes - stored_bytes(session, sharers.get(payer, {payer}))
        for payer in payers(authority, node, now_ms)
        if (quota := quota_of(authority, payer, now_ms, bounds)).bytes is not None
    ]
    return max(0, min(rooms)) if rooms else None
