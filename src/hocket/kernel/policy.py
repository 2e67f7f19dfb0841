"""The policy envelope of a job: what a submitter asks of the worker that runs it. It travels inside ScheduleJob as JSON
with the defaults left out, so that an ordinary job carries no bytes of it. This module defines the options, parses them
strictly, and makes one policy of a job's own, the options of its kind and those of its handler; the rules of jobs
decide what follows per job (time, retries, order), and the transaction that admits a submit or a claim decides what
spans jobs (unique keys, concurrency, rates).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Literal, get_args

import msgspec
from msgspec.structs import replace

from hocket.kernel.decoding import convert, decode_json
from hocket.kernel.extension import part
from hocket.kernel.ids import parse_node, parse_ulid
from hocket.kernel.texts import HOLD_BEATS_MAX

LEASE_MS_MIN = 100
LEASE_MS_MAX = 30 * 24 * 3600 * 1000
LEASE_MS_DEFAULT = 30_000
PRIORITY_MAX = 1_000_000
RETRIES_MAX = 1_000
AFTER_MAX = 1_000
DELAY_MS_MAX = 30 * 24 * 3600 * 1000
# The latest time at which a job can start.
NOT_BEFORE_MS_MAX = 2**53
# The start of a job that waits for an approval: no claim is so late.
UNAPPROVED_MS = 2**62
POLICY_BYTES_MAX = 64 * 1024
# The greatest limit from which on content is apart from its op: more than any payload has.
APART_BYTES_MAX = 1024 * 1024 * 1024
CLAIM_TIMEOUT_MS_MIN = 10
# How long each rank waits for the claim of the rank before it.
CLAIM_TIMEOUT_MS = 5_000
BAR_LEN_MAX = 256
WAIT_BEATS_MAX = 10_000
PHRASES_MAX = 16
# The most bars that a budget's hard end may be away.
BARS_MAX = 100_000
ACCOUNT_CHARS_MAX = 256
# The label of workers that have a rate card. A job that is capped by its price needs it.
RATES_LABEL = "rates"

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
Account = Annotated[str, msgspec.Meta(min_length=1, max_length=ACCOUNT_CHARS_MAX, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
Measured = Literal["cpu_sec", "gpu_sec", "accel_sec", "mem_gbs", "disk_io_mb", "net_egress_mb", "storage_gbh", "cost"]
MEASURED: tuple[Measured, ...] = get_args(Measured)
# A W3C traceparent.
TRACE = r"\A00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"
# A worker has labels, like `gpu=a100`, and a job may need some of them.
LABEL_LENGTH_MAX = 128
NEEDS_MAX = 16
TAGS_MAX = 16
# The members of a payload by which jobs of a kind are found.
INDEX_MAX = 8
PATH_CHARS_MAX = 128
ARGUMENT_PATH = r"\A[^\s.:=\x00-\x1f\x7f]+(\.[^\s.:=\x00-\x1f\x7f]+){0,7}\Z"
LABEL = r"\A[A-Za-z0-9_.-]+(=[A-Za-z0-9_.:/+-]+)?\Z"

# The owner of the mesh, as submitters write it: `chosen_policy` puts that agent and its node in its place.
THE_OWNER = "@owner"
# An agent, as addresses of messages name it, with or without the id of its node.
APPROVER = rf"\A({THE_OWNER}|[^\s@/\x00-\x1f\x7f]+(/[^\s@/\x00-\x1f\x7f]+)*(@[0-9a-f]{{16}})?)\Z"
APPROVER_LENGTH_MAX = 160

Millis = Annotated[int, msgspec.Meta(ge=0, le=NOT_BEFORE_MS_MAX)]
Delay = Annotated[int, msgspec.Meta(ge=0, le=DELAY_MS_MAX)]
Label = Annotated[str, msgspec.Meta(pattern=LABEL, max_length=LABEL_LENGTH_MAX)]
ArgumentPath = Annotated[str, msgspec.Meta(pattern=ARGUMENT_PATH, max_length=PATH_CHARS_MAX)]


class Score(msgspec.Struct, frozen=True):
    """How many beats a job has. `tempo` is a hint that the cluster may override. `phases` has at least one phase, in
    their order. The extension that reads scores checks them.
    """

    bar_len: int
    phases: dict[str, int]
    wait_budget: dict[str, int]
    max_phrases: int
    on_wait_exhausted: tuple[str, ...] = ()
    on_overrun: tuple[str, ...] = ()
    tempo: int | None = None
    ucxl: str = ""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The caps of a job, over all its runs: `max_bu` beats, and `max_cost` in the currency of the worker's rate card.
    `per_beat` has ceilings for one beat of a run. `charge_to` is the account that pays. `phase_caps` and
    `wait_caps` are ceilings for the beats of its score, and after `hard_end` bars, counted from that of the submit,
    the job ends.
    """

    max_bu: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    max_cost: Positive | None = None
    per_beat: dict[Measured, Positive] = {}
    charge_to: Account | None = None
    phase_caps: dict[Literal["plan", "work", "review"], Annotated[int, msgspec.Meta(ge=1, le=BAR_LEN_MAX)]] = {}
    wait_caps: dict[Literal["help", "io"], Annotated[int, msgspec.Meta(ge=0, le=WAIT_BEATS_MAX)]] = {}
    hard_end: Annotated[int, msgspec.Meta(ge=1, le=BARS_MAX)] | None = None

    @property
    def is_priced(self) -> bool:
        """Whether a worker needs a rate card to keep it."""
        return self.max_cost is not None or "cost" in self.per_beat

    @property
    def caps(self) -> bool:
        return self.max_bu is not None or self.max_cost is not None or bool(self.per_beat)


class ApartContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payload that is not in its op: the BLAKE3 hash, in hexadecimal, and the size of its salt with its bytes."""

    hash: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**53)]

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.hash)


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` starts of the kind in `per_ms` milliseconds, spread evenly."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    per_ms: Annotated[int, msgspec.Meta(ge=1, le=DELAY_MS_MAX)]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`None` for lease, retries and timeout leaves the choice to the handler that runs the job; a timeout of 0 means
    none. An `open` job may be claimed without asking the arbiter; then two nodes that do not hear of each other can
    both run it, and the fence tells them apart. `None` for `open` leaves the choice to the kind and to the rules of the
    mesh; the submitter's node writes the answer down, and a job without one is not open. `needs` are the labels that a
    worker must have to take the job. A job that no worker has claimed within `ttl_ms` of its submit is cancelled. The
    job of a schedule's tick carries the schedule's name and, in `schedule_op`, the op that set it.

    `claim` is how a job finds its worker: `first` is whichever worker asks first, `rendezvous` is by rank, and `sticky`
    is by rank for the value of the payload's member `sticky`. Each rank waits `claim_timeout_ms` for the one before.
    `trace` is the context of the trace that the submit belongs to. `score` says how many beats the job has, and
    `lease_beats` is a lease that is counted in beats. `overlap` is for schedules: whether a tick makes a job that falls
    before the end of the last one. `tags` are for people, who find jobs by them; they decide nothing. `index`
    are paths in the payload, like `frame` or `camera.name`; the job is found by what it has there.

    A job starts only once the agent `approval_by` has approved it, on the node that the name ends with, or on any node
    with the grant; if it does not within `approval_within_ms`, the job is cancelled. While it runs it asks
    `questions_to`, an agent of its submitter's node unless the name ends with another; by default that node's owner.

    Payloads and results of at least `content_apart` bytes are blobs beside the log, which can be erased; `content` is
    then where the payload of this job is.
    """

    priority: Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    not_before: Millis | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] | None = None
    retries: Annotated[int, msgspec.Meta(ge=0, le=RETRIES_MAX)] | None = None
    timeout_ms: Delay | None = None
    backoff_ms: Delay = 1_000
    backoff_max_ms: Delay = 3_600_000
    after: Annotated[tuple[str, ...], msgspec.Meta(max_length=AFTER_MAX)] = ()
    unique: Annotated[str, msgspec.Meta(min_length=1, max_length=512)] | None = None
    unique_for_ms: Delay | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    rate: Rate | None = None
    schedule: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    schedule_op: str | None = None
    open: bool | None = None
    needs: Annotated[tuple[Label, ...], msgspec.Meta(max_length=NEEDS_MAX)] = ()
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=DELAY_MS_MAX)] | None = None
    claim: Literal["first", "rendezvous", "sticky"] = "first"
    sticky: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    claim_timeout_ms: Annotated[int, msgspec.Meta(ge=CLAIM_TIMEOUT_MS_MIN, le=DELAY_MS_MAX)] = CLAIM_TIMEOUT_MS
    budget: Budget | None = None
    trace: Annotated[str, msgspec.Meta(pattern=TRACE)] | None = None
    score: Score | None = None
    lease_beats: Annotated[int, msgspec.Meta(ge=1, le=HOLD_BEATS_MAX)] | None = None
    overlap: Literal["skip", "queue"] = "skip"
    tags: Annotated[tuple[Label, ...], msgspec.Meta(max_length=TAGS_MAX)] = ()
    index: Annotated[tuple[ArgumentPath, ...], msgspec.Meta(max_length=INDEX_MAX)] = ()
    approval_by: Annotated[str, msgspec.Meta(pattern=APPROVER, max_length=APPROVER_LENGTH_MAX)] | None = None
    approval_within_ms: Annotated[int, msgspec.Meta(ge=1, le=DELAY_MS_MAX)] | None = None
    questions_to: Annotated[str, msgspec.Meta(pattern=APPROVER, max_length=APPROVER_LENGTH_MAX)] | None = None
    content_apart: Annotated[int, msgspec.Meta(ge=0, le=APART_BYTES_MAX)] | None = None
    content: ApartContent | None = None

    @property
    def is_ranked(self) -> bool:
        """Whether workers claim the job in the order of their ranks for it."""
        return self.claim != "first"

    def approver(self) -> tuple[str, int | None]:
        """The agent that must approve the job, and its node if it is only that node's."""
        assert self.approval_by is not None
        agent, _, node = self.approval_by.partition("@")
        return (agent, parse_node(node) if node else None) if agent else (self.approval_by, None)

    def dependencies(self) -> tuple[bytes, ...]:
        """The ids of the jobs that must have succeeded before this one may start."""
        return tuple(parse_ulid(text) for text in self.after)

    def set_by(self) -> bytes | None:
        """The op that set the schedule of which the job is a tick; None for every other job."""
        return None if self.schedule_op is None else parse_ulid(self.schedule_op)


