"""Handlers for the scenarios: one that takes a while, and one that waits to be let go."""

import os
import time
from pathlib import Path
from typing import Any

import hocket
from tests.scenarios.noting import MACHINE, note

ROOT = Path(os.environ["HOCKET_TEST_ROOT"])


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
