"""The page beside many ended jobs: how long the server takes for each view, over a connection that is kept; and what
open tabs take from a worker that drains: of the processors, which another machine would find, too, and of its jobs a
second. `python -m bench.pages [JOBS]` prints both. A tab does what the page's script does: it waits for changes, and
then loads its page again, at most every second and a half.
"""

import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import hocket
from bench.job_lists import JOBS, STEP, entries
from hocket.node.runtime import Runtime

TIMES = 30
TABS = 20
# Of the script.
GAP_S = 1.5
DRAINED = 10_000
ROUNDS = 5
FRAMES = 1_000
HANDLER = """
import hocket


@hocket.job("bench.noop")
def noop(ctx):
    pass
"""


def fill(home: Path, count: int) -> str:
    """A store with that many ended jobs, of which each thousandth has the same argument; and some real ones."""
    with Runtime.init(home, name="bench") as runtime:
        now_ms, node = runtime.log.reading().wall, runtime.log.node
        made = entries(count, now_ms, node)
        for first in range(0, count, STEP):
            with runtime.store.write() as session:
                some = list(islice(made, STEP))
                session.put_jobs(some)
                for n, each in enumerate(some, first):
                    session.put_arguments(each.job.id, [("frame", str(n % FRAMES))])

    def run(ctx: hocket.Context, frame: int = 0) -> None:
        del frame

    job_type = hocket.job("acme.real")(run)
    with closing(hocket.open_sync(home)) as opened:
        for frame in range(300):
            job = opened.submit(job_type, frame=frame)
        opened.work([job_type], until_idle=True, signals=False)
        return job.job_id


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, str, int]]:
    """The address of a server of the home, the cookie of a browser that has entered, and the server's process."""
    command = [sys.executable, "-m", "hocket.cli", "--home", str(home)]
    server = subprocess.Popen([*command, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        place = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
        assert place is not None
        address = subprocess.run([*command, "page", "--no-open"], stdout=subprocess.PIPE, text=True, check=True).stdout
        connection = http.client.HTTPConnection(place[0], timeout=60)
        connection.request("GET", urlsplit(address.strip()).path)
        cookie = connection.getresponse().headers["set-cookie"].partition(";")[0]
        yield place[0], cookie, server.pid
    finally:
        server.terminate()
        server.wait()


def processor_s(pid: int) -> float:
    """Of one process, on Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(connection: http.client.HTTPConnection, path: str, cookie: str, pid: int) -> str:
    taken, used = [], processor_s(pid)
    for _ in range(TIMES):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        reply = connection.getresponse()
        size = len(reply.read())
        taken.append((time.perf_counter() - began) * 1000)
        assert reply.status == 200, path
        time.sleep(0.02)  # the limit of requests of one token
    own = (processor_s(pid) - used) * 1000 / TIMES
    return f"| `{path[:60]}` | {size // 1000} | {own:.1f} | {statistics.median(taken):.1f} | {max(taken):.1f} |"


class Tab(threading.Thread):
    """An open page."""

    def __init__(self, place: str, cookie: str, path: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.place, self.cookie, self.path, self.ended = place, cookie, path, ended
        self.loads = 0

    def run(self) -> None:
        headers = {"Cookie": self.cookie}
        changes = http.client.HTTPConnection(self.place)
        changes.request("GET", "/changes", headers={**headers, "Accept": "text/event-stream"})
        stream = changes.getresponse()
        assert stream.status == 200, stream.read()
        pages, loaded = http.client.HTTPConnection(self.place), 0.0
        while (line := stream.readline()) and not self.ended.is_set():
            if line.startswith(b"data"):
                time.sleep(max(0.0, GAP_S - (time.monotonic() - loaded)))
                pages.request("GET", self.path, headers=headers)
                pages.getresponse().read()
                self.loads, loaded = self.loads + 1, time.monotonic()


class Drain(NamedTuple):
    """Of a worker that drains alone, but for the server: its jobs a second, the time of the processors that a job takes
    of it, and the share of one processor that the server takes meanwhile.
    """

    jobs_s: float
    worker_us: float
    server_share: float


def drained(home: Path, handler: Path, server: int) -> Drain:
    with closing(hocket.open_sync(home)) as opened:
        opened.submit_many([(hocket.kind("bench.noop"), {})] * DRAINED)
    began, used = time.perf_counter(), processor_s(server)
    words = ["--home", str(home), "work", str(handler), "--until-idle"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "hocket.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(worker.pid, 0)
    worker.returncode = os.waitstatus_to_exitcode(status)
    assert worker.returncode == 0
    took = time.perf_counter() - began
    worker_us = (usage.ru_utime + usage.ru_stime) * 1e6 / DRAINED
    return Drain(DRAINED / took, worker_us, (processor_s(server) - used) / took)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as folder:
        home, handler = Path(folder) / "home", Path(folder) / "bench_handler.py"
        handler.write_text(HANDLER)
        job = fill(home, count)
        print(f"{count} ended jobs, load {os.getloadavg()[0]:.1f}\n")
        print("| view | kB | processors ms | median ms | slowest ms |\n|---|---|---|---|---|")
        views = [
            *("/", "/jobs", "/jobs?state=failed", "/jobs?kind=acme.", "/jobs?kind=acme.&state=failed"),
            *("/jobs?q=args.frame:7", "/jobs?q=args.frame:7+kind:other.+state:failed", "/jobs?q=since:1h"),
            *("/jobs?q=error:nothing", "/jobs?q=tag:none", "/jobs?q=ZZZZZ", f"/jobs/{job}"),
            *("/mesh", "/coordination", "/log"),
        ]
        with serving(home) as (place, cookie, pid):
            connection = http.client.HTTPConnection(place, timeout=60)
            for path in views:
                print(timed(connection, path, cookie, pid), flush=True)
            drains: dict[int, list[Drain]] = {0: [], TABS: []}
            print("\n| round | tabs | jobs/s | worker, µs a job | server, % of a processor | pages loaded |")
            print("|---|---|---|---|---|---|")
            for number in range(ROUNDS):
                for tabs in (0, TABS) if number % 2 == 0 else (TABS, 0):
                    ended = threading.Event()
                    shown = (f"/jobs/{job}", "/", "/jobs", "/log")
                    opened = [Tab(place, cookie, shown[at % 4], ended) for at in range(tabs)]
                    for each in opened:
                        each.start()
                    found = drained(home, handler, pid)
                    ended.set()
                    drains[tabs].append(found)
                    print(row(str(number + 1), tabs, found, sum(each.loads for each in opened)), flush=True)
            for tabs, all_found in drains.items():
                print(row("median", tabs, Drain(*map(statistics.median, zip(*all_found, strict=True))), ""))


def row(name: str, tabs: int, found: Drain, loads: int | str) -> str:
    share = 100 * found.server_share
    return f"| {name} | {tabs} | {found.jobs_s:.0f} | {found.worker_us:.0f} | {share:.1f} | {loads} |"


if __name__ == "__main__":
    main()
