"""What those who follow a job are told besides its parts."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.mesh.waiting import Waiting


class StreamNews(NamedTuple):
    """What a listener is told besides parts: each new progress note, and while the job is not running, about every
    second what it waits for (None once it runs).
    """

    progress: Callable[[Any], None] = lambda note: None
    waiting: Callable[[Waiting | None], None] | None = None
