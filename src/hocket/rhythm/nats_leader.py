"""The leader's lock where the pulses share nothing but a NATS server: a register that only one pulse can take at a
time. The server does not know when a leader has ended. A pulse asks only if it has heard no frame for more than a beat,
and frames go over the same server; so it takes the register from a silent leader, which finds that out when it renews.
"""

from collections.abc import Callable

import msgspec

from hocket.bus.nats_register import NOTHING, NatsRegister
from hocket.coordination.locks import LockHeld, LockLost
from hocket.kernel.beats.messages import Count
from hocket.kernel.decoding import decode_json

# The register is taken from a leader if it has not changed for this part of a lock's time. A pulse that has just taken
# it thus has the time to send its first frame.
UNCHANGED = 0.17


class LeaderEntry(msgspec.Struct, frozen=True):
    """The fence is in the value too: it still rises if the server has lost its data."""

    holder: str
    fence: Count


class NatsLeaderLock:
    """`holder` is a name that no other process has."""

    def __init__(self, register: NatsRegister, holder: str, monotonic: Callable[[], float]) -> None:
        self._register, self._holder, self._monotonic = register, holder, monotonic
        self._revision = 0
        self._seen = NOTHING.revision
        self._seen_at = 0.0

    async def acquire(self, ttl_ms: int, above: int) -> int:
        found = await self._register.read()
        if found.revision != self._seen:
            self._seen, self._seen_at = found.revision, self._monotonic()
        if found is not NOTHING and self._monotonic() - self._seen_at < UNCHANGED * ttl_ms / 1000:
            raise LockHeld("another pulse has just taken or renewed the lock")
        fence = max(_fence_of(found.data), above, found.revision) + 1
        taken = await self._register.swap(found.revision, self._entry(fence))
        if taken is None:
            raise LockHeld("another pulse was faster")
        self._revision = taken
        return fence

    async def renew(self, fence: int, ttl_ms: int) -> None:
        taken = await self._register.swap(self._revision, self._entry(fence))
        if taken is None:
            raise LockLost("another pulse leads")
        self._revision = taken

    async def release(self, fence: int) -> None:
        """Nothing: a follower takes the register as soon as it hears no frame."""

    def _entry(self, fence: int) -> bytes:
        return msgspec.json.encode(LeaderEntry(self._holder, fence))


def _fence_of(data: bytes) -> int:
    """0 for a value that is none of ours."""
    try:
        return decode_json(data, LeaderEntry).fence
    except ValueError:
        return 0
