"""Which processes of a node are alive. Each process that others must know to be alive holds an exclusive OS lock on a
file of its own; the kernel releases it the moment the process ends, however it ends. So a free lock means a dead
process, without a clock or a timeout, for every process of the same running system that sees the same directory.

A worker shows two signs of life: an OS lock that ends with its process, and a heartbeat, a time in its row that it
renews. An observer on the same running system that sees the same lock directory tests the lock and knows at once. For
every other observer only the heartbeat counts: a worker whose heartbeat stays the same for `SILENT_S` is dead. A worker
that is wrongly declared dead loses its jobs to others, and the fence tells the two holders apart.

A heartbeat is compared only with itself, and the wait is counted on the observer's own clock. So a wrong clock, or one
that is set, makes no worker look dead.
"""

import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterable
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.store import Place, Session, WorkerRow

if TYPE_CHECKING:
    from random import Random

    from hocket.bus.hints import Bus
    from hocket.log import Transaction

T = TypeVar("T")

# How often a worker renews its row, and a node tells others that it is there: an idle worker makes one small commit in
# this time.
BEAT_S = 10.0
# A worker whose lock cannot be tested is dead if its heartbeat has stayed the same for this long.
SILENT_S = 30.0
# The most that the time since an observer's last look counts: an observer that was suspended must not mistake its own
# pause for the silence of others.
LOOK_S_MAX = 5.0

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
# The locks of this process. A forked child would share them: they would make this process look alive after its end, and
# nobody else could take them. They are registered together: what is registered stays for the life of the process, also
# after its lock was closed.
_HELD: "WeakSet[_FileLock]" = WeakSet()
SYNC_TURN = "sync.turn"


# Locks that end with their process.


class _FileLock:
    """A file that is locked until `close` or the end of the process. Raises BlockingIOError if another one has it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise
        _HELD.add(self)

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ProcessLock(_FileLock):
    """This process's sign of life."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(lock_path(directory, name))

    @property
    def fd(self) -> int:
        """A process that inherits it holds the lock, too."""
        return self._fd

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._let_go()


class ProcessTurn(_FileLock):
    """What only one process of a node does at a time: sync with the peers, or what else the name stands for."""

    @classmethod
    def take(cls, directory: Path, name: str = SYNC_TURN) -> "ProcessTurn | None":
        """None if another process has it. The file is never removed: a removed file could be locked twice."""
        try:
            return cls(directory / name)
        except BlockingIOError:
            return None

    @staticmethod
    def is_taken(directory: Path) -> bool:
        """Whether a process of this node syncs now."""
        return bool(_is_locked(directory / SYNC_TURN))

    def close(self) -> None:
        self._let_go()


def _let_all_go() -> None:
    for lock in list(_HELD):
        lock._let_go()


os.register_at_fork(after_in_child=_let_all_go)


def lock_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.lock"


def is_held(directory: Path, name: str) -> bool | None:
    """Whether a process holds the lock of that name. None if there is no such file, or locks do not work here. A name
    from a store that nodes share may be anything.
    """
    return None if "/" in name or "\0" in name else _is_locked(lock_path(directory, name))


def _is_locked(path: Path) -> bool | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(fd)


def is_alive(directory: Path, name: str) -> bool:
    """Whether the process that made something in this directory under that name is alive. Removes the file of a dead
    one.
    """
    held = is_held(directory, name)
    if held is False:
        lock_path(directory, name).unlink(missing_ok=True)
    return bool(held)


def notes(directory: Path, role: str, kind: type[T]) -> list[T]:
    """What living processes have written into their locks of this role."""
    found = []
    for path in sorted(directory.glob(f"{role}-*.lock")):
        try:
            if is_alive(directory, path.stem):
                found.append(decode_json(path.read_bytes(), kind))
        except (OSError, msgspec.MsgspecError):
            continue  # it has just started, changed or ended
    return found


# Which workers are alive.


