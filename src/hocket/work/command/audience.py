"""Who hears what commands print while they run. A listener that is slow holds the command up, as a pipe would."""

import threading
from collections.abc import Callable

# Is told the stream, "stdout" or "stderr", and what came on it; at first nothing, which says that it will hear all.
Heard = Callable[[str, bytes], None]


class Audience:
    """Safe to use from several threads. Jobs go by their ids as text."""

    def __init__(self) -> None:
        self._listeners: dict[str, Heard] = {}
        self._lock = threading.Lock()

    def listen(self, job_id: str, heard: Heard) -> None:
        with self._lock:
            self._listeners[job_id] = heard

    def leave(self, job_id: str) -> None:
        with self._lock:
            self._listeners.pop(job_id, None)

    def tell(self, job_id: str, stream: str, chunk: bytes) -> None:
        with self._lock:
            heard = self._listeners.get(job_id)
        if heard is not None:
            heard(stream, chunk)
