"""The inbox, as programs use it: messages are sent, claimed and acknowledged one at a time, each with a commit of its
own on the disk. The same is done on an empty log and on one that already holds many messages, in turns, so that a
machine that slows down slows both alike.
"""

from __future__ import annotations

import time
from pathlib import Path

import hocket
from bench.subject import Result
from hocket.families.inbox import requests as requests
from hocket.families.inbox.requests import MessageDraft
from hocket.log import Transaction
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime

AGENT = "bench/sink"
# Of the stored messages, one in this many waits for the measured agent; the others wait for a thousand others.
SHARE = 10
OTHERS = 1_000
FILL_STEP = 1_000
ROUNDS = 3


def rates(home: Path, count: int, stored: int) -> Result:
    """Seconds of each step, on an empty log and on a full one, and how the two compare."""
    for name in ("empty", "full"):
        Runtime.init(home / name).close()
    with hocket.open(home / "empty") as empty, hocket.open(home / "full") as full:
        began = time.perf_counter()
        _fill(full.runtime, stored)
        filled = time.perf_counter() - began
        seconds: dict[str, float] = {}
        for _ in range(ROUNDS):
            for name, node in (("", empty), ("full_", full)):
                for step, took in _steps(node, count // ROUNDS).items():
                    seconds[f"{name}{step}"] = seconds.get(f"{name}{step}", 0.0) + took
    done = count // ROUNDS * ROUNDS
    found = {f"{step}_rate": done / took for step, took in seconds.items()}
    ratios = {f"{step}_ratio": seconds[step] / seconds[f"full_{step}"] for step in ("send", "claim", "ack")}
    return {"seconds": filled, **found, **ratios}


def _steps(node: SyncNode, count: int) -> dict[str, float]:
    start = time.perf_counter()
    for number in range(count):
        node.send(AGENT, f"number {number}", agent="bench")
    node.runtime.log.seal()
    sent = time.perf_counter()
    held = [message for _ in range(count) for message in node.inbox(AGENT).claim(1, lease="1h")]
    node.runtime.log.seal()
    claimed = time.perf_counter()
    for message in held:
        message.ack()
    node.runtime.log.seal()
    return {"send": sent - start, "claim": claimed - sent, "ack": time.perf_counter() - claimed}


def _fill(runtime: Runtime, stored: int) -> None:
    def send(tx: Transaction, first: int) -> None:
        for number in range(first, min(first + FILL_STEP, stored)):
            to = AGENT if number % SHARE == 0 else f"bench/{number % OTHERS}"
            requests.send(tx, runtime.blobs, MessageDraft(to, b"stored", "bench"))

    for first in range(0, stored, FILL_STEP):
        runtime.log.run(lambda tx, first=first: send(tx, first))  # type: ignore[misc]
