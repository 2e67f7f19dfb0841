"""The vocabulary: every payload that an op can carry, the order and types of its fields, its number on the wire, who
may write and read it, which of its fields are content, and the subject that it is about. The Likewise document names
the payloads and their fields but assigns no numbers; ours follow its chapters from 0, and Hocket's own payloads begin
at 1024; families add theirs. The rules of the families decide what a payload means; `capabilities` reads what grants
its writing, and `authority` combines the two.

A subject is a family, and a key within it. All ops about one subject are folded together, in the order of their times,
by the rules of its family. An op without a subject is judged on its own.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, TypeVar

from msgspec import Struct

from hocket.kernel.family import FamilyPayload, ForeseenId, Judged, Variant, derived
from hocket.kernel.family import Subject as Subject
from hocket.kernel.postcard import (
    BOOL,
    BYTES,
    F64,
    NODE,
    STR,
    U64,
    ULID,
    Codec,
    StructCodec,
    encode,
    enum,
    fixed,
    option,
    pair,
    seq,
)
from hocket.kernel.postcard import struct as fields
from hocket.kernel.postcard import union as one_of

K = TypeVar("K")
V = TypeVar("V")

EXTENSION_BASE = 1024

ULIDS = seq(ULID)
HASH = fixed(32)
CONFIDENCE = seq(pair(STR, F64), limit=256)

Confidence = tuple[tuple[str, float], ...]
Ids = tuple[bytes, ...]


class ClaimType(IntEnum):
    ATTRIBUTE = 0
    RELATIONSHIP = 1
    MEMBERSHIP = 2
    TEMPORAL = 3
    SPATIAL = 4
    BEHAVIORAL = 5
    DERIVED = 6


class ClaimStatus(IntEnum):
    HINT = 0
    CLAIM = 1
    FACT = 2
    DISPUTED = 3
    REJECTED = 4
    SUPERSEDED = 5
    STALE = 6


class AssertionType(IntEnum):
    CONFIRM = 0
    REJECT = 1
    EDIT = 2
    PIN = 3
    HIDE = 4
    LANE_RULE = 5


class EpisodeStatus(IntEnum):
    ACTIVE = 0
    STALE = 1
    ARCHIVED = 2


class ActionStatus(IntEnum):
    PROPOSED = 0
    APPROVED = 1
    EXECUTING = 2
    COMPLETED = 3
    REJECTED = 4
    DISMISSED = 5
    FAILED = 6
    EXPIRED = 7


# Parts of payloads.


class Location(Struct, frozen=True):
    latitude: float
    longitude: float
    altitude: float | None = None


class Metadata(Struct, frozen=True):
    timestamp_ms: int | None = None
    location: Location | None = None
    participants: tuple[str, ...] = ()
    custom: tuple[tuple[str, str], ...] = ()


class Provenance(Struct, frozen=True):
    evidence: Ids = ()
    claims: Ids = ()
    jobs: Ids = ()
    snapshots: Ids = ()


class Telemetry(Struct, frozen=True):
    duration_ms: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model_latency_ms: int | None = None


class EntityObject(Struct, frozen=True):
    entity_id: bytes


class TextObject(Struct, frozen=True):
    text: str


class NumberObject(Struct, frozen=True):
    number: float


class BooleanObject(Struct, frozen=True):
    boolean: bool


class TimestampObject(Struct, frozen=True):
    timestamp_ms: int


class StructuredObject(Struct, frozen=True):
    data: bytes


ClaimObject = EntityObject | TextObject | NumberObject | BooleanObject | TimestampObject | StructuredObject


class ClaimTarget(Struct, frozen=True):
    claim_id: bytes


class EntityTarget(Struct, frozen=True):
    entity_id: bytes


class LaneTarget(Struct, frozen=True):
    lane: str


class EpisodeTarget(Struct, frozen=True):
    episode_id: bytes


class ActionTarget(Struct, frozen=True):
    action_id: bytes


AssertionTarget = ClaimTarget | EntityTarget | LaneTarget | EpisodeTarget | ActionTarget


# Evidence, entities and claims.


class IngestEvidence(Struct, frozen=True):
    evidence_id: bytes
    content_hash: bytes
    source_type: str
    source_anchor: str
    metadata_snapshot: Metadata | None = None


class TombstoneEvidence(Struct, frozen=True):
    evidence_id: bytes
    reason: str


class CreateEntity(Struct, frozen=True):
    entity_id: bytes
    entity_type: str
    initial_label: str
    source_claims: Ids = ()


class AddEntityAlias(Struct, frozen=True):
    entity_id: bytes
    alias: str


class MergeEntities(Struct, frozen=True):
    survivor: bytes
    consumed: Ids
    rationale: str


class SplitEntity(Struct, frozen=True):
    original: bytes
    new_entities: Ids
    rationale: str


class CreateClaim(Struct, frozen=True):
    claim_id: bytes
    claim_type: ClaimType
    subject: bytes
    predicate: str
    object: ClaimObject
    initial_status: ClaimStatus
    confidence: Confidence
    provenance: Provenance


class UpdateClaimStatus(Struct, frozen=True):
    claim_id: bytes
    new_status: ClaimStatus
    rationale: str | None = None


class UpdateClaimConfidence(Struct, frozen=True):
    claim_id: bytes
    new_confidence: Confidence


class SupersedeClaim(Struct, frozen=True):
    old_claim_id: bytes
    new_claim_id: bytes
    rationale: str


# Work.


class ScheduleJob(Struct, frozen=True):
    job_id: bytes
    kind: str
    payload: bytes
    policy_envelope: bytes


class ClaimWork(Struct, frozen=True):
    job_id: bytes
    claimer: int
    lease_duration_ms: int


class CompleteJob(Struct, frozen=True):
    job_id: bytes
    output_claims: Ids
    output_artifacts: Ids
    telemetry: Telemetry


class YieldWork(Struct, frozen=True):
    job_id: bytes
    claimer: int
    reason: str


class ExpireWork(Struct, frozen=True):
    job_id: bytes
    expired_claimer: int
    reason: str


# The user's assertions, artifacts, and what an application shows to the user.


class UserAssert(Struct, frozen=True):
    assertion_type: AssertionType
    target: AssertionTarget
    semantic_lane: str | None = None


class CreateArtifact(Struct, frozen=True):
    artifact_id: bytes
    artifact_type: str
    source_job: bytes | None
    inputs_used: Ids
    content_hash: bytes
    content_inline: bytes | None
    model_id: str | None
    model_version: str | None
    size_bytes: int
    ttl_ms: int | None = None


class EvictArtifact(Struct, frozen=True):
    artifact_id: bytes


class CreateEpisode(Struct, frozen=True):
    episode_id: bytes
    title: str
    summary: str | None
    temporal_start: int
    temporal_end: int | None
    evidence_ids: Ids
    claim_ids: Ids
    entity_ids: Ids
    confidence: float


class UpdateEpisode(Struct, frozen=True):
    episode_id: bytes
    title: str | None = None
    summary: str | None = None
    confidence: float | None = None
    status: EpisodeStatus | None = None
    claim_ids_add: Ids = ()
    evidence_ids_add: Ids = ()


class CreateSuggestedAction(Struct, frozen=True):
    action_id: bytes
    title: str
    description: str
    action_type: str
    source_episode: bytes
    supporting_claims: Ids
    supporting_evidence: Ids
    derivation_job: bytes | None
    confidence: float


class UpdateActionStatus(Struct, frozen=True):
    action_id: bytes
    new_status: ActionStatus
    execution_result: str | None = None


# The mesh itself.


class DesignateCoordinator(Struct, frozen=True):
    coordinator: int


class DelegateUcan(Struct, frozen=True):
    ucan_cid: bytes
    ucan_bytes: bytes


class RevokeUcan(Struct, frozen=True):
    ucan_cid: bytes


class RouteKind(Struct, frozen=True):
    kind: str
    route: int | None = None


class CascadeTombstone(Struct, frozen=True):
    evidence_id: bytes
    claims: Ids = ()
    entities: Ids = ()
    episodes: Ids = ()
    actions: Ids = ()
    artifacts: Ids = ()


# Hocket's own.


class FailWork(Struct, frozen=True):
    job_id: bytes
    claimer: int
    error: str
    traceback: str
    retry: bool


class CancelJob(Struct, frozen=True):
    job_id: bytes
    reason: str


class RetryJob(Struct, frozen=True):
    job_id: bytes
    reason: str


class ReportProgress(Struct, frozen=True):
    job_id: bytes
    claimer: int
    note: bytes


class SetSchedule(Struct, frozen=True):
    name: str
    cron: str
    timezone: str
    kind: str
    payload: bytes
    policy_envelope: bytes


class ClearSchedule(Struct, frozen=True):
    name: str


class AcceptWork(Struct, frozen=True):
    """The arbiter's decision that an offered op about a job counts, from now on."""

    job_id: bytes
    offer: bytes


