"""How handlers end that do not return: what an exception means for the job (another try, no further try, or a later run
that spends no try), how it is stored as text, and the exception that stops a plain handler in its thread.
"""

import sys
import threading
import traceback
from types import FrameType
from typing import cast

from hocket.errors import HocketError, Usage
from hocket.kernel.policy import DELAY_MS_MAX
from hocket.kernel.texts import duration_ms, span

TRACEBACK_CHARS_MAX = 16_384
ERROR_CHARS_MAX = 500


def description(error: BaseException) -> tuple[str, str]:
    """An exception in a sentence, and its traceback. Raises nothing, even if the exception's own methods do."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    trace = ""
    try:
        trace = "".join(traceback.format_tb(error.__traceback__))
        said = f"{name}: {error}"
        if isinstance(error, SystemExit):
            said = f"the handler called sys.exit({error.code!r})"
        elif isinstance(error, HocketError):
            said = str(error) or name
        said = _text(said.splitlines()[0][:ERROR_CHARS_MAX])
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        said = f"{name}, whose message cannot be read"
    return said, _text(trace[-TRACEBACK_CHARS_MAX:])


def _text(said: str) -> str:
    """Text that can be stored: replaces characters that stand for undecodable bytes, as in a file's name."""
    return str.encode(said, "utf-8", "replace").decode()


def stack_text(frame: FrameType) -> str:
    """Where a handler is now."""
    return _text("".join(traceback.format_stack(frame))[-TRACEBACK_CHARS_MAX:])


class Cancelled(BaseException):
    """Raised inside a plain handler whose job was cancelled or whose lease is lost."""


def raise_in(thread: int, error: type[BaseException]) -> None:
    import ctypes  # few runs are interrupted

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def absorb() -> None:
    """Lets an exception that may be on its way to this thread arrive here; a second one takes the place of the first.
    To withdraw the first would leave the interpreter's flag for it set for ever, and then Python 3.11 spins at the next
    function call of a thread that is profiled.
    """
    try:
        raise_in(threading.get_ident(), Cancelled)
        while True:
            pass
    except Cancelled:
        pass


def is_traced() -> bool:
    """Whether the worker is profiled or traced: then Python 3.11 spins while an exception is on its way to a thread
    that does not take it.
    """
    return sys.version_info < (3, 12) and (sys.getprofile() or sys.gettrace()) is not None


DELAY_MS_MIN = 100

ErrorTypes = tuple[type[BaseException], ...]


class Fatal(HocketError):
    """Raise it in a handler to fail the job for good, whatever retries are left."""


class Later(HocketError):
    """Raise it in a handler to return the job to the queue for `delay`, such as "5m". No try is spent, so it can be
    raised any number of times. What the handler has kept for this job, such as artifacts, is discarded.
    """

    def __init__(self, delay: str | int | float, reason: str = "") -> None:
        self.delay_ms: int = duration_ms(delay)
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
