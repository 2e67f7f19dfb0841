"""Twenty callers at once, answered in three batches, and what the device cost.

python examples/inference/run.py
"""

import asyncio
import os
import tempfile
from pathlib import Path

from batches import DEVICE, Batcher, infer

import hocket


async def play(home: Path) -> None:
    hocket.init(home)
    (home / "rates.yaml").write_text(f"currency: EUR\nrate_gpu_sec: {{{DEVICE}: 0.0012}}\n")
    async with hocket.open(home) as node, node.working([infer], labels=["gpu=a100"], concurrency=1):
        batcher = Batcher(node)
        answers = await asyncio.gather(*(batcher.ask(f"number {number} of twenty") for number in range(20)))
        if answers != [f"twenty of {number} number" for number in range(20)]:
            raise SystemExit("an answer went to the wrong caller")
        jobs = (await hocket.admin(node).jobs(kind="infer.batch")).items
        (row,) = (await node.costs("kind")).rows
    print(f"{len(answers)} answers in {len(jobs)} batches")
    print(f"the device cost {'something' if row.cost else 'nothing'}: see `hocket cost --by kind`")


if __name__ == "__main__":
    os.environ.pop("HOCKET_RATES", None)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "home"))
