"""Reads from a streaming replica of a store in PostgreSQL. A process that has written reads from the primary until the
replica has replayed that, and so does the next process of its home. A replica that is away is passed over.
"""

import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from hocket.errors import StoreError
from hocket.store.connections import ReadPool, ReadView
from hocket.store.postgres import PostgresReader, PostgresStore
from hocket.store.postgres.connecting import connect, raise_explained, read_address
from hocket.store.postgres.migration import VERSION, stored_version
from hocket.store.postgres.session import PostgresSession
from hocket.store.session import RowChecks

# A replica that could not be reached is passed over for this long.
AWAY_S = 5.0


class StreamingReplica:
    def __init__(self, primary: PostgresStore, url: str, noted: Path) -> None:
        self._primary, self._noted = primary, noted
        self.address = read_address(url, takes_writes=False)
        self._readers = ReadPool(lambda: PostgresReader(self.address, primary.macs), self.address.shown)
        self._is_checked = False
        self._commits_seen, self._away_until = 0, 0.0
        self._wanted, self._reached = _noted(noted), 0

    def read(self) -> ReadView[PostgresSession] | None:
        if time.monotonic() < self._away_until:
            return None
        try:
            self._check_version()
            if not self._has_caught_up():
                return None
            return self._view(self._primary.row_checks)
        except StoreError:
            self._away_until = time.monotonic() + AWAY_S
            return None

    def _check_version(self) -> None:
        if self._is_checked:
            return
        connection = connect(self.address)
        try:
            self._is_checked = stored_version(connection, self.address) == VERSION
        except BaseException as error:
            raise_explained(self.address.shown, error)
        finally:
            connection.close()
        if not self._is_checked:
            raise StoreError(f"{self.address.shown} has another version of the tables than this program")

    def _has_caught_up(self) -> bool:
        if self._primary.commits != self._commits_seen:
            self._commits_seen, self._wanted = self._primary.commits, self._primary.position()
        if self._reached < self._wanted:
            with self._view() as session:
                self._reached = session.position()
        return self._reached >= self._wanted

    def _view(self, checks: RowChecks | None = None) -> ReadView[PostgresSession]:
        return ReadView(self._readers, partial(raise_explained, self.address.shown), checks)

    def close(self) -> None:
        with suppress(OSError, StoreError):
            if self._primary.commits:
                self._noted.write_text(str(self._primary.position()))
        self._readers.close()


def _noted(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