class AcceptOffer(Struct, frozen=True):
    """The arbiter's decision that an offered op about any subject counts, from now on. Jobs have AcceptWork."""

    family: str
    key: bytes
    offer: bytes


class Sanitised(Struct, frozen=True):
    """A payload from which a sender has removed what the receiver may not see, by these rules in this order."""

    rules: tuple[str, ...]
    payload: "Payload"


class Unknown(Struct, frozen=True):
    """A payload of a newer program: its number and its bytes. It is kept and passed on, and has no effect."""

    number: int
    content: bytes


class Bundle(Struct, frozen=True):
    """Several facts of one author: payloads with the number `variant`, each with the ops that it depends on. It means
    what they would mean as ops of their own: see `bundles`.
    """

    variant: int
    facts: bytes


class ReportFork(Struct, frozen=True):
    """The proof that a node has two histories: its key, and two ops that it signed and that cannot both be in one."""

    public: bytes
    left: bytes
    right: bytes


class RevokeRoot(Struct, frozen=True):
    """The revocation of a delegation that the user's own key issued, with that key's signature."""

    ucan_cid: bytes
    signature: bytes


class PostponeWork(Struct, frozen=True):
    """The holder returns the job to the queue: it may start again after the delay, and no try is spent."""

    job_id: bytes
    claimer: int
    delay_ms: int
    reason: str


