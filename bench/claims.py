"""Who takes the job: rankings of many workers, beside a bare loop of hashlib that computes the same scores and sorts
nothing. The sides take turns, a job each, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from bench.subject import Result
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.rendezvous import rank, rank_weighted, turn_of


def rankings(home: Path, workers: int, hashes: int) -> Result:
    """As many jobs as take that many hashes. `home` is not used: a ranking needs none."""
    chance = random.Random(workers)
    fleet = [worker_id(chance.getrandbits(64), f"worker-{n}-{chance.randbytes(4).hex()}") for n in range(workers)]
    equal = dict.fromkeys(fleet, 1.0)
    weights = {worker: chance.choice((1.0, 2.0, 4.0)) for worker in fleet}
    sides: dict[str, Callable[[str, bytes], object]] = {
        "raw_rate": lambda job, seed: _scores(job.encode() + seed, fleet),
        "rate": lambda job, seed: rank(job, seed, fleet),
        "weighted_rate": lambda job, seed: rank_weighted(job, seed, weights),
        "own_rate": lambda job, seed: turn_of(job, seed, fleet[0], equal),
    }
    seconds = dict.fromkeys(sides, 0.0)
    jobs = max(1, hashes // workers)
    for _ in range(jobs):
        job, seed = f"01J9ZC{chance.getrandbits(80):020X}", chance.randbytes(32)
        for side, call in sides.items():
            began = time.perf_counter()
            call(job, seed)
            seconds[side] += time.perf_counter() - began
    rates = {side: jobs / taken for side, taken in seconds.items()}
    ratios = {
        "ratio": rates["rate"] / rates["raw_rate"],
        "weighted_ratio": rates["weighted_rate"] / rates["raw_rate"],
        "own_ratio": rates["own_rate"] / rates["raw_rate"],
    }
    return {"seconds": seconds["rate"], **rates, **ratios}


def _scores(prefix: bytes, fleet: list[str]) -> list[bytes]:
    return [sha256(prefix + worker.encode()).digest() for worker in fleet]
