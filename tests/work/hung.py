"""Handlers that do not end, each in its own way, for the tests of timeouts and handler processes. `steps` has the
journal.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from steps import note

import hocket

LONG_S = 3600

if Path(os.environ["HOCKET_TEST_JOURNAL"]).with_name("broken").exists():
    raise RuntimeError("this module is broken now")


@hocket.job("hung.c", timeout="1s")
def in_c(ctx: hocket.Context, **payload: Any) -> None:
    """Sleeps in a lock, where no exception arrives."""
    note(ctx, "start")
    lock = threading.Lock()
    with lock:
        time.sleep(LONG_S)


@hocket.job("hung.loop", timeout="1s")
def in_python(ctx: hocket.Context) -> None:
    note(ctx, "start")
    while True:
        pass


@hocket.job("hung.flag", timeout="1s")
def until_told(ctx: hocket.Context) -> str:
    """Ends by the flag alone, with a part of its result."""
    note(ctx, "start")
    while not ctx.cancelled:
        time.sleep(0.005)
    return "a part"


@hocket.job("hung.wait", timeout="1s")
async def waits(ctx: hocket.Context) -> None:
    note(ctx, "start")
    await asyncio.Event().wait()


@hocket.job("hung.swallow", timeout="1s")
async def swallows(ctx: hocket.Context) -> None:
    note(ctx, "start")
    while True:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            pass


@hocket.job("hung.block", timeout="1s")
async def blocks(ctx: hocket.Context) -> None:
    """Blocks the loop of the async handlers."""
    note(ctx, "start")
    time.sleep(LONG_S)


@hocket.job("hung.once", timeout="1s", retries=1, backoff="10ms")
def once(ctx: hocket.Context) -> int:
    """Hangs at the first try."""
    note(ctx, "start")
    if ctx.attempt == 1:
        time.sleep(LONG_S)
    return ctx.attempt


@hocket.job("hung.gil")
def holds_the_interpreter(ctx: hocket.Context, ms: int) -> int:
    """Native code that does not release the interpreter's lock."""
    note(ctx, "start")
    ctypes.PyDLL(None).usleep(ms * 1000)
    note(ctx, "end")
    return ctx.fence


@hocket.job("hung.gil_and_child")
def holds_the_interpreter_with_a_child(ctx: hocket.Context) -> None:
    child = subprocess.Popen(["sleep", str(LONG_S)])
    note(ctx, "start", child=child.pid)
    ctypes.PyDLL(None).sleep(LONG_S)


@hocket.job("hung.crash")
def crashes(ctx: hocket.Context, path: str) -> None:
    """Takes its process along as soon as the file is there."""
    note(ctx, "start")
    while not Path(path).exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(LONG_S)


@hocket.job("hung.stamp", lease="300ms")
def stamp(ctx: hocket.Context) -> None:
    note(ctx, "start", deadline=ctx.deadline)
    time.sleep(0.03)


@hocket.job("hung.make")
def make(ctx: hocket.Context, large: bool = False) -> str:
    """Uses everything that a context offers."""
    ctx.progress({"done": 1})
    answer = ctx.infer(model="acme-llm", version="1", prompt="how many?", call=lambda prompt: f"{prompt} two")
    made = ctx.artifact(b"x" * (200_000 if large else 10), type="acme.made")
    assert ctx.deadline > time.time() and ctx.new_id() and ctx.audited and ctx.attempt == 1 and ctx.fence == 1
    note(ctx, "made", artifact=made, answer=answer)
    return made


@hocket.job("hung.ask", timeout="1s")
def asks(ctx: hocket.Context) -> None:
    """Its model never answers."""
    note(ctx, "start")
    ctx.infer(model="acme-llm", version="1", prompt="are you there?", call=lambda prompt: time.sleep(LONG_S))


@hocket.job("hung.kill", lease="60s")
def kills(ctx: hocket.Context, path: str) -> None:
    """Kills its process as soon as the file is there."""
    note(ctx, "start")
    while not Path(path).exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG_S)