class PostponeJob(Struct, frozen=True):
    """A pending job may not start before that time, which replaces every earlier one; a time in the past means now."""

    job_id: bytes
    until_ms: int
    reason: str


class ApproveJob(Struct, frozen=True):
    """An agent of the author's node lets a job run that waits for that agent's approval."""

    job_id: bytes
    agent: str
    note: str


class RefuseJob(Struct, frozen=True):
    """An agent of the author's node ends a job that waits for that agent's approval."""

    job_id: bytes
    agent: str
    note: str


class EraseContent(Struct, frozen=True):
    """The content of a job that stands beside the log is gone, whichever node has it, and whenever it was made: its
    payload, its results and its other artifacts. The op is not one about the job, whose story goes on.
    """

    source_job: bytes
    kind: str
    reason: str


class SetSuccession(Struct, frozen=True):
    """The owner says which nodes may follow the coordinator whose tenure the op `follows` began, in this order, if it
    is silent for that long. Without nodes none may.
    """

    follows: bytes
    nodes: tuple[int, ...] = ()
    quorum: int = 0
    after_ms: int = 0


class TakeOver(Struct, frozen=True):
    """Its author is the coordinator from now on, in the place of the one whose tenure the op `follows` began. `votes`
    are nodes that the succession names, each with its signature.
    """

    term: int
    succession: bytes
    follows: bytes
    votes: tuple[tuple[int, bytes], ...]


class SaveCheckpoint(Struct, frozen=True):
    """How far the holder of a job has come, for whichever worker runs it next."""

    job_id: bytes
    claimer: int
    state: bytes


