"""What a handler's exception means for its job: another try, no further try, or a later run that spends no try."""

from typing import cast

from hocket.errors import HocketError, Usage
from hocket.kernel.policy import DELAY_MS_MAX
from hocket.kernel.texts import duration_ms, span

DELAY_MS_MIN = 100

ErrorTypes = tuple[type[BaseException], ...]


class Fatal(HocketError):
    """Raise it in a handler to fail the job for good, whatever retries are left."""


class Later(HocketError):
    """Raise it in a handler to return the job to the queue for `delay`, such as "5m". No try is spent, so it can be
    raised any number of times. What the handler has kept for this job, such as artifacts, is discarded.
    """

    def __init__(self, delay: str | int | float, reason: str = "") -> None:
        self.delay_ms = duration_ms(delay)
        if not DELAY_MS_MIN <= self.delay_ms <= DELAY_MS_MAX:
            raise Usage(f"bad delay {delay!r}: it must be between {DELAY_MS_MIN} ms and {span(DELAY_MS_MAX)}")
        super().__init__(reason or f"postponed by {delay}")


def may_retry(error: BaseException, retry_on: ErrorTypes, give_up_on: ErrorTypes) -> bool:
    """Whether a job may be retried after this error. A group counts as each error in it."""
    return not _is(error, (Fatal, *give_up_on)) and _is(error, retry_on)


def _is(error: BaseException, types: ErrorTypes) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return isinstance(error, types) or any(_is(each, types) for each in error.exceptions)
    return isinstance(error, types)


def error_types(name: str, value: object) -> ErrorTypes:
    """The value of an option that names exceptions: one class, or several. Raises Usage."""
    found = value if isinstance(value, tuple | list | set | frozenset) else (value,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in found):
        raise Usage(f"bad {name} {value!r}: give exception classes, like {name}=(TimeoutError, ConnectionError)")
    return cast(ErrorTypes, tuple(found))
