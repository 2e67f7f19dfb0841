"""Another process of a node, for races: `submitter_process.py HOME GO WHAT`. It opens the home, says `up`, waits for
the file GO and then does WHAT, whose answer it prints as JSON.
"""

import json
import sys
import time
from pathlib import Path

import hocket
from hocket.families.jobs import cron, rescue
from hocket.log import Log
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime


def unique(runtime: Runtime) -> list[object]:
    """Submits under one key, and other jobs in between."""
    node = SyncNode(runtime)
    once = hocket.kind("step.once", unique="the one", unique_for="1h")
    made = [node.submit(once) for _ in range(5)]
    return [[handle.job_id, handle.created] for handle in made]


def tick(runtime: Runtime) -> list[object]:
    """Makes due ticks a few times, on a clock that stands three days ahead."""
    ahead = int(time.time() * 1000) + 3 * 86_400_000
    key = runtime.home.node_key()
    log = Log(runtime.store, key, runtime.log.user, wall=lambda floor: max(floor, ahead), randomness=lambda n: bytes(n))
    return [log.run(cron.make_due) for _ in range(5)]


def expire(runtime: Runtime) -> list[object]:
    """Expires what is held, on a clock that runs an hour ahead."""
    ahead = int(time.time() * 1000) + 3_600_000
    key = runtime.home.node_key()
    log = Log(
        runtime.store,
        key,
        runtime.log.user,
        wall=lambda floor: max(floor, ahead),
        randomness=lambda count: time.time_ns().to_bytes(10, "big")[:count],
        bus=runtime.bus,
    )
    return [log.run(lambda tx: rescue.expire(tx, 100))]


def submit(runtime: Runtime) -> list[object]:
    return [SyncNode(runtime).submit("step.rest").job_id]


if __name__ == "__main__":
    with Runtime.open(sys.argv[1]) as opened:
        print("up", flush=True)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.001)
        print(json.dumps(globals()[sys.argv[3]](opened)), flush=True)
