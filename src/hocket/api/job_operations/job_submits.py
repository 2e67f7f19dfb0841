"""Submitting jobs: one, or many as lines of which each stands for itself. The options of a job have the names of its
policy; durations and times are in milliseconds.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import ULID, Lines, TokenNeed, WholeBody, operation
from hocket.errors import Conflict, HocketError, NotAuthorised, Usage
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.kernel.decoding import decode_json
from hocket.kernel.extension import part
from hocket.kernel.ids import EXACT_MAX, ulid_text
from hocket.kernel.policy import (
    AFTER_MAX,
    APART_BYTES_MAX,
    APPROVER,
    APPROVER_LENGTH_MAX,
    CLAIM_TIMEOUT_MS_MIN,
    DEFAULT,
    DELAY_MS_MAX,
    INDEX_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NEEDS_MAX,
    PRIORITY_MAX,
    RETRIES_MAX,
    TAGS_MAX,
    ArgumentPath,
    Budget,
    Label,
    Rate,
    check_policy,
)
from hocket.kernel.texts import HOLD_BEATS_MAX

if TYPE_CHECKING:
    from hocket.families.jobs.requests import Draft, Submitted
    from hocket.node.node import Node


def _ms(description: str, least: int = 0, most: int = DELAY_MS_MAX) -> Any:
    return Meta(ge=least, le=most, description=description)


KindName = Annotated[str, Meta(min_length=1, max_length=KIND_LENGTH_MAX, description="The kind, like acme.render.")]
Payload = Annotated[dict[str, Any], Meta(description="The handler's arguments.")]


class NewJobOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of a job. What is left out is as the options of its kind say, else as its handler says."""

    priority: (
        Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="A higher one runs sooner.")] | UnsetType
    ) = UNSET
    not_before_ms: (
        Annotated[int, Meta(ge=0, le=EXACT_MAX, description="When it may start, in milliseconds since 1970.")]
        | UnsetType
    ) = UNSET
    lease_ms: Annotated[int, _ms("How long a worker holds it before it must renew.", LEASE_MS_MIN, LEASE_MS_MAX)] | (
        UnsetType
    ) = UNSET
    lease_beats: (
        Annotated[int, Meta(ge=1, le=HOLD_BEATS_MAX, description="The lease in beats instead.")] | UnsetType
    ) = UNSET
    timeout_ms: Annotated[int, _ms("How long one run may take; 0 for no limit.")] | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=0, le=RETRIES_MAX, description="How often a failure is retried.")] | UnsetType = (
        UNSET
    )
    backoff_ms: Annotated[int, _ms("The wait before the first retry; it doubles each time.")] | UnsetType = UNSET
    backoff_max_ms: Annotated[int, _ms("The longest wait before a retry.")] | UnsetType = UNSET
    after: (
        Annotated[
            list[Annotated[str, Meta(pattern=ULID)]],
            Meta(max_length=AFTER_MAX, description="The jobs that must succeed before this one starts."),
        ]
        | UnsetType
    ) = UNSET
    unique: (
        Annotated[
            str,
            Meta(min_length=1, max_length=512, description="While a job with this key has not ended, none is made."),
        ]
        | UnsetType
    ) = UNSET
    unique_for_ms: Annotated[int, _ms("How long the key counts after the submit, also if the job ends.")] | (
        UnsetType
    ) = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000, description="How many of the kind run at once.")] | (
        UnsetType
    ) = UNSET
    rate: Annotated[Rate, Meta(description="How many of the kind start in a time.")] | UnsetType = UNSET
    open: Annotated[bool, Meta(description="Whether it is claimed without the coordinator.")] | UnsetType = UNSET
    needs: (
        Annotated[list[Label], Meta(max_length=NEEDS_MAX, description="Labels that its worker must have.")] | UnsetType
    ) = UNSET
    tags: Annotated[list[Label], Meta(max_length=TAGS_MAX, description="Words to find it by.")] | UnsetType = UNSET
    index: (
        Annotated[
            list[ArgumentPath], Meta(max_length=INDEX_MAX, description="Members of its payload by which it is found.")
        ]
        | UnsetType
    ) = UNSET
    ttl_ms: Annotated[int, _ms("How long it may wait for its first worker before it is cancelled.", 1)] | UnsetType = (
        UNSET
    )
    approval_by: (
        Annotated[
            str,
            Meta(
                pattern=APPROVER,
                max_length=APPROVER_LENGTH_MAX,
                description="The agent that must approve it before it starts, like alice, or alice@ and a node's id.",
            ),
        ]
        | UnsetType
    ) = UNSET
    approval_within_ms: Annotated[int, _ms("How long it may wait for that before it is cancelled.", 1)] | UnsetType = (
        UNSET
    )
    questions_to: (
        Annotated[
            str,
            Meta(
                pattern=APPROVER,
                max_length=APPROVER_LENGTH_MAX,
                description="The agent that answers what it asks while it runs; default: the owner of the node.",
            ),
        ]
        | UnsetType
    ) = UNSET
    content_apart: (
        Annotated[
            int,
            Meta(ge=0, le=APART_BYTES_MAX, description="Its payload and result are off the log from so many bytes on."),
        ]
        | UnsetType
    ) = UNSET
    claim: (
        Annotated[Literal["first", "rendezvous", "sticky"], Meta(description="How it finds its worker.")] | UnsetType
    ) = UNSET
    sticky: (
        Annotated[str, Meta(min_length=1, max_length=128, description="The member of the payload of a sticky job.")]
        | UnsetType
    ) = UNSET
    claim_timeout_ms: Annotated[int, _ms("How long each rank waits for the one before.", CLAIM_TIMEOUT_MS_MIN)] | (
        UnsetType
    ) = UNSET
    budget: Annotated[Budget, Meta(description="Its caps, and the account that pays.")] | UnsetType = UNSET
    score: Annotated[dict[str, Any], Meta(description="How many beats it has.")] | UnsetType = UNSET


