"""Handlers that the worker processes of the tests serve. What they do they write into a journal, one line for each
event, in the file that HOCKET_TEST_JOURNAL names; a line is one write at the end of the file, so that many processes
can share it.
"""

import asyncio
import ctypes
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import hocket

JOURNAL = os.open(os.environ["HOCKET_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(ctx: hocket.Context, event: str, **more: Any) -> None:
    line = {"event": event, "job": ctx.job_id, "fence": ctx.fence, "pid": os.getpid(), "at": time.time()} | more
    os.write(JOURNAL, msgspec.json.encode(line) + b"\n")


@hocket.job("step.rest", lease="60s")
def rest(ctx: hocket.Context, ms: float = 0, **payload: Any) -> int:
    """Sleeps, and returns its fence."""
    note(ctx, "start", **payload)
    time.sleep(ms / 1000)
    note(ctx, "end")
    return ctx.fence


@hocket.job("step.arest", lease="60s")
async def rest_async(ctx: hocket.Context, ms: float = 0) -> int:
    note(ctx, "start")
    try:
        await asyncio.sleep(ms / 1000)
    except asyncio.CancelledError:
        note(ctx, "cancelled", flag=ctx.cancelled)
        raise
    note(ctx, "end")
    return ctx.fence


@hocket.job("step.spin", lease="60s")
def spin(ctx: hocket.Context) -> None:
    """A Python loop without an end that never looks at the flag."""
    note(ctx, "start")
    try:
        while True:
            pass
    except hocket.Cancelled:
        note(ctx, "cancelled", flag=ctx.cancelled)
        raise


@hocket.job("step.watch", lease="60s")
def watch(ctx: hocket.Context) -> None:
    """Looks at the flag, and keeps the exception away so that only the flag can end it."""
    note(ctx, "start")
    while not ctx.cancelled:
        try:
            time.sleep(0.005)
        except hocket.Cancelled:
            pass
    note(ctx, "flag")


@hocket.job("step.gate", lease="60s")
def gate(ctx: hocket.Context, path: str) -> int:
    """Ends when the file is there."""
    note(ctx, "start")
    while not Path(path).exists():
        time.sleep(0.005)
    note(ctx, "end")
    return ctx.fence


@hocket.job("step.deaf", lease="60s")
def deaf(ctx: hocket.Context) -> None:
    """Stuck inside one call into C, where no exception can reach it."""
    note(ctx, "start")
    threading.Event().wait(3600)


@hocket.job("step.flaky", lease="60s", retries=5, backoff="10ms")
def flaky(ctx: hocket.Context, failures: int) -> int:
    note(ctx, "start")
    if ctx.attempt <= failures:
        raise ValueError(f"attempt {ctx.attempt}")
    return ctx.attempt


@hocket.job("step.bad", lease="60s")
def bad(ctx: hocket.Context, how: str) -> Any:
    """One way of misbehaving for each name."""
    note(ctx, "start")
    return WAYS[how]()


@hocket.job("step.abad", lease="60s")
async def bad_async(ctx: hocket.Context, how: str) -> Any:
    note(ctx, "start")
    return WAYS[how]()


@hocket.job("step.vanish", lease="60s")
def vanish(ctx: hocket.Context) -> int:
    """Takes the whole process with it the first time."""
    note(ctx, "start")
    if ctx.fence == 1:
        os._exit(7)
    return ctx.fence


@hocket.job("step.stumble", lease="60s", retries=1, backoff="10ms")
def stumble(ctx: hocket.Context) -> list[int]:
    """Its first hold ends with its process, its second by an error."""
    note(ctx, "start", attempt=ctx.attempt)
    if ctx.fence == 1:
        os._exit(7)
    if ctx.attempt == 1:
        raise ValueError("the first try")
    return [ctx.attempt, ctx.fence]


@hocket.job("step.hold_loop", lease="2s")
async def hold_loop(ctx: hocket.Context, ms: float) -> int:
    """Blocks the loop of the async handlers, as one must not."""
    note(ctx, "start")
    time.sleep(ms / 1000)
    note(ctx, "end")
    return ctx.fence


@hocket.job("step.brood", lease="60s")
def brood(ctx: hocket.Context, ms: float) -> int:
    """Leaves a forked child behind that lives on, and waits."""
    note(ctx, "start")
    if ctx.fence > 1:
        return ctx.fence
    child = os.fork()
    if child == 0:
        time.sleep(ms / 1000)
        os._exit(0)
    note(ctx, "child", child=child)
    time.sleep(3600)
    return 0


@hocket.job("step.tell", lease="60s")
def tell(ctx: hocket.Context, path: str) -> None:
    """Reports progress, then waits for the file."""
    note(ctx, "start")
    ctx.progress({"done": 1})
    while not Path(path).exists():
        time.sleep(0.005)


@hocket.job("family.", lease="60s")
def family(ctx: hocket.Context) -> str:
    return f"family for {ctx.kind}"


@hocket.job("family.near.", lease="60s")
def near(ctx: hocket.Context) -> str:
    return f"near for {ctx.kind}"


@hocket.job("family.near.one", lease="60s")
def one(ctx: hocket.Context) -> str:
    return f"one for {ctx.kind}"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(BaseException):
    pass


class Mute(BaseException):
    """Whatever one asks it, it raises something that is no Exception."""

    def __str__(self, *more: object) -> str:
        raise KeyboardInterrupt

    __repr__ = __format__ = __str__


def _raise(error: BaseException) -> Any:
    raise error


def _memory() -> Any:
    """Exhausts a limit that the handler sets for itself."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 64 * 1024 * 1024, before[1]))
    try:
        return len(bytearray(1024 * 1024 * 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


WAYS: dict[str, Any] = {
    "exit": lambda: sys.exit("enough"),
    "base": lambda: _raise(Odd("odd")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "cancelled": lambda: _raise(hocket.Cancelled()),
    "memory": _memory,
    "object": object,
    "large": lambda: "x" * (1024 * 1024 + 1),
    "surrogate": lambda: _raise(OSError("cannot read \udcff")),
    "silent": lambda: _raise(Unspeakable()),
    "mute": lambda: _raise(Mute()),
    "mute exit": lambda: sys.exit(Mute()),
    "nan": lambda: {"loss": [0.5, float("nan")]},
    "long": lambda: _raise(ValueError("x" * 100_000 + "\nsecond line")),
    "stop": lambda: next(iter(())),
    "null": lambda: ctypes.py_object().value,
}
