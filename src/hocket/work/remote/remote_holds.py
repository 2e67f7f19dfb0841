"""What a remote worker may do with a job that it holds: renew the lease, and end the hold. The job and the fence name
the hold, and only the agent that claimed it may use it. Each of these can be repeated: what is on the log already, with
the same content, is the answer again. Everything here is a step in a transaction of the log. It returns errors and does
not raise them, because other requests share the transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from hocket.errors import HocketError, NotAuthorised, NotFound, StaleFence, Usage
from hocket.families.availability.facts import Availability
from hocket.families.jobs import progress
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.progress import DueNote
from hocket.families.jobs.requests import NOTHING, RESULT_BYTES_MAX, Completion, Held, Offer, Result, WrittenOutputs
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.families.jobs.view import result, state_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_text, ulid_ms, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import LEASE_MS_DEFAULT
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    CancelJob,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeWork,
    RetryJob,
    Subject,
    YieldWork,
    number_of,
)
from hocket.log import Transaction
from hocket.store import Session

# Fences are numbers that every language can hold exactly.
FENCE_MAX = 2**53 - 1
GIVEN_BACK = "the worker gave it back"
GOODBYE = "its worker said goodbye"
POSTPONED = "the worker postponed it"
_ENDS = frozenset(
    number_of(each)
    for each in (CompleteJob, FailWork, PostponeWork, YieldWork, ExpireWork, CancelJob, RetryJob, AcceptWork)
)
_PREFIX = "http"
# The name of a process's row is that of its lock file, so it has no slash; no part of it has a comma.
_PROCESS = "process"
# The family of the hint that a worker over HTTP is to drain.
REMOTE = "remote"

# Raises NotAuthorised unless the program that asks may have jobs of this kind.
CheckKind = Callable[[str], None]
EndKind = Literal["complete", "fail", "postpone", "yield"]


class RemoteName(NamedTuple):
    """A remote worker: the agent of its token, and the name that it has given itself. It `is_process` if it works in
    this process, which then has a lock of the name of its row.
    """

    agent: str
    worker: str
    is_process: bool = False

    def row(self, node: int) -> str:
        """The name of its row in the store. No lock file can have that of a worker over HTTP: only its beat and its
        leases say whether it lives.
        """
        if self.is_process:
            return f"{_PROCESS},{quote(self.agent, safe='')},{self.worker}"
        return f"{_PREFIX}/{node_text(node)}/{self.agent}/{self.worker}"


def read_row_name(name: str) -> RemoteName | None:
    """The remote worker of a row; None if the row is that of another worker. A worker's own name has no slash."""
    if name.startswith(f"{_PROCESS},") and name.count(",") == 2:
        _, agent, worker = name.split(",")
        return RemoteName(unquote(agent), worker, is_process=True)
    prefix, _, rest = name.partition("/")
    agent, _, worker = rest.partition("/")[2].rpartition("/")
    return RemoteName(agent, worker) if prefix == _PREFIX and agent and worker else None


class HoldOver(StaleFence):
    """The fence names a hold that is over. Nothing was written, and nothing will be."""

    def __init__(self, job_id: bytes, fence: int, why: str) -> None:
        HocketError.__init__(self, f"fence {fence} of job {ulid_text(job_id)} is stale: {why}; drop the work")


class HeldJob(NamedTuple):
    job: Job
    held: Held


def find_hold(
    tx: Transaction, job_id: bytes, fence: int, agent: str, check_kind: CheckKind
) -> HeldJob | Job | HocketError:
    """The hold with this fence if it stands and is this agent's, else the job, or why the agent may not know it."""
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        return NotFound(f"no job {ulid_text(job_id)}")
    job = entry.job
    try:
        check_kind(job.kind)
    except NotAuthorised as error:
        return error
    if job.fence != fence or job.state is not State.CLAIMED or job.claim_op is None:
        return job
    row = None if entry.worker is None or job.claimer != tx.node else tx.session.worker(entry.worker)
    holder = None if row is None else read_row_name(row.name)
    if holder is None or holder.agent != agent:
        return NotAuthorised(f"another worker holds job {ulid_text(job_id)}")
    return HeldJob(job, Held(job.id, job.claim_op))


