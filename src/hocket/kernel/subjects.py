"""The subject of an op: a family, and a key within it. All ops about one subject are folded together, in the order of
their times, by the rules of its family. An op without a subject is judged on its own.
"""

from collections.abc import Callable
from typing import Any

from hocket.kernel.family import Subject as Subject
from hocket.kernel.family import derived
from hocket.kernel.vocabulary import AcceptOffer, AcceptWork, CreateArtifact, Payload, ScheduleJob

JOB = "job"
# The arbiter's decision that an offered op counts.
ACCEPTANCES: tuple[type[AcceptWork | AcceptOffer], ...] = (AcceptWork, AcceptOffer)

# How the payloads of families other than jobs name their subject.
ABOUT: dict[type, Callable[[Any], Subject]] = derived(
    {AcceptOffer: lambda payload: Subject(payload.family, payload.key)},
    lambda family: {each.codec.cls: family.subject for each in family.variants},
)


def subject_of(payload: Payload) -> Subject | None:
    """The field job_id occurs in the payloads about jobs and in no others, so an artifact, which only names the job
    that it came from, is not among them.
    """
    if (job_id := getattr(payload, "job_id", None)) is not None:
        return Subject(JOB, job_id)
    about = ABOUT.get(type(payload))
    return None if about is None else about(payload)


def names_of(payload: Payload) -> tuple[bytes, ...]:
    """The names by which an op with this payload can be cited, besides its id. An op that cites an offer waits for its
    acceptance.
    """
    if type(payload) is ScheduleJob:
        return (payload.job_id,)
    if type(payload) is CreateArtifact:
        return (payload.artifact_id,)
    return (payload.offer,) if type(payload) in ACCEPTANCES else ()  # type: ignore[union-attr]
