"""Tells the workers of a machine that a job has come into a repository, so that they look before it is time to. Who
waits has a bell in a directory of the home. A hint can be lost: workers list the refs by themselves, too.
"""

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hocket.bus.bells import Bell, Bells


def announce(directory: Path) -> None:
    """Wakes whoever waits there, if anybody ever did."""
    if directory.is_dir():
        bells = Bells(directory)
        bells.ring(stirring=True)
        bells.close()


@contextmanager
def listening(directory: Path, rung: Callable[[], None]) -> Iterator[None]:
    """Calls `rung`, in a thread of its own, whenever something is announced there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    bell = Bell(directory, f"git-{os.getpid()}-{os.urandom(4).hex()}", "any")
    reading, writing = os.pipe()

    def listen() -> None:
        while True:
            ready, _, _ = select.select([bell.fileno(), reading], [], [])
            if reading in ready:
                return
            bell.clear()
            rung()

    thread = threading.Thread(target=listen, name="hocket-git-bell", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(writing, b"x")
        thread.join()
        os.close(reading)
        os.close(writing)
        bell.close()
