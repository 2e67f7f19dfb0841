"""What handlers print and log, caught while they run. Each run has a `Capture`, which a context variable names: a
thread runs one handler at a time, and a coroutine has a context of its own, so every line finds its run. A thread that
a handler starts belongs to the run only if it is started in a copy of the handler's context.

A capture needs nothing but a function that takes bytes. So it works on either side of a pipe: a worker's own process
gives it a file, a child process a connection to its parent.
"""

import copy
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_FORM = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


# A longer line is shown in parts.
LINE_CHARS_MAX = 16_384
# Called with a job, the name of a stream, and a line that the job's handler printed.
ShowLine = Callable[[str, str, str], None]


class Capture:
    """The run in whose context something is printed or logged. `write` is called in any thread."""

    _begun: dict[str, str] | None = None

    def __init__(self, job_id: str, write: Callable[[bytes], None]) -> None:
        self._job_id, self._write = job_id, write

    @property
    def job_id(self) -> str:
        return self._job_id

    def write(self, data: bytes) -> None:
        self._write(data)

    def close(self) -> None:
        """The block of the run has ended."""

    def show(self, stream: str, text: str, show: ShowLine) -> None:
        """Shows the lines that are complete."""
        begun: dict[str, str] = self.__dict__.setdefault("_begun", {})
        *lines, begun[stream] = (begun.get(stream, "") + text).split("\n")
        if len(begun[stream]) >= LINE_CHARS_MAX:
            lines.append(begun.pop(stream))
        for line in lines:
            show(self.job_id, stream, line)

    def show_rest(self, show: ShowLine) -> None:
        for stream, rest in (self._begun or {}).items():
            if rest:
                show(self.job_id, stream, rest)


_show: ShowLine | None = None
_current: ContextVar[Capture | None] = ContextVar("hocket_capture", default=None)


class captured:
    """What this context prints and logs inside the block goes to the capture too, while `catching` is entered. At the
    end of the block it closes the capture. It is a class and not a generator, because that is faster and every run
    needs one.
    """

    __slots__ = ("_capture", "_token")

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __enter__(self) -> None:
        self._token = _current.set(self._capture)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            _current.reset(self._token)
        except ValueError:
            pass  # a coroutine that never ended is collected in another context
        try:
            if _show is not None:
                self._capture.show_rest(_show)
        finally:
            self._capture.close()


def job_of(record: logging.LogRecord) -> str | None:
    """The job whose handler made a log record."""
    job_id: str | None = getattr(record, "hocket_job", None)
    return job_id


class _TextTee:
    """Stands in for sys.stdout or sys.stderr: whatever is written goes to the original and to the capture."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name, self._stream = name, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if (capture := _current.get()) is not None and isinstance(text, str):
            capture.write(text.encode("utf-8", "backslashreplace"))
            if _show is not None:
                capture.show(self._name, text, _show)
                return len(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    @property
    def buffer(self) -> "_BytesTee":
        return _BytesTee(self._name, self._stream.buffer)


class _BytesTee:
    """Copies what a handler writes to `sys.stdout.buffer` into its capture."""

    def __init__(self, name: str, stream: Any) -> None:
        self._name, self._stream = name, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        if (capture := _current.get()) is not None:
            capture.write(bytes(data))
            if _show is not None:
                capture.show(self._name, bytes(data).decode("utf-8", "backslashreplace"), _show)
                return len(bytes(data))
        written: int = self._stream.write(data)
        return written


_lock = threading.Lock()
_entered = 0
_undo: list[Callable[[], None]] = []


@contextmanager
def catching(show: ShowLine | None = None) -> Iterator[None]:
    """While this is entered, captures get what is printed and logged. Workers of one process share it. The first one
    may have the lines that handlers print shown in its own way, instead of on stdout and stderr.
    """
    global _entered, _show
    with _lock:
        _entered += 1
        if _entered == 1:
            _show = show
            _undo.extend((_stand_in("stdout"), _stand_in("stderr"), _watch_records()))
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            while not _entered and _undo:
                _undo.pop()()
            _show = _show if _entered else None


def _stand_in(name: str) -> Callable[[], None]:
    original = getattr(sys, name)
    if original is None:
        return lambda: None
    made = _TextTee(name, original)
    setattr(sys, name, made)

    def undo() -> None:
        # A program that has replaced the stream meanwhile keeps its own.
        if getattr(sys, name) is made:
            setattr(sys, name, original)

    return undo


def _watch_records() -> Callable[[], None]:
    """Every log record that is made in the context of a run is tagged with its job and captured. A handler on the root
    logger would miss loggers that do not propagate, and would change what a program without handlers shows.
    """
    original = logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = original(*args, **options)
        if (capture := _current.get()) is not None:
            record.hocket_job = capture.job_id
            if not _is_printed(record):
                capture.write(_line(record))
        return record

    logging.setLogRecordFactory(make)

    def undo() -> None:
        if logging.getLogRecordFactory() is make:
            logging.setLogRecordFactory(original)

    return undo


def _is_printed(record: logging.LogRecord) -> bool:
    """Whether `logging` prints the record on sys.stderr, as it does without any handler; it is caught there."""
    last = logging.lastResort
    return last is not None and record.levelno >= last.level and not logging.getLogger(record.name).hasHandlers()


def _line(record: logging.LogRecord) -> bytes:
    try:
        # Formatting leaves traces in a record, which other formatters would use.
        return f"{_FORM.format(copy.copy(record))}\n".encode("utf-8", "backslashreplace")
    except Exception as error:
        # `logging` reports the bad call itself.
        return f"{record.levelname} {record.name}: {type(error).__name__} in a log message\n".encode()
