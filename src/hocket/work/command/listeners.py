"""Listeners for the output of running commands, and how they end. A slow listener slows the command down, as a pipe
would.
"""

import threading
from typing import Protocol

from hocket.kernel.execution import Execution


class OutputListener(Protocol):
    """Called in any thread."""

    def heard(self, stream: str, chunk: bytes) -> None:
        """Output on "stdout" or "stderr"; the first chunk is empty and means that all of it will be heard."""

    def ended(self, execution: Execution) -> None:
        """How a run ended. The log tells whether the job has ended."""


class OutputListeners:
    """Safe to use from several threads. Jobs are keyed by their ids as text."""

    def __init__(self) -> None:
        self._listeners: dict[str, OutputListener] = {}
        self._lock = threading.Lock()

    def listen(self, job_id: str, listener: OutputListener) -> None:
        with self._lock:
            self._listeners[job_id] = listener

    def leave(self, job_id: str) -> None:
        with self._lock:
            self._listeners.pop(job_id, None)

    def tell(self, job_id: str, stream: str, chunk: bytes) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.heard(stream, chunk)

    def tell_end(self, job_id: str, execution: Execution) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.ended(execution)

    def _of(self, job_id: str) -> OutputListener | None:
        with self._lock:
            return self._listeners.get(job_id)
