"""Events as lines of Python's `logging`, under the logger `hocket`: `hocket.jobs` has a line for each start, end,
failure, retry, rescue and lost lease of a job, `hocket.node` everything else. Nothing is configured here, as in every
library: a program that embeds a worker chooses handlers and levels, and without a choice nothing is shown.
"""

import functools
import logging

from hocket.events import Emit, Event, PeerChanged, RunFailed

ROOT = "hocket"

# Loggers live as long as the program, and each look-up takes a lock.
_logger = functools.cache(logging.getLogger)

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def log_event(event: Event) -> None:
    """Writes an event to its logger. The record has the event as `hocket_event`."""
    logger, level = _logger(event.logger), level_of(event)
    if logger.isEnabledFor(level):
        logger.log(level, "%s", event, extra={"hocket_event": event})


def logged(also: Emit) -> Emit:
    """Writes each event to its logger, and calls `also` with it."""

    def emit(event: Event) -> None:
        log_event(event)
        also(event)

    return emit


def level_of(event: Event) -> int:
    if type(event) is RunFailed and event.is_final:
        return logging.ERROR
    if type(event) is PeerChanged and event.state == "ok":
        return logging.INFO
    return event.level