def over(job: Job, fence: int) -> HoldOver:
    if job.fence != fence:
        return HoldOver(job.id, fence, f"the job has fence {job.fence} by now")
    return HoldOver(job.id, fence, f"the job is {state_of(job)}")


# Renewing.


class Renewal(NamedTuple):
    """`progress` and `checkpoint` are JSON."""

    job_id: bytes
    fence: int
    progress: bytes | None = None
    checkpoint: bytes | None = None


@dataclass
class _Noted:
    """A hold with a progress note, as `progress.write` takes it."""

    job: Job
    held: Held
    note: bytes | None = None
    unlogged: bytes | None = None
    noted_at: float = 0.0
    logged_at: float = 0.0


HoldState = Literal["held", "cancel", "lost"]


class RenewalDone(NamedTuple):
    """`offer` is set while the arbiter has yet to decide on the renewal."""

    state: HoldState
    lease_ms: int = 0
    offer: Offer | None = None


def renew(
    tx: Transaction,
    renewals: Sequence[Renewal],
    agent: str,
    lease_ms: int | None,
    check_kind: CheckKind,
    is_logged: Callable[[bytes], bool],
) -> list[RenewalDone]:
    """Renews the holds that stand. A hold that is over, or that the agent may not know, is lost. `is_logged` tells
    whether the progress note of a job goes on the log, too.
    """
    if tx.projection.availability(tx.node) is Availability.QUARANTINED:
        return [RenewalDone("lost")] * len(renewals)
    results: list[RenewalDone] = []
    notes: list[DueNote] = []
    for each in renewals:
        found = find_hold(tx, each.job_id, each.fence, agent, check_kind)
        if not isinstance(found, HeldJob):
            is_cancelled = isinstance(found, Job) and found.outcome is Outcome.CANCELLED and found.fence == each.fence
            results.append(RenewalDone("cancel" if is_cancelled else "lost"))
            continue
        length_ms = found.job.policy.lease_ms or lease_ms or LEASE_MS_DEFAULT
        decision = jobs.renew(tx, found.held, length_ms)
        if isinstance(decision, Reason):
            results.append(RenewalDone("lost"))
            continue
        if each.progress is not None:
            notes.append(DueNote(_Noted(found.job, found.held), each.progress, is_logged(each.job_id)))
        if each.checkpoint is not None:
            jobs.checkpoint(tx, found.held, each.checkpoint)
        results.append(RenewalDone("held", length_ms, decision if isinstance(decision, Offer) else None))
    progress.write(tx, notes)
    return results


# Ending.


class End(NamedTuple):
    """How a hold ends. `result` and `checkpoint` are JSON; `text` is the error of a failure, or the reason of a return.
    `made` writes what the run has produced besides its result.
    """

    job_id: bytes
    fence: int
    do: EndKind
    result: bytes | None = None
    text: str = ""
    may_retry: bool = False
    delay_ms: int = 0
    checkpoint: bytes | None = None
    made: Callable[[Transaction], WrittenOutputs | Reason] | None = None


class HoldEnded(NamedTuple):
    """The job after the end. `is_repeat` if it was on the log already."""

    job: Job
    is_repeat: bool = False


EndOutcome = HoldEnded | Offer | HocketError


def end(tx: Transaction, ends: Sequence[End], agent: str, check_kind: CheckKind) -> list[EndOutcome]:
    """Ends each hold, on its own. Completions are written together."""
    outcomes: dict[int, EndOutcome] = {}
    completions: dict[int, Completion] = {}
    seen: set[bytes] = set()
    tx.projection.jobs.load([each.job_id for each in ends])
    for number, each in enumerate(ends):
        found = find_hold(tx, each.job_id, each.fence, agent, check_kind)
        if each.job_id in seen:
            outcomes[number] = Usage(f"job {ulid_text(each.job_id)} is ended twice in this request")
        elif isinstance(found, HocketError):
            outcomes[number] = found
        elif isinstance(found, Job):
            outcomes[number] = HoldEnded(found, True) if is_repeated(tx, found, each) else over(found, each.fence)
        else:
            seen.add(each.job_id)
            prepared = _prepared(tx, found, each)
            if isinstance(prepared, Completion):
                completions[number] = prepared
            else:
                outcomes[number] = outcome(each, prepared)
    written = jobs.complete_all(tx, list(completions.values()))
    for number, decision in zip(completions, written, strict=True):
        outcomes[number] = outcome(ends[number], decision)
    return [outcomes[number] for number in range(len(ends))]


