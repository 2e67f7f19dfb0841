"""Requests that a home keeps while its database server is away: jobs and messages, in the order in which they were
made, each under the id that it will have. A request is on the disk when `keep_jobs` or `keep_message` returns. Later
any process of the home sends all of them, in order. One that is sent twice counts once, by its id; one that the log
refuses is put aside with the reason.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from hocket.errors import Conflict, HocketError, NotAuthorised, OutboxFull, StoreError, StoreMoved, Usage
from hocket.families.inbox.facts import SendMessage
from hocket.families.inbox.requests import MessageDraft
from hocket.families.jobs.requests import Draft, after
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import NO_ID, foreseen_id
from hocket.kernel.policy import decode_policy, encode_policy
from hocket.kernel.vocabulary import ScheduleJob

# The most bytes that may wait for the database server. Then nothing more is kept.
SPOOL_BYTES_MAX = 256 * 1024 * 1024
# How many requests are sent in one transaction.
SENT_AT_ONCE = 100
# The jobs that a job comes after, by their ids or by their places in the request.
Cited = Sequence[int | str]
_REFUSALS = (Usage, Conflict, NotAuthorised)


class KeptJob(msgspec.Struct, frozen=True):
    id: bytes
    kind: str
    payload: bytes
    policy: bytes
    said: frozenset[str]

    @property
    def draft(self) -> Draft:
        return Draft(self.kind, self.payload, decode_policy(self.policy), self.id, self.said)


class KeptMessage(msgspec.Struct, frozen=True):
    """`to` is the address as it was written: the name of a node is looked up when the message is sent."""

    id: bytes
    to: str
    body: bytes
    sender: str
    type: str
    thread: bytes | None
    reply_to: bytes | None
    priority: int
    ttl_ms: int
    attachments: tuple[tuple[str, bytes], ...]

    @property
    def draft(self) -> MessageDraft:
        """The message without its attachments."""
        route = self.thread, self.reply_to, self.priority, self.ttl_ms
        return MessageDraft(self.to, self.body, self.sender, self.type, *route)


class KeptRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs that are submitted together, or a message. `refused` says why it cannot be sent."""

    at_ms: int
    jobs: tuple[KeptJob, ...] = ()
    message: KeptMessage | None = None
    refused: str = ""

    @property
    def name(self) -> str:
        if self.message is not None:
            return f"the message {ulid_text(self.message.id)} to {self.message.to}"
        rest = f" and {len(self.jobs) - 1} more" if len(self.jobs) > 1 else ""
        return f"the {self.jobs[0].kind} job {ulid_text(self.jobs[0].id)}{rest}"


class SpoolState(NamedTuple):
    """`since_ms` is the time of the oldest request that waits."""

    waiting: int
    since_ms: int | None
    refused: int


