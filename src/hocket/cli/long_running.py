"""What commands that run for long share. They print log lines on stderr: those of the logger `hocket`, and those of
handlers whose modules do not configure `logging` themselves; `-v` and `-q` choose how much, `--log-format` the form.
They wait for a store that is away, serve metrics with `--metrics`, and print the parts of a result as they come.
"""

import asyncio
import logging
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from hocket.cli.declarations import Option
from hocket.cli.options import LogFormat
from hocket.cli.printing import emit_line, notice, on_terminal
from hocket.cli.settings import open_runtime, settings
from hocket.errors import StoreAway, Usage
from hocket.events import Emit, Event
from hocket.events.event_logging import ROOT, log_event, logged
from hocket.events.jobs import JobWaiting
from hocket.events.workers import MetricsServed, StoreUnavailable
from hocket.kernel.retrying import STORE_RETRIES
from hocket.kernel.texts import clean, clean_json
from hocket.mesh.waiting import Waiting
from hocket.node.runtime import Runtime
from hocket.work.output_capture import ShowLine, job_of

if TYPE_CHECKING:
    from hocket.families.jobs.parts import Part
    from hocket.node.node import Node
    from hocket.server.monitoring.monitor_server import Routes

T = TypeVar("T")

# An unknown node may get its name later.
NAMES_S = 10.0
_ID = re.compile(r"(?<=node |ator )[0-9a-f]{16}\b")


Named = Callable[[str], str]
"""Puts the names of nodes into a sentence, for their ids."""


class LogLines(logging.Handler):
    """Prints log records. Set `write` to print them elsewhere than on stderr."""

    def __init__(self, verbosity: int, form: LogFormat) -> None:
        super().__init__()
        stream = sys.stderr
        self.write: Callable[[str], object] = lambda line: print(line, file=stream, flush=True)
        self._verbosity = verbosity
        self._form = _json if form is LogFormat.json else _text
        self._names: Callable[[], dict[str, str]] = dict
        self._known: dict[str, str] = {}
        self._known_at = -NAMES_S

    def name_nodes(self, names: Callable[[], dict[str, str]]) -> None:
        """Shows the names of nodes instead of their ids. `names` gives them by id."""
        self._names = names

    def show_node(self) -> None:
        """Shows the records of Hocket itself."""
        for name in (ROOT, f"{ROOT}.jobs", f"{ROOT}.presence"):
            logging.getLogger(name).setLevel(_level(self._verbosity, is_detail=name != ROOT))
        root = logging.getLogger(ROOT)
        root.addHandler(self)
        root.propagate = False

    def show_handlers(self) -> None:
        """Shows and keeps the records of everything else. A program that has configured `logging` keeps its own way."""
        root = logging.getLogger()
        if not root.handlers:
            # The output of a job has its records from this level on, shown or not.
            root.setLevel(min(logging.INFO, _level(self._verbosity, is_detail=True)))
            root.addHandler(self)

    def _named(self, found: re.Match[str]) -> str:
        if found[0] not in self._known and time.monotonic() >= self._known_at + NAMES_S:
            self._known_at = time.monotonic()
            with suppress(Exception):
                self._known = self._names()
        return self._known.get(found[0], found[0])

    @property
    def show_print(self) -> ShowLine | None:
        """How to show the lines that handlers print, if not as they are."""
        return self._show_print if self._form is _json else None

    def _show_print(self, job_id: str, stream: str, line: str) -> None:
        told = {"time": _moment(time.time()), "level": "info", "logger": stream, "job_id": job_id, "text": line}
        self.acquire()
        try:
            self.write(_encoded(told))
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name == ROOT or record.name.startswith(f"{ROOT}.")
        if not is_ours and record.levelno < _level(self._verbosity, is_detail=True):
            return
        try:
            self.write(self._form(record, lambda text: _ID.sub(self._named, text)))
        except Exception:
            self.handleError(record)


def start_logging(verbose: int, quiet: int, form: LogFormat | None) -> LogLines:
    lines = LogLines(verbose - quiet, form or (LogFormat.json if settings.as_json else LogFormat.text))
    lines.show_node()
    return lines


