"""Many processes that create one home, or one database, at the same moment. Some of them are killed soon after.

python creators.py home|schema PATH PROCESSES KILLS SEED

It forks before anything is opened, lets all processes begin at once, and says as JSON what those that were not killed
have done: `created` or `exists` for a home, `added` for a database, which each of them adds one to.
"""

import json
import os
import random
import signal
import sys
import time

from hocket import store
from hocket.errors import Conflict
from hocket.node.runtime import Runtime


def create(verb: str, path: str) -> str:
    if verb == "home":
        try:
            Runtime.init(path).close()
        except Conflict:
            return "exists"
        return "created"
    opened = store.open(path, create=True)
    with opened.write() as session:
        session.set_rate("k", session.rate("k") + 1)
    opened.close()
    return "added"


def main() -> None:
    verb, path, *numbers = sys.argv[1:]
    processes, kills, seed = map(int, numbers)
    chance = random.Random(seed)
    begin, go = os.pipe()
    children: list[tuple[int, int]] = []
    for _ in range(processes):
        out, said = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(go)
            os.read(begin, 1)
            try:
                os.write(said, create(verb, path).encode())
            except BaseException as error:
                os.write(said, repr(error).encode())
            os._exit(0)
        os.close(said)
        children.append((pid, out))
    os.close(go)
    for pid, _ in children[:kills]:
        time.sleep(chance.uniform(0, 0.02))  # waits for nothing: a kill comes at any moment
        os.kill(pid, signal.SIGKILL)
    for pid, _ in children:
        os.waitpid(pid, 0)
    print(json.dumps([os.read(out, 10_000).decode() for _, out in children[kills:]]))


main()
