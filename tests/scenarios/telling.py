"""A handler that reports what is in the file `told`, until that says that it is over."""

import os
import time
from pathlib import Path

import hocket

TOLD = Path(os.environ["HOCKET_TEST_ROOT"]) / "told"


@hocket.job("tell.")
def tell(ctx: hocket.Context) -> None:
    while (text := TOLD.read_text()) != "over":
        ctx.progress({"told": text})
        time.sleep(0.005)
