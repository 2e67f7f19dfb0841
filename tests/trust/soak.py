"""Plays many histories, one after the other. Those with the same setup begin alike, so a mesh is made once for all of
them, and each is played in a fork of this process, which has the mesh as it was made.

    python -m tests.trust.soak 100000 --pause /tmp/pause

plays the histories of the seeds below 100,000, tells every minute how far it is, and waits while the file is there.
"""

import argparse
import gc
import os
import signal
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from tests.trust.judge import Violation
from tests.trust.members import remembering
from tests.trust.moves import Mesh
from tests.trust.random_histories import Move, Setup, random_moves, random_setup

HISTORY_S_MAX = 300
PAUSE_S = 2.0
REPORT_S = 60.0


def by_setup(seeds: Iterable[int]) -> list[tuple[Setup, int]]:
    """The seeds in the order in which they cost the least."""
    return sorted((random_setup(seed), seed) for seed in seeds)


def played(seeds: Iterable[tuple[Setup, int]]) -> Iterator[tuple[int, str]]:
    """Each seed with what went wrong in its history; an empty text when nothing did."""
    with remembering():
        for setup, alike in groupby(seeds, lambda each: each[0]):
            mesh = Mesh(setup)
            gc.collect()
            gc.freeze()
            for _, seed in alike:
                yield seed, _play_in_fork(mesh, random_moves(seed)[1])
            gc.unfreeze()


def _play_in_fork(mesh: Mesh, moves: list[Move]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the history did not end"
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HISTORY_S_MAX)
            gc.disable()
            mesh.play(moves)
            said = ""
        except Violation as violation:
            said = f"{violation}"
        except Exception as error:
            said = f"no honest node fails: {error!r}"
        finally:
            os.write(writer, said.encode()[:60_000])
            os._exit(1 if said else 0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return said or ("" if status == 0 else f"the process ended with status {status}")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("histories", type=int)
    options.add_argument("--skip", type=int, default=0, help="how many were played before")
    options.add_argument("--pause", type=Path)
    asked = options.parse_args()
    found: list[int] = []
    began = told = time.monotonic()
    paused = 0.0
    seeds = by_setup(range(asked.histories))[asked.skip :]
    for number, (seed, said) in enumerate(played(seeds), start=1):
        if said:
            found.append(seed)
            print(f"seed {seed}: {said}", flush=True)
        now = time.monotonic()
        if now - told > REPORT_S or number == len(seeds):
            told = now
            rate = number / (now - began - paused)
            print(
                f"{time.strftime('%H:%M:%S')} {asked.skip + number} of {asked.histories} histories,"
                f" {len(found)} violations, {rate:.1f} a second",
                flush=True,
            )
        while asked.pause is not None and asked.pause.exists():
            time.sleep(PAUSE_S)
            paused += PAUSE_S


if __name__ == "__main__":
    main()