class SignOfLife:
    """What a worker shows to others while it lives. A process that inherits `fd` shows the same."""

    def __init__(self, name: str, process: int, place: Place, close: Callable[[], None], fd: int | None = None) -> None:
        self.close, self.fd = close, fd
        self._name, self._process, self._place = name, process, place
        self._started = 0
        self.number = 0
        self.serves = ""
        """What the worker runs, for its row."""

    def beat(self, tx: "Transaction") -> None:
        """Renews the worker's row. The first heartbeat adds it."""
        self._started = self._started or tx.now
        node = tx.node.to_bytes(8, "big")
        self.number = tx.session.put_worker(
            WorkerRow(0, self._name, self._process, self._started, node, tx.now, self._place, self.serves)
        )

    def row(self, tx: "Transaction") -> int:
        """The number of its row. A worker that was declared dead has lost its row, and gets another."""
        if not tx.session.has_worker(self.number):
            self.beat(tx)
        return self.number


class Liveness(Protocol):
    """What one process knows about its node's workers."""

    @property
    def place(self) -> Place:
        """Where this process runs."""

    def announce(self, name: str) -> SignOfLife:
        """Takes the lock of that name. The first heartbeat tells the others."""

    def is_running(self, worker: WorkerRow) -> bool | None:
        """Whether a worker runs, if its lock tells; None if only the heartbeat does."""

    def dead(self, workers: Collection[WorkerRow]) -> set[int]:
        """The numbers of the dead workers. Call this with all workers of the node, again and again."""

    def forget(self, numbers: Iterable[int]) -> None:
        """Removes the remaining lock files of these dead workers, whose rows are gone."""

    def discard(self, name: str) -> None:
        """Removes the lock file of a dead process."""


class ProcessEnvironment(Protocol):
    """What a process of a node depends on: two clocks, randomness, the bus that wakes it, and which others are alive.
    `monotonic` counts seconds and never jumps; `physical_ms` is the machine's time of day. Neither depends on the
    clocks of other nodes.
    """

    @property
    def bus(self) -> "Bus":
        """Reports every change that a process of this node commits."""

    @property
    def chance(self) -> "Random": ...
    @property
    def monotonic(self) -> Callable[[], float]: ...
    @property
    def liveness(self) -> Liveness: ...

    def physical_ms(self) -> int: ...
    def name(self, role: str) -> str:
        """A name that no other process of this node has, or ever had."""


class TakenLock(Protocol):
    """A lock that this process holds until it is closed or the process ends. Without a file there is no `fd`."""

    @property
    def fd(self) -> int | None: ...
    def close(self) -> None: ...


class Locks(Protocol):
    """One directory of locks."""

    def take(self, name: str) -> TakenLock: ...

    def is_held(self, name: str) -> bool | None:
        """None if there is no such lock."""

    def remove(self, name: str) -> None: ...


class FileLocks:
    """A directory in a home."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def take(self, name: str) -> TakenLock:
        return ProcessLock(self._directory, name)

    def is_held(self, name: str) -> bool | None:
        return is_held(self._directory, name)

    def remove(self, name: str) -> None:
        if "/" not in name and "\0" not in name:
            lock_path(self._directory, name).unlink(missing_ok=True)


class LockLiveness:
    """Liveness by locks, and by heartbeats where a lock proves nothing.

    A held lock always means a running worker: no name is used twice. A free lock means a dead worker only if the worker
    took it in this very directory, on this machine, since the machine's last boot. A copy of a machine has the same
    machine id and the same files, and free locks of workers that run on the original: only the boot id tells them
    apart. A missing lock proves nothing.
    """

    def __init__(self, locks: Locks, place: Place, process: int, monotonic: Callable[[], float]) -> None:
        self.place = place
        self._locks, self._process = locks, process
        self._silence = _Silence(monotonic)
        self._names: dict[int, str] = {}

    def announce(self, name: str) -> SignOfLife:
        lock = self._locks.take(name)
        return SignOfLife(name, self._process, self.place, lock.close, lock.fd)

    def is_running(self, worker: WorkerRow) -> bool | None:
        held = self._locks.is_held(worker.name)
        return held if held or _is_same_directory(worker.place, self.place) else None

    def dead(self, workers: Collection[WorkerRow]) -> set[int]:
        known = {worker.number: self.is_running(worker) for worker in workers}
        silent = self._silence.of(worker for worker in workers if known[worker.number] is None)
        dead = silent | {number for number, is_running in known.items() if is_running is False}
        self.forget(self._names.keys() - known.keys())  # other workers have returned their jobs
        self._names |= {worker.number: worker.name for worker in workers if worker.number in dead}
        return dead

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if name := self._names.pop(number, None):
                self.discard(name)

    def discard(self, name: str) -> None:
        self._locks.remove(name)


class _Silence:
    """How long the heartbeat of each worker has stayed the same, as far as this process has seen."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._heard: dict[int, tuple[int, float]] = {}

    def of(self, workers: Iterable[WorkerRow]) -> set[int]:
        """The workers that have been silent for too long."""
        now = self._monotonic()
        passed = min(now - self._looked_at, LOOK_S_MAX)
        self._looked_at = now
        before, self._heard = self._heard, {}
        for worker in workers:
            beat, silent_s = before.get(worker.number, (None, 0.0))
            self._heard[worker.number] = worker.beat, silent_s + passed if beat == worker.beat else 0.0
        return {number for number, (_, silent_s) in self._heard.items() if silent_s >= SILENT_S}


