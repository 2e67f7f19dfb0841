"""Workers over HTTP against a real server: claims, leases, ends, and what a lost answer, a dead client, a stale fence
and a foreign token change about them.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from tests.server.served import Served
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client
from tests.waiting import wait_for as until

_NUMBERS = count()


class Worker:
    """One HTTP worker. `claim` takes a new claim id unless one is given."""

    def __init__(self, client: Client, kind: str, name: str = "w1") -> None:
        self.client, self.kind, self.name = client, kind, name

    def claim(self, count: int = 1, claim_id: str = "", **more: Any) -> list[dict[str, Any]]:
        answer = self.ask("claim", claim_id=claim_id or f"c{next(_NUMBERS)}", kinds=[self.kind], count=count, **more)
        assert answer.status == 200, answer.body
        jobs: list[dict[str, Any]] = answer.json["jobs"]
        return jobs

    def ask(self, what: str, **more: Any) -> Any:
        return self.client("POST", f"/v1/jobs/{what}", {"worker": self.name, **more})

    def renew(self, *jobs: dict[str, Any], **more: Any) -> list[str]:
        holds = [{"job_id": each["job_id"], "fence": each["fence"]} for each in jobs]
        answer = self.ask("renew", holds=holds, **more)
        assert answer.status == 200, answer.body
        return [each["state"] for each in answer.json["holds"]]

    def end(self, job: dict[str, Any], do: str = "complete", **more: Any) -> Any:
        return self.client("POST", f"/v1/jobs/{job['job_id']}/{do}", {"fence": job["fence"], **more})


def submitted(served: Served, kind: str, *payloads: str, options: tuple[str, ...] = ()) -> list[str]:
    ids = []
    for payload in payloads or ("{}",):
        done = command(served.home, "submit", kind, payload, "--json", *options)
        assert done.returncode == 0, done.stderr
        ids.append(str(json.loads(done.stdout)["job_id"]))
    return ids


@pytest.fixture(scope="module")
def ci(served: Served) -> Client:
    return Client(served, "ci", "job:claim", "job:read", "artifact:read", "job:schedule")


def shown(client: Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client("GET", f"/v1/jobs/{job}").json
    return found


def test_a_worker_claims_renews_and_completes_a_job(served: Served, ci: Client):
    (job,) = submitted(served, "basic.job", '{"n": 7}')
    worker = Worker(ci, "basic.job")
    (held,) = worker.claim(lease_ms=20_000)
    assert (held["job_id"], held["kind"], held["payload"]) == (job, "basic.job", {"n": 7})
    assert (held["fence"], held["attempt"], held["checkpoint"]) == (1, 1, None)
    assert 0 < held["lease_ms"] <= 20_000
    assert shown(ci, job)["state"] == "running"
    assert worker.claim() == []
    assert worker.renew(held, lease_ms=30_000) == ["held"]
    done = worker.end(held, result={"x": [1, 2.5, None]})
    assert (done.status, done.json) == (200, {"job_id": job, "state": "succeeded"})
    assert ci("GET", f"/v1/jobs/{job}/result").json["result"] == {"x": [1, 2.5, None]}
    assert worker.renew(held) == ["lost"]


def test_a_failed_job_is_retried_if_its_worker_says_so(served: Served, ci: Client):
    (job,) = submitted(served, "fails.job", options=("--backoff", "1ms"))
    worker = Worker(ci, "fails.job")
    (held,) = worker.claim()
    assert worker.end(held, "fail", error="no disk", retry=True, checkpoint={"at": 3}).json["state"] == "pending"
    (again,) = worker.claim(wait_ms=20_000)
    assert (again["job_id"], again["fence"], again["attempt"], again["checkpoint"]) == (job, 2, 2, {"at": 3})
    assert worker.end(again, "fail", error="still no disk").json["state"] == "failed"
    assert shown(ci, job)["error"] == "still no disk"


def test_many_holds_end_in_one_request_each_on_its_own(served: Served, ci: Client):
    submitted(served, "many.job", *(f'{{"n": {n}}}' for n in range(5)))
    worker = Worker(ci, "many.job")
    held = worker.claim(10)
    assert [each["payload"]["n"] for each in held] == [0, 1, 2, 3, 4]
    ends = [
        {"do": "complete", "result": 1},
        {"do": "fail", "error": "bad"},
        {"do": "postpone", "delay_ms": 60_000},
        {"do": "yield"},
        {"do": "complete"},
    ]
    named = [{"job_id": job["job_id"], "fence": job["fence"], **end} for job, end in zip(held, ends, strict=True)]
    named[4]["fence"] = 9
    answer = worker.ask("end", ends=[*named, {**named[0]}])
    states = [(each.get("state"), each.get("error")) for each in answer.json["ends"]]
    assert states == [
        *(("succeeded", None), ("failed", None), ("pending", None), ("pending", None), (None, "stale-fence")),
        (None, "usage"),
    ]


def test_a_claim_waits_for_a_job(served: Served, ci: Client):
    worker = Worker(ci, "waits.*")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(worker.claim, wait_ms=50_000)
        until(lambda: not waiting.running() or waiting)
        (job,) = submitted(served, "waits.late")
        assert [each["job_id"] for each in waiting.result(60)] == [job]
    began = time.monotonic()
    assert worker.claim(wait_ms=200) == []
    assert time.monotonic() - began >= 0.2


def test_the_same_claim_id_gets_the_same_holds_again(served: Served, ci: Client):
    submitted(served, "lost.answer", "{}", "{}", "{}")
    worker = Worker(ci, "lost.answer")
    first = worker.claim(2, "lost-1")
    again = worker.claim(2, "lost-1")
    assert [(each["job_id"], each["fence"]) for each in again] == [(each["job_id"], each["fence"]) for each in first]
    assert all(0 < new["lease_ms"] <= old["lease_ms"] for new, old in zip(again, first, strict=True))
    worker.end(first[0])
    assert [each["job_id"] for each in worker.claim(2, "lost-1")] == [first[1]["job_id"]]
    # Another worker, and another agent, may use the same words.
    (third,) = Worker(ci, "lost.answer", "w2").claim(2, "lost-1")
    assert third["job_id"] not in [each["job_id"] for each in first]


@pytest.mark.parametrize(
    ("do", "more", "other"),
    [
        ("complete", {"result": [1]}, {"result": [2]}),
        ("fail", {"error": "one"}, {"error": "two"}),
        ("postpone", {"delay_ms": 50_000}, {"delay_ms": 60_000}),
        ("yield", {}, {"reason": "other"}),
    ],
)
def test_an_end_can_be_repeated_with_the_same_content(
    served: Served, ci: Client, do: str, more: dict[str, Any], other: dict[str, Any]
):
    kind = f"repeat.{do}"
    submitted(served, kind)
    worker = Worker(ci, kind)
    (held,) = worker.claim()
    first = worker.end(held, do, **more)
    assert first.status == 200
    assert worker.end(held, do, **more).json == first.json
    refused = worker.end(held, do, **other)
    assert (refused.status, refused.json["error"], refused.json["final"]) == (409, "stale-fence", True)
    assert refused.json["type"].endswith("/stale-fence")
