"""Errors of handlers as text that can be stored."""

import traceback
from types import FrameType

from hocket.errors import HocketError

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