DEFAULT = Policy()
# What belongs to one job and not to its kind.
_OF_ONE_JOB = frozenset(
    {"not_before", "after", "unique", "unique_for_ms", "schedule", "schedule_op", "trace", "overlap", "tags", "content"}
)
_OF_A_KIND = tuple(name for name in Policy.__struct_fields__ if name not in _OF_ONE_JOB)

# How a job waits in the queue and is found; its submitter's node writes this down. The other options say how it runs.
_OF_A_PLACE = (
    *("priority", "ttl_ms", "open", "claim", "sticky", "claim_timeout_ms"),
    *("approval_by", "approval_within_ms", "questions_to", "index", "content_apart"),
)
_OF_A_RUN = tuple(name for name in _OF_A_KIND if name not in _OF_A_PLACE)

_encoder = msgspec.json.Encoder()


def encode_policy(policy: Policy) -> bytes:
    """The envelope bytes; none at all for the default policy."""
    return b"" if policy is DEFAULT or policy == DEFAULT else _encoder.encode(policy)


@lru_cache(maxsize=256)
def decode_policy(envelope: bytes) -> Policy:
    """Raises ValueError, with the name of the field, for anything that is not exactly a policy of ours."""
    if not envelope:
        return DEFAULT
    if len(envelope) > POLICY_BYTES_MAX:
        raise ValueError(f"policy of {len(envelope)} bytes; at most {POLICY_BYTES_MAX}")
    policy = decode_json(envelope, Policy)
    policy.dependencies()
    policy.set_by()
    if policy.score is not None:
        policy = msgspec.structs.replace(policy, score=part("members", "score")(policy.score))
    return policy


def readable_policy(envelope: bytes) -> Policy | None:
    """The policy; None if the envelope is unreadable."""
    try:
        return decode_policy(envelope)
    except ValueError:
        return None


def job_policy(envelope: bytes, is_strict: bool) -> Policy | None:
    """The policy of a job with this envelope; None if there can be no such job. To a strict mesh the envelope is
    opaque: one that is not ours makes a job with the default policy, and no job is a tick of a schedule.
    """
    policy = readable_policy(envelope)
    if not is_strict:
        return policy
    return DEFAULT if policy is None else msgspec.structs.replace(policy, schedule=None, schedule_op=None)


