"""Tells the git workers of a machine that a job was submitted to a repository, so that they look at once. A hint can be
lost: workers also list the refs at intervals.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hocket.bus.hints import GIT, Bus, Pipes, about


def announce(processes: Path, content_id: bytes) -> None:
    """Wakes the git workers of a home, if the home exists."""
    if processes.is_dir():
        with closing(Pipes(processes)) as bus:
            bus.publish(about(GIT, content_id))


@contextmanager
def listening(bus: Bus, heard: Callable[[], None]) -> Iterator[None]:
    """Calls `heard`, in a thread of its own, whenever a job is announced."""
    changes = bus.subscribe(about(GIT))

    def listen() -> None:
        while changes.wait(None):
            heard()

    thread = threading.Thread(target=listen, name="hocket-git-hints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        changes.close()
        thread.join()
