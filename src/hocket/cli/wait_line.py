"""The line on stderr that says what a command waits for. A terminal shows one line, which changes in place; elsewhere
each change is a line.
"""

import shutil
import sys
from types import TracebackType

from hocket.cli.log_lines import start_logging
from hocket.cli.output import on_terminal
from hocket.cli.settings import settings
from hocket.events.jobs import JobWaiting
from hocket.kernel.safe_text import clean
from hocket.mesh.waiting import Waiting
from hocket.work.event_logging import log_event

_ERASE = "\r\x1b[2K"


class WaitLine:
    """Use it in a `with` block: at its end a terminal's line is erased."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._is_drawn = on_terminal(sys.stderr) and not settings.as_json
        self._said: tuple[str, str] | None = None
        if not self._is_drawn:
            start_logging(0, 0, None)

    def __enter__(self) -> "WaitLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def show(self, waiting: Waiting | None) -> None:
        if waiting is None:
            self.clear()
        elif self._is_drawn:
            width = shutil.get_terminal_size().columns - 1
            print(f"{_ERASE}{clean(f'waiting: {waiting.sentence}')[:width]}", end="", file=sys.stderr, flush=True)
            self._said = waiting.key
        elif waiting.key != self._said:
            log_event(JobWaiting(self._job_id, waiting.reason.value, waiting.sentence))
            self._said = waiting.key

    def clear(self) -> None:
        if self._is_drawn and self._said is not None:
            print(_ERASE, end="", file=sys.stderr, flush=True)
            self._said = None
