"""Why a fence: a worker is frozen in mid-job, another worker takes over the job and finishes it, and then the first one
thaws and continues. The log refuses its completion. Its write is refused too, because the resource remembers the
highest fence it has seen. Without that check the old text would overwrite the new.

    hocket init
    python examples/fenced_write.py
"""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import hocket


class Page:
    """What the job changes: a text in a database of its own."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
        self._db.execute("CREATE TABLE IF NOT EXISTS page (job TEXT PRIMARY KEY, text TEXT)")

    def write(self, job_id: str, fence: int, text: str) -> None:
        """One transaction compares the fence and writes. A fence lower than one seen before is a StaleFence."""
        with hocket.fenced(self._db, job_id, fence):
            self._db.execute("INSERT OR REPLACE INTO page VALUES (?, ?)", (job_id, text))

    def read(self, job_id: str) -> str:
        return self._db.execute("SELECT text FROM page WHERE job = ?", (job_id,)).fetchone()[0]


# The lease is short so that the frozen worker is given up soon.
@hocket.job("example.publish", lease="500ms")
def publish(ctx, path):
    if ctx.fence == 1:
        # The laptop's lid is closed, the virtual machine is paused, … Sent to this thread, it stops right here.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    Page(path).write(ctx.job_id, ctx.fence, f"written under fence {ctx.fence}")
    return {"pid": os.getpid(), "fence": ctx.fence}


def work() -> None:
    with hocket.open() as node:
        node.work([publish], until_idle=True, notice=print)


def main() -> None:
    with hocket.open() as node:
        path = node.runtime.home.path / "page.db"
        handle = node.submit(publish, path=str(path))
        workers = [subprocess.Popen([sys.executable, __file__, "--worker"]) for _ in range(2)]
        try:
            print("finished by", handle.result(timeout=60))
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            for worker in workers:
                worker.wait(timeout=60)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        page = Page(path)
        try:
            page.write(handle.job_id, 1, "written under fence 1")
            raise AssertionError("a lower fence must be refused")
        except hocket.StaleFence as refused:
            print("a late write:", refused)
        text = page.read(handle.job_id)
        print(f"the page says: {text!r}")
        ops = [op["type"] for op in handle.status()["ops"]]
        print("the log says:", ", ".join(ops))
        assert text == "written under fence 2" and ops.count("CompleteJob") == 1


if __name__ == "__main__":
    work() if "--worker" in sys.argv else main()
