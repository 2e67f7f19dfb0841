"""A process of a node, for tests to start, race and kill. It says what it did only after it is durable.

python child.py append HOME COUNT    COUNT jobs, in every way that a process can write them
python child.py forever HOME         the same until killed
python child.py checkpoints HOME     jobs, and a checkpoint after each few, until killed: says its size and root
python child.py rebuild HOME STEP    a rebuild in steps of so many ops, one line each
python child.py prune HOME COMMITS   prunes three days later, and kills itself in or after so many commits
python child.py keep HOME WHAT DIR CALLS   archives, prunes, writes a snapshot or takes one, three days later, and
                                           kills itself after so many calls of functions
"""

import os
import signal
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from hocket.errors import Conflict
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.checkpoints.notes import read_checkpoint, read_note
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import RouteKind
from hocket.log import Log
from hocket.log import rebuild as rebuilding
from hocket.log.archives.writing import write_archive
from hocket.log.lost_past import rewrite
from hocket.log.retention import horizons
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot
from hocket.log.snapshots.writing import write_snapshot
from hocket.node.runtime import Runtime
from hocket.store.checkpoint_rows import CheckpointState

LATER_MS = 3 * 86_400_000


def say(*words: object) -> None:
    print(*words, flush=True)


def append(runtime: Runtime, turn: int) -> None:
    if turn % 3 == 0:
        say(runtime.submit([Draft("plain", b"{}", Policy())])[0].job_id.hex())
    elif turn % 3 == 1:
        made = runtime.submit([Draft("several", b"{}", Policy(priority=1)) for _ in range(3)])
        say(*(each.job_id.hex() for each in made))
    else:
        requests = [lambda tx: jobs.submit(tx, [Draft("grouped", b"{}", Policy(retries=1))]) for _ in range(2)]
        results = runtime.log.commit([*requests, lambda tx: tx.author(RouteKind("k", None))])
        say(*(each.job_id.hex() for result in results[:2] for each in result))


def sign_checkpoint(runtime: Runtime) -> None:
    runtime.log.checkpoints.make()
    with runtime.store.read() as session:
        row = session.checkpoint(runtime.log.author, CheckpointState.SIGNED)
    assert row is not None
    checkpoint = read_checkpoint(read_note(row.note).text)
    say(checkpoint.size, checkpoint.root.hex())


def three_days_later(log: Log) -> None:
    physical, wall = log.physical, log.wall
    log.physical, log.wall = lambda: physical() + LATER_MS, lambda floor: max(wall(floor), physical() + LATER_MS)


def prune(log: Log) -> None:
    log.horizons.follow()
    with log.store.read() as session:
        plan = log.horizons.plan(session)
    if plan is not None and plan.settlement.gone_ops:
        log.horizons.move(plan)
    log.horizons.follow()


def keep(log: Log, what: str, place: Path, calls: int) -> None:
    left = calls

    def count(frame: object, event: str, argument: object) -> None:
        """Also before and after each call of the database and of the system."""
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    if what == "archive":
        for _ in write_archive(log, place, log.physical()):
            pass
    elif what == "prune":
        horizons.STEP_SUBJECTS = horizons.STEP_ENTRIES = 3
        horizons.PREPARE_STEP = 4
        prune(log)
    elif what == "snapshot":
        write_snapshot(log, place)
    else:
        with suppress(Conflict):  # an earlier process has put it in
            load_snapshot(log, SnapshotFolder(place))
        rewrite(log)  # as the next exchange does
    sys.setprofile(None)
    say("done")


def killed_prune(runtime: Runtime, commits: int) -> None:
    """An odd number kills it before the last of these commits, an even one after it."""
    log, run, begun = runtime.log, runtime.log.run, 0
    three_days_later(log)

    def counted(request: Any) -> Any:
        nonlocal begun
        begun += 1

        def killed(tx: Any) -> Any:
            done = request(tx)
            if begun == commits and commits % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        done = run(killed)
        if begun == commits:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    log.run = counted  # type: ignore[method-assign]
    prune(log)
    say("done")


def main() -> None:
    verb, home, *rest = sys.argv[1:]
    with Runtime.open(home) as runtime:
        say("ready")
        if verb == "rebuild":
            rebuilding.STEP = int(rest[0])
            runtime.rebuild(lambda done, total: say(done, total))
            return
        sys.stdin.readline()
        if verb == "prune":
            killed_prune(runtime, int(rest[0]))
            return
        if verb == "keep":
            three_days_later(runtime.log)
            keep(runtime.log, rest[0], Path(rest[1]), int(rest[2]))
            return
        turn = 0
        while verb == "checkpoints":
            with redirect_stdout(None):
                append(runtime, turn)
            turn += 1
            sign_checkpoint(runtime)
        while verb == "forever" or turn < int(rest[0]):
            append(runtime, turn)
            turn += 1


if __name__ == "__main__":
    main()
