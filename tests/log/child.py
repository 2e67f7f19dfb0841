"""A process of a node, for tests to start, race and kill. It says what it did only after it is durable.

python child.py append HOME COUNT    COUNT jobs, in every way that a process can write them
python child.py forever HOME         the same until killed
python child.py checkpoints HOME     jobs, and a checkpoint after each few, until killed: says its size and root
python child.py rebuild HOME STEP    a rebuild in steps of so many ops, one line each
"""

import sys
from contextlib import redirect_stdout

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.checkpoints.notes import read_checkpoint, read_note
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import RouteKind
from hocket.log import rebuild as rebuilding
from hocket.node.runtime import Runtime
from hocket.store.checkpoint_rows import CheckpointState


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


def main() -> None:
    verb, home, *rest = sys.argv[1:]
    with Runtime.open(home) as runtime:
        say("ready")
        if verb == "rebuild":
            rebuilding.STEP = int(rest[0])
            runtime.rebuild(lambda done, total: say(done, total))
            return
        sys.stdin.readline()
        turn = 0
        while verb == "checkpoints":
            with redirect_stdout(None):
                append(runtime, turn)
            turn += 1
            sign_checkpoint(runtime)
        while verb == "forever" or turn < int(rest[0]):
            append(runtime, turn)
            turn += 1


main()