class NewJob(NewJobOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job to submit. What is left out is as the options of its kind say, else as its handler says."""

    kind: KindName
    payload: Payload = {}


class JobSubmitted(ServiceAnswer, frozen=True):
    """`created` is false if there was a job with the unique key already: then it is that job."""

    job_id: str
    kind: str
    created: bool


SUBMIT = TokenNeed("Job", "Schedule", lambda service, asked: [asked["kind"]])
# The names of members of the policy that are others here.
_MEMBERS = {"not_before_ms": "not_before"}


def drafted(job: NewJob) -> "Draft":
    """The draft of a job. Raises Usage with the name of a bad option."""
    from hocket.families.jobs.drafts import encode_payload
    from hocket.families.jobs.requests import Draft, check_kind
    from hocket.families.jobs.tracing import current_trace

    given = {name: value for name, value in msgspec.structs.asdict(job).items() if value is not UNSET}
    kind, payload = check_kind(given.pop("kind")), given.pop("payload")
    members = {
        _MEMBERS.get(name, name): tuple(each) if isinstance(each, list) else each for name, each in given.items()
    }
    try:
        for name in ("budget", "score"):
            if name in members:
                members[name] = part("members", name)(msgspec.to_builtins(members[name]))
        policy = check_policy(replace(DEFAULT, **members)) if members else DEFAULT
    except (ValueError, TypeError) as error:
        raise Usage(f"bad options of {kind}: {error}") from None
    if (policy.claim == "sticky") != (policy.sticky is not None):
        raise Usage('"claim": "sticky" and the name of the key, like "sticky": "repository", go together')
    return Draft(kind, encode_payload(kind, payload), policy, said=frozenset(members), trace=current_trace())


def submit_drafts(service: Service, drafts: "Sequence[Draft]") -> "list[Submitted]":
    """Submits all jobs in one transaction, or none."""
    service.check_writer()
    runtime = service.runtime

    def write() -> "list[Submitted]":
        for check in runtime.submit_checks(drafts):
            check()
        return runtime.submit(drafts)

    if runtime.spool is None:
        made = write()
    else:
        from hocket.node.kept_requests import keep_jobs, written_or_kept  # for a store in a database server

        made = written_or_kept(runtime, write, lambda error: keep_jobs(runtime, error, drafts))
    service.wrote()
    return made


@operation("submit_job", "POST /v1/jobs", SUBMIT, creates=True)
async def submit(service: Service, node: "Node", job: Annotated[NewJob, WholeBody()]) -> JobSubmitted:
    """Submit a job. With an Idempotency-Key or a `unique` key a request can be repeated without a second job."""
    service.check_writer()
    made = await node.submit_draft(drafted(job))
    return JobSubmitted(ulid_text(made.job_id), job.kind, made.created)


@operation("submit_jobs", "POST /v1/jobs/many", TokenNeed("Job", "Schedule", is_judged_later=True))
def submit_many(service: Service, lines: Lines) -> list[JobSubmitted | HocketError]:
    """Submit many jobs: a line each, as the body of a single one. Each line stands for itself: a bad one gets an error,
    and the others are submitted. An answer line comes for each line as soon as its job is on the log; a program that
    sends more than 20,000 lines must read the answers meanwhile. A `unique` key makes a line repeatable.
    """
    read = [_read(service, line) for line in lines]
    drafts = {at: each for at, each in enumerate(read) if not isinstance(each, HocketError)}
    try:
        made: Sequence[Submitted | HocketError] = submit_drafts(service, list(drafts.values())) if drafts else []
    except (Usage, Conflict, NotAuthorised):
        # One of them is refused: each gets a transaction of its own.
        made = [_tried(partial(submit_drafts, service, [each])) for each in drafts.values()]
    done = {
        at: each
        if isinstance(each, HocketError)
        else JobSubmitted(ulid_text(each.job_id), drafts[at].kind, each.created)
        for at, each in zip(drafts, made, strict=True)
    }
    return [each if isinstance(each, HocketError) else done[at] for at, each in enumerate(read)]


def _read(service: Service, line: bytes) -> "Draft | HocketError":
    try:
        draft = drafted(decode_json(line, NewJob))
        service.check("Job", "Schedule", draft.kind)
    except RecursionError:
        return Usage("the line is nested too deeply")
    except (msgspec.MsgspecError, ValueError) as error:
        return Usage(f"the line is wrong: {str(error)[:1].lower()}{str(error)[1:]}")
    except HocketError as error:
        return error
    return draft


def _tried(submit: "partial[list[Submitted]]") -> "Submitted | HocketError":
    try:
        return submit()[0]
    except (Usage, Conflict, NotAuthorised) as error:
        return error
