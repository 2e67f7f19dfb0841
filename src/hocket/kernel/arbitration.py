"""How the ops about one subject become its state, whatever its family: in the order of their times, each judged by who
may write it, by what it cites, by the arbiter, and last by the family's own rules.

The arbiter, the one node that sees every claim in one order, decides some payloads of a family. If another node writes
such a payload, it is an offer, which counts once the arbiter has accepted it, under the acceptance's own id and time.
If the arbiter writes it, it counts at once. Nodes that share the coordinator's store all see every claim in the order
of that store, so each of them is the arbiter of what it writes.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum, unique
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import ACCEPTANCES, Subject


@unique
class Reason(IntEnum):
    """Why an op does not count, with a sentence for people. The numbers are stored with the ops, so they never change
    their meaning; new reasons get new numbers.
    """

    sentence: str

    def __new__(cls, number: int, sentence: str) -> "Reason":
        self = int.__new__(cls, number)
        self._value_ = number
        self.sentence = sentence
        return self

    # An op that waits is not refused: it counts as soon as its dependencies have arrived and count.
    WAITING = 1, "waits for an op that it depends on"
    # Nor is an offer refused: it counts from the arbiter's acceptance on, if there is one.
    OFFERED = 2, "is offered to the coordinator, which decides"
    NOT_ACCEPTED = 3, "the coordinator did not accept it"
    GIVEN_UP = 4, "its author no longer waits for it"

    # Decided by the fold of one job.
    UNKNOWN_JOB = 10, "no job with this id was scheduled before it"
    DUPLICATE_JOB = 11, "a job with this id was scheduled earlier"
    ALREADY_CLAIMED = 12, "another claim holds the job"
    NOT_CLAIMED = 13, "no worker holds the job"
    NOT_CLAIMER = 14, "its author does not hold the job"
    STALE_CLAIM = 15, "it cites a claim that no longer holds the job"
    LEASE_RUNNING = 16, "the lease has not passed its deadline"
    LEASE_PASSED = 17, "the lease had passed its deadline"
    COMPLETED = 18, "the job is completed"
    TOO_EARLY = 19, "the job may not start before its time"
    AFTER_UNMET = 20, "a job that it comes after has not succeeded"
    ROUTED_ELSEWHERE = 21, "its kind is routed to another node"
    BAD_LEASE = 22, "the lease is zero or longer than the bound"
    BAD_POLICY = 23, "the policy envelope cannot be read"
    BAD_KIND = 24, "the kind is empty, too long or has control characters"
    NOT_FAILED = 25, "only a failed or cancelled job can be retried"
    NOT_ARBITER = 26, "only the coordinator may decide this"
    NOT_COORDINATOR = 27, "derivation counts only from the coordinator in force"
    NO_SNAPSHOT = 28, "an audited output must name a readable snapshot of its own job that is on the log before it"
    NOT_A_TICK = 34, "it is not a tick of the schedule that it names"
    BAD_SCHEDULE = 35, "the schedule's name or cron expression is empty, too long or has control characters"

    BAD_DELAY = 36, "the delay is zero or longer than the bound"
    TTL_PASSED = 37, "no worker claimed the job within the time that its submitter gave it"

    NOT_APPROVED = 38, "the job waits for an approval"
    NO_APPROVAL = 39, "the job waits for no approval"
    NOT_APPROVER = 42, "its author is not the agent that must approve the job"
    APPROVAL_LATE = 43, "the time for the approval of the job has passed"

    # Decided by the fold of one scope of locks.
    LOCK_HELD = 100, "another agent holds the lock, or waits for it before"
    STALE_FENCE = 101, "its author does not hold a lock under this fence"
    BAD_LOCK = 102, "a key, a name or a time is empty, too long or has control characters"
    DEADLOCK = 103, "it would wait for an agent that waits for it"
    TOO_MANY_LOCKS = 104, "its node has or wants more locks of this scope than one node may"
    NOT_WAITING = 105, "its author does not wait for the lock"
    NOT_LOCKED = 106, "no agent holds the lock"
    BAD_PATTERN = 107, "a key has too many stars, or too many keys have stars"
    OTHERS_LOCK = 108, "the lock also covers keys that its author may not break"
    # Decided by the fold of one row.
    BAD_ROW = 150, "the name of the row or of the agent is empty, too long or has control characters"
    BAD_ROW_VALUE = 151, "the value of the row is not JSON, too large or nested too deeply"
    NO_ROW = 152, "there is no such row"
    UNKNOWN_VERSION = 153, "the row never had the version that it names"
    STALE_VERSION = 154, "the row has changed since"
    NO_CONFLICT = 155, "the row has no such conflict, or it was resolved"
    CONFLICTS_FULL = 156, "too many conflicts of the row wait for a decision"
    # Decided by retention and the horizon.
    BAD_RETENTION = 160, "the rule has a bad pattern, a bad time or too many witnesses, or there are too many rules"
    BAD_HORIZON = 161, "it does not follow the horizon before, or passes over a rule of the owner"
    BEHIND_HORIZON = 162, "it is from before the horizon of the log, and came after the horizon was moved"
    PRUNED = 163, "the log's retention lets it go"
    # Decided by the ops about successions.
    BAD_SUCCESSION = 170, "its quorum can never or always be met, or its nodes or its silence are not possible"
    OUTVOTED = 171, "it does not belong to the tenures in force"
    OLD_TERM = 172, "its term or its time is not later than that of the tenure before"
    NO_PIN = 173, "it does not say up to which op the coordinator before counts"
    NO_SUCCESSOR = 174, "no succession in force names its author"
    NO_QUORUM = 175, "it has not the signed votes of a quorum"
    # Decided by the availability of nodes.
    NOT_AVAILABLE = 110, "its node is draining or quarantined"
    NOT_ITS_TO_RESUME = 111, "another node has drained or quarantined it, so it cannot resume itself"

    # Decided by what the op cites.
    DEPENDENCY_REJECTED = 40, "an op that it depends on was rejected"
    DEPENDENCY_CYCLE = 41, "it depends on itself or on a later op"

    # Decided before an op is on the log; INTEGRITY also takes the earlier op off the roster.
    INTEGRITY = 60, "two ops of one author carry the same timestamp"
    MALFORMED = 61, "its bytes cannot be read"
    UNKNOWN_VARIANT = 62, "its payload variant is unknown"
    BAD_SIGNATURE = 63, "its signature does not fit its bytes and its author"
    UNKNOWN_NODE = 64, "its author has not been introduced by a delegation"
    FOREIGN_USER = 65, "its delegation was issued by another user"
    BEYOND_TIME = 66, "its time lies beyond what an id can hold"
    BAD_MARKER = 67, "it is unsigned and no delegation admits its sanitisation"
    HELD_FULL = 68, "too many ops wait for the clock"
    TWIN = 69, "another machine writes with this node's key, or this one has lost what it wrote"

    UNBOUND = 81, "its id, or that of what it makes, does not follow from its content"
    UNLINKED = 82, "it does not follow the last op of its author that is here"
    OTHER_BYTES = 83, "another op has its id"
    TOO_LARGE = 84, "it exceeds the size limit of an op here"
    STRICT = 88, "this mesh keeps to Likewise v0.1, which has no such op"
    LATE = 85, "it came long after the delegation that it relies on had ended, and waits for the owner's decision"
    QUOTA = 86, "its author has stored more than its quota"
    IDLE = 87, "its author has left too many ops on the job that do not count"

    # Decided by the fold of one message.
    UNKNOWN_MESSAGE = 120, "no message with this id was sent before it"
    DUPLICATE_MESSAGE = 121, "a message with this id was sent earlier"
    BAD_ADDRESS = 122, "its receiver is not an address"
    BAD_MESSAGE = 123, "a field of the message is empty, too large or has control characters"
    NOT_RECEIVER = 124, "the message is for another agent"
    MESSAGE_LEASED = 125, "another consumer holds the message"
    MESSAGE_DELAYED = 126, "the message may not be delivered before its time"
    MESSAGE_ACKNOWLEDGED = 127, "the message is acknowledged"
    MESSAGE_EXPIRED = 128, "the message has expired"
    MESSAGE_DEAD = 129, "the message is dead: every try to deliver it has failed"
    NOT_LEASED = 130, "no consumer holds the message"
    NOT_HOLDER = 131, "another consumer holds the message"
    STALE_LEASE = 132, "it cites a claim that no longer holds the message"
    NOT_DEAD = 133, "only a dead message can be delivered again"
    TOO_MANY_RECEIVERS = 134, "too many agents of its node have received the message"
    NOT_ITS_TURN = 135, "an earlier message of its thread is not acknowledged yet"

    # Decided by authority: what the delegations on the log allow the author at the op's time.
    UNAUTHORISED = 70, "no delegation in force allows it"
    REVOKED = 71, "the delegation that it relies on was revoked"
    UNRESOLVED = 72, "a delegation that it relies on is not on the log"
    WIDENED = 73, "the delegation grants more than its parent"
    OWNER_ONLY = 74, "only the owner may write it"
    OTHERS_SCHEDULE = 76, "another node set the schedule, and no delegation in force covers the kind of its jobs"
    OTHERS_ARTIFACT = 77, "only its author, the node whose job made it or the owner may evict it before it expires"
    OTHERS_JOB = 79, "only the node that submitted the job or the owner may erase its content"
    FORKED = 80, "its author has shown two histories"


BY_NUMBER: dict[int, Reason] = {int(reason): reason for reason in Reason}

# What no delegation allows, whatever the state of the subject and the coordinator.
UNAUTHORISED = frozenset(
    (
        Reason.UNAUTHORISED,
        Reason.REVOKED,
        Reason.UNRESOLVED,
        Reason.WIDENED,
        Reason.OWNER_ONLY,
        Reason.FORKED,
        Reason.OTHERS_SCHEDULE,
        Reason.OTHERS_ARTIFACT,
        Reason.OTHERS_JOB,
    )
)


S = TypeVar("S")
# Returns why an op does not count because of what it cites, if so.
Citing = Callable[[], Reason | None]
# The time of each op and its reason, 0 if it counts.
Standings = dict[bytes, tuple[Hlc, int]]


class FoldContext(Protocol):
    """What the fold of one subject may ask about the rest of the log, always as of the op's own HLC."""

    def refusal(self, op: Op, word: str) -> Reason | None:
        """Why the author had no authority to write this op, if so. `word` is what a caveat is checked against: a job's
        kind.
        """

    def arbiter(self, at: Hlc) -> int | None:
        """The node that decides, if any, about subjects that are not open and an op of this time and author: the author
        itself if it is the coordinator or shares the coordinator's store, and otherwise the coordinator.
        """

    def is_overtaken(self, at: Hlc) -> bool:
        """Whether a successor was designated that did not know what the arbiter decided at that time."""

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        """That op, if it is about that subject."""


