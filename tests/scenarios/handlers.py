"""Handlers for the scenarios. Each run leaves a line at its start and one at its end in a journal that all machines
write to, with the clock that they share; a line is written whole or not at all.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import hocket

ROOT = Path(os.environ["HOCKET_TEST_ROOT"])
MACHINE = os.environ["HOCKET_TEST_MACHINE"]
JOURNAL = os.open(os.environ["HOCKET_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND)


def note(ctx: hocket.Context, event: str, **more: Any) -> None:
    line = {"event": event, "job": ctx.job_id, "kind": ctx.kind, "fence": ctx.fence, "machine": MACHINE}
    line |= {"pid": os.getpid(), "at": time.monotonic()} | more
    os.write(JOURNAL, json.dumps(line).encode() + b"\n")


@hocket.job("acme.")
def acme(ctx: hocket.Context, ms: float = 0.0, **payload: Any) -> Any:
    note(ctx, "start")
    time.sleep(ms / 1000)
    note(ctx, "end")
    return payload or None


@hocket.job("hold.")
def hold(ctx: hocket.Context, gate: str) -> str:
    """Runs until a file of that name is there."""
    note(ctx, "start")
    try:
        while not (ROOT / gate).exists():
            time.sleep(0.005)
        return MACHINE
    finally:
        note(ctx, "end", cancelled=ctx.cancelled)
