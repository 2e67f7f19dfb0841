"""Two real PostgreSQL servers: a primary, and a standby that streams from it and takes its place. Each keeps its port,
so one address names both, whichever of them takes the writes.
"""

import os
import pwd
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from tests.postgres_server import FAST, STARTED_WITHIN_S, Server

# Streaming from any directory and port of this machine.
_REPLICATION = "\nlocal replication all trust\nhost replication all 127.0.0.1/32 trust\n"
_STANDBY = "hocket_standby"
_SETTINGS = {**FAST, "wal_sender_timeout": "2s", "wal_receiver_timeout": "2s", "wal_receiver_status_interval": "1s"}


class PairedServer(Server):
    """One of the two. It can die with all its processes at one moment, freeze, and be made anew from the other."""

    def kill(self) -> None:
        """A power cut, for the server."""
        assert self._process is not None
        self._each(signal.SIGSTOP)
        self._watcher.kill()
        self._watcher.communicate()
        self._each(signal.SIGKILL)
        self._process.wait(STARTED_WITHIN_S)
        self._process = None

    def freeze(self) -> None:
        """The machine is out of reach: connections stay, and nobody answers."""
        self._each(signal.SIGSTOP)

    def thaw(self) -> None:
        self._each(signal.SIGCONT)

    def _each(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        assert self._process is not None
        first = self._process.pid
        if number == signal.SIGSTOP:
            os.kill(first, number)  # it starts no others from now on
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (*map(int, children), first):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, *, immediate: bool = False) -> None:
        if self._process is not None:
            self._each(signal.SIGCONT)
        super().stop(immediate=immediate)

    def copy_of(self, primary: "PairedServer") -> None:
        """Starts as a standby of another server, whose data it copies."""
        self.stop(immediate=True)
        # The files of a server that was killed are of no use: its last changes may be on no other.
        _empty(self.data)
        if self._user is not None:
            os.chown(self.data, pwd.getpwnam(self._user).pw_uid, -1)
        where = f"host={primary.directory} port={primary.port} user=postgres application_name={_STANDBY}"
        self._run("pg_basebackup", "-d", where, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.start()

    def set(self, name: str, value: str) -> None:
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")

    def value(self, query: str) -> object:
        with self.connect() as connection:
            row = connection.execute(query).fetchone()
        return None if row is None else row[0]


class ServerPair:
    """End it with `remove`. Unless it is `synchronous`, a commit does not wait for the standby."""

    def __init__(self, *, synchronous: bool = True) -> None:
        self.synchronous = synchronous
        self.primary, self.standby = PairedServer(settings=_SETTINGS), PairedServer(settings=_SETTINGS)
        with (self.primary.data / "pg_hba.conf").open("a") as file:
            file.write(_REPLICATION)
        with self.primary.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        self.ports = self.primary.port, self.standby.port
        self.address = self.new_database()
        self.attach()

    def remove(self) -> None:
        for each in (self.primary, self.standby):
            each.remove()

    def new_database(self) -> str:
        """The address of a new database, on whichever of the two takes the writes."""
        name = self.primary.new_database(is_kept=True).partition("@/")[2].partition("?")[0]
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"

    def attach(self) -> None:
        """Makes the standby anew. When this returns, it has all that was committed, and commits wait for it if they
        are to.
        """
        self.standby.copy_of(self.primary)
        if self.synchronous:
            self.primary.set("synchronous_standby_names", _STANDBY)
        state = "sync" if self.synchronous else "async"
        _until(lambda: self.primary.value("SELECT sync_state FROM pg_stat_replication") == state, self.primary)
        self.wait_replayed()

    def wait_replayed(self) -> None:
        position = self.primary.value("SELECT pg_current_wal_lsn()")
        behind = f"SELECT coalesce(pg_last_wal_replay_lsn(), '0/0') >= '{position}'"
        _until(lambda: self.standby.value(behind) is True, self.standby)

    def detach(self) -> None:
        """The standby hears no more of the primary, so what is committed from now on would be lost with that."""
        self.standby.set("primary_conninfo", "")
        _until(lambda: self.primary.value("SELECT count(*) FROM pg_stat_replication") == 0, self.primary)

    def promote(self) -> None:
        """The standby takes the place of the primary, which is dead or soon will be."""
        self.primary, self.standby = self.standby, self.primary
        with self.primary.connect() as connection:
            connection.execute("SELECT pg_promote(wait => true)")
        # Nobody follows it yet, so a commit would wait for ever.
        self.primary.set("synchronous_standby_names", "")

    def fail_over(self, way: str = "killed") -> None:
        """`killed` at one moment, `stopped` in good order, `frozen` until its successor has its place, or `back` as a
        server that takes no writes before there is one that does.
        """
        old = self.primary
        match way:
            case "killed":
                old.kill()
            case "stopped":
                old.stop()
            case "frozen":
                old.freeze()
            case "back":
                old.stop()
                (old.data / "standby.signal").touch()
                old.start()
        self.promote()
        if way == "frozen":
            old.kill()


def _until(is_so: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while True:
        with suppress(psycopg.OperationalError):
            if is_so():
                return
        assert time.monotonic() < deadline, (server.directory / "log").read_text()[-5_000:]
        time.sleep(0.02)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