Payload = (
    IngestEvidence | TombstoneEvidence | CreateEntity | AddEntityAlias | MergeEntities | SplitEntity
    | CreateClaim | UpdateClaimStatus | UpdateClaimConfidence | SupersedeClaim
    | ScheduleJob | ClaimWork | CompleteJob | YieldWork | ExpireWork
    | UserAssert | CreateArtifact | EvictArtifact
    | CreateEpisode | UpdateEpisode | CreateSuggestedAction | UpdateActionStatus
    | DesignateCoordinator | DelegateUcan | RevokeUcan | RouteKind | CascadeTombstone
    | FailWork | CancelJob | RetryJob | ReportProgress | SetSchedule | ClearSchedule | AcceptWork | Sanitised
    | ReportFork | RevokeRoot | AcceptOffer | PostponeWork | SaveCheckpoint | PostponeJob | ApproveJob | RefuseJob
    | EraseContent | SetSuccession | TakeOver
    | Bundle | Unknown | FamilyPayload
)  # fmt: skip

LOCATION = fields(Location, F64, F64, option(F64))
METADATA = fields(Metadata, option(U64), option(LOCATION), seq(STR), seq(pair(STR, STR)))
PROVENANCE = fields(Provenance, ULIDS, ULIDS, ULIDS, ULIDS)
TELEMETRY = fields(Telemetry, U64, option(U64), option(U64), option(U64))
CLAIM_OBJECT = one_of(
    {
        0: fields(EntityObject, ULID),
        1: fields(TextObject, STR),
        2: fields(NumberObject, F64),
        3: fields(BooleanObject, BOOL),
        4: fields(TimestampObject, U64),
        5: fields(StructuredObject, BYTES),
    }
)
ASSERTION_TARGET = one_of(
    {
        0: fields(ClaimTarget, ULID),
        1: fields(EntityTarget, ULID),
        2: fields(LaneTarget, STR),
        3: fields(EpisodeTarget, ULID),
        4: fields(ActionTarget, ULID),
    }
)

_EVIDENCE = Judged("Evidence", "Write", "source_types", "")
_CLAIM = Judged("Claim", "Write", "predicates", "")
_SCHEDULE = Judged("Job", "Schedule", "kind_prefix")
_SCHEDULE_KIND = _SCHEDULE._replace(field="kind")
_COMPLETE = Judged("Job", "Complete", "kind_prefix")
_APPROVE = Judged("Job", "Approve", "kind_prefix")
_ERASE = Judged("Job", "Erase", "kind_prefix", "kind")
_ENTITY = Judged("Entity", "Write")
_EPISODE = Judged("Episode", "Write")
# Writing an artifact is not judged by the kind of the job that it came from: its author names that job itself.
_ARTIFACT = Judged("Artifact", "Write")
_READ_ARTIFACT = _ARTIFACT._replace(caveat="kind_prefix")
_ACTION = Judged("Action", "Write")
_OWNER = Judged("Mesh", "Write", is_owners=True)
_REGISTRATION = Judged("Registration", None)
# Only nodes that may read every op may read these.
_OPS = Judged("Ops", None)
_POLICY = ("payload", "policy_envelope")

