"""The payloads about locks. A scope, such as a repository, is one subject: its fences are counted together, and one op
can take several keys at once.
"""

from enum import IntEnum

from hocket.kernel.family import FamilyPayload, Judged, Variant
from hocket.kernel.postcard import STR, U64, ULID, enum, seq
from hocket.kernel.postcard import struct as fields

LOCK = "lock"
# The topic of an op that asked for locks and no longer waits.
LOCK_WAIT = "lock_wait"


class LockMode(IntEnum):
    EXCLUSIVE = 0
    SHARED = 1


class AcquireLocks(FamilyPayload, frozen=True):
    """The agent wants these keys, all at once, for `ttl_ms`. If they are held, it waits in the queue for `wait_ms`."""

    scope: str
    keys: tuple[str, ...]
    agent: str
    mode: LockMode
    ttl_ms: int
    wait_ms: int


class RenewLocks(FamilyPayload, frozen=True):
    """The holder keeps what it holds under this fence for another `ttl_ms`."""

    scope: str
    agent: str
    fence: int
    ttl_ms: int


class ReleaseLocks(FamilyPayload, frozen=True):
    scope: str
    agent: str
    fence: int


class LeaveQueue(FamilyPayload, frozen=True):
    """The agent no longer waits. `waiting` is the AcquireLocks op by which it waits."""

    scope: str
    agent: str
    waiting: bytes


class BreakLock(FamilyPayload, frozen=True):
    """The holder of this key loses it, and everything that it holds under the same fence."""

    scope: str
    key: str
    reason: str


# Renewing, releasing and leaving name a fence and no keys; only the holder can use it. All locks of a scope are folded
# together, so a reader of one reads all.
_ACQUIRE = Judged("Lock", "Acquire", scoped=True)
_BREAK = Judged("Lock", "Break", "key_prefix", "key", scoped=True)

VARIANTS = (
    Variant(
        1038,
        fields(AcquireLocks, STR, seq(STR, limit=64), STR, enum(LockMode), U64, U64),
        _ACQUIRE._replace(caveat="key_prefix", field="keys"),
        read=_ACQUIRE,
        event="lock.requested",
    ),
    Variant(1039, fields(RenewLocks, STR, STR, U64, U64), _ACQUIRE, event="lock.renewed"),
    Variant(1040, fields(ReleaseLocks, STR, STR, U64), _ACQUIRE, gives_back=True, event="lock.released"),
    Variant(
        1041, fields(LeaveQueue, STR, STR, ULID), _ACQUIRE, withdraws="waiting", gives_back=True, event="lock.left"
    ),
    Variant(1042, fields(BreakLock, STR, STR, STR), _BREAK, read=_ACQUIRE, texts=("reason",), event="lock.broken"),
)
