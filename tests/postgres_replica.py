"""A real streaming replica of the tests' PostgreSQL server."""

import os
import pwd
import tempfile
from pathlib import Path

from tests.memory import PLACE
from tests.ports import free_port
from tests.postgres_server import Server


class StreamingReplica(Server):
    """Copied from the running primary, and following it. End it with `remove`."""

    def __init__(self, primary: Server) -> None:
        self._programs, self._user = primary._programs, primary._user
        self.directory = Path(tempfile.mkdtemp(prefix="hocket-pg-", dir=PLACE))
        if self._user is not None:
            os.chown(self.directory, pwd.getpwnam(self._user).pw_uid, -1)
        self.data, self.port, self._process = self.directory / "data", free_port(), None
        with (primary.data / "pg_hba.conf").open("a") as file:
            file.write("local replication all trust\n")
        with primary.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        where = ("-h", str(primary.directory), "-p", str(primary.port), "-U", "postgres")
        self._run("pg_basebackup", *where, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.start()

    def pause(self) -> None:
        """Changes still come, and are not replayed until `resume`."""
        with self.connect() as connection:
            connection.execute("SELECT pg_wal_replay_pause()")

    def resume(self) -> None:
        with self.connect() as connection:
            connection.execute("SELECT pg_wal_replay_resume()")
