"""Prints the parts of a job's result as they come: text and bytes as they are, other values as a line of JSON each. On
a terminal, control characters are escaped: the job may be another node's. With --json every part is a line. Also the
line on stderr that says what a command waits for.
"""

import shutil
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hocket.cli.log_lines import start_logging
from hocket.cli.output import emit_line, notice, on_terminal
from hocket.cli.settings import settings
from hocket.events.event_logging import log_event
from hocket.events.jobs import JobWaiting
from hocket.kernel.texts import clean
from hocket.mesh.waiting import Waiting

if TYPE_CHECKING:
    from hocket.families.jobs.parts import Part


class PartsPrinter:
    """`count` is how many parts it has printed."""

    def __init__(self) -> None:
        self.count = 0
        self._is_within_line = False

    def part(self, part: "Part") -> None:
        self.count += 1
        if settings.as_json:
            emit_line({"part": part.value, "number": part.number, "fence": part.fence, "restart": part.is_restart})
            return
        if part.is_restart:
            self.end_line()
            notice("the job was run again from the start; what was printed before is void")
        self._write(part.value)

    def progress(self, note: Any) -> None:
        import msgspec

        if settings.as_json:
            emit_line({"progress": note})
        else:
            notice(f"progress: {msgspec.json.encode(note).decode()}")

    def end_line(self) -> None:
        if self._is_within_line:
            print(flush=True)
            self._is_within_line = False

    def _write(self, value: Any) -> None:
        import msgspec

        if isinstance(value, str):
            written = clean(value, lines=True).encode() if on_terminal() else value.encode()
        elif isinstance(value, bytes):
            shown = clean(value.decode(errors="backslashreplace"), lines=True).encode()
            written = shown if on_terminal() else value
        else:
            written = msgspec.json.encode(value) + b"\n"
        sys.stdout.flush()
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.flush()
        self._is_within_line = not written.endswith(b"\n") if written else self._is_within_line


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
