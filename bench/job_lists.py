"""How long lists and counts take beside many ended jobs: over HTTP with a connection that is kept, in a store that is
made and not worked off. `python -m bench.job_lists [JOBS]` prints the median and the slowest of each request.
"""

import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hocket.api import Service, programs
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import make_ulid, node_text
from hocket.kernel.policy import Policy
from hocket.node.runtime import Runtime
from hocket.store import JobEntry, Stage

JOBS = 1_000_000
# Of a hundred jobs, so many have failed; one kind in this has few jobs.
FAILED = 3
KINDS = [*("acme.render",) * 60, *("acme.thumb",) * 30, *("other.kind",) * 9, "acme.rare"]
TIMES = 50
STEP = 20_000


def entries(count: int, now_ms: int, node: int) -> Iterator[JobEntry]:
    chance = random.Random(1)
    for n in range(count):
        at = Hlc(now_ms - count + n, 0, node)
        outcome = Outcome.FAILED if n % 100 < FAILED else Outcome.SUCCEEDED
        kind = KINDS[n % 100] if n % 100 else ("acme.rare" if n % 10_000 == 0 else "acme.render")
        id = make_ulid(at.wall, chance.randbytes(10))
        job = Job(id, kind, id, at, Policy(), at, State.COMPLETED, outcome, fence=1, claimer=node, done=at)
        yield JobEntry(job, Stage.DONE, None)


def requests(now_ms: int, count: int, node: int) -> list[str]:
    middle = f"since_ms={now_ms - count // 2}&until_ms={now_ms - count // 2 + 1000}"
    filters = [
        *("", "state=succeeded", "state=failed", "state=running", "kind=acme.", "kind=acme.rare"),
        *(
            "kind=acme.&state=failed",
            "kind=acme.rare&state=succeeded",
            "kind=none",
            middle,
            f"{middle}&kind=acme.thumb",
        ),
        *(f"submitter={node_text(node)}", "error=nothing", "id=ZZZZZ", "tag=none"),
    ]
    return [f"/v1/jobs{place}?{each}" for place in ("", "/count") for each in filters]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with Runtime.init(home, name="bench") as runtime:
            token = programs.create(Service(runtime), "bench", ["all"]).token
            now_ms, node = runtime.log.reading().wall, runtime.log.node
            made = entries(count, now_ms, node)
            for _ in range(-(-count // STEP)):
                with runtime.store.write() as session:
                    session.put_jobs(list(islice(made, STEP)))
        serve = [sys.executable, "-m", "hocket.cli", "--home", str(home), "serve", "--port", "0", "--json"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            place = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
            assert place is not None
            connection = http.client.HTTPConnection(place[0], timeout=60)
            print(f"{count} ended jobs\n\n| request | answer | median ms | slowest ms |\n|---|---|---|---|")
            for path in requests(now_ms, count, node):
                print(row(connection, path, token))
        finally:
            server.terminate()
            server.wait()


def row(connection: http.client.HTTPConnection, path: str, token: str) -> str:
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        taken.append((time.perf_counter() - began) * 1000)
        assert reply.status == 200, answer
        time.sleep(0.01)  # the limit of requests of one token
    found = f"{len(answer['items'])} jobs" if "items" in answer else str(answer)
    return f"| `{path}` | {found} | {statistics.median(taken):.1f} | {max(taken):.1f} |"


if __name__ == "__main__":
    main()
