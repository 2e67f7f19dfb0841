"""A stream of a libSQL server with the methods of an apsw connection that the statements of the SQLite store use. Only
a statement that reads waits for the server: changes go out with the next of those, or with the commit, and only then
raise an error.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.store.libsql.answers import Row, StepAnswer
from hocket.store.libsql.connecting import TOO_LARGE, TRANSACTION_TIMEOUT, Broken, ServerAddress, statement_error
from hocket.store.libsql.hrana import HranaStream, Statement

# Changes that a transaction gathers before it sends them: so many, or of so many bytes.
WAITING_MAX = 1_000
WAITING_BYTES_MAX = 4 * 1024 * 1024
# So many questions are asked at once.
ASKED_MAX = 500

_READS = re.compile(r"\s*(SELECT|WITH|PRAGMA)\b", re.IGNORECASE)
_RETURNS = " RETURNING "
_BEGIN: Statement = ("BEGIN", ())
_BEGIN_WRITE: Statement = ("BEGIN IMMEDIATE", ())
_COMMIT: Statement = ("COMMIT", ())


class FetchedRows:
    """What a cursor of apsw gives."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def fetchone(self) -> Row | None:
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        return list(self._rows)


class LibsqlConnection:
    def __init__(self, address: ServerAddress) -> None:
        self.stream = HranaStream(address)
        self._shown = address.shown
        self.in_transaction = False
        self._is_begun = False
        self._waiting: list[Statement] = []
        self._waiting_bytes = 0
        self._changes = 0

    def begin_write(self, *questions: Statement) -> list[list[Row]]:
        """Begins a write transaction, which excludes every other one, and asks."""
        answers = self.stream.begin((_BEGIN_WRITE, *questions))
        self.in_transaction = self._is_begun = True
        return [answer.rows for answer in self._checked(answers)[1:]]

    def begin_read(self) -> None:
        """The view begins with its first statement."""
        self.in_transaction = True

    def commit(self) -> None:
        self._send(_COMMIT)
        self._ended()

    def roll_back(self) -> None:
        """Does not wait for the server, and does not fail: at the worst, the server ends the transaction by itself."""
        if self._is_begun:
            self.stream.end()
        self._ended()

    def close(self) -> None:
        """The server ends the stream by itself, after ten seconds."""
        self.roll_back()
        self.stream.drop()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> FetchedRows:
        if _READS.match(sql) or _RETURNS in sql:
            return FetchedRows(self._send((sql, values))[-1].rows)
        self._wait(sql, values)
        return FetchedRows()

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> FetchedRows:
        if not _READS.match(sql) and _RETURNS not in sql:
            for values in rows:
                self._wait(sql, values)
            return FetchedRows()
        asked = [(sql, values) for values in rows]
        found = [self._send(*asked[i : i + ASKED_MAX]) for i in range(0, len(asked), ASKED_MAX)]
        return FetchedRows(itertools.chain.from_iterable(answer.rows for answers in found for answer in answers))

    def run_script(self, script: str) -> None:
        """Many statements, within a write transaction."""
        self.stream.run_script(script)

    def total_changes(self) -> int:
        """How many rows this connection has changed."""
        self._send()
        return self._changes

    def _wait(self, sql: str, values: Sequence[Any]) -> None:
        self._waiting.append((sql, values))
        self._waiting_bytes += sum(len(value) for value in values if isinstance(value, bytes | str))
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES_MAX:
            self._send()

    def _send(self, *last: Statement) -> list[StepAnswer]:
        """Sends what waits, and these after it. The answers are to these."""
        changes, self._waiting, self._waiting_bytes = self._waiting, [], 0
        questions = last if last and _READS.match(last[0][0]) else ()
        if not questions:
            changes += last
        if not self._is_begun and (changes or questions):
            changes.insert(0, _BEGIN)
            answers = self.stream.begin(changes, questions)
            self._is_begun = True
        else:
            answers = self.stream.run(changes, questions) if changes or questions else []
        answers = self._checked(self._completed((*changes, *questions), answers))
        self._changes += sum(answer.changed for answer in answers)
        return answers[len(answers) - len(last) :]

    def _completed(self, statements: Sequence[Statement], answers: list[StepAnswer]) -> list[StepAnswer]:
        """Asks again, in another way, from the first answer on that was too large for a batch."""
        for number, answer in enumerate(answers):
            if answer.error is not None and answer.error[0] == TOO_LARGE:
                return answers[:number] + [StepAnswer(self.stream.read(each)) for each in statements[number:]]
        return answers

    def _checked(self, answers: list[StepAnswer]) -> list[StepAnswer]:
        for answer in answers:
            if answer.error is not None:
                raise statement_error(self._shown, *answer.error)
            if answer.is_skipped:
                raise Broken(self._shown, TRANSACTION_TIMEOUT, "the transaction has ended")
        return answers

    def _ended(self) -> None:
        self.in_transaction = self._is_begun = False
        self._waiting.clear()
        self._waiting_bytes = 0