class FamilyRules(Protocol[S]):
    """The rules of one family. `S` is the state of one subject; None stands for a subject about which no op counts."""

    @property
    def decided(self) -> frozenset[type]:
        """The payloads that the arbiter decides."""

    def refusal(self, state: S | None, op: Op, context: Any, citing: Citing) -> Reason | None:
        """Why the op does not count in any state: its author may not write it, or what it cites forbids it. Citations
        are checked only if the author may write the op.
        """

    def word(self, state: S | None) -> str:
        """The word that a caveat of the author's grant is checked against, such as the kind of a job."""

    def is_certain(self, state: S | None, op: Op) -> bool:
        """Whether the author of this op is judged by that word, even if earlier ops arrive later."""

    def is_open(self, state: S | None) -> bool:
        """Whether no decision is needed: the earliest op counts. If a subject without a state is not open, then no
        subject of the family ever is, and an offer changes nothing by itself.
        """

    def apply(self, state: S | None, op: Op, context: Any) -> S | Reason:
        """The state after this op, or why the op does not count."""

    def apply_decided(self, state: S | None, op: Op, context: Any, author: int) -> S | Reason:
        """The state after an op of this author that the arbiter wrote or accepted, or why the op does not count. The
        arbiter decided in its own store whatever depends on the rest of the log; that is not checked again when more of
        the log is known.
        """

    def accept_open(self, state: S, op: Op, offered: Op) -> S | Reason:
        """The state after the arbiter's acceptance of an op about an open subject."""

    def seen(self, state: S, op: Op) -> S:
        """The state after an op that does not count. Its time is noted all the same, since an op between the two, if it
        comes late, could make it count.
        """

    def last(self, state: S) -> Hlc:
        """The time of the latest op about the subject."""


