"""The journal of the scenarios: each run leaves a line at its start and one at its end, in a file that all machines
write to, with the clock that they share. A line is written whole or not at all.
"""

import json
import os
import time
from typing import Any

import hocket

MACHINE = os.environ["HOCKET_TEST_MACHINE"]
JOURNAL = os.open(os.environ["HOCKET_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND)


def note(ctx: hocket.Context, event: str, **more: Any) -> None:
    line = {"event": event, "job": ctx.job_id, "kind": ctx.kind, "fence": ctx.fence, "machine": MACHINE}
    line |= {"pid": os.getpid(), "at": time.monotonic()} | more
    os.write(JOURNAL, json.dumps(line).encode() + b"\n")
