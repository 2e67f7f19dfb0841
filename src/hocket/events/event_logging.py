"""Events as lines of Python's `logging`, under the logger `hocket`: `hocket.jobs` has a line for each start, end,
failure, retry, rescue and lost lease of a job, `hocket.node` everything else. Nothing is configured here, as in every
library: a program that embeds a worker chooses handlers and levels, and without a choice nothing is shown.
"""

import functools
import logging

from hocket.events import Emit, Event, ignore, listens

ROOT = "hocket"

# Loggers live as long as the program, and each look-up takes a lock.
_logger = functools.cache(logging.getLogger)

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class _Logged:
    def __init__(self, also: Emit) -> None:
        self._also = also

    def __call__(self, event: Event) -> None:
        logger, level = _logger(event.logger), event.own_level
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"hocket_event": event})
        self._also(event)

    def wants(self, event: type[Event]) -> bool:
        return _logger(event.logger).isEnabledFor(event.level) or listens(self._also, event)


def logged(also: Emit) -> Emit:
    """Writes each event to its logger, and calls `also` with it. The record has the event as `hocket_event`."""
    return _Logged(also)


log_event = logged(ignore)