class SubjectRules(Generic[S]):
    """What most families have in common: the arbiter decides every `decided` payload, citations are checked after the
    author's permission, and a state is a struct that has the time of the latest op as `last`.
    """

    decided: frozenset[type] = frozenset()

    def __init__(self, state: type[S]) -> None:
        self._decode, self._encode = msgpack_decoder(state).decode, msgspec.msgpack.Encoder().encode

    def refusal(self, state: S | None, op: Op, context: Any, citing: Citing) -> Reason | None:
        refused: Reason | None = context.refusal(op, self.word(state))
        return refused or citing()

    def word(self, state: S | None) -> str:
        return ""

    def is_certain(self, state: S | None, op: Op) -> bool:
        return True

    def is_open(self, state: S | None) -> bool:
        return False

    def apply(self, state: S | None, op: Op, context: Any) -> S | Reason:
        raise NotImplementedError

    def apply_decided(self, state: S | None, op: Op, context: Any, author: int) -> S | Reason:
        return self.apply(state, op, context)

    def accept_open(self, state: S, op: Op, offered: Op) -> S | Reason:
        return Reason.NOT_ARBITER

    def seen(self, state: S, op: Op) -> S:
        return replace(state, last=op.timestamp)  # type: ignore[type-var]

    def last(self, state: S) -> Hlc:
        return state.last  # type: ignore[attr-defined,no-any-return]

    def encode(self, state: S) -> bytes:
        return self._encode(state)

    def decode(self, data: bytes) -> S:
        return self._decode(data)


