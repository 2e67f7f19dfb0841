"""Tries out a worker in any language against a real server, and says which promises of the worker protocol it keeps.
`hocket testing worker` and a test of your own use it:

    findings = asyncio.run(try_worker(["./my-worker"]))
    assert all(finding.kept for finding in findings)

Each promise has a trial of its own, with a process of the worker, a kind of jobs, and a proxy before the server that
loses and delays answers. The trials are in `promises`.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Usage
from hocket.testing.workers.promises import PROMISES, Promise
from hocket.testing.workers.temporary_server import TemporaryServer
from hocket.testing.workers.trial import BrokenPromise, Trial

LEASE_S = 5.0
PATIENCE_S = 30.0
AT_ONCE = 6


class Finding(NamedTuple):
    """What became of a promise. `seen` says what the trial saw, and `printed` what a worker that broke the promise
    printed last.
    """

    promise: str
    text: str
    kept: bool
    seen: str
    seconds: float
    printed: str = ""


async def try_worker(
    command: Sequence[str],
    only: Sequence[str] = (),
    *,
    lease_s: float = LEASE_S,
    patience_s: float = PATIENCE_S,
    at_once: int = AT_ONCE,
    report: Callable[[Finding], object] = lambda finding: None,
) -> list[Finding]:
    """Tries a worker's promises, all or only these, `at_once` at the same time. `report` is called with each finding.
    Nothing is left behind, also if this is cancelled.
    """
    chosen = [each for each in PROMISES if not only or each.name in only]
    if unknown := set(only) - {each.name for each in PROMISES}:
        raise Usage(f"unknown promise {min(unknown)!r}; known are {', '.join(each.name for each in PROMISES)}")
    turns = asyncio.Semaphore(at_once)
    with tempfile.TemporaryDirectory(prefix="hocket-worker-") as directory:
        async with TemporaryServer(Path(directory, "home")) as server:

            async def find(promise: Promise) -> Finding:
                async with turns, _server_for(promise, server, Path(directory)) as own:
                    trial = Trial(promise.name, own, command, Path(directory), lease_s, patience_s)
                    finding = await put_to_trial(promise, trial)
                report(finding)
                return finding

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(find(promise)) for promise in chosen]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def _server_for(promise: Promise, server: TemporaryServer, directory: Path) -> AsyncIterator[TemporaryServer]:
    if not promise.own_server:
        yield server
        return
    async with TemporaryServer(directory / f"home-{promise.name}") as own:
        yield own


async def put_to_trial(promise: Promise, trial: Trial) -> Finding:
    """Tries one promise, and ends the worker."""
    begun = time.monotonic()
    try:
        kept, seen, printed = True, await promise.trial(trial), ""
    except BrokenPromise as broken:
        kept, seen, printed = False, str(broken), trial.last_line()
    finally:
        await trial.end()
    return Finding(promise.name, promise.text, kept, seen, time.monotonic() - begun, printed)
