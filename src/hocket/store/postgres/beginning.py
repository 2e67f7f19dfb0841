"""The message that begins a write transaction. It locks, and reads what nearly every transaction needs: the head, the
author's last op and the server's time. With them it reads what the last transactions of this process have asked, which
changes only in transactions that are alone, and so stays as it is until this one ends.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from hocket.kernel.subjects import Subject
from hocket.store.ops import Head
from hocket.store.postgres.exchange import Statement, StatementAnswer
from hocket.store.postgres.faults import IDLE_S, LOCK_WAIT_S
from hocket.store.postgres.locks import lock_key
from hocket.store.postgres.ops import HEAD, LATEST, head_of
from hocket.store.postgres.statements import SERVER_MS
from hocket.store.postgres.told import STATE, Told

# How many subjects are read in advance at most, and after how many transactions that have not asked for one it no
# longer is.
SUBJECTS_MAX = 16
UNASKED_MAX = 8

# PostgreSQL's settings for the transaction. A lock in the same statement waits no longer than they say.
_SETTINGS = (
    "set_config('search_path', %s, true),"
    f" set_config('lock_timeout', '{LOCK_WAIT_S}s', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_S}s', true)"
)
_ALONE = f"SELECT {_SETTINGS}, pg_advisory_xact_lock(%s)"
_BESIDE = f"SELECT {_SETTINGS}, pg_advisory_xact_lock(%s), pg_advisory_xact_lock_shared(%s)"
# This statement waits for no lock, so its answer is what is true while the others are held.
_FACTS = (
    f"SELECT {SERVER_MS}, (SELECT id FROM ({LATEST.format(author='%s::bytea')}) AS latest),"
    " EXISTS (SELECT 1 FROM after), EXISTS (SELECT 1 FROM routes), EXISTS (SELECT 1 FROM workers WHERE number = %s)"
)
_NOBODY = Subject("", b"")


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
    told: Told


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

    def statements(self, author: bytes | None, at_end: bool) -> list[Statement]:
        """For a transaction beside others with an `author`, and one that is alone without."""
        self.author = author or self.author
        path = f"{self._schema}, pg_temp"
        if author is None:
            locks: Statement = _ALONE, (path, self._all)
        else:
            locks = _BESIDE, (path, lock_key(self._schema, b"author", author), self._all)
        has_end = author is None or at_end
        self._sent = list(self._unasked)
        facts, read = _facts(len(self._sent))
        asked = chain.from_iterable((*each, *each) for each in (*self._sent, *[_NOBODY] * (read - len(self._sent))))
        return [
            ("BEGIN", ()),
            locks,
            (f"{HEAD} FOR UPDATE" if has_end else HEAD, ()),
            (facts, (self.author, self.worker, *asked)),
        ]

    def begun(self, answers: Sequence[StatementAnswer]) -> Begun:
        """What the server has answered to the last statements."""
        _, _, head, facts = answers
        ((server_ms, last, has_after, has_routes, has_worker, *states),) = facts.rows
        told = Told((self.author, last or bytes(16)), has_after, has_routes, (self.worker, has_worker))
        told.subjects.update(zip(self._sent, zip(states[::2], states[1::2], strict=True), strict=False))
        return Begun(head_of(head.first), server_ms, told)

    def ended(self, told: Told, author: bytes | None) -> None:
        """A transaction of this author has ended: the next one is likely to ask the same."""
        self.author = author or self.author
        if told.worker is not None:
            self.worker = told.worker[0]
        for subject in list(self._unasked):
            self._unasked[subject] += 1
            if self._unasked[subject] > UNASKED_MAX:
                del self._unasked[subject]
        for subject in told.asked:
            if subject in self._unasked or len(self._unasked) < SUBJECTS_MAX:
                self._unasked[subject] = 0