def apply(
    family: FamilyRules[S], state: S | None, subject: Subject, op: Op, context: Any, citing: Citing
) -> S | Reason:
    """The state after this op, or why the op does not count."""
    refused = family.refusal(state, op, context, citing)
    if refused is not None:
        return refused
    kind = type(op.payload)
    if kind in ACCEPTANCES:
        return _accept(family, state, subject, op, context)
    if kind in family.decided and not family.is_open(state):
        arbiter = context.arbiter(op.timestamp)
        if arbiter == op.node_id:
            if context.is_overtaken(op.timestamp):
                return Reason.NOT_ARBITER
            return family.apply_decided(state, op, context, op.node_id)
        if arbiter is not None:
            return Reason.OFFERED
    return family.apply(state, op, context)


def is_mere_offer(family: FamilyRules[S], verdict: object) -> bool:
    """Whether an op is an offer in any state of its subject: it leaves the state as it is, its time included, so that
    neither an early nor a late one makes a subject be folded again. A change of the arbiter does.
    """
    return verdict is Reason.OFFERED and not family.is_open(None)


def could_offer(family: FamilyRules[S], op: Op, context: FoldContext) -> bool:
    """Whether an op that its author may write is a mere offer."""
    if type(op.payload) not in family.decided or family.is_open(None):
        return False
    return context.arbiter(op.timestamp) not in (None, op.node_id)


def is_late_offer(family: FamilyRules[S], state: S | None, op: Op, context: FoldContext) -> bool:
    """Whether an op that its author may write, and that cites nothing, is an offer between earlier and later ops about
    its subject. Those stay as they are, since an offer changes nothing but the time of the latest op.
    """
    if state is None or type(op.payload) not in family.decided or op.cited or family.is_open(state):
        return False
    return op.timestamp <= family.last(state) and context.arbiter(op.timestamp) not in (None, op.node_id)


def _accept(family: FamilyRules[S], state: S | None, subject: Subject, op: Op, context: FoldContext) -> S | Reason:
    """The arbiter's acceptance puts the offered op in force, under the acceptance's own id and time. It helps only ops
    that their author was allowed to offer; it does not matter if the author has lost its delegation or its standing
    since.
    """
    if context.arbiter(op.timestamp) != op.node_id or context.is_overtaken(op.timestamp):
        return Reason.NOT_ARBITER
    offered = context.offered(op.payload.offer, subject)  # type: ignore[union-attr]
    if offered is None or type(offered.payload) not in family.decided:
        return Reason.NOT_ARBITER
    refused = context.refusal(offered, family.word(state))
    if refused not in (None, Reason.REVOKED, Reason.FORKED):
        return Reason.DEPENDENCY_REJECTED
    if state is not None and family.is_open(state):
        return family.accept_open(state, op, offered)
    accepted = replace(offered, id=op.id, timestamp=op.timestamp)
    return family.apply_decided(state, accepted, context, offered.node_id)


def fold(
    family: FamilyRules[S],
    subject: Subject,
    ops: Iterable[Op],
    context: Any,
    dependencies: Callable[[Op, Standings], Reason | None],
    standings: Standings,
    state: S | None = None,
) -> S | None:
    """A subject's state from all its ops, in any order, or from a `state` and all ops after it. `standings` holds the
    ops that are already excluded, and at the end all of them. `dependencies` returns why an op does not count because
    of what it cites, if so.
    """
    for op in sorted(ops, key=lambda op: op.timestamp):
        if op.id in standings:
            continue
        verdict = apply(family, state, subject, op, context, partial(dependencies, op, standings))
        if isinstance(verdict, Reason):
            standings[op.id] = (op.timestamp, int(verdict))
            # An unauthorised op changes nothing: only the permissions could make it count, and then the subject is
            # folded again.
            if state is not None and verdict not in UNAUTHORISED and not is_mere_offer(family, verdict):
                state = family.seen(state, op)
        else:
            standings[op.id] = (op.timestamp, 0)
            state = verdict
    return state
