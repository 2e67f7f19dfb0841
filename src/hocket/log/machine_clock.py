"""The machine's time of day, as long as this process agrees with the others of its node. The processes of a machine
share one uptime, so the time of day minus the uptime is the same for all of them. A process that stays vouches for that
difference in the store. A process that finds itself further off than the mesh allows has a wrong clock of its own: its
time would end the leases of the others. So it goes by theirs. If the machine's clock is set, all of them agree again.
The word of a process that has ended does not count: the clock may have been set right since.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.store import Store

# How often a process that stays vouches, and for how long that counts.
VOUCH_S = 30.0
VALID_S = 90.0
# The store's key of the last vouch.
VOUCHED = "clock"


class Vouch(msgspec.Struct, frozen=True):
    """`offset_ms` is the time of day at the machine's start, by the clock of the process `name`. `namespace` is where
    its number `pid` holds.
    """

    name: str
    boot: str
    offset_ms: int
    uptime_s: float
    pid: int = 0
    namespace: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended."""
        if not self.pid or self.namespace != pid_namespace():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return False


def uptime_s() -> float | None:
    """The seconds since the machine's start, the same for every process. None if the system does not tell."""
    try:
        return float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def pid_namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


class MachineClock:
    """Seconds since the epoch. `off_ms` is how far this process's own clock is ahead of the others', 0 if it agrees
    within `bound_ms`. A clock that jumps is compared again at once.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        bound_ms: int,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float | None] = uptime_s,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._store, self._name, self._bound_ms = store, name, bound_ms
        self._clock, self._monotonic, self._uptime = clock, monotonic, uptime
        self._boot = boot()
        # The time of day when the steady clock stood at 0.
        self._since = clock() - monotonic()
        self.off_ms = 0

    def __call__(self) -> float:
        now = self._clock()
        before, self._since = self._since, now - self._monotonic()
        if abs(self._since - before) * 1000 > self._bound_ms:
            self.compare()
        return now - self.off_ms / 1000

    def compare(self, *, vouch: bool = False) -> int:
        """Compares this process's clock with that of the process that vouches, and returns `off_ms`. With `vouch`, this
        process vouches if no other does.
        """
        uptime = self._uptime()
        if uptime is None or not self._boot:
            return 0
        offset_ms = round((self._clock() - uptime) * 1000)
        with self._store.read() as session:
            found = decode_json(session.meta(VOUCHED) or b"null", Vouch | None)
        if found is not None and (
            found.boot != self._boot
            or uptime - found.uptime_s > VALID_S
            or (found.name != self._name and found.has_ended)
        ):
            found = None
        if found is not None and found.name != self._name:
            off_ms = offset_ms - found.offset_ms
            self.off_ms = off_ms if abs(off_ms) > self._bound_ms else 0
        elif vouch and not self.off_ms:
            is_new = found is None or abs(found.offset_ms - offset_ms) > 1000
            if is_new or (found is not None and uptime - found.uptime_s > VOUCH_S):
                self._vouch(Vouch(self._name, self._boot, offset_ms, uptime, os.getpid(), pid_namespace()))
        return self.off_ms

    def _vouch(self, vouch: Vouch) -> None:
        with self._store.write() as session:
            session.set_meta(VOUCHED, msgspec.json.encode(vouch))


class SteadyWall:
    """Milliseconds since the epoch, which never go back. If the machine's clock is set back, or the log has seen a
    later time, this clock runs at half speed until the machine's has caught up, so that leases and delays still end.
    Pass the log's own clock reading: the result is never behind it.
    """

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._value = 0.0
        self._at = monotonic()

    def __call__(self, floor: int = 0) -> int:
        at = self._monotonic()
        slowed = self._value + (at - self._at) * 500.0
        self._value = max(self._clock() * 1000.0, slowed, float(floor))
        self._at = at
        return int(self._value)
