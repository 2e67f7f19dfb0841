"""Why an op does not count. A rejection is a value: one of these, beside the op's id. The numbers are stored with the
ops, so they never change their meaning; new reasons get new numbers. Other modules store, count and show rejections.
"""

from enum import IntEnum, unique


@unique
class Reason(IntEnum):
    """Each reason carries its sentence for people."""

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
    )
)
