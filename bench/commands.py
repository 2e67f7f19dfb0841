"""`hocket run` as a user starts it: the installed console script, once for each sample, beside the same command started
in the same way with nothing around it. The two take turns, so that both meet the same machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.subject import Result
from hocket.extensions.command.local_client import SUFFIX
from hocket.node.runtime import Runtime

HOCKET = str(Path(sys.executable).parent / "hocket")
TRUE = shutil.which("true") or "/bin/true"
WARM_UP = 5
READY_S = 30.0


def run_resident(home: Path, samples: int) -> Result:
    """`hocket run -- true` while a worker of the node is there, against `true`."""
    Runtime.init(home / "node").close()
    environment = _environment(home / "node")
    with _worker(home / "node", environment):
        return _samples(samples, environment)


def run_alone(home: Path, samples: int) -> Result:
    """The same without a worker: the process that is asked does the job itself."""
    Runtime.init(home / "node").close()
    return _samples(samples, _environment(home / "node"))


def _environment(home: Path) -> dict[str, str]:
    """Packages come compiled; a checkout compiles when it is first used, unless it is told not to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"HOCKET_HOME": str(home)}


@contextmanager
def _worker(home: Path, environment: dict[str, str]) -> Iterator[None]:
    """`hocket work`, as soon as its door is open."""
    with subprocess.Popen([HOCKET, "work"], env=environment, stderr=subprocess.DEVNULL) as worker:
        try:
            deadline = time.monotonic() + READY_S
            while not list((home / "processes").glob(f"*{SUFFIX}")):
                if time.monotonic() > deadline or worker.poll() is not None:
                    raise RuntimeError("the worker did not become ready")
                time.sleep(0.01)
            yield
        finally:
            worker.send_signal(signal.SIGTERM)


def _samples(samples: int, environment: dict[str, str]) -> Result:
    ours, plain = [], []
    for number in range(samples + WARM_UP):
        run_ms, plain_ms = _once([HOCKET, "run", "--", TRUE], environment), _once([TRUE], environment)
        if number >= WARM_UP:
            ours.append(run_ms)
            plain.append(plain_ms)
    added = [run_ms - plain_ms for run_ms, plain_ms in zip(ours, plain, strict=True)]
    return {"latencies_ms": ours, "plain_ms": plain, "added_ms": added}


def _once(words: list[str], environment: dict[str, str]) -> float:
    """Milliseconds from the start of a process to the moment at which its end is known."""
    start = time.perf_counter()
    process = os.posix_spawn(words[0], words, environment)
    _, status = os.waitpid(process, 0)
    elapsed_ms = (time.perf_counter() - start) * 1000
    if status != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return elapsed_ms
