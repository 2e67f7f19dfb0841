"""A real PostgreSQL server, where one is installed, and a connection to it that behaves as one of psycopg does, by way
of the program psql. It goes when the store for PostgreSQL brings psycopg.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

END = "-- end of answer --"
PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def is_installed() -> bool:
    return PROGRAMS is not None and shutil.which("psql") is not None and (os.getuid() != 0 or _other_user() is not None)


def _other_user() -> pwd.struct_passwd | None:
    """PostgreSQL does not run as root."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None


class Server:
    def __init__(self) -> None:
        assert PROGRAMS is not None
        self._data = Path(tempfile.mkdtemp(prefix="hocket-postgres-"))  # the path of a socket must be short
        user = _other_user() if os.getuid() == 0 else None
        if user is not None:
            os.chown(self._data, user.pw_uid, user.pw_gid)
        self._become: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
        self._control = str(PROGRAMS / "pg_ctl")
        self._do(str(PROGRAMS / "initdb"), "-D", str(self._data), "-U", "hocket", "-A", "trust")
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._data}' -c fsync=off"
        self._do(self._control, "-D", str(self._data), "-o", options, "-l", str(self._data / "log"), "-w", "start")

    def _do(self, *words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60, **self._become)

    def stop(self) -> None:
        self._do(self._control, "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._data)

    def connect(self, autocommit: bool = False) -> "Connection":
        return Connection(self._data, autocommit)


class Connection:
    def __init__(self, socket: Path, autocommit: bool) -> None:
        words = ["psql", "-XqAt", "-h", str(socket), "-U", "hocket", "-v", "VERBOSITY=terse", "postgres"]
        self._psql = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.autocommit = autocommit
        self.info = SimpleNamespace(transaction_status=0)

    def execute(self, statement: str, given: Sequence[object] = ()) -> "Cursor":
        if not self.autocommit and self.info.transaction_status == 0:
            self._send("BEGIN")
        rows = self._send(statement % tuple(_quoted(value) for value in given) if given else statement)
        return Cursor(rows)

    def commit(self) -> None:
        self._send("COMMIT")

    def rollback(self) -> None:
        self._send("ROLLBACK")

    def begin_sending(self, statement: str) -> None:
        assert self._psql.stdin is not None
        self._psql.stdin.write(f"{statement};\n\\echo {END}\n")
        self._psql.stdin.flush()

    def answer(self) -> list[str]:
        assert self._psql.stdout is not None
        rows = [line.rstrip("\n") for line in iter(self._psql.stdout.readline, f"{END}\n")]
        if errors := [row for row in rows if row.startswith(("ERROR:", "FATAL:"))]:
            raise RuntimeError(errors[0])
        return rows

    def _send(self, statement: str) -> list[str]:
        self.begin_sending(statement)
        rows = self.answer()
        if statement in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.info.transaction_status = 2 if statement == "BEGIN" else 0
        return rows

    def close(self) -> None:
        self._psql.kill()
        self._psql.communicate()


class Cursor:
    def __init__(self, rows: list[str]) -> None:
        self._rows = rows

    def fetchall(self) -> list[tuple[object]]:
        return [(int(row) if row.isdigit() else {"t": True, "f": False}.get(row, row),) for row in self._rows]


def _quoted(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
