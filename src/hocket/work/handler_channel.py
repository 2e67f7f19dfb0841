"""What a worker and its handler processes say to each other, and the channel for it: a socket pair with a thread that
writes. A message is a value, pickled; both ends belong to one user and run one program.
"""

import pickle
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from hocket.families.jobs.requests import Claim
from hocket.work.pacing import Ending
from hocket.work.run_outputs import RunOutput
from hocket.work.runner import Step

# How long the last messages may take to be written.
CLOSING_S = 1.0


class Setup(NamedTuple):
    """The first message to a process: the node's home, the modules (name and file) with the handlers, their kinds, and
    how many handlers it runs at once.
    """

    home: Path
    modules: Sequence[tuple[str, str]]
    kinds: Sequence[str]
    slots: int
    argv: Sequence[str]


class Ready(NamedTuple):
    """The process has loaded its handlers, or says why it cannot."""

    error: str | None


# To a process. A run is known by its number.


class Start(NamedTuple):
    run: int
    kind: str
    claim: Claim
    lease_ms: int
    claimed_at: float
    twins: Mapping[str, tuple[str, Any]]
    """What paces the run in the process, by extension."""


class Renewed(NamedTuple):
    run: int
    ends_at: float
    deadline_ms: int


class Take(NamedTuple):
    """A step that is due; None stops the run."""

    run: int
    step: Step | None


class Close(NamedTuple):
    """No more runs will come."""


# To the worker.


class Noted(NamedTuple):
    run: int
    note: bytes


class Saved(NamedTuple):
    run: int
    checkpoint: bytes


class Paced(NamedTuple):
    """What the twin of a pacer tells it."""

    run: int
    extension: str
    message: Any


class PartAdded(NamedTuple):
    """The next part of the result, as JSON."""

    run: int
    part: bytes
    is_bytes: bool


class Made(NamedTuple):
    """An output of a run, or the record of a model call: as `begun` while there is no answer, then with it."""

    run: int
    output: RunOutput
    call_id: bytes | None = None
    begun: bool = False


class StuckAt(NamedTuple):
    """Where a handler is that was told to stop and goes on."""

    run: int
    stack: str


class Ended(NamedTuple):
    run: int
    ending: Ending
    stopped: bool


class Channel:
    """One end. Any thread may call `send`, even one that an exception can interrupt anywhere; it never blocks. One
    thread receives.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="hocket-handler-channel", daemon=True)
        self._writer.start()

    def send(self, message: NamedTuple) -> None:
        self._outgoing.put(pickle.dumps(message))

    def receive(self, patience_s: float | None = None) -> Any:
        """The next message; None if there is none in time. Raises EOFError or OSError when the other end is gone."""
        return self._connection.recv() if self._connection.poll(patience_s) else None

    def close(self) -> None:
        """Sends what is waiting, and closes this end."""
        self._outgoing.put(None)
        self._writer.join(CLOSING_S)

    def _write(self) -> None:
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._connection.send_bytes(message)
        with suppress(OSError):
            self._connection.close()
