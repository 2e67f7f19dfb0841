"""The handlers of the tour. Every result carries the pid of its process, so that the tour can tell which worker ran
what.
"""

import asyncio
import os
import time

import hocket


@hocket.job("tour.sum")
def add(ctx, numbers):
    time.sleep(0.005)
    return {"pid": os.getpid(), "sum": sum(numbers)}


@hocket.job("tour.frame")
def frame(ctx, number):
    time.sleep(0.01)
    return {"pid": os.getpid(), "frame": number}


@hocket.job("tour.film")
def film(ctx, frames):
    """Comes after its frames: when it runs, each of them has succeeded."""
    with hocket.open() as node:
        numbers = [node.job(job_id).result(timeout=5)["frame"] for job_id in frames]
    return {"pid": os.getpid(), "frames": sorted(numbers)}


@hocket.job("tour.stream")
async def stream(ctx, steps):
    for step in range(1, steps + 1):
        ctx.progress({"step": step, "of": steps})
        await asyncio.sleep(0.1)
    return {"pid": os.getpid(), "steps": steps}


@hocket.job("tour.flaky", retries=5, backoff="100ms")
def flaky(ctx):
    if ctx.attempt < 3:
        raise ConnectionError(f"attempt {ctx.attempt}: the other side hung up")
    return {"pid": os.getpid(), "attempt": ctx.attempt}


@hocket.job("tour.hopeless", retries=1, backoff="100ms")
def hopeless(ctx):
    raise ValueError("this can never work")


@hocket.job("tour.slow")
def slow(ctx):
    """The first run waits to be killed. The second finds that it is not the first, and ends at once."""
    if ctx.fence == 1:
        ctx.progress({"pid": os.getpid()})
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            time.sleep(0.05)
    return {"pid": os.getpid(), "fence": ctx.fence}
