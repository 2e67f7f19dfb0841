"""Workers over HTTP against a real server: claims, leases, ends, and what a lost answer, a dead client, a stale fence
and a foreign token change about them.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import hocket
from hocket.api.workers.claiming import HoldToRenew
from hocket.node.runtime import Runtime
from tests.cli.fork_server import start_command
from tests.server.served import ROOT, Served, environment, serving
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


def workers_of(served: Served) -> list[dict[str, Any]]:
    """The workers, as `hocket status` shows them."""
    found: list[dict[str, Any]] = json.loads(command(served.home, "status", "--json").stdout)["workers"]
    return found


def named(served: Served, start: str) -> list[dict[str, Any]]:
    """The workers whose agent and name begin so."""
    return [each for each in workers_of(served) if each["where"].startswith(start) and "over HTTP" in each["where"]]


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
        until(lambda: named(served, "ci/w1"))
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


# Waiting, leaving, coming back.


def test_many_wait_for_the_same_kinds_and_each_job_goes_to_one_of_them(served: Served, ci: Client):
    workers = [Worker(ci, "crowd.job", f"crowd{n}") for n in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(each.claim, 1, wait_ms=30_000) for each in workers]
        until(lambda: len(named(served, "ci/crowd")) == 20)
        ids = submitted(served, "crowd.job", *["{}"] * 20)
        got = [job["job_id"] for each in waiting for job in each.result(60)]
    assert sorted(got) == sorted(ids)


def test_holds_that_no_client_has_heard_of_go_back(served: Served, ci: Client):
    """The client goes while its claim waits; the job then goes to another at once, with the first fence."""
    where = urlsplit(served.address)
    body = json.dumps(
        {"worker": "gone", "claim_id": "g1", "kinds": ["gone.job"], "wait_ms": 50_000, "lease_ms": 600_000}
    ).encode()
    head = (
        f"POST /v1/jobs/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ci.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port)) as client:
        client.sendall(head.encode() + body)
        until(lambda: named(served, "ci/gone"))
    (job,) = submitted(served, "gone.job")
    held: list[dict[str, Any]] = []
    until(lambda: held.extend(Worker(ci, "gone.job", "heir").claim(wait_ms=1_000)) or held)
    assert [each["job_id"] for each in held] == [job]
    # The server had noticed, or the job came back as one that was not begun: that counts as no return.
    assert shown(ci, job)["returns"] == 0


def test_a_worker_that_says_goodbye_returns_its_jobs_at_once(served: Served, ci: Client):
    ids = submitted(served, "bye.job", "{}", "{}")
    leaver, heir = Worker(ci, "bye.job", "leaver"), Worker(ci, "bye.job", "heir")
    held = leaver.claim(2, lease_ms=600_000)
    assert heir.claim() == []
    assert leaver.ask("goodbye").json == {"returned": 2}
    assert leaver.ask("goodbye").json == {"returned": 0}
    assert named(served, "ci/leaver") == []
    taken = heir.claim(2, wait_ms=20_000)
    assert sorted(each["job_id"] for each in taken) == sorted(ids) and {each["fence"] for each in taken} == {2}
    late = leaver.end(held[0])
    assert (late.status, late.json["error"]) == (409, "stale-fence")


def test_a_lease_that_ends_gives_the_job_to_another_and_the_old_fence_is_refused(served: Served, ci: Client):
    (job,) = submitted(served, "dies.job")
    dead, heir = Worker(ci, "dies.job", "dead"), Worker(ci, "dies.job", "heir")
    (old,) = dead.claim(lease_ms=1_000)
    (new,) = heir.claim(wait_ms=50_000)
    assert (new["job_id"], new["fence"]) == (job, old["fence"] + 1)
    assert dead.renew(old) == ["lost"]
    for do, more in (("complete", {}), ("fail", {"error": "x"}), ("postpone", {"delay_ms": 1}), ("yield", {})):
        refused = dead.end(old, do, **more)
        assert (refused.status, refused.json["error"]) == (409, "stale-fence"), do
    parts = dead.end(old, "parts", parts=[{"index": 0, "data": "x"}])
    assert (parts.status, parts.json["error"]) == (409, "stale-fence")
    assert heir.end(new, result=1).status == 200


def test_holds_and_claim_ids_outlive_the_server(tmp_path: Path):
    """A server that is killed, and the sweeps of the next one, leave the jobs with the worker that holds them."""
    home = tmp_path / "home"
    Runtime.init(home, name="box").close()
    with killed(home) as first:
        client = Client(first, "ci", "job:claim", "job:read")
        worker = Worker(client, "kept.job")
        submitted(first, "kept.job", "{}", "{}")
        held = worker.claim(2, "before", lease_ms=600_000)
        worker.end(held[1], result=2)
    with serving(home) as second:
        client._served = second
        assert [each["job_id"] for each in worker.claim(2, "before")] == [held[0]["job_id"]]
        assert worker.renew(held[0]) == ["held"]
        assert worker.end(held[1], result=2).status == 200
        assert Worker(client, "kept.job", "other").claim(wait_ms=3_000) == []
        assert worker.end(held[0], result=1).json["state"] == "succeeded"
        assert shown(client, held[0]["job_id"])["returns"] == 0


@contextmanager
def killed(home: Path) -> Iterator[Served]:
    """A server that is killed at the end."""
    words = ["--home", str(home), "serve", "--port", "0", "--json"]
    ours, theirs = os.pipe()
    process = start_command(words, environment({}), ROOT, (theirs, 2))
    os.close(theirs)
    with open(ours) as said:
        try:
            yield Served(home, json.loads(said.readline())["address"])
        finally:
            process.kill()
            process.wait(60)


# Cancelling and draining.


def test_a_renewal_says_that_a_job_was_cancelled(served: Served, ci: Client):
    (job,) = submitted(served, "cancelled.job")
    worker = Worker(ci, "cancelled.job")
    (held,) = worker.claim()
    assert ci("POST", f"/v1/jobs/{job}/cancel", {"reason": "wrong"}).status == 200
    assert worker.renew(held) == ["cancel"]
    assert worker.end(held).json["error"] == "stale-fence"


def test_progress_and_checkpoints_come_with_a_renewal(served: Served, ci: Client):
    (job,) = submitted(served, "slow.job")
    worker = Worker(ci, "slow.job")
    (held,) = worker.claim()
    hold = {"job_id": job, "fence": held["fence"], "progress": {"done": 3}, "checkpoint": {"row": 40}}
    answer = worker.ask("renew", holds=[hold], lease_ms=40_000).json
    assert answer == {
        "holds": [{"job_id": job, "fence": 1, "state": "held", "lease_ms": 40_000}],
        "drain": False,
    }
    assert shown(ci, job)["progress"] == {"done": 3}
    assert worker.end(held, "yield").status == 200
    (again,) = worker.claim(wait_ms=20_000)
    assert again["checkpoint"] == {"row": 40}
    too_long = worker.ask("renew", holds=[{"job_id": job, "fence": 2, "checkpoint": "x" * 70_000}])
    assert too_long.status == 400 and "65536" in too_long.json["message"]


def test_a_drained_worker_gets_no_more_jobs_and_is_told(served: Served, ci: Client):
    submitted(served, "drained.job")
    worker = Worker(ci, "drained.job", "drainee")
    (held,) = worker.claim()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(worker.ask, "claim", claim_id="w", kinds=["drained.job"], wait_ms=50_000)
        until(lambda: named(served, "ci/drainee"))
        done = command(served.home, "worker", "drain", "ci", "drainee")
        assert done.returncode == 0, done.stderr
        assert waiting.result(30).json == {"jobs": [], "drain": True}
    submitted(served, "drained.job")
    assert worker.ask("claim", claim_id="x", kinds=["drained.job"]).json == {"jobs": [], "drain": True}
    answer = worker.ask("renew", holds=[{"job_id": held["job_id"], "fence": 1}]).json
    assert (answer["drain"], answer["holds"][0]["state"]) == (True, "held")
    assert worker.end(held).status == 200
    assert len(Worker(ci, "drained.job", "another").claim()) == 1
    assert command(served.home, "worker", "drain", "ci", "nobody").returncode == 2
    assert ci("POST", "/v1/agents/ci/workers/drainee/drain", {}).status == 403


def test_the_workers_of_a_drained_node_drain(tmp_path: Path):
    home = tmp_path / "home"
    Runtime.init(home, name="box").close()
    with serving(home) as served:
        worker = Worker(Client(served, "ci", "job:claim"), "node.job")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(worker.ask, "claim", claim_id="w", kinds=["node.job"], wait_ms=50_000)
            until(lambda: named(served, "ci/w1"))
            assert command(home, "drain", "here").returncode == 0
            assert waiting.result(30).json == {"jobs": [], "drain": True}
        assert worker.ask("renew").json == {"holds": [], "drain": True}
        assert command(home, "resume", "here").returncode == 0
        submitted(served, "node.job")
        assert len(worker.claim(wait_ms=20_000)) == 1


# Parts.


def test_parts_are_the_result_and_can_be_sent_again(served: Served, ci: Client):
    (job,) = submitted(served, "parts.job")
    worker = Worker(ci, "parts.job")
    (held,) = worker.claim()

    def send(*parts: tuple[int, Any]) -> Any:
        return worker.end(held, "parts", parts=[{"index": index, "data": data} for index, data in parts])

    assert send((0, "a"), (1, "b")).json == {"job_id": job, "next": 2}
    assert send((1, "b"), (2, "c")).json["next"] == 3
    other = send((1, "x"))
    assert (other.status, other.json["error"]) == (409, "conflict") and "another content" in other.json["message"]
    gap = send((5, "f"))
    assert (gap.status, gap.json["error"]) == (409, "conflict") and "send part 3 first" in gap.json["message"]
    assert send().json["next"] == 3
    for bad in (-1, 2_000_000):
        assert send((bad, "x")).status == 400
    assert send((3, "x" * 70_000)).status == 400
    assert worker.end(held).json["state"] == "succeeded"
    assert ci("GET", f"/v1/jobs/{job}/result").json["result"] == "abc"


# Who may do what.


def test_a_token_claims_only_the_kinds_that_it_is_for(served: Served):
    submitted(served, "secret.job")
    painter = Client(served, "painter", "job:claim:paint.")
    for kinds in (["secret.job"], ["secret.*"], ["paint.red", "secret.job"], ["pain*"], ["*"], ["paint"]):
        answer = painter("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": "c", "kinds": kinds})
        assert answer.status == 403, kinds
    (job,) = submitted(served, "paint.red")
    assert [each["job_id"] for each in Worker(painter, "paint.*").claim()] == [job]
    reader = Client(served, "only-reads", "job:read")
    assert reader("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": "c", "kinds": ["paint.red"]}).status == 403


def test_a_hold_is_of_the_agent_that_claimed_it(served: Served, ci: Client):
    (job,) = submitted(served, "mine.job")
    (held,) = Worker(ci, "mine.job").claim(claim_id="mine")
    thief = Worker(Client(served, "thief", "job:claim"), "mine.job")
    for do, more in (("complete", {}), ("fail", {"error": "x"}), ("yield", {}), ("parts", {"parts": []})):
        assert thief.end(held, do, **more).status == 403, do
    assert thief.renew(held) == ["lost"]
    assert thief.claim(claim_id="mine") == []
    assert thief.ask("goodbye").json == {"returned": 0}
    answer = thief.ask("end", ends=[{"job_id": job, "fence": held["fence"], "do": "complete"}]).json["ends"][0]
    assert answer["error"] == "not_authorised"
    # Nor does a token for other kinds learn whether the fence is right.
    narrow = Worker(Client(served, "narrow", "job:claim:other."), "other.job")
    for fence in (held["fence"], 7):
        assert narrow.end({**held, "fence": fence}).status == 403
    assert Worker(ci, "mine.job").renew(held) == ["held"]
    assert Worker(ci, "mine.job").end(held).status == 200


@pytest.mark.parametrize("fence", [0, -1, 2**53, 2**70, "1", 1.5, None])
def test_a_fence_is_a_number_that_every_language_can_hold(served: Served, ci: Client, fence: Any):
    (job,) = submitted(served, "fences.job")
    assert ci("POST", f"/v1/jobs/{job}/complete", {"fence": fence}).status == 400
    assert ci("POST", f"/v1/jobs/{job}/complete", {}).status == 400


def test_what_is_not_a_claim_is_refused(served: Served, ci: Client):
    good = {"worker": "w", "claim_id": "c", "kinds": ["bad.job"]}
    for bad in (
        {"worker": ""},
        {"worker": "a/b"},
        {"worker": "../x"},
        {"worker": "x" * 65},
        {"claim_id": ""},
        {"claim_id": "x" * 65},
        {"kinds": []},
        {"kinds": ["k"] * 65},
        {"kinds": "k"},
        {"count": 0},
        {"count": 1_001},
        {"lease_ms": 10},
        {"lease_ms": 10**12},
        {"wait_ms": -1},
        {"wait_ms": 50_001},
        {"labels": ["x" * 10_000]},
        {"colour": "red"},
    ):
        assert ci("POST", "/v1/jobs/claim", good | bad).status == 400, bad
    assert ci("POST", "/v1/jobs/claim", good).json["jobs"] == []
    assert ci("POST", "/v1/jobs/claim", {**good, "kinds": ["x" * (5 * 1024 * 1024)]}).status == 413


def test_bodies_that_do_not_come_and_fences_that_are_wrong_slow_nobody_down(served: Served, ci: Client):
    submitted(served, "busy.job", *["{}"] * 20)
    where = urlsplit(served.address)
    head = f"POST /v1/jobs/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ci.token}\r\n"
    head += "Content-Type: application/json\r\n"
    slow = [socket.create_connection((where.hostname, where.port)) for _ in range(40)]
    try:
        for each in slow:
            each.sendall((head + "Content-Length: 4000000\r\n\r\n{").encode())
        worker = Worker(ci, "busy.job")
        held = worker.claim(20)
        wrong = [{"job_id": each["job_id"], "fence": 99, "do": "complete"} for each in held]
        assert {each["error"] for each in worker.ask("end", ends=wrong).json["ends"]} == {"stale-fence"}
        ends = [{"job_id": each["job_id"], "fence": each["fence"], "do": "complete"} for each in held]
        assert {each["state"] for each in worker.ask("end", ends=ends).json["ends"]} == {"succeeded"}
    finally:
        for each in slow:
            each.close()


# Like any worker.


def test_a_worker_over_http_is_seen_where_workers_are(served: Served, ci: Client):
    (job,) = submitted(served, "seen.job")
    Worker(ci, "seen.job", "visible").claim(labels=["gpu=a100"])
    (shown_worker,) = named(served, "ci/visible")
    assert (shown_worker["kinds"], shown_worker["running"], shown_worker["state"]) == (["seen.job"], [job], "running")
    assert "ci/visible over HTTP" in command(served.home, "status").stdout
    agents = json.loads(command(served.home, "agents", "--json").stdout)
    assert any("seen.job" in each["doing"] for each in agents)


def test_a_job_with_needs_goes_to_a_worker_that_has_them(served: Served, ci: Client):
    submitted(served, "needs.job", options=("--needs", "gpu"))
    assert Worker(ci, "needs.job", "plain").claim() == []
    assert len(Worker(ci, "needs.job", "strong").claim(labels=["gpu=a100"])) == 1


def test_ranked_jobs_go_to_workers_over_http(served: Served, ci: Client):
    workers = [Worker(ci, "ranked.job", f"ranked{n}") for n in range(3)]
    for each in workers:
        assert each.claim() == []
    ids = submitted(served, "ranked.job", *["{}"] * 12, options=("--claim", "rendezvous", "--claim-timeout", "200ms"))
    got: list[str] = []
    until(lambda: got.extend(job["job_id"] for each in workers for job in each.claim(12)) or len(got) >= 12)
    assert sorted(got) == sorted(ids)


def test_python_programs_have_the_same_operations(tmp_path: Path):
    home = tmp_path / "home"
    Runtime.init(home, name="box").close()
    with hocket.open(home) as node:
        node.submit("python.job", n=1)
        admin = hocket.admin(node)
        (job,) = admin.claim_jobs("w1", "c1", ["python.*"]).jobs
        assert job.payload == {"n": 1}
        assert [each.job_id for each in admin.claim_jobs("w1", "c1", ["python.*"]).jobs] == [job.job_id]
        hold = HoldToRenew(job.job_id, job.fence)
        assert [each.state for each in admin.renew_jobs("w1", [hold]).holds] == ["held"]
        with pytest.raises(hocket.StaleFence):
            admin.complete_job(job.job_id, job.fence + 1)
        assert admin.complete_job(job.job_id, job.fence, {"done": True}).state == "succeeded"
        assert node.job(job.job_id).result() == {"done": True}


def test_a_payload_that_is_not_on_the_log_reaches_the_worker_and_an_erased_one_nobody(served: Served):
    client = Client(served, "eraser", "job:claim", "job:read", "artifact:read", "job:erase")
    worker = Worker(client, "mail.apart")
    apart = ("--content-apart", "0")
    kept, erased = submitted(served, "mail.apart", '{"to":"ann"}', '{"to":"bob"}', options=apart)
    answer = client("POST", f"/v1/jobs/{erased}/erase", {"reason": "asked for by bob"})
    assert (answer.status, answer.json["blobs"], answer.json["stays"]) == (200, 1, [])
    (job,) = worker.claim(5)
    assert (job["job_id"], job["payload"]) == (kept, {"to": "ann"})
    assert worker.end(job, result={"sent": "ann"}).status == 200
    shown = client("GET", f"/v1/jobs/{kept}").json
    assert (shown["payload"], shown["result"], shown["erased"]) == ({"to": "ann"}, {"sent": "ann"}, None)
    gone = client("GET", f"/v1/jobs/{erased}").json
    assert (gone["state"], gone["payload"]) == ("cancelled", None)
    assert gone["erased"]["reason"] == "asked for by bob"
    assert client("POST", f"/v1/jobs/{erased}/erase", {"reason": "again"}).status == 409
