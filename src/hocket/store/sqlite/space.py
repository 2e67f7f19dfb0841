"""Disk space of a database file that was used and is free again. A new file gives it back in small steps while others
work: SQLite moves the last pages of the file into free ones and cuts the end off. An older file must be made anew
once for that.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from hocket.errors import StoreLocked
from hocket.store.connections import Compacted

# Free pages stay in the file until they are more than this, and more than a twentieth of it: new rows use them.
FREE_PAGES_MIN = 1_024
FREE_PART = 20
# A step gives back so many pages, in one write transaction; steps follow each other for so long at most.
STEP_PAGES = 64
STEPS_S = 0.05
# How often a compaction looks how far it is.
LOOK_S = 0.1
INCREMENTAL = 2


class GivenBack(NamedTuple):
    has_given: bool
    has_more: bool


def give_back(connection: apsw.Connection, alone: Callable[[], AbstractContextManager[object]]) -> GivenBack:
    """Gives back free pages for a moment. `alone` begins a write transaction of the connection."""
    until, has_given = time.monotonic() + STEPS_S, False
    while True:
        with alone():
            if not _is_much(connection):
                return GivenBack(has_given, False)
            has_given = True
            # It takes one page with each row that is asked for.
            connection.execute(f"PRAGMA incremental_vacuum({STEP_PAGES})").fetchall()
        if time.monotonic() >= until:
            return GivenBack(True, True)


def _is_much(connection: apsw.Connection) -> bool:
    free = int(connection.pragma("freelist_count"))
    is_worth_it = free > FREE_PAGES_MIN and free > int(connection.pragma("page_count")) // FREE_PART
    return is_worth_it and int(connection.pragma("auto_vacuum")) == INCREMENTAL


def compact(path: Path, progress: Callable[[int, int], None]) -> Compacted:
    """Makes the file anew without its free pages, in one transaction: it can be interrupted or killed anywhere, and
    then nothing has changed. From then on it gives space back in steps. It needs the room of a second and a third copy
    meanwhile. Raises StoreLocked while another process writes, and KeyboardInterrupt.
    """
    before, log = path.stat().st_size, Path(f"{path}-wal")
    failures: list[BaseException] = []
    # SQLite's copy goes into the home's file system, and not into memory or a small /tmp.
    os.environ.setdefault("SQLITE_TMPDIR", str(path.parent))
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(1_000)
        for pragma in ("synchronous=FULL", "temp_store=FILE"):
            connection.execute(f"PRAGMA {pragma}")
        pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
        total = pages * int(connection.pragma("page_size"))

        def run() -> None:
            try:
                connection.execute(f"PRAGMA auto_vacuum={INCREMENTAL}; VACUUM")
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(LOOK_S)
                with suppress(FileNotFoundError):
                    progress(min(log.stat().st_size, total), total)
        except BaseException:
            connection.interrupt()
            thread.join()
            raise
        if failures:
            if isinstance(failures[0], apsw.BusyError):
                raise StoreLocked(f"another process uses {path}; stop the programs of this home, and try again")
            raise failures[0]
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    progress(total, total)
    return Compacted(before, path.stat().st_size)
