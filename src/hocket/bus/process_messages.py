"""Messages between the processes of one machine, without a server. Each subscription has a datagram socket in a shared
directory, whose name carries its pattern; a publisher sends to every socket with a matching name. The socket of a dead
process refuses messages and is removed. Announcements are also written to files in a directory beside, each for ten
minutes at most.

The kernel queues only a few datagrams for a socket, so a publisher waits a moment for a receiver that is behind. Then
it gives the message up, and does not wait for that receiver again until it has taken a message.
"""

import asyncio
import base64
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hocket.bus.envelope import SEALED_BYTES_MAX
from hocket.bus.messages import (
    ANNOUNCED_MAX,
    ANNOUNCED_S_MAX,
    CAPACITY,
    BoundedQueue,
    BusMessage,
    MessagesState,
    ask,
    check_message,
    check_pattern,
    is_match,
)
from hocket.events import Emit, ignore
from hocket.kernel.postcard import BYTES, STR, U32, Codec, Malformed, decode, encode, tuple_of
from hocket.system import ShortPath

FORM = 1
STAMP_GRAIN_NS = 50_000_000
# How long a publisher waits for a receiver that is behind, and how long between two tries.
PATIENCE_S = 0.1
PAUSE_S = 0.001
TRIES_MIN = 10
# Subjects and numbers around the data.
DATAGRAM_BYTES_MAX = SEALED_BYTES_MAX + 8_192
RECEIVED_AT_ONCE = 256
# A file's name has at most 255 bytes, and base64 takes four for three.
PATTERN_BYTES_MAX = 150
# After how many announcements a process removes the expired ones.
SWEEP_EVERY = 64
_SUFFIX, _NEW, _KEPT = ".messages", ".new", ".kept"
_EVERYTHING = ">"

_DATAGRAM: Codec[tuple[Any, ...]] = tuple_of(U32, STR, STR, BYTES)


class _Receiver(NamedTuple):
    """Another subscription's socket, as a publisher sees it."""

    path: ShortPath
    pattern: str


