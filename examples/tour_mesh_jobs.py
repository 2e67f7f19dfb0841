"""The handlers of the tour's second part. Every node runs all of them; its grants decide which jobs it gets. Each
handler first writes a line to a journal outside Hocket, so that the tour can check the log against what really ran.
"""

import os
import time
from pathlib import Path

import hocket

# The tour sets these. A module that is only imported to submit jobs needs neither.
FOLDER = Path(os.environ.get("TOUR_FOLDER", "."))
NODE = Path(os.environ.get("HOCKET_HOME", "nobody")).name


def begin(ctx):
    line = f"{ctx.job_id} {ctx.fence} {NODE}\n"
    with (FOLDER / "journal").open("ab", buffering=0) as journal:
        journal.write(line.encode())


@hocket.job("acme.render.frame")
def frame(ctx, number):
    begin(ctx)
    return {"node": NODE, "frame": number}


@hocket.job("acme.mail.letter")
def letter(ctx, number):
    begin(ctx)
    return {"node": NODE, "letter": number}


@hocket.job("acme.pack.index")
def index(ctx, number):
    begin(ctx)
    return {"node": NODE, "index": number}


@hocket.job("acme.pack.slow", lease="1500ms")
def slow(ctx):
    """The first run waits to be killed. The second finds that it is not the first, and ends at once."""
    begin(ctx)
    give_up = time.monotonic() + 60
    while ctx.fence == 1 and time.monotonic() < give_up:
        time.sleep(0.05)
    return {"node": NODE, "fence": ctx.fence}


@hocket.job("acme.render.long")
def long(ctx):
    """Ends when the tour says so."""
    begin(ctx)
    give_up = time.monotonic() + 60
    while not (FOLDER / "go").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    return {"node": NODE, "fence": ctx.fence}


@hocket.job("acme.render.note", open=True)
def note(ctx):
    begin(ctx)
    return {"node": NODE}
