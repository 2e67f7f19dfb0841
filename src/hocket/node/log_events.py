"""Events: the ops of this node's log that count, as plain values for programs. An event says what has happened, to
what, when, and by whom. Its place is the op's number in this node's store, so a program that has seen one goes on after
it, however much later. `event_feed` follows the log and gives new events to all who listen.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from hocket.errors import HocketError
from hocket.families.jobs.steps import JobStep, event_of, steps
from hocket.families.jobs.view import detail_of
from hocket.kernel.clock import unpack, wall_text
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import covers
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import (
    ACCEPTED,
    JOB,
    READING,
    AcceptOffer,
    AcceptWork,
    CreateArtifact,
    EraseContent,
    EvictArtifact,
    Payload,
    Sanitised,
    Subject,
)
from hocket.log.succession.leading import CoordinatorLead
from hocket.store import OpRow, Session

# How many ops one read takes.
STEP = 256
DETAIL_CHARS_MAX = 1_000


class LogEvent(msgspec.Struct, frozen=True):
    """What has happened: one op of the log that counts. Its form is that of a CloudEvent."""

    specversion: Annotated[str, Meta(description="The version of CloudEvents.")]
    id: Annotated[str, Meta(description="The id of the op. Every node has the same event under this id.")]
    source: Annotated[str, Meta(description="The node that wrote the op, as a path of this API.")]
    type: Annotated[str, Meta(description="What has happened, such as `job.failed`.")]
    subject: Annotated[str | None, Meta(description="To what: the job's id, the row, the scope of locks.")]
    time: Annotated[str, Meta(description="When, by the clock of the log: RFC 3339, in UTC.")]
    time_ms: Annotated[int, Meta(description="The same in milliseconds since 1970.")]
    seq: Annotated[int, Meta(description="The place in the log of the node that answers: `after` and Last-Event-ID.")]
    author: Annotated[str, Meta(description="The id of the node that wrote the op.")]
    kind: Annotated[str | None, Meta(description="The kind of the job.")]
    fence: Annotated[int | None, Meta(description="The fence of the job's last claim.")]
    submitter: Annotated[str | None, Meta(description="The id of the node that submitted the job.")]
    agent: Annotated[str | None, Meta(description="The agent for which it was done, if the op names one.")]
    detail: Annotated[str, Meta(description="An error, a reason, a type or keys: a text for people.")]


class EventNeed(NamedTuple):
    """What a reader of an event must be granted: to read this resource, with these words and this scope."""

    resource: str
    words: tuple[str, ...] = ()
    scope: str | None = None


class FoundEvent(NamedTuple):
    event: LogEvent
    need: EventNeed


class EventFilter(NamedTuple):
    """Which events are wanted. `kind` and each of the `types` may end with a dot and then stand for all below; no types
    stand for all.
    """

    job: str | None = None
    kind: str | None = None
    types: tuple[str, ...] = ()
    submitter: str | None = None

    def fits(self, event: LogEvent) -> bool:
        if self.job is not None and event.subject != self.job:
            return False
        if self.submitter is not None and event.submitter != self.submitter:
            return False
        if self.kind is not None and (event.kind is None or not covers(self.kind, event.kind)):
            return False
        return not self.types or any(covers(each, event.type) for each in self.types)


Allowed = Callable[[EventNeed], bool]


class PlaceGone(HocketError):
    """The log no longer has, or never had, what comes after this place. `first` is the smallest place to go on from."""

    def __init__(self, after: int, first: int, last: int) -> None:
        if after > last:
            why = f"this log ends at {last}, so it is not the log that gave the place {after}"
        else:
            why = f"this log no longer has what comes after {after}"
        super().__init__(f"{why}; go on after {first}, and list what you need anew: events may be missing")
        self.after, self.first = after, first


def check_place(session: Session, after: int) -> None:
    """Raises PlaceGone."""
    head = session.head().seq
    first = session.first_seq()
    earliest = head if first is None else first - 1
    if not earliest <= after <= head:
        raise PlaceGone(after, earliest, head)


class Chunk(NamedTuple):
    """The events of some ops. The log was read up to `seq`; `is_end` is whether it then had no more."""

    events: list[FoundEvent]
    seq: int
    is_end: bool


def read_chunk(session: Session, after: int, is_strict: bool, lead: CoordinatorLead) -> Chunk:
    """The events of the next ops. It ends before an op that is not folded yet, since nothing says whether it counts,
    and before one of a coordinator that named nodes have not confirmed.
    """
    found = session.ops_after(after, STEP)
    rows = lead.told(session, found)
    folded = next((at for at, row in enumerate(rows) if not row.settled), len(rows))
    is_end = len(found) < STEP or folded < len(found)
    seq = rows[folded - 1].seq if folded else after
    return Chunk(events_of(session, rows[:folded], is_strict), seq, is_end)


def events_of(session: Session, rows: Sequence[OpRow], is_strict: bool) -> list[FoundEvent]:
    reader = _EventReader(session, rows, is_strict)
    made = (reader.event(row) for row in rows if not row.reason)
    return [each for each in made if each is not None]


class _EventReader:
    """Makes events, and reads what they need once for all of them."""

    def __init__(self, session: Session, rows: Sequence[OpRow], is_strict: bool) -> None:
        self._session = session
        jobs = {row.job: None for row in rows if row.job is not None}
        self._jobs = {entry.job.id: entry.job for entry in session.jobs_by_id([each for each in jobs if each])}
        self._steps: dict[bytes, dict[bytes, JobStep]] = {}
        self._is_strict = is_strict

    def event(self, row: OpRow) -> FoundEvent | None:
        """None for an op that cannot be read, or whose subject is not here."""
        try:
            return self._event(row, decode(row.body))
        except (Malformed, ValueError):
            return None

    def _event(self, row: OpRow, op: Op) -> FoundEvent | None:
        kind = fence = submitter = None
        done, word = op, event_of(op.payload)
        if row.job is not None:
            job = self._jobs.get(row.job)
            if job is None:
                return None
            kind, submitter = job.kind, node_text(job.scheduled.node)
            step = self._step(row.job, op.id)
            if step is not None:
                done, word, fence = step.op, step.event, step.fence
        elif isinstance(op.payload, AcceptOffer):
            done = self._offered(op.payload.offer) or op
            word = event_of(done.payload)
        payload = done.payload.payload if isinstance(done.payload, Sanitised) else done.payload
        if isinstance(payload, EraseContent):
            kind = payload.kind
        elif isinstance(payload, CreateArtifact | EvictArtifact):
            kind = self._kind_of_artifact(payload)
        stamp = unpack(row.hlc)
        author = node_text(done.node_id)
        event = LogEvent(
            specversion="1.0",
            id=ulid_text(op.id),
            source=f"/v1/nodes/{author}",
            type=word,
            subject=_subject(row.subject, payload),
            time=wall_text(stamp.wall),
            time_ms=stamp.wall,
            seq=row.seq,
            author=author,
            kind=kind,
            fence=fence,
            submitter=submitter,
            agent=getattr(payload, "agent", None) or getattr(payload, "sender", None),
            detail=(detail_of(payload) or " ".join(getattr(payload, "keys", ())))[:DETAIL_CHARS_MAX],
        )
        return FoundEvent(event, _need(payload, row.subject, kind))

    def _step(self, job_id: bytes, op_id: bytes) -> JobStep | None:
        if job_id not in self._steps:
            self._steps[job_id] = steps(self._session, job_id, self._is_strict)
        return self._steps[job_id].get(op_id)

    def _offered(self, op_id: bytes) -> Op | None:
        row = self._session.op(op_id)
        return None if row is None else decode(row.body)

    def _kind_of_artifact(self, payload: CreateArtifact | EvictArtifact) -> str | None:
        if isinstance(payload, CreateArtifact):
            job_id = payload.source_job
        else:
            artifact = self._session.artifact(payload.artifact_id)
            job_id = None if artifact is None else artifact.source_job
        entry = None if job_id is None else self._session.job(job_id)
        return None if entry is None else entry.job.kind


def _subject(subject: Subject | None, payload: Payload) -> str | None:
    if subject is None:
        if isinstance(payload, EraseContent):
            return ulid_text(payload.source_job)
        artifact: bytes | None = getattr(payload, "artifact_id", None)
        return getattr(payload, "name", None) if artifact is None else ulid_text(artifact)
    if subject.family == JOB:
        return ulid_text(subject.key)
    family = FAMILIES.get(subject.family)
    return subject.key.hex() if family is None else family.key_text(subject.key)


def _need(payload: Payload, subject: Subject | None, kind: str | None) -> EventNeed:
    judged = READING[type(payload)]
    of_kind = () if kind is None else (kind,)
    if isinstance(payload, AcceptWork) or (subject is not None and subject.family == JOB):
        return EventNeed("Job", of_kind)
    if judged.resource in ("Job", "Artifact") and kind is not None:
        return EventNeed(judged.resource, of_kind)
    if isinstance(payload, AcceptOffer):
        accepted = ACCEPTED.get(payload.family)
        word = payload.key.decode(errors="replace")
        return EventNeed("Ops") if accepted is None else EventNeed(READING[accepted].resource, (word,), word)
    value: Any = getattr(payload, judged.field, ()) if judged.field else ()
    words = (value,) if isinstance(value, str) else tuple(value or getattr(payload, "keys", ()))
    return EventNeed(judged.resource, words, getattr(payload, "scope", None))
