"""News for those who follow a job, besides its parts."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.mesh.waiting import Waiting


class StreamNews(NamedTuple):
    """News for a listener besides parts: each new progress note, and while the job is not running, about every
    second what it waits for (None once it runs).
    """

    progress: Callable[[Any], None] = lambda note: None
    waiting: Callable[[Waiting | None], None] | None = None