def _is_same_directory(one: Place, other: Place) -> bool:
    """Whether two processes see the same locks. Containers make no difference: locks belong to the kernel."""
    is_known = bool(one.boot and one.locks)
    return is_known and (one.host, one.boot, one.locks) == (other.host, other.boot, other.locks)


def machine_liveness(directory: Path, monotonic: Callable[[], float]) -> LockLiveness:
    """Liveness as a process of this machine sees it, with the locks in a directory."""
    return LockLiveness(FileLocks(directory), place_of(directory), os.getpid(), monotonic)


def place_of(directory: Path) -> Place:
    """Where this process runs. Machine ids are confidential, so only a hash is stored."""
    import hashlib

    machine = next(filter(None, map(_machine_id, _MACHINE_IDS)), "")
    host = hashlib.sha256(b"hocket host\0" + machine.encode()).hexdigest()[:16] if machine else ""
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    try:
        found = directory.stat()
    except OSError:
        return Place(host, boot, namespace)
    return Place(host, boot, namespace, f"{found.st_dev:x}-{found.st_ino:x}")


def _machine_id(path: str) -> str:
    """Empty if there is none: an image before its first boot has a word instead."""
    text = _read(path)
    return text if re.fullmatch("[0-9a-f]{32}", text) else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Grade(StrEnum):
    """How long a node or an agent has been silent, in heartbeats that it has missed."""

    LIVE = "live"
    WARN = "warn"
    ALERT = "alert"
    CRITICAL = "critical"
    DEAD = "dead"
    UNKNOWN = "unknown"


# From so many missed heartbeats on. Two are no sign: the last one may be on its way through a third node.
MISSES = {Grade.WARN: 3, Grade.ALERT: 5, Grade.CRITICAL: 7, Grade.DEAD: 9}


def grade(silent_ms: int, every_ms: int = round(BEAT_S * 1000)) -> Grade:
    """The grade of a node or an agent that promised a heartbeat every so often."""
    missed = silent_ms // every_ms
    return next((each for each in reversed(MISSES) if missed >= MISSES[each]), Grade.LIVE)


# Where a worker is that claims by requests over HTTP. Its process is not the node's, so no lock and no silence tells
# that it is dead: what it holds comes back when the leases end.
OVER_HTTP = Place(namespace="http")


def kept_by_leases(session: Session, dead: Iterable[WorkerRow]) -> set[int]:
    """The numbers of those workers over HTTP that are silent, and still have leases."""
    silent = {each.number for each in dead if each.place == OVER_HTTP}
    return silent & {each.worker for each in session.claimed() if each.worker is not None} if silent else set()


class WorkerState(Enum):
    """The state of a worker at one look, for people. A silent worker may be dead: a worker that watches it will
    tell.
    """

    RUNNING = "running"
    SILENT = "silent"
    DIED = "died"


def standing(liveness: Liveness, worker: WorkerRow, now_ms: int) -> WorkerState:
    is_running = liveness.is_running(worker)
    if is_running is None:
        return WorkerState.SILENT if now_ms - worker.beat >= SILENT_S * 1000 else WorkerState.RUNNING
    return WorkerState.RUNNING if is_running else WorkerState.DIED


def whereabouts(place: Place, here: Place) -> str:
    """Where a worker runs, in words, as seen from here. Empty if it uses the same locks."""
    if place == OVER_HTTP:
        return "over HTTP"
    if not place.boot:
        return "in an unknown place"
    if place.boot == here.boot:
        if place.namespace != here.namespace:
            return "in another container"
        return "" if _is_same_directory(place, here) else "with locks in another directory"
    if place.host and place.host == here.host:
        return "from before this machine's last start, or on a copy of this machine"
    return "on another machine"
