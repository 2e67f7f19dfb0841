"""Hints that something has changed, and how they travel between the processes of one machine. A hint can be lost, come
twice or come out of order: it says where to look, and the store has the truth. So every listener also looks on its own
at intervals, and any failure of a bus causes nothing but delay.

A hint is a small value, `Changes`: the kinds of job that may have work ready, and the subjects that were touched. A
listener's topics have the same form, and a change matches them if they have a kind or a subject in common.

An empty name stands for everything of its sort: the kind "" for every kind, the key b"" for a whole family, the family
"" for every family. A kind that ends in a dot stands for all kinds below it. So a change that would grow too large is
widened ("some job" instead of a thousand ids), and an unreadable change is ANYTHING. Widening is always safe, since a
listener that wakes in vain only looks in vain.

Each listener of a machine keeps a named pipe in a shared directory; a publisher writes one message into each matching
pipe. The pipe's name carries the listener's topics, so no listener is woken in vain. A pipe without a reader belongs to
a dead process and is removed. A message fits into what every POSIX system writes atomically, so messages of several
processes do not mix. A pipe may be full: then the message is dropped, and the reader finds so much in the pipe that it
takes it for ANYTHING. Processes of different versions can share a directory: an unreadable message or name means
ANYTHING.
"""

import base64
import errno
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from hocket.kernel.postcard import BYTES, STR, U32, Codec, Malformed, Reader, pair, seq, tuple_of, write_varint
from hocket.store import Session

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

# Families of subjects, and their keys. The subjects of ops are families, too: a job, by its id.
CLAIM = "claim"  # a job's id: a worker of this node lost its claim on the job
IDLE = "idle"  # a kind: a worker has a free slot for its jobs, and others hold them all
LOG = "log"  # no key: ops were written
PEER = "peer"  # an address: the operator changed the list of peers
GIT = "git"  # a content id: a job was submitted to a repository
OUTPUT = "output"  # a job's id: its output is wanted

KINDS_MAX = 16
KEYS_MAX = 16
FAMILIES_MAX = 16

# Earlier versions wrote bytes of 1 into the pipes, so no message begins with one.
FORM = 2
_EVERY_KIND, _EVERY_FAMILY, _WHOLE = "", "", b""

Subject = tuple[str, bytes]
_MESSAGE: Codec[tuple[Any, ...]] = tuple_of(U32, seq(STR), seq(pair(STR, seq(BYTES))))


STAMP_GRAIN_NS = 50_000_000
# The smallest PIPE_BUF that POSIX allows.
MESSAGE_BYTES_MAX = 512
# A pipe holds at least one page. If a message did not fit, it contained more than this.
FULL_BYTES = 4096 - MESSAGE_BYTES_MAX
READ_BYTES = 65_536
# A file's name has at most 255 bytes, and base64 takes four for three.
TOPICS_BYTES_MAX = 150
# Earlier versions write into pipes with these suffixes, and keep such pipes themselves.
SUFFIXES = (".any", ".ready")


class Changes(msgspec.Struct, frozen=True):
    kinds: frozenset[str] = frozenset()
    subjects: frozenset[Subject] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.kinds or self.subjects)

    def __or__(self, other: "Changes") -> "Changes":
        if not self or self == other:
            return other
        return gathered(self.kinds | other.kinds, _by_family(self.subjects | other.subjects)) if other else self

    def matches(self, topics: "Changes") -> bool:
        kinds, subjects = self.kinds, self.subjects
        return bool(
            (kinds and topics.kinds and _kinds_meet(kinds, topics.kinds))
            or (subjects and topics.subjects and _subjects_meet(subjects, topics.subjects))
        )

    def widened(self) -> "Changes":
        """These changes with every kind instead of some, and whole families instead of keys."""
        kinds = frozenset((_EVERY_KIND,)) if self.kinds else self.kinds
        return Changes(kinds, frozenset((family, _WHOLE) for family, _ in self.subjects))


NOTHING = Changes()
ANYTHING = Changes(frozenset((_EVERY_KIND,)), frozenset(((_EVERY_FAMILY, _WHOLE),)))


def about(family: str, key: bytes = _WHOLE) -> Changes:
    """A change of one subject, or of a whole family."""
    return Changes(subjects=frozenset(((family, key),)))


def gathered(kinds: Collection[str], keys: Mapping[str, Collection[bytes]]) -> Changes:
    """A change of these kinds, and of these keys in each family, within limits: too many of a sort become all of that
    sort.
    """
    if len(kinds) > KINDS_MAX or _EVERY_KIND in kinds:
        kinds = (_EVERY_KIND,)
    if len(keys) > FAMILIES_MAX or _EVERY_FAMILY in keys:
        return Changes(frozenset(kinds), ANYTHING.subjects)
    subjects: set[Subject] = set()
    for family, found in keys.items():
        if len(found) > KEYS_MAX or _WHOLE in found:
            subjects.add((family, _WHOLE))
        else:
            subjects.update((family, key) for key in found)
    return Changes(frozenset(kinds), frozenset(subjects))


