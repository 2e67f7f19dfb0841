"""Exceptions that are raised in another thread, to stop a plain handler."""

import sys
import threading


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