def _level(verbosity: int, is_detail: bool) -> int:
    """The level from which records are shown. Details are the course of each job, and what handlers log."""
    if verbosity == 0:
        return logging.WARNING if is_detail else logging.INFO
    if verbosity > 0:
        return logging.INFO if verbosity == 1 else logging.DEBUG
    return logging.WARNING if verbosity == -1 else logging.ERROR


def _text(record: logging.LogRecord, named: Named) -> str:
    if isinstance(event := getattr(record, "hocket_event", None), Event):
        return f"hocket: {clean(named(str(event)))}"
    job = "" if (job_id := job_of(record)) is None else f"job {job_id}: "
    error = "" if record.exc_info is None else f"\n{_formatted(record)}"
    return clean(f"hocket: {job}{record.levelname} {record.name}: {record.getMessage()}{error}", lines=True)


def _json(record: logging.LogRecord, named: Named) -> str:
    told: dict[str, Any] = {
        "time": _moment(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    if isinstance(event := getattr(record, "hocket_event", None), Event):
        told |= {**msgspec.to_builtins(event), "text": named(str(event))}
    else:
        told["text"] = record.getMessage()
        if (job_id := job_of(record)) is not None:
            told["job_id"] = job_id
        if record.exc_info is not None:
            told["traceback"] = _formatted(record)
    return _encoded(told)


def _encoded(told: dict[str, Any]) -> str:
    return clean_json(msgspec.json.encode(told).decode())


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _formatted(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def open_patiently(emit: Emit) -> Runtime:
    """Opens the runtime of the chosen home as soon as its store answers, and says meanwhile what it waits for. SIGTERM
    ends the wait with exit code 0, Ctrl-C with 130. An error that does not pass, such as a wrong password, is raised.
    """
    failures = 0
    with _ended_by_sigterm():
        while True:
            try:
                return open_runtime()
            except StoreAway as error:
                emit(StoreUnavailable(str(error)))
            failures += 1
            time.sleep(_rest_s(failures))


async def until_answered(ask: Callable[[], Awaitable[T]], emit: Emit, is_stopping: Callable[[], bool]) -> T | None:
    """The answer to a question to the store, as soon as the store answers; None if the process is to stop."""
    failures = 0
    while not is_stopping():
        try:
            return await ask()
        except StoreAway as error:
            emit(StoreUnavailable(str(error)))
        failures += 1
        await asyncio.sleep(_rest_s(failures))
    return None


def _rest_s(failures: int) -> float:
    return STORE_RETRIES.delay_s(failures, random.random())


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Nothing is open yet, so the process may end anywhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    kept = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)


MetricsOption = Annotated[
    str | None,
    Option(
        "--metrics", "[HOST:]PORT", "Serve /metrics, /healthz and /readyz there; without a host, for this machine only."
    ),
]


def monitored(
    node: "Node",
    metrics: str | None,
    troubles: Callable[[], list[str]],
    routes: "Routes | None" = None,
) -> tuple[AbstractAsyncContextManager[object], Emit]:
    """Serves metrics inside the block, if an address is given. Pass the second to all parts of the process. `troubles`
    gives why the process cannot work now. The server answers `routes` besides.
    """
    if metrics is None:
        return nullcontext(), log_event
    try:
        from hocket.server.monitoring.event_counts import EventCounts
        from hocket.server.monitoring.monitor import Monitor
        from hocket.server.monitoring.monitor_server import MonitorServer, parse_address
    except ImportError as error:
        raise Usage(f"--metrics needs {error.name}; install hocket[server]") from None
    counts = EventCounts()
    emit = logged(counts)
    monitor = Monitor(node, counts, troubles=troubles, emit=emit)
    server = MonitorServer(monitor, *parse_address(metrics), routes or {})
    log_event(MetricsServed(server.address))
    return server, emit


class PartsPrinter:
    """Prints the parts of a job's result as they come: text and bytes as they are, other values as a line of JSON each.
    On a terminal, control characters are escaped: the job may be another node's. With --json every part is a line.
    `count` is how many parts it has printed.
    """

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
        if settings.as_json:
            emit_line({"progress": note})
        else:
            notice(f"progress: {msgspec.json.encode(note).decode()}")

    def end_line(self) -> None:
        if self._is_within_line:
            print(flush=True)
            self._is_within_line = False

    def _write(self, value: Any) -> None:
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
    """The line on stderr that says what a command waits for. Use it in a `with` block: at its end a terminal's line is
    erased.
    """

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