def _by_family(subjects: frozenset[Subject]) -> dict[str, set[bytes]]:
    keys: dict[str, set[bytes]] = {}
    for family, key in subjects:
        keys.setdefault(family, set()).add(key)
    return keys


def _kinds_meet(left: frozenset[str], right: frozenset[str]) -> bool:
    return not left.isdisjoint(right) or _begins(left, right) or _begins(right, left)


def _begins(prefixes: frozenset[str], kinds: frozenset[str]) -> bool:
    """Whether a kind on the right is below one on the left."""
    for prefix in prefixes:
        if (not prefix or prefix[-1] == ".") and any(kind.startswith(prefix) for kind in kinds):
            return True
    return False


def _subjects_meet(left: frozenset[Subject], right: frozenset[Subject]) -> bool:
    return not left.isdisjoint(right) or _covers(left, right) or _covers(right, left)


def _covers(left: frozenset[Subject], right: frozenset[Subject]) -> bool:
    """Whether a subject on the right belongs to a family that is whole on the left."""
    for family, key in left:
        if not key and (family == _EVERY_FAMILY or any(family == other for other, _ in right)):
            return True
    return False


# As bytes: exactly one form for each value.


def encode_changes(changes: Changes) -> bytes:
    out = bytearray((FORM,))
    write_varint(out, len(changes.kinds))
    for kind in sorted(changes.kinds):
        STR.write(out, kind)
    keys = _by_family(changes.subjects)
    write_varint(out, len(keys))
    for family in sorted(keys):
        STR.write(out, family)
        write_varint(out, len(keys[family]))
        for key in sorted(keys[family]):
            BYTES.write(out, key)
    return bytes(out)


def encode_within(changes: Changes, size: int) -> bytes:
    """At most this many bytes, widened as far as needed. ANYTHING takes seven."""
    for each in (changes, changes.widened()):
        if len(data := encode_changes(each)) <= size:
            return data
    return encode_changes(ANYTHING)


def decode_changes(data: bytes) -> Changes:
    """Raises Malformed."""
    reader = Reader(data)
    changes = _read_one(reader)
    if reader.remaining():
        raise Malformed(f"{reader.remaining()} bytes follow the changes")
    return changes


def decode_or_anything(data: bytes) -> Changes:
    """The sum of one or several messages. An unreadable one may mean anything."""
    reader = Reader(data)
    merged = NOTHING
    try:
        while reader.remaining():
            merged |= _read_one(reader)
    except Malformed:
        return ANYTHING
    return merged


def _read_one(reader: Reader) -> Changes:
    """The next message. Raises Malformed."""
    kinds: tuple[str, ...]
    families: tuple[tuple[str, tuple[bytes, ...]], ...]
    form, kinds, families = _MESSAGE.read(reader)
    if form != FORM:
        raise Malformed(f"unknown form of changes: {form}")
    _check_ascending(kinds)
    _check_ascending([family for family, _ in families])
    for family, keys in families:
        _check_ascending(keys)
        if not keys:
            raise Malformed(f"the family {family!r} has no keys")
    return Changes(frozenset(kinds), frozenset((family, key) for family, keys in families for key in keys))


def _check_ascending(values: Sequence[str] | Sequence[bytes]) -> None:
    if any(left >= right for left, right in pairwise(values)):  # type: ignore[operator]
        raise Malformed("changes are not in order")


class Subscription(Protocol):
    """One listener's share of the hints: those that match its topics. Hints that come before the listener looks are
    merged into one, so a slow listener misses nothing and needs no queue.
    """

    def wait(self, timeout_s: float | None) -> Changes:
        """What has changed since the last call; blocks until there is something. NOTHING if the time is over, or if
        another thread closes the subscription. None waits without a limit.
        """

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        """From now on calls `heard` on that event loop instead. Call it there, once."""

    def close(self) -> None: ...


class Bus(Protocol):
    """Safe to use from several threads."""

    def is_heard(self) -> bool:
        """Whether there may be a listener. Ask before working out what to publish."""

    def publish(self, changes: Changes) -> None:
        """Tells every matching listener. Never blocks, and never fails because of a listener."""

    def announce(self, session: Session, changes: Changes) -> None:
        """Call this in the transaction that makes the changes, and `publish` after its commit: listeners that only the
        store reaches are told with the commit.
        """

    def subscribe(self, topics: Changes) -> Subscription:
        """Receives every change that matches the topics from now on. Subscribe first, then look."""


