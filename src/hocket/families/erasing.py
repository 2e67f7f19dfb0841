"""Erasing the content of a job: an op that says so, the blobs that go, and what stays because it is in signed ops."""

from typing import NamedTuple

from hocket.errors import Conflict, NotAuthorised, NotFound, Usage
from hocket.events.troubles import Troubles
from hocket.families.artifacts import free
from hocket.families.blobs import Blobs
from hocket.families.jobs.apart import check_kept
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import EraseContent
from hocket.log import Transaction
from hocket.store import Session, Store
from hocket.store.artifact_rows import ClearedBlobs

ERASED_STEP = 100


class Erasable(NamedTuple):
    """`hashes` are the blobs of a job; `stays` says in words what of its content is in its ops."""

    hashes: list[bytes]
    stays: list[str]


def erasable(session: Session, job: Job) -> Erasable:
    made = session.artifacts_from_job(job.id)
    hashes = [each.hash for each in made if not each.inline]
    stays = [] if job.policy.content is not None else ["its payload"]
    inline = [each for each in made if each.inline]
    results = sum(each.type == "hocket.result" for each in inline)
    stays += ["its result"] if results else []
    stays += [f"{len(inline) - results} small artifacts"] if len(inline) > results else []
    return Erasable(hashes, stays)


def erase(tx: Transaction, job_id: bytes, reason: str) -> Job:
    """Writes that the content is gone. Raises NotAuthorised if this node may not do so, and Conflict if nothing of the
    job can be erased.
    """
    name = f"job {ulid_text(job_id)}"
    if tx.is_strict:
        raise Usage(f"the content of {name} cannot be erased: this is a strict mesh, and Likewise v0.1 has no such op")
    tx.projection.flush()
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        raise NotFound(f"no {name}")
    job = entry.job
    check_kept(tx.session, job.id)
    if not erasable(tx.session, job).hashes:
        raise Conflict(
            f"{name} has no content beside the log, and what is in its signed ops cannot be erased; give the"
            " handler of its kind content_apart=0, and the next jobs can be"
        )
    op = tx.author(EraseContent(job.id, job.kind, reason), (job.schedule_op[:16],))
    if isinstance(op, Reason):
        if op in UNAUTHORISED:
            raise NotAuthorised(
                f"this node may not erase the content of {name}: {op.sentence}. It needs the grant job:erase, and to"
                " be the owner's, or to have submitted the job"
            )
        raise Conflict(f"the content of {name} cannot be erased: {op.sentence}")
    return job


def remove_content(tx: Transaction, blobs: Blobs, job_id: bytes, troubles: Troubles | None = None) -> ClearedBlobs:
    """Deletes the blobs of a job that was erased, unless another artifact needs them."""
    tx.projection.flush()
    hashes = [each.hash for each in tx.session.artifacts_from_job(job_id) if not each.inline]
    return free(tx, blobs, hashes, troubles)


def has_content(store: Store, blobs: Blobs, job_ids: list[bytes]) -> list[bytes]:
    """Which of these erased jobs still have blobs here."""
    with store.read() as session:
        return [
            job_id
            for job_id in job_ids
            if any(not each.inline and blobs.has(each.hash) for each in session.artifacts_from_job(job_id))
        ]


def erased_jobs(session: Session) -> list[bytes]:
    found: list[bytes] = []
    while more := session.erased_jobs(found[-1] if found else b"", ERASED_STEP):
        found += more
    return found
