"""Prints the parts of a job's result as they come: text and bytes as they are, other values as a line of JSON each. On
a terminal, control characters are escaped: the job may be another node's. With --json every part is a line.
"""

import sys
from typing import TYPE_CHECKING, Any

from hocket.cli.output import emit_line, notice, on_terminal
from hocket.cli.settings import settings
from hocket.kernel.safe_text import clean

if TYPE_CHECKING:
    from hocket.kernel.parts import Part


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
