"""How a write transaction begins: with a message of its own, or without one if nobody else writes.

The message locks, and reads what nearly every transaction needs: the head, the author's last op and the server's time.
With them it reads what the last transactions of this process have asked, which changes only in transactions that are
alone, and so stays as it is until this one ends.

Without the message, a transaction resumes where the last one of this process has ended. Its locks go out with its first
statement that is waited for, or with the commit, together with one that fails if the log's head has changed since. Then
everything is undone, and the request runs again.
"""

import time
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import NamedTuple

from hocket.kernel.ids import content_hash
from hocket.kernel.vocabulary import Subject
from hocket.store.connections import LOCK_WAIT_S
from hocket.store.op_rows import LATEST, Head
from hocket.store.postgres.connecting import IDLE_S
from hocket.store.postgres.exchange import Statement, StatementAnswer
from hocket.store.postgres.statements import HEAD, SERVER_MS, Prefetched, head_of
from hocket.store.subjects import STATE

# How many subjects are read in advance at most, and after how many transactions that have not asked for one it no
# longer is.
SUBJECTS_MAX = 16
UNASKED_MAX = 8

# A transaction resumes if nobody else has written between the last few of this process, and one of them has read the
# server's time a moment ago.
QUIET_MIN = 4
RESUMED_S = 1.0

# PostgreSQL's settings for the transaction. A lock in the same statement waits no longer than they say.
_SETTINGS = (
    "set_config('search_path', ?, true),"
    f" set_config('lock_timeout', '{LOCK_WAIT_S}s', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true)"
)
_ALONE = f"SELECT {_SETTINGS}, pg_advisory_xact_lock(?)"
_BESIDE = f"SELECT {_SETTINGS}, pg_advisory_xact_lock(?), pg_advisory_xact_lock_shared(?)"
# This statement waits for no lock, so its answer is what is true while the others are held.
_FACTS = (
    f"SELECT {SERVER_MS}, (SELECT id FROM ({LATEST}) AS latest),"
    " EXISTS (SELECT 1 FROM after), EXISTS (SELECT 1 FROM routes), EXISTS (SELECT 1 FROM workers WHERE number = ?)"
)
_NOBODY = Subject("", b"")
# Divides by zero if the head is another one, or the worker has been given up. A condition that depends on a value, such
# as whether there is a worker, would be planned anew each time.
_UNCHANGED = (
    "SELECT 1 / count(*) FROM (SELECT 1 FROM head WHERE wall = ? AND logical = ? AND seq = ? AND chain = ?"
    " AND settled = ? AND unsettled = ? AND rebuilding IS NULL AND law = ?"
)
_HAS_WORKER = " AND EXISTS (SELECT 1 FROM workers WHERE number = ?)"


# A process locks its author in each transaction, and the same subjects often.
@lru_cache(maxsize=1_024)
def lock_key(schema: str, *names: bytes) -> int:
    """The number of an advisory lock. All programs that use the database share these numbers."""
    name = b"\0".join((b"hocket", schema.encode(), *names))
    return int.from_bytes(content_hash(name)[:8], "big", signed=True)


@cache
def _facts(size: int) -> tuple[str, int]:
    """The statement that reads at least so many subjects, and how many it reads: a power of two, so that there are few
    statements, which stay prepared. A join with an array would be planned anew each time.
    """
    read = 0 if size == 0 else 1 << (size - 1).bit_length()
    return ", ".join((_FACTS, *[STATE] * read)), read


class Begun(NamedTuple):
    head: Head
    server_ms: int
    known: Prefetched


class Resumed(NamedTuple):
    """What a transaction relies on that begins without a message. `unchanged` fails if it is no longer so, and
    `unchanged_end` also locks the end of the log.
    """

    head: Head
    known: Prefetched
    locks: list[Statement]
    unchanged: Statement
    unchanged_end: Statement


class Beginning:
    """Begins the transactions of one store."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._all = lock_key(schema, b"all")
        # The author and the worker of the last transaction, which are most likely those of the next one.
        self.author: bytes | None = None
        self.worker = 0
        # How many transactions have not asked for a subject.
        self._unasked: dict[Subject, int] = {}
        self._sent: list[Subject] = []
        # The head that the last transaction has left and what it knew, and how many transactions in a row have
        # found the head that the one before them had left.
        self._left: tuple[Head, Prefetched] | None = None
        self._quiet = 0
        self._read_at = 0.0

    def statements(self, author: bytes | None, at_end: bool) -> list[Statement]:
        """For a transaction beside others with an `author`, and one that is alone without."""
        self.author = author or self.author
        has_end = author is None or at_end
        self._sent = list(self._unasked)
        facts, read = _facts(len(self._sent))
        asked = chain.from_iterable((*each, *each) for each in (*self._sent, *[_NOBODY] * (read - len(self._sent))))
        return [
            *self._locks(author),
            (f"{HEAD} FOR UPDATE" if has_end else HEAD, ()),
            (facts, (self.author, self.worker, *asked)),
        ]

    def _locks(self, author: bytes | None) -> list[Statement]:
        path = f"{self._schema}, pg_temp"
        if author is None:
            return [("BEGIN", ()), (_ALONE, (path, self._all))]
        return [("BEGIN", ()), (_BESIDE, (path, lock_key(self._schema, b"author", author), self._all))]

    def resumed(self, author: bytes | None) -> Resumed | None:
        """For a transaction beside others that begins without a message."""
        if author is None or author != self.author or self._left is None or self._quiet < QUIET_MIN:
            return None
        if time.monotonic() - self._read_at > RESUMED_S:
            return None
        head, known = self._left
        known.resume((author, head.last))
        sql, values = _UNCHANGED, [*head[:6], head.permissions_state]
        if known.worker is not None:
            sql += _HAS_WORKER
            values.append(known.worker[0])
        unchanged, unchanged_end = ((f"{sql}{lock}) AS same", values) for lock in ("", " FOR UPDATE"))
        return Resumed(head, known, self._locks(author), unchanged, unchanged_end)

    def begun(self, answers: Sequence[StatementAnswer]) -> Begun:
        """What the server has answered to the last statements."""
        _, _, head_answer, facts = answers
        head = head_of(head_answer.first)
        is_quiet = self._left is not None and self._left[0][:8] == head[:8]
        self._quiet = self._quiet + 1 if is_quiet else 0
        self._read_at = time.monotonic()
        ((server_ms, last, has_after, has_routes, has_worker, *states),) = facts.rows
        known = Prefetched((self.author, last or bytes(16)), has_after, has_routes, (self.worker, has_worker))
        known.subjects.update(zip(self._sent, zip(states[::2], states[1::2], strict=True), strict=False))
        return Begun(head, server_ms, known)

    def left(self, head: Head | None, known: Prefetched, author: bytes | None) -> None:
        """A transaction of this author has left this head; None if it was undone."""
        self._left = None if head is None or author != self.author else (head, known)

    def ended(self, known: Prefetched, author: bytes | None) -> None:
        """A transaction of this author has ended: the next one is likely to ask the same."""
        self.author = author or self.author
        if known.worker is not None:
            self.worker = known.worker[0]
        for subject in list(self._unasked):
            self._unasked[subject] += 1
            if self._unasked[subject] > UNASKED_MAX:
                del self._unasked[subject]
        for subject in known.asked:
            if subject in self._unasked or len(self._unasked) < SUBJECTS_MAX:
                self._unasked[subject] = 0