class Spool:
    """The kept requests of node `node`. Safe to use from several threads and processes."""

    def __init__(
        self, directory: Path, node: int, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._directory, self.node, self._clock_ms = directory, node, clock_ms
        self._kept, self._sending = directory / "kept.jsonl", directory / "sending.jsonl"
        self._refused = directory / "refused.jsonl"

    @property
    def is_waiting(self) -> bool:
        return self._kept.exists() or self._sending.exists()

    def keep_jobs(self, drafts: Sequence[Draft], cited: Sequence[Cited] = ()) -> list[bytes]:
        """Keeps jobs that are submitted together, and returns their ids. `cited` are the jobs that each comes after: by
        their ids, or by their places among these.
        """
        with self._locked() as lock:
            first_ms = self._times(lock, len(drafts))
            kept: list[KeptJob] = []
            for at, draft in enumerate(drafts):
                before = (
                    [kept[each].id if isinstance(each, int) else parse_ulid(each) for each in cited[at]]
                    if cited
                    else ()
                )
                kept.append(self._job(first_ms + at, after(draft, before) if before else draft))
            self._append(KeptRequest(first_ms, jobs=tuple(kept)))
        return [each.id for each in kept]

    def keep_message(self, draft: MessageDraft, attachments: Sequence[tuple[str, bytes]]) -> bytes:
        """Keeps a message, and returns its id. Its attachments are kept with their content."""
        with self._locked() as lock:
            ms = self._times(lock, 1)
            named = SendMessage(_at(ms), "", draft.sender, draft.type, None, None, 0, 0, 0, draft.body)
            kept = KeptMessage(
                foreseen_id(self.node, named),
                draft.to,
                draft.body,
                draft.sender,
                draft.type,
                draft.thread,
                draft.reply_to,
                draft.priority,
                draft.ttl_ms,
                tuple(attachments),
            )
            self._append(KeptRequest(ms, message=kept))
        return kept.id

    def send(self, write: Callable[[Sequence[KeptRequest]], None]) -> list[KeptRequest]:
        """Calls `write` with the requests, some at a time and oldest first. Returns those that it refused. If it fails,
        because the database is still away, everything stays. Does nothing if another process sends them now.
        """
        refused: list[KeptRequest] = []
        with self._sole_sender() as is_sole:
            while is_sole and self._take():
                requests = _read(self._sending)
                while some := list(islice(requests, SENT_AT_ONCE)):
                    refused += self._send(write, some)
                self._sending.unlink()
        return refused

    def state(self) -> SpoolState:
        waiting = [each for path in (self._sending, self._kept) for each in _read(path)]
        since_ms = min((each.at_ms for each in waiting), default=None)
        return SpoolState(len(waiting), since_ms, sum(1 for _ in _read(self._refused)))

    def _job(self, ms: int, draft: Draft) -> KeptJob:
        job_id = foreseen_id(self.node, ScheduleJob(_at(ms), draft.kind, draft.payload, b""))
        return KeptJob(job_id, draft.kind, draft.payload, encode_policy(draft.policy), draft.said)

    def _send(
        self, write: Callable[[Sequence[KeptRequest]], None], requests: Sequence[KeptRequest]
    ) -> list[KeptRequest]:
        """Writes them in one transaction. If that is refused, writes each alone, so that one spoils no other."""
        try:
            write(requests)
        except _REFUSALS as error:
            if isinstance(error, StoreMoved):
                raise
            if len(requests) > 1:
                return [refused for each in requests for refused in self._send(write, [each])]
            refused = msgspec.structs.replace(requests[0], refused=str(error))
            with self._locked():
                _append(self._refused, refused)
            return [refused]
        return []

    def _take(self) -> bool:
        """Whether there are requests to send. Those that are kept from now on come after them."""
        with self._locked():
            if not self._sending.exists() and self._kept.exists():
                self._kept.rename(self._sending)
            return self._sending.exists()

    def _append(self, request: KeptRequest) -> None:
        size = sum(path.stat().st_size for path in (self._kept, self._sending) if path.exists())
        if size >= SPOOL_BYTES_MAX:
            raise OutboxFull(
                f"the requests that wait in {self._directory} for the database have {size:,} bytes, and at most"
                f" {SPOOL_BYTES_MAX:,} may; nothing was written. Bring back the database"
            )
        _append(self._kept, request)

    def _times(self, lock: int, count: int) -> int:
        """The first of so many milliseconds that no other request of this home has: ids must differ."""
        last = int(os.pread(lock, 32, 0) or 0)
        first = max(self._clock_ms(), last + 1)
        os.pwrite(lock, str(first + count - 1).encode(), 0)
        return first

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with self._opened("lock") as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd

    @contextmanager
    def _sole_sender(self) -> Iterator[bool]:
        with self._opened("sender") as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(self._directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot keep requests in {self._directory}: {error.strerror}") from error
        try:
            yield fd
        except OSError as error:
            raise StoreError(f"cannot keep requests in {self._directory}: {error.strerror}") from error
        finally:
            os.close(fd)


def _at(ms: int) -> bytes:
    return ms.to_bytes(6, "big") + NO_ID[6:]


def _append(path: Path, request: KeptRequest) -> None:
    """Adds a line that survives a power cut. The rest of a line that a killed process left unfinished goes."""
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(fd, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end and os.pread(fd, 1, end - 1) != b"\n":
            end -= 1
        file.truncate(end)
        file.seek(end)
        file.write(msgspec.json.encode(request) + b"\n")
        file.flush()
        os.fsync(fd)
    if is_new:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _read(path: Path) -> Iterator[KeptRequest]:
    """The requests of a file, as far as they were written whole."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode_json(line, KeptRequest)


def sentence(error: HocketError) -> str:
    """What a program says about a request that it kept because of this error."""
    what = str(error).partition(";")[0]
    return f"{what}; the request is kept in the home, and is sent under its id when the database answers"