class ProcessMessages:
    """The messages of a directory. A publisher lists the sockets again only if the directory has changed."""

    def __init__(
        self,
        directory: Path,
        emit: Emit = ignore,
        *,
        wall: Callable[[], float] = time.time,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._directory, self._emit, self._wall, self._randomness = directory, emit, wall, randomness
        self._announced = directory / "announced"
        for each in (directory, self._announced):
            each.mkdir(mode=0o700, exist_ok=True)
        self._socket = _socket()
        self._receivers: dict[str, _Receiver] = {}
        self._behind: set[str] = set()
        self._subscriptions: dict[BoundedQueue, _SubscriptionSocket] = {}
        self._seen = -1
        self._lost = self._announcements = 0
        self._since_ms = int(wall() * 1000)

    @property
    def state(self) -> MessagesState:
        return MessagesState("the processes of this machine", True, self._since_ms, lost=self._lost)

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        await self._send(check_message(BusMessage(subject, data, reply_to)))

    async def announce(self, subject: str, data: bytes) -> None:
        message = check_message(BusMessage(subject, data))
        self._keep(message)
        await self._send(message)

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> BoundedQueue:
        queue = BoundedQueue(pattern, capacity, self._emit, self._unsubscribed)
        self._subscriptions[queue] = _SubscriptionSocket(self._directory, queue, self._randomness)
        for message in self._past(since_s):
            if is_match(pattern, message.subject):
                queue.put(message)
        return queue

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        return await ask(self, f"reply.{self._randomness(16).hex()}", subject, data, timeout_s)

    async def close(self) -> None:
        for queue in list(self._subscriptions):
            queue.close()
        for receiver in self._receivers.values():
            receiver.path.close()
        self._receivers.clear()
        self._socket.close()

    def _unsubscribed(self, queue: BoundedQueue) -> None:
        self._subscriptions.pop(queue).close()

    # Sending.

    async def _send(self, message: BusMessage) -> None:
        self._look()
        names = [name for name, each in self._receivers.items() if is_match(each.pattern, message.subject)]
        if names:
            datagram = _datagram(message)
            for name in names:
                await self._send_to(name, datagram)

    async def _send_to(self, name: str, datagram: bytes) -> None:
        is_behind, deadline, tries = name in self._behind, time.monotonic() + PATIENCE_S, 0
        while name in self._receivers and not self._try(name, datagram):
            tries += 1
            if is_behind or (tries > TRIES_MIN and time.monotonic() >= deadline):
                self._behind.add(name)
                self._lost += 1
                return
            await asyncio.sleep(PAUSE_S if tries > 1 else 0)  # the receiver may be this very process

    def _try(self, name: str, datagram: bytes) -> bool:
        try:
            self._socket.sendto(datagram, self._receivers[name].path.text)
        except BlockingIOError:
            return False
        except ConnectionRefusedError:
            self._forget(name)
            with suppress(OSError):
                (self._directory / name).unlink()
        except OSError:
            self._lost += 1
        self._behind.discard(name)
        return True

    def _look(self) -> None:
        try:
            changed = self._directory.stat().st_mtime_ns
            if changed == self._seen:
                return
            names = {name for name in os.listdir(self._directory) if name.endswith(_SUFFIX)}
        except FileNotFoundError:
            return
        # A directory's timestamp is coarse, so a recent one is not trusted.
        self._seen = changed if time.time_ns() - changed > STAMP_GRAIN_NS else -1
        for name in self._receivers.keys() - names:
            self._forget(name)
        for name in names - self._receivers.keys():
            with suppress(OSError):  # its process has just ended
                self._receivers[name] = _Receiver(ShortPath(self._directory / name), _pattern_of(name))

    def _forget(self, name: str) -> None:
        self._receivers.pop(name).path.close()
        self._behind.discard(name)

    # Announcements.

    def _keep(self, message: BusMessage) -> None:
        self._announcements += 1
        name = f"{int(self._wall() * 1000):015d}-{self._announcements:09d}-{self._randomness(8).hex()}"
        path = self._announced / (name + _NEW)
        with suppress(OSError):  # the disk is full: then the announcement reaches those who listen now
            path.write_bytes(_datagram(message))
            path.rename(self._announced / (name + _KEPT))
        if (self._announcements - 1) % SWEEP_EVERY == 0:
            self._sweep()

    def _sweep(self) -> None:
        oldest_ms = (self._wall() - ANNOUNCED_S_MAX) * 1000
        names = sorted(os.listdir(self._announced))
        for number, name in enumerate(names):
            if len(names) - number > ANNOUNCED_MAX or _time_of(name) < oldest_ms:
                with suppress(OSError):
                    (self._announced / name).unlink()

    def _past(self, since_s: float) -> Iterator[BusMessage]:
        if since_s <= 0:
            return
        oldest_ms = (self._wall() - min(since_s, ANNOUNCED_S_MAX)) * 1000
        for name in sorted(os.listdir(self._announced))[-ANNOUNCED_MAX:]:
            if name.endswith(_KEPT) and _time_of(name) >= oldest_ms:
                with suppress(OSError, Malformed):
                    yield _read((self._announced / name).read_bytes())


class _SubscriptionSocket:
    """One subscription's socket. It gets its name once it is bound: a publisher that found it before would remove it as
    a dead process's.
    """

    def __init__(self, directory: Path, queue: BoundedQueue, randomness: Callable[[int], bytes]) -> None:
        self._queue = queue
        name = f"{os.getpid()}-{randomness(8).hex()}"
        self._path = directory / f"{name}.{_pattern_text(queue.pattern)}{_SUFFIX}"
        self._socket = _socket()
        short = ShortPath(directory)
        try:
            self._socket.bind(f"{short.text}/{name}{_NEW}")
        finally:
            short.close()
        os.rename(directory / (name + _NEW), self._path)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(RECEIVED_AT_ONCE):
            try:
                message = _read(self._socket.recv(DATAGRAM_BYTES_MAX))
            except BlockingIOError:
                return
            except Malformed:
                continue
            if is_match(self._queue.pattern, message.subject):
                self._queue.put(message)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._path.unlink(missing_ok=True)
        self._socket.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _datagram(message: BusMessage) -> bytes:
    return encode(_DATAGRAM, (FORM, message.subject, message.reply_to, message.data))


def _read(data: bytes) -> BusMessage:
    """Raises Malformed."""
    form, subject, reply_to, content = decode(_DATAGRAM, data)
    if form != FORM:
        raise Malformed(f"unknown form of message: {form}")
    return BusMessage(subject, content, reply_to)


def _time_of(name: str) -> int:
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _pattern_text(pattern: str) -> str:
    """A pattern that is too long for a file's name is widened; the receiver compares again."""
    data = pattern.encode()
    return base64.urlsafe_b64encode(data if len(data) <= PATTERN_BYTES_MAX else _EVERYTHING.encode()).decode()


def _pattern_of(name: str) -> str:
    try:
        return check_pattern(base64.urlsafe_b64decode(name.split(".")[1]).decode())
    except (ValueError, IndexError):
        return _EVERYTHING
