"""What a long-running command says on stderr while it runs: the lines of the logger `hocket`, and the log of handlers
where their modules do not configure `logging` themselves. `-v` and `-q` choose how much, `--log-format` the form.
"""

import logging
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from hocket.cli.options import LogFormat
from hocket.cli.settings import settings
from hocket.events import Event
from hocket.events.event_logging import ROOT
from hocket.kernel.texts import clean, clean_json
from hocket.work.output_capture import ShowLine, job_of

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
