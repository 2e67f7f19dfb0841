"""How many StatusClaims a reverb sorts into windows a second, on one core, and the memory that the windows of a large
fleet take. Measured is the processor time, so other work on the machine does not count. A claim is decoded from its
JSON as it comes off the bus, and added to its window. `aggregate` leaves out the signatures, `signed` checks them, too.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from pathlib import Path

from bench.subject import Result
from hocket.bus.messages import MemoryMessages, MemoryServer
from hocket.bus.signed import SignedMessages
from hocket.extensions.tempo.beats import timeline
from hocket.extensions.tempo.messages import ClaimState, StatusClaim, from_json, to_json
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.extensions.tempo.windows import BarWindows
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey

POLICY = make_policy("bench")
START = 1_756_865_536_000
STATES = tuple(ClaimState)


def _claims(count: int, agents: int) -> list[bytes]:
    """Each agent claims on each beat, as long as there are claims left."""
    beat_ms = POLICY.initial_tempo.beat_ms
    made = []
    for number in range(count):
        beat, agent = divmod(number, agents)
        hlc = hlc_text(Hlc(START + beat * beat_ms + agent % beat_ms, 0, 0))
        state = STATES[number % len(STATES)]
        made.append(to_json(StatusClaim(f"agent-{agent}", f"task-{agent}", 1, state, 3, 0.5, "working", hlc)))
    return made


def _windows() -> BarWindows:
    return BarWindows(POLICY, timeline(POLICY.initial_tempo))


def aggregate(home: Path, count: int, agents: int) -> Result:
    """Claims a second of processor time, from JSON to windows and their reports."""
    claims, windows = _claims(count, agents), _windows()
    began = time.process_time()
    for data in claims:
        windows.add(from_json(data, StatusClaim), 2**50)
    reports = windows.reports()
    seconds = time.process_time() - began
    assert reports[0].tasks == agents and not reports[0].truncated
    return {"seconds": seconds, "rate": count / seconds}


def signed(home: Path, count: int, agents: int, together: int) -> Result:
    """The same for claims that wait in the queue of a signed bus, so many in each message of a worker: each envelope is
    opened and its signature checked.
    """
    key = SigningKey(bytes(31) + b"a")
    claims = [from_json(data, StatusClaim) for data in _claims(count, agents)]

    async def run() -> float:
        server = MemoryServer()
        bus = SignedMessages(MemoryMessages(server), key, "mesh", {node_id(key.public): key.public}.get, lambda: START)
        messages, windows = TempoMessages(bus, "mesh"), _windows()
        queue = await messages.subscribe(StatusClaim, capacity=count)
        for first in range(0, count, together):
            await messages.publish_all(claims[first : first + together], "bench")
        began = time.process_time()
        for _ in range(count):
            heard = await queue.get(60.0)
            assert heard is not None
            windows.add(heard.message, 2**50)
        return time.process_time() - began

    seconds = asyncio.run(run())
    return {"seconds": seconds, "rate": count / seconds}


def memory(home: Path, agents: int) -> Result:
    """All windows that a reverb keeps, each with a task of every agent. Returns the `mib` of all of them and of
    the first, without what the process has anyway.
    """
    windows, bar_ms = _windows(), POLICY.initial_tempo.bar_ms
    gc.collect()
    tracemalloc.start()
    sizes = []
    for bar in range(windows.limits.windows):
        for agent in range(agents):
            hlc = hlc_text(Hlc(START + bar * bar_ms, 0, 0))
            claim = to_json(StatusClaim(f"agent-{agent}", f"task-{agent}", 1, ClaimState.EXECUTING, 3, 0.5, "", hlc))
            windows.add(from_json(claim, StatusClaim), 2**50)
        sizes.append(tracemalloc.get_traced_memory()[0] / 2**20)
    return {"mib": sizes[-1], "window_mib": sizes[0]}