_PLAIN = (
    Variant(0, fields(IngestEvidence, ULID, HASH, STR, STR, option(METADATA)), _EVIDENCE._replace(field="source_type")),
    Variant(1, fields(TombstoneEvidence, ULID, STR), _EVIDENCE, texts=("reason",)),
    Variant(2, fields(CreateEntity, ULID, STR, STR, ULIDS), _ENTITY, texts=("initial_label",)),
    Variant(3, fields(AddEntityAlias, ULID, STR), _ENTITY, texts=("alias",)),
    Variant(4, fields(MergeEntities, ULID, ULIDS, STR), _ENTITY, texts=("rationale",)),
    Variant(5, fields(SplitEntity, ULID, ULIDS, STR), _ENTITY, texts=("rationale",)),
    Variant(
        6,
        fields(CreateClaim, ULID, enum(ClaimType), ULID, STR, CLAIM_OBJECT, enum(ClaimStatus), CONFIDENCE, PROVENANCE),
        _CLAIM._replace(field="predicate"),
    ),
    Variant(7, fields(UpdateClaimStatus, ULID, enum(ClaimStatus), option(STR)), _CLAIM, texts=("rationale",)),
    Variant(8, fields(UpdateClaimConfidence, ULID, CONFIDENCE), _CLAIM),
    Variant(9, fields(SupersedeClaim, ULID, ULID, STR), _CLAIM, texts=("rationale",)),
    Variant(
        *(10, fields(ScheduleJob, ULID, STR, BYTES, BYTES), _SCHEDULE_KIND),
        json=_POLICY,
        made="job_id",
        foreseen=ForeseenId(b"hocket job\0", lambda job: encode(STR, job.kind) + encode(BYTES, job.payload)),
        event="job.submitted",
    ),
    Variant(11, fields(ClaimWork, ULID, NODE, U64), Judged("Job", "Claim", "kind_prefix"), event="job.claimed"),
    Variant(12, fields(CompleteJob, ULID, ULIDS, ULIDS, TELEMETRY), _COMPLETE, event="job.succeeded"),
    Variant(
        13, fields(YieldWork, ULID, NODE, STR), _COMPLETE, texts=("reason",), gives_back=True, event="job.returned"
    ),
    Variant(14, fields(ExpireWork, ULID, NODE, STR), _COMPLETE, texts=("reason",), event="job.lost"),
    Variant(
        *(15, fields(UserAssert, enum(AssertionType), ASSERTION_TARGET, option(STR)), Judged("UserAssertion", "Write")),
        texts=("semantic_lane",),
    ),
    Variant(
        16,
        fields(
            CreateArtifact,
            *(ULID, STR, option(ULID), ULIDS, HASH, option(BYTES), option(STR), option(STR), U64, option(U64)),
        ),
        *(_ARTIFACT, _READ_ARTIFACT),
        bodies=("content_inline",),
        made="artifact_id",
        event="artifact.created",
    ),
    Variant(17, fields(EvictArtifact, ULID), _ARTIFACT, _READ_ARTIFACT, event="artifact.evicted"),
    Variant(
        *(18, fields(CreateEpisode, ULID, STR, option(STR), U64, option(U64), ULIDS, ULIDS, ULIDS, F64), _EPISODE),
        texts=("title", "summary"),
    ),
    Variant(
        19,
        fields(UpdateEpisode, ULID, option(STR), option(STR), option(F64), option(enum(EpisodeStatus)), ULIDS, ULIDS),
        _EPISODE,
        texts=("title", "summary"),
    ),
    Variant(
        *(20, fields(CreateSuggestedAction, ULID, STR, STR, STR, ULID, ULIDS, ULIDS, option(ULID), F64), _ACTION),
        texts=("title", "description"),
    ),
    Variant(
        *(21, fields(UpdateActionStatus, ULID, enum(ActionStatus), option(STR)), _ACTION), texts=("execution_result",)
    ),
    Variant(22, fields(DesignateCoordinator, NODE), _OWNER, event="coordinator.designated"),
    Variant(23, fields(DelegateUcan, HASH, BYTES), _REGISTRATION, event="delegation.issued"),
    Variant(24, fields(RevokeUcan, HASH), _REGISTRATION, event="delegation.revoked"),
    Variant(25, fields(RouteKind, STR, option(NODE)), _OWNER, event="route.set"),
    Variant(26, fields(CascadeTombstone, ULID, ULIDS, ULIDS, ULIDS, ULIDS, ULIDS), _EVIDENCE),
    Variant(
        1024, fields(FailWork, ULID, NODE, STR, STR, BOOL), _COMPLETE, texts=("error", "traceback"), event="job.failed"
    ),
    Variant(1025, fields(CancelJob, ULID, STR), _SCHEDULE, texts=("reason",), event="job.cancelled"),
    Variant(1026, fields(RetryJob, ULID, STR), _SCHEDULE, texts=("reason",), event="job.retried"),
    Variant(1027, fields(ReportProgress, ULID, NODE, BYTES), _COMPLETE, bodies=("note",), event="job.progressed"),
    Variant(
        1028, fields(SetSchedule, STR, STR, STR, STR, BYTES, BYTES), _SCHEDULE_KIND, json=_POLICY, event="schedule.set"
    ),
    # It has a name and no kind, so no kind_prefix can restrict it.
    Variant(1029, fields(ClearSchedule, STR), _SCHEDULE._replace(caveat=None), event="schedule.removed"),
    Variant(1030, fields(AcceptWork, ULID, ULID), Judged("Job", None, "kind_prefix")),
    Variant(1032, fields(ReportFork, HASH, BYTES, BYTES), _OPS, event="fork.reported"),
    Variant(1033, fields(RevokeRoot, HASH, fixed(64)), _REGISTRATION, event="delegation.revoked"),
    Variant(1034, fields(AcceptOffer, STR, BYTES, ULID), _OPS),
    Variant(1035, fields(PostponeWork, ULID, NODE, U64, STR), _COMPLETE, texts=("reason",), event="job.postponed"),
    Variant(1037, fields(SaveCheckpoint, ULID, NODE, BYTES), _COMPLETE, bodies=("state",), event="job.saved"),
    Variant(1052, fields(PostponeJob, ULID, U64, STR), _SCHEDULE, texts=("reason",), event="job.postponed"),
    Variant(1053, fields(ApproveJob, ULID, STR, STR), _APPROVE, texts=("note",), event="job.approved"),
    Variant(1054, fields(RefuseJob, ULID, STR, STR), _APPROVE, texts=("note",), event="job.refused"),
    Variant(1057, fields(EraseContent, ULID, STR, STR), _ERASE, texts=("reason",), event="job.erased"),
    Variant(1058, fields(SetSuccession, ULID, seq(NODE, limit=64), U64, U64), _OWNER, event="succession.set"),
    # The votes say whether it counts.
    Variant(
        *(1059, fields(TakeOver, U64, ULID, ULID, seq(pair(NODE, fixed(64)), limit=64)), Judged("Mesh", None)),
        event="coordinator.taken_over",
    ),
)