def _prepared(tx: Transaction, found: HeldJob, end: End) -> Completion | Result:
    """The completion to write, or the result of any other end."""
    job, held = found
    if end.checkpoint is not None:
        jobs.checkpoint(tx, held, end.checkpoint)
    if end.do == "complete":
        assert job.claim_op is not None
        made = NOTHING if end.made is None else end.made(tx)
        if isinstance(made, Reason):
            return jobs.fail(tx, held, f"its outputs would not count: {made.sentence}", "", retry=False)
        return Completion(held, end.result, max(0, tx.now - ulid_ms(job.claim_op)), made)
    if end.do == "fail":
        return jobs.fail(tx, held, end.text, "", end.may_retry and _has_tries_left(job))
    if end.do == "postpone":
        return jobs.postpone(tx, held, end.delay_ms, end.text)
    return jobs.hand_back(tx, held, end.text)


def _has_tries_left(job: Job) -> bool:
    """A policy's own number of retries counts besides."""
    score = job.policy.score
    return score is None or job.failures + 1 < score.max_phrases


def outcome(end: End, decision: Result) -> EndOutcome:
    if isinstance(decision, Job):
        return HoldEnded(decision)
    return decision if isinstance(decision, Offer) else refused(end, decision)


def refused(end: End, reason: Reason) -> HocketError:
    """An end that the rules of the log do not let count."""
    if reason in (Reason.UNAUTHORISED, Reason.REVOKED):
        return NotAuthorised(f"this node may not end job {ulid_text(end.job_id)}: {reason.sentence}")
    return HoldOver(end.job_id, end.fence, reason.sentence)


def is_repeated(tx: Transaction, job: Job, end: End) -> bool:
    """Whether the job's hold with this fence has ended so, with the same content."""
    if job.fence != end.fence or job.state is State.CLAIMED:
        return False
    rows = {row.id: row for row in tx.session.ops_about(Subject(JOB, job.id)) if row.variant in _ENDS}
    counted = [row for row in rows.values() if row.reason == 0]
    if not counted:
        return False
    last = decode(max(counted, key=lambda row: row.hlc).body)
    if isinstance(last.payload, AcceptWork) and last.payload.offer in rows:
        last = decode(rows[last.payload.offer].body)
    payload = last.payload if last.node_id == tx.node else None
    if isinstance(payload, CompleteJob):
        return end.do == "complete" and _has_result(tx.session, job, end.result)
    if isinstance(payload, FailWork):
        return end.do == "fail" and payload.error == end.text
    if isinstance(payload, PostponeWork):
        return end.do == "postpone" and (payload.delay_ms, payload.reason) == (end.delay_ms, end.text)
    # A strict mesh has no other end of a hold without a completion.
    is_yield = end.do == "yield" or (tx.is_strict and end.do != "complete")
    return isinstance(payload, YieldWork) and is_yield and payload.reason == end.text


def _has_result(session: Session, job: Job, wanted: bytes | None) -> bool:
    try:
        return json_of(result(session, job), "the result") == wanted
    except HocketError:  # it was evicted
        return False


def json_of(value: Any, name: str, bytes_max: int = RESULT_BYTES_MAX) -> bytes | None:
    """Null stands for no value."""
    if value is None:
        return None
    written = msgspec.json.encode(value)
    if len(written) > bytes_max:
        raise Usage(f"{name} has {len(written)} bytes as JSON, at most {bytes_max}; keep a reference instead")
    return written