def dependencies(envelope: bytes) -> tuple[bytes, ...]:
    """The jobs that an envelope says must come first; none if it is unreadable."""
    policy = readable_policy(envelope)
    return () if policy is None else policy.dependencies()


def completed(policy: Policy, trace: str | None) -> Policy:
    """A policy as it is submitted: a cap in money needs a worker with a rate card."""
    if policy.budget is not None and policy.budget.is_priced and RATES_LABEL not in policy.needs:
        policy = msgspec.structs.replace(policy, needs=(*policy.needs, RATES_LABEL))
    return policy if trace is None else msgspec.structs.replace(policy, trace=trace)


def check_policy(policy: Policy) -> Policy:
    """Checks a policy built in Python as one that was read; raises ValueError with the name of the field."""
    return decode_policy(_encoder.encode(policy))


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Raises ValueError with the first bad one."""
    found = tuple(dict.fromkeys(labels))
    for label in found:
        try:
            convert(label, Label)
        except msgspec.ValidationError:
            raise ValueError(
                f"bad label {label!r}; write it like gpu or gpu=a100, at most {LABEL_LENGTH_MAX} characters"
            ) from None
    return found


def lacking(needs: Iterable[str], labels: Collection[str]) -> list[str]:
    """The needs that these labels do not meet. A need `gpu` is met by the label `gpu` and by every label that gives it
    a value; a need `gpu=a100` by that label alone.
    """
    names = {label.partition("=")[0] for label in labels}
    return [need for need in needs if need not in labels and need not in names]


def names_of(kind: str) -> Iterator[str]:
    """The definitions and the routes that can hold for jobs of a kind, the first that exists: `a.b.c`, `a.b.`, `a.`"""
    yield kind
    for end in range(len(kind) - 1, 0, -1):
        if kind[end - 1] == ".":
            yield kind[:end]


def routed_to(kind: str, routes: Mapping[str, int]) -> int | None:
    """The node that a kind is routed to, by the routes of kinds and of prefixes."""
    return next((routes[name] for name in names_of(kind) if name in routes), None)


def of_kind(policy: Policy) -> Policy:
    """The options that a handler can set for its kind; the others belong to one job."""
    return replace(policy, **{name: getattr(DEFAULT, name) for name in _OF_ONE_JOB})


def with_defaults(policy: Policy, said: Collection[str], defaults: Policy) -> Policy:
    """A job's policy, with the options of its kind for those that its submitter has not said."""
    if defaults == DEFAULT:
        return policy
    taken = {
        name: getattr(defaults, name)
        for name in _OF_A_KIND
        if name not in said and getattr(policy, name) == getattr(DEFAULT, name)
    }
    return replace(policy, **taken)


def with_open(policy: Policy, is_ranked_open: bool) -> Policy:
    """A job's policy with the answer whether it is open. If nobody has said it, a job that workers claim by rank is
    open where the rules of the mesh say so.
    """
    if policy.open is None and is_ranked_open and policy.is_ranked:
        return replace(policy, open=True)
    return replace(policy, open=None) if policy.open is False else policy


def run_options(policy: Policy, options: Policy) -> Policy:
    """A job's policy while it runs: the options of its handler hold where the job says nothing, also for a job that was
    submitted before the kind was defined.
    """
    if options is DEFAULT or policy == options:
        return policy
    taken = {
        name: getattr(options, name)
        for name in _OF_A_RUN
        if getattr(policy, name) == getattr(DEFAULT, name) != getattr(options, name)
    }
    if policy.lease_ms is not None or policy.lease_beats is not None:
        taken = {name: value for name, value in taken.items() if name not in ("lease_ms", "lease_beats")}
    return replace(policy, **taken) if taken else policy


def is_apart(policy: Policy, size: int) -> bool:
    """Whether content of so many bytes of such a job is apart from its op."""
    return policy.content_apart is not None and size >= policy.content_apart


def is_placed(options: Policy) -> bool:
    """Whether the options say how jobs wait in the queue, which is decided when they are submitted."""
    return any(getattr(options, name) != getattr(DEFAULT, name) for name in _OF_A_PLACE)


def covers(wanted: str, kind: str) -> bool:
    """How a command names kinds: `acme.` with its dot stands for every kind below it, `acme.render` for that kind
    alone.
    """
    return kind.startswith(wanted) if wanted.endswith(".") else kind == wanted
