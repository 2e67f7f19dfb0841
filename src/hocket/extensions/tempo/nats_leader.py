"""The leader's lock where the pulses share nothing but a NATS server: a register that only one pulse can take at a
time. The server does not know when a leader has ended. A pulse asks only if it has heard no frame for more than a beat,
and frames go over the same server; so it takes the register from a silent leader, which finds that out when it renews.

Anyone with access to the server can write into the register. So each entry is signed by its node, and only an entry of
a member that may lead counts. A pulse replaces any other value, and says so.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hocket.bus.nats_register import NatsRegister
from hocket.bus.signed import SignedMessages
from hocket.errors import NotAuthorised, Unreachable
from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats.frame_judge import Lead
from hocket.extensions.tempo.beats.messages import Count
from hocket.extensions.tempo.events import RegisterReplaced
from hocket.families.locks.requests import LockHeld, LockLost
from hocket.kernel.decoding import decode_json
from hocket.kernel.envelope import LIFE_MS
from hocket.kernel.ids import node_text

# The register is taken from a leader if it has not changed for this part of a lock's time. A pulse that has just taken
# it thus has the time to send its first frame.
UNCHANGED = 0.17
# How often a renewal replaces values that do not count before it gives up.
REPLACED_MAX = 3


class LeaderEntry(msgspec.Struct, frozen=True):
    """A fence is a time in milliseconds, or one more than the fence before: it rises also if the server has lost its
    data, and no pulse can use the fences up.
    """

    holder: str
    fence: Count


class RegisterState(NamedTuple):
    """`entry` is None if the register is empty, or has a value that does not count."""

    revision: int
    node: int
    entry: LeaderEntry | None

    @property
    def is_foreign(self) -> bool:
        return self.revision > 0 and self.entry is None


class LeaderRegister:
    """The register of a cluster with signed entries. `bus` signs and knows the members, and `now_ms` is the time of
    day.
    """

    def __init__(
        self, register: NatsRegister, bus: SignedMessages, may_lead: Callable[[int], bool], now_ms: Callable[[], int]
    ) -> None:
        self._register, self._bus, self._may_lead, self.now_ms = register, bus, may_lead, now_ms

    @property
    def name(self) -> str:
        return self._register.name

    async def read(self) -> RegisterState:
        found = await self._register.read()
        signed = self._bus.open_value(self._register.subject, found.data)
        if signed is None or not self._may_lead(signed.at.node):
            return RegisterState(found.revision, 0, None)
        try:
            entry = decode_json(signed.data, LeaderEntry)
        except ValueError:
            return RegisterState(found.revision, 0, None)
        is_possible = 0 < entry.fence <= self.now_ms() + LIFE_MS
        return RegisterState(found.revision, signed.at.node, entry if is_possible else None)

    async def lead(self) -> Lead | None:
        found = await self.read()
        return None if found.entry is None else Lead(found.entry.fence, found.node)

    async def swap(self, revision: int, entry: LeaderEntry) -> int | None:
        node = self._bus.node
        if not self._may_lead(node):
            raise NotAuthorised(
                f"node {node_text(node)} may not lead the pulses of {self.name}; the owner grants it with"
                f" --may lock:acquire:pulse:{self.name}"
            )
        data = self._bus.seal_value(self._register.subject, msgspec.json.encode(entry))
        return await self._register.swap(revision, data)


class NatsLeaderLock:
    """`holder` is a name that no other process has."""

    def __init__(
        self, register: LeaderRegister, holder: str, monotonic: Callable[[], float], emit: Emit = ignore
    ) -> None:
        self._register, self._holder, self._monotonic, self._emit = register, holder, monotonic, emit
        self._revision = 0
        self._seen = 0
        self._seen_at = 0.0

    async def acquire(self, ttl_ms: int, above: int) -> int:
        found = await self._register.read()
        if found.revision != self._seen:
            self._seen, self._seen_at = found.revision, self._monotonic()
        if found.entry is not None and self._monotonic() - self._seen_at < UNCHANGED * ttl_ms / 1000:
            raise LockHeld("another pulse has just taken or renewed the lock")
        fence = max(0 if found.entry is None else found.entry.fence, above, self._register.now_ms()) + 1
        taken = await self._register.swap(found.revision, LeaderEntry(self._holder, fence))
        if taken is None:
            raise LockHeld("another pulse was faster")
        self._tell(found)
        self._revision = taken
        return fence

    async def renew(self, fence: int, ttl_ms: int) -> None:
        entry = LeaderEntry(self._holder, fence)
        for _ in range(REPLACED_MAX):
            taken = await self._register.swap(self._revision, entry)
            if taken is not None:
                self._revision = taken
                return
            found = await self._register.read()
            if found.entry is not None and found.entry != entry and found.entry.fence >= fence:
                raise LockLost("another pulse leads")
            # Nobody who may lead has taken it: the value is foreign, an old one, or this pulse's own.
            self._tell(found)
            self._revision = found.revision
        raise Unreachable(f"the register of {self._register.name} is overwritten again and again")

    async def release(self, fence: int) -> None:
        """Nothing: a follower takes the register as soon as it hears no frame."""

    def _tell(self, found: RegisterState) -> None:
        if found.is_foreign:
            self._emit(RegisterReplaced(self._register.name))
