"""The payloads about locks, messages, rows and the availability of nodes. `vocabulary` gives them their numbers; the
rules of each family are in a module of its own.
"""

from enum import IntEnum

from msgspec import Struct

Ids = tuple[bytes, ...]


class LockMode(IntEnum):
    EXCLUSIVE = 0
    SHARED = 1


class Strategy(IntEnum):
    """What happens to a write whose author had read an older version of the row. Left is the write, right is what is
    stored.
    """

    TAKE_LEFT = 0
    TAKE_RIGHT = 1
    DEFER_TO_AGENT = 2
    MANUAL = 3


class Availability(IntEnum):
    ACTIVE = 0
    DRAINING = 1
    QUARANTINED = 2


# Locks. A scope, such as a repository, is one subject: its fences are counted together, and one op can take several
# keys at once.


class AcquireLocks(Struct, frozen=True):
    """The agent wants these keys, all at once, for `ttl_ms`. If they are held, it waits in the queue for `wait_ms`."""

    scope: str
    keys: tuple[str, ...]
    agent: str
    mode: LockMode
    ttl_ms: int
    wait_ms: int


class RenewLocks(Struct, frozen=True):
    """The holder keeps what it holds under this fence for another `ttl_ms`."""

    scope: str
    agent: str
    fence: int
    ttl_ms: int


class ReleaseLocks(Struct, frozen=True):
    scope: str
    agent: str
    fence: int


class LeaveQueue(Struct, frozen=True):
    """The agent no longer waits. `waiting` is the AcquireLocks op by which it waits."""

    scope: str
    agent: str
    waiting: bytes


class BreakLock(Struct, frozen=True):
    """The holder of this key loses it, and everything that it holds under the same fence."""

    scope: str
    key: str
    reason: str


# Messages.


class SendMessage(Struct, frozen=True):
    """`to` is `agent`, `agent@node`, a group, which ends with a slash and reaches every agent whose name begins with
    it, or `all`. The message's id is that of its op. `attachments` are names and artifacts.
    """

    message_id: bytes
    to: str
    sender: str
    message_type: str
    thread: bytes | None
    reply_to: bytes | None
    priority: int
    ttl_ms: int
    tries_max: int
    body: bytes
    attachments: tuple[tuple[str, bytes], ...] = ()


class ClaimMessage(Struct, frozen=True):
    message_id: bytes
    agent: str
    lease_ms: int


class AcknowledgeMessage(Struct, frozen=True):
    """The agent has processed the message. The op cites the claim under which it did."""

    message_id: bytes
    agent: str


class ReturnMessage(Struct, frozen=True):
    """The agent has not processed the message. It is delivered again after the delay, or is dead after too many
    tries. The op cites the claim.
    """

    message_id: bytes
    agent: str
    delay_ms: int
    reason: str


class RetryMessage(Struct, frozen=True):
    """A dead message is to be delivered again."""

    message_id: bytes
    reason: str


# Rows.


class PutRow(Struct, frozen=True):
    """Sets the row `table/key`. `value` is JSON; None deletes the row. `base` is the op that wrote the version that the
    author had read; None if there was no row.
    """

    row: str
    agent: str
    base: bytes | None
    value: bytes | None
    strategy: Strategy


class ResolveConflict(Struct, frozen=True):
    """Ends the conflict that this op caused; the row then has this value. `base` is the op that wrote the version that
    the author had read.
    """

    row: str
    agent: str
    conflict: bytes
    base: bytes
    value: bytes | None


# Nodes.


class SetAvailability(Struct, frozen=True):
    """Whether a node takes new work: a draining one finishes what it has, a quarantined one gets nothing at all."""

    node: int
    availability: Availability
    reason: str