def _table(
    variants: Iterable[Variant], key: Callable[[Variant], K], value: Callable[[Variant], V | None]
) -> dict[K, V]:
    """A table with this value of each variant, those of families among them; without those where it is None."""

    def part(some: Iterable[Variant]) -> dict[K, V]:
        return {key(each): found for each in some if (found := value(each)) is not None}

    return derived(part(variants), lambda family: part(family.variants))


def _codecs(variants: Iterable[Variant]) -> dict[int, StructCodec[Payload]]:
    return _table(variants, lambda each: each.number, lambda each: each.codec)


_ALL = (
    *_PLAIN,
    # A payload that was sanitised twice carries the rules of both, not two wrappers.
    Variant(1031, fields(Sanitised, seq(STR, limit=64), one_of(_codecs(_PLAIN))), _OPS),
    # Its facts are judged one by one.
    Variant(1051, fields(Bundle, U64, BYTES), _OPS),
)
VARIANTS = _codecs(_ALL)
PAYLOAD: Codec[Payload] = one_of(VARIANTS)
NAMES: dict[int, str] = _table(_ALL, lambda each: each.number, lambda each: each.codec.cls.__name__)
# What has happened, as events say it, by the numbers of the variants.
EVENTS: dict[int, str] = _table(
    _ALL, lambda each: each.number, lambda each: each.event or f"op.{each.codec.cls.__name__}"
)
EXTENSIONS = frozenset(number for number in VARIANTS if number >= EXTENSION_BASE)


def by_payload(value: Callable[[Variant], V | None]) -> dict[type[Payload], V]:
    """A table with this value of each payload's variant, by the payload's class; without those where it is None."""
    return _table(_ALL, lambda each: each.codec.cls, value)


_NUMBERS = by_payload(lambda each: each.number)
# What an op requires: the resource, the action needed to write one, and which caveat restricts it by which word. The
# content of an unknown payload is not known here.
JUDGED = by_payload(lambda each: each.judged)
READING = by_payload(lambda each: each.read or each.judged)
JUDGED[Unknown] = READING[Unknown] = _OPS

# A reader of the ops of a family may read the arbiter's word about them. The payload stands for the family; the
# word of its caveat, if it has one, is the subject's key.
ACCEPTED: dict[str, type[Payload]] = derived(
    {}, lambda family: {} if family.accepted is None else {family.name: family.accepted}
)


def discriminant(payload: Payload) -> int:
    return payload.number if type(payload) is Unknown else _NUMBERS[type(payload)]


def number_of(variant: type[Payload]) -> int:
    return _NUMBERS[variant]


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
