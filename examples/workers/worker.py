#!/usr/bin/env python3
"""A Hocket worker that needs nothing but Python: change `work`, and keep the rest.

HOCKET_URL=http://127.0.0.1:7315 HOCKET_TOKEN=hkt_… HOCKET_KINDS=acme.* python worker.py
"""

import http.client
import json
import os
import queue
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

URL, KINDS = os.environ["HOCKET_URL"].rstrip("/"), os.environ["HOCKET_KINDS"].split(",")
HEADERS = {"Authorization": f"Bearer {os.environ['HOCKET_TOKEN']}", "Content-Type": "application/json"}
LEASE_S = int(os.environ.get("HOCKET_LEASE_MS", "30000")) / 1000
WAIT_S, COUNT = int(os.environ.get("HOCKET_WAIT_MS", "20000")) / 1000, int(os.environ.get("HOCKET_COUNT", "8"))
WORKER = f"python-{uuid.uuid4().hex}"  # names this process alone


def work(payload, stop):
    """Your work. Look at `stop` now and then: once it is set, the job is cancelled or another worker's."""
    stop.wait(payload.get("ms", 0) / 1000)
    if "fail" in payload:
        raise RuntimeError(payload["fail"])
    return payload.get("echo")


class Hold:
    def __init__(self, job, asked):
        self.job, self.which = job, {"job_id": job["job_id"], "fence": job["fence"]}
        self.until, self.stop = asked + job["lease_ms"] / 1000, threading.Event()

    def left_s(self):
        return max(0.05, self.until - time.monotonic())

    def stands(self):
        if time.monotonic() >= self.until:
            self.stop.set()
        return not self.stop.is_set()


class Interrupted(Exception):
    """SIGTERM came while the main thread waited for jobs."""


holds, ended, changed = {}, queue.SimpleQueue(), threading.Event()
draining = claiming = False


def drain(*_):
    global draining
    draining = True
    if claiming:
        raise Interrupted


def post(path, body, is_needed, timeout_s=WAIT_S + 10):
    """Sends a request, and sends it again until the answer is final or nobody needs it any longer."""
    pause_s = 0.1
    while is_needed():
        try:
            request = urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return 200, json.load(reply)
        except urllib.error.HTTPError as error:
            later = error.headers.get("Retry-After")
            if later is None and error.code not in (429, 500, 502, 503, 504):
                return error.code, {"detail": error.read().decode(errors="replace")}
            pause_s = max(pause_s, float(later or 0) * 2)
        except (OSError, http.client.HTTPException, ValueError):
            pass  # No whole answer came, and the server may have done its part: repeat the same request.
        time.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(pause_s * 2, 5)
    return 0, {}


def renew(some, timeout_s):
    """Renews holds with one request. Their leases count from before it, so that no clocks are compared."""
    asked, tries = time.monotonic(), iter([True])
    body = {"worker": WORKER, "holds": [hold.which for hold in some.values()]}
    _, answer = post("/v1/jobs/renew", body, lambda: next(tries, False), timeout_s)
    for state in answer.get("holds", []):
        if state["state"] == "held":
            some[state["job_id"]].until = asked + state["lease_ms"] / 1000
        else:  # cancel or lost
            some[state["job_id"]].stop.set()
    if answer.get("drain"):
        os.kill(os.getpid(), signal.SIGTERM)


def keep_renewing():
    while True:
        time.sleep(min([LEASE_S / 3, *(hold.left_s() for hold in dict(holds).values())]))
        if some := {job_id: hold for job_id, hold in dict(holds).items() if hold.stands()}:
            renew(some, min([LEASE_S / 3, *(hold.left_s() for hold in some.values())]))


def run(hold):
    try:
        end = {"do": "complete", "result": work(hold.job["payload"], hold.stop) if hold.stands() else None}
    except Exception as error:
        end = {"do": "fail", "error": str(error) or type(error).__name__, "retry": False}
    ended.put((hold, hold.which | end))


def keep_ending():
    """Sends what has ended meanwhile with one request. A refusal is final: another worker has the job."""
    while (first := ended.get()) is not None:
        batch = [first, *(ended.get() for _ in range(ended.qsize()))]
        standing = [each for each in batch if each[0].stands()]
        body = {"worker": WORKER, "ends": [end for _, end in standing]}
        status, answer = post("/v1/jobs/end", body, lambda held=standing: any(hold.stands() for hold, _ in held))
        refused = [each for each in answer["ends"] if "error" in each] if status == 200 else [answer] if status else []
        for each in refused:
            print("refused:", each, file=sys.stderr)
        for hold, _ in batch:
            holds.pop(hold.which["job_id"], None)
        changed.set()


def claim():
    """Claims as many jobs as there is room for. A repeated request has the same claim_id, and so gets the same jobs."""
    asked, claim_id = time.monotonic(), uuid.uuid4().hex
    body = {"worker": WORKER, "claim_id": claim_id, "kinds": KINDS, "count": COUNT - len(holds)}
    body |= {"lease_ms": int(LEASE_S * 1000), "wait_ms": int(WAIT_S * 1000)}
    status, answer = post("/v1/jobs/claim", body, lambda: True)
    if status != 200:
        print(f"the server refuses claims with {status}: {answer['detail']}", file=sys.stderr)
        return {}, True, 1
    new = {job["job_id"]: Hold(job, asked) for job in answer["jobs"]}
    if new and time.monotonic() - asked > LEASE_S / 3:
        renew(new, LEASE_S / 3)  # Nobody knows how long the answer was under way, and this is short.
    return new, answer["drain"], 0


def main():
    global claiming, draining
    code = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    threading.Thread(target=keep_renewing, daemon=True).start()
    ender = threading.Thread(target=keep_ending, daemon=True)
    ender.start()
    with ThreadPoolExecutor(COUNT) as pool:
        while not draining or holds:
            changed.clear()
            if draining or len(holds) == COUNT:
                changed.wait(1)
                continue
            new = {}
            try:
                claiming = True
                new, draining, code = claim()
            except Interrupted:
                pass  # The connection has ended with the request, and what was claimed goes back.
            claiming = False
            for job_id, hold in new.items():
                if hold.stands():
                    holds[job_id] = hold
                    pool.submit(run, hold)
    ended.put(None)
    ender.join()
    post("/v1/jobs/goodbye", {"worker": WORKER}, iter([True, True, False]).__next__, 5)
    sys.exit(code)


if __name__ == "__main__":
    main()
