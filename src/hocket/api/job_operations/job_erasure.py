"""Erasing the content of a job, on every node."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import REASON_CHARS_MAX, JobText, found_job
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, View
from hocket.errors import Failed
from hocket.kernel.ids import ulid_text

ERASE = TokenNeed("Job", "Erase", is_judged_later=True)


class JobErased(ServiceAnswer, frozen=True):
    """`blobs` is how many pieces of content the job has beside the log, `deleted` and `bytes` what of them was on this
    node. `stays` says what of the job is in signed ops, and so cannot be erased.
    """

    job_id: str
    blobs: int
    deleted: int
    bytes: int
    stays: list[str]

    def ensure(self) -> None:
        if self.stays:
            raise Failed(
                f"the blobs of job {self.job_id} are erased, but not {', '.join(self.stays)}: signed ops have it. A job"
                " with content_apart has it beside the log"
            )


def _show(done: JobErased) -> Iterator[View]:
    yield Line(f"erased {done.job_id}: {done.blobs} blobs, {done.bytes} bytes of them here; other nodes follow")


@operation("erase_job", "POST /v1/jobs/{job}/erase", ERASE, "erase", show=_show)
def erase(
    service: Service,
    job: JobText,
    reason: Annotated[
        str,
        Meta(min_length=1, max_length=REASON_CHARS_MAX, description="Why; it stays on the log."),
        InShell("--reason", metavar="TEXT"),
    ],
) -> JobErased:
    """Erase the content of a job on every node: its payload and its result, where they are beside the log, and its
    artifacts. The log keeps their hashes, and says who erased them, when and why. A job that has not ended is
    cancelled. It cannot be undone.

    Only the node that submitted the job, or the owner's, can do it, with the grant job:erase. Copies that someone has
    made elsewhere stay. Exit code 1 if a part of the content is in signed ops, which nothing can change.

    \b
      hocket job erase 01J9ZC --reason "asked for by the person it is about"
    """
    from hocket.families import erasing

    service.check_writer()
    with service.read() as session:
        job_id = found_job(service, session, job, "Erase").id
        entry = session.job(job_id)
        assert entry is not None
        known = erasing.erasable(session, entry.job)
    cleared = service.node.job(ulid_text(job_id)).erase(reason)
    return JobErased(ulid_text(job_id), len(known.hashes), cleared.blobs, cleared.bytes, known.stays)
