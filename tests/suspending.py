"""Stops a process as a machine that is suspended stops it, and never while it writes: a stopped writer would keep all
others out of the database.
"""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import apsw

from tests.waiting import PATIENCE_S, wait_for


def suspend(pid: int, home: Path) -> None:
    """Returns when every thread of the process has stopped, and the home's SQLite database, if it has one, can be
    written.
    """
    database = home / "log.db"
    deadline = time.monotonic() + PATIENCE_S
    threads = Path(f"/proc/{pid}/task")
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: {_state(each) for each in threads.iterdir()} == {"T"}, "a process to stop")
        if not database.exists():
            return
        with closing(apsw.Connection(str(database))) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
                return
            except apsw.BusyError:
                assert time.monotonic() < deadline, "it writes all the time"
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