class PipeSubscription:
    """One listener's end."""

    def __init__(self, directory: Path, topics: Changes) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._topics = topics
        self._path = directory / f"{name}.{_topics_text(topics)}{SUFFIXES[0]}"
        # It gets its name once it is open: a publisher that found it before would remove it as a dead process's.
        unnamed = directory / f"{name}.new"
        os.mkfifo(unnamed, 0o600)
        # Open for both ends, so that the pipe never reports end of file when a publisher closes it.
        self._fd = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(unnamed, self._path)
        self._reading = threading.Lock()
        self._is_closed = False
        self._loop: AbstractEventLoop | None = None

    def wait(self, timeout_s: float | None) -> Changes:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            while not self._is_closed:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                poll.poll(None if left is None else left * 1000)
                if not self._is_closed and (came := self._read()):
                    return came
                if left == 0.0:
                    break
        return NOTHING

    def tell(self, changes: Changes) -> None:
        """Tells this listener alone, from its own process."""
        if changes.matches(self._topics):
            with suppress(BlockingIOError):  # then it reads ANYTHING
                os.write(self._fd, encode_within(changes, MESSAGE_BYTES_MAX))

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        def ready() -> None:
            if came := self._read():
                heard(came)

        self._loop = loop
        loop.add_reader(self._fd, ready)

    def _read(self) -> Changes:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return NOTHING
        came = ANYTHING if len(data) > FULL_BYTES else decode_or_anything(data)
        return came if came.matches(self._topics) else NOTHING

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._path.unlink(missing_ok=True)
        try:
            os.write(self._fd, b"\0")  # ends a wait in another thread
        except BlockingIOError:
            pass
        with self._reading:
            os.close(self._fd)


class _Reader(NamedTuple):
    """Another process's pipe, as a publisher sees it."""

    fd: int
    topics: Changes


class Pipes:
    """The bus of a directory. A publisher lists the pipes again only if the directory has changed. A directory that was
    removed comes back, without the pipes of processes that made theirs before; those processes look again by
    themselves.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = self._open_directory()
        self._readers: dict[str, _Reader] = {}
        self._seen = -1
        self._lock = threading.Lock()

    def announce(self, session: Session, changes: Changes) -> None:
        """`publish` reaches every listener."""

    def subscribe(self, topics: Changes) -> PipeSubscription:
        return PipeSubscription(self._directory, topics)

    def is_heard(self) -> bool:
        if self._fd < 0:
            return False
        found = os.fstat(self._fd)
        return bool(self._readers) or found.st_mtime_ns != self._seen or found.st_nlink == 0

    def publish(self, changes: Changes) -> None:
        with self._lock:
            if self._fd < 0:
                return
            self._look()
            names = [name for name, reader in self._readers.items() if changes.matches(reader.topics)]
            message = encode_within(changes, MESSAGE_BYTES_MAX) if names else b""
            for name in names:
                self._write(name, message)

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                os.close(reader.fd)
            self._readers.clear()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1  # by the next call, the number may be another file's

    def _open_directory(self) -> int:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _look(self) -> None:
        try:
            if os.fstat(self._fd).st_nlink == 0:
                removed, self._fd, self._seen = self._fd, self._open_directory(), -1
                os.close(removed)
            changed = os.fstat(self._fd).st_mtime_ns
            if changed == self._seen:
                return
            names = {name for name in os.listdir(self._directory) if name.endswith(SUFFIXES)}
        except FileNotFoundError:
            return
        # A directory's timestamp is coarse: a pipe made just after this look might not change it, so a recent timestamp
        # is not trusted.
        self._seen = changed if time.time_ns() - changed > STAMP_GRAIN_NS else -1
        for name in self._readers.keys() - names:
            os.close(self._readers.pop(name).fd)
        for name in names - self._readers.keys():
            self._open(name)

    def _open(self, name: str) -> None:
        path = self._directory / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:
                path.unlink(missing_ok=True)
        else:
            self._readers[name] = _Reader(fd, _topics_of(name))

    def _write(self, name: str, message: bytes) -> None:
        try:
            os.write(self._readers[name].fd, message)
        except BlockingIOError:
            pass
        except OSError:
            os.close(self._readers.pop(name).fd)
            (self._directory / name).unlink(missing_ok=True)


def _topics_text(topics: Changes) -> str:
    return base64.urlsafe_b64encode(encode_within(topics, TOPICS_BYTES_MAX)).decode().rstrip("=")


def _topics_of(name: str) -> Changes:
    try:
        _, text, _ = name.split(".")
        topics = decode_changes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        return ANYTHING
    return topics
