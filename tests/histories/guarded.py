"""What the clients write while they hold something: rows and files behind the guard. They do not look at the clock
first, so a client that was frozen tries to write under a stale fence.
"""

import sqlite3
from itertools import pairwise
from pathlib import Path

import hocket
from hocket.errors import StaleFence

DATABASE = "guarded.db"
ENOUGH = 30


class Guarded:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database = sqlite3.connect(directory / DATABASE, isolation_level=None, timeout=60)

    def write(self, resource: str, fence: int) -> bool:
        """Whether the guards of the row and of the file let it pass."""
        path = self._directory / resource
        try:
            with hocket.fenced(self._database, resource, fence):
                self._database.execute("INSERT INTO writes (resource, fence) VALUES (?, ?)", (resource, fence))
            with hocket.fenced_file(path, fence) as file:
                file.write((path.read_text() if path.exists() else "") + f"{fence}\n")
        except StaleFence:
            return False
        return True


def prepare(directory: Path) -> None:
    database = sqlite3.connect(directory / DATABASE, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE writes (id INTEGER PRIMARY KEY, resource TEXT, fence INTEGER)")
    database.close()


def has_enough(directory: Path, enough: int = ENOUGH) -> bool:
    """Whether the clients have written enough for a history that shows something."""
    database = sqlite3.connect(directory / DATABASE, timeout=60)
    [count] = database.execute("SELECT count(*) FROM writes").fetchone()
    database.close()
    return bool(count > enough)


def check_writes(directory: Path, resources: list[str]) -> int:
    """Checks that the fences of each resource never fell. Gives the number of writes."""
    database = sqlite3.connect(directory / DATABASE)
    count = 0
    for resource in resources:
        query = "SELECT fence FROM writes WHERE resource = ? ORDER BY id"
        rows = [fence for (fence,) in database.execute(query, (resource,))]
        path = directory / resource
        lines = [int(line) for line in path.read_text().split()] if path.exists() else []
        for written in (rows, lines):
            fallen = [(one, other) for one, other in pairwise(written) if other < one]
            assert not fallen, f"stale writes to {resource} got through: {fallen}"
        count += len(rows)
    database.close()
    return count
