"""The routes of jobs, over real sockets: what each does, and what a token with a narrow grant may see of it."""

import json
from pathlib import Path

import pytest

from tests.server.served import Served
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client

UNKNOWN = "01M7HVJG9XMYB0FTGAN132HCK0"
KINDS = "paint.kind", "secret.kind"


def submitted(served: Served, kind: str, payload: str = "{}") -> str:
    done = command(served.home, "submit", kind, payload, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job_id"])


@pytest.fixture(scope="module")
def owner(served: Served) -> Client:
    return Client(served, "owner", "all")


@pytest.fixture(scope="module")
def painter(served: Served) -> Client:
    return Client(served, "painter", "job:read:paint.", "job:schedule:paint.")


def test_jobs_are_listed_by_state_and_kind_in_pages(served: Served, owner: Client):
    ids = [submitted(served, f"listed.{n % 2}") for n in range(5)]
    assert [each["job_id"] for each in owner("GET", "/v1/jobs?kind=listed.").json["items"]] == ids[::-1]
    assert [each["job_id"] for each in owner("GET", "/v1/jobs?kind=listed.1").json["items"]] == [ids[3], ids[1]]
    assert owner("GET", "/v1/jobs?kind=listed.&state=running").json == {"items": [], "next": None}
    seen, after = [], ""
    while after is not None:
        page = owner("GET", f"/v1/jobs?kind=listed.&limit=2{after and f'&after={after}'}").json
        seen += [each["job_id"] for each in page["items"]]
        assert len(page["items"]) <= 2
        after = page["next"]
    assert seen == ids[::-1]
    for bad in ("state=lost", "limit=0", "limit=1001", "after=nonsense", "colour=red"):
        assert owner("GET", f"/v1/jobs?{bad}").status == 400, bad


def test_a_job_is_shown_with_its_history(served: Served, owner: Client):
    job = submitted(served, "shown.job", '{"frame": 7}')
    shown = owner("GET", f"/v1/jobs/{job}").json
    assert (shown["kind"], shown["state"], shown["payload"]) == ("shown.job", "pending", {"frame": 7})
    assert shown["waits_for"]
    history = owner("GET", f"/v1/jobs/{job}/history").json
    assert [each["type"] for each in history["items"]] == ["ScheduleJob"] and history["next"] is None
    assert owner("GET", f"/v1/jobs/{UNKNOWN}").status == 404
    # Over HTTP a job has its whole id, so that no beginning can be guessed.
    assert owner("GET", f"/v1/jobs/{job[:12]}").status == 400


def test_a_job_is_cancelled_and_retried_and_its_end_can_be_waited_for(served: Served, owner: Client):
    job = submitted(served, "ends.job")
    assert owner("GET", f"/v1/jobs/{job}/result?wait_ms=1").json == {
        **{"job_id": job, "state": "pending", "outcome": None, "result": None, "error": None}
    }
    cancelled = owner("POST", f"/v1/jobs/{job}/cancel", {"reason": "the wrong frame"})
    assert (cancelled.status, cancelled.json["outcome"]) == (200, "cancelled")
    ended = owner("GET", f"/v1/jobs/{job}/result?wait_ms=50000").json
    assert (ended["outcome"], ended["error"]) == ("cancelled", "the wrong frame")
    assert owner("POST", f"/v1/jobs/{job}/cancel", {"reason": "again"}).status == 409
    assert owner("POST", f"/v1/jobs/{job}/retry", {"reason": "it was right"}).json["state"] == "pending"
    for body in ({}, {"reason": ""}, {"reason": "x" * 501}):
        assert owner("POST", f"/v1/jobs/{job}/cancel", body).status == 400


def test_a_grant_for_some_kinds_shows_and_changes_no_other_jobs(served: Served, painter: Client):
    own, other = submitted(served, "paint.red"), submitted(served, "secret.plan")
    assert painter("GET", "/v1/jobs?kind=paint.red").json["items"][0]["job_id"] == own
    for query in ("", "?kind=secret.plan", "?kind=secret.", "?kind=pain"):
        assert painter("GET", f"/v1/jobs{query}").status == 403, query
    assert painter("GET", f"/v1/jobs/{own}").status == 200
    for path in ("", "/history", "/result", "/claims"):
        assert painter("GET", f"/v1/jobs/{other}{path}").status == 403, path
    for change in ("cancel", "retry"):
        assert painter("POST", f"/v1/jobs/{other}/{change}", {"reason": "because"}).status == 403
    assert painter("POST", f"/v1/jobs/{own}/cancel", {"reason": "because"}).status == 200
    # The workers are for who may read the mesh.
    assert painter("GET", f"/v1/jobs/{own}/claims").status == 403
    assert Client(served, "both", "job:read:paint.", "mesh:read")("GET", f"/v1/jobs/{own}/claims").json["job_id"] == own
    # A result is an artifact, and needs a grant of its own.
    assert painter("GET", f"/v1/jobs/{own}/result").status == 403


def test_who_may_read_jobs_may_not_change_them(served: Served):
    job, reader = submitted(served, "read.only"), Client(served, "reader", "job:read")
    assert reader("GET", f"/v1/jobs/{job}").status == 200
    assert reader("POST", f"/v1/jobs/{job}/cancel", {"reason": "because"}).status == 403


def test_routes_and_the_coordinator(served: Served, owner: Client):
    reader = Client(served, "mesh-reader", "mesh:read")
    made = owner("POST", "/v1/checkpoints", {}).json
    assert reader("GET", "/v1/checkpoints").json["items"] == [made] and made["standing"] == "signed"
    assert reader("POST", "/v1/checkpoints", {}).status == 403
    done = owner("PUT", "/v1/routes/routed.kind", {"node": "box"})
    assert (done.status, done.json["kind"], done.json["able"]) == (200, "routed.kind", True)
    assert [(each["kind"], each["name"]) for each in reader("GET", "/v1/routes").json["items"]] == [
        ("routed.kind", "box")
    ]
    assert reader("PUT", "/v1/routes/routed.kind", {}).status == 403
    assert owner("PUT", "/v1/routes/routed.kind", {}).json["node"] is None
    assert reader("GET", "/v1/routes").json["items"] == []
    assert reader("GET", "/v1/coordinator").json["name"] == "box"
    shown = reader("GET", "/v1/succession").json
    assert shown["coordinator"]["name"] == "box" and (shown["term"], shown["nodes"]) == (0, [])
    refused = owner("PUT", "/v1/succession", {"nodes": ["here"], "quorum": 1})
    assert refused.status == 400 and "always met" in refused.json["detail"]
    assert reader("PUT", "/v1/succession", {"nodes": []}).status == 403


def test_schedules_are_listed_and_removed_by_who_may_read_and_schedule_their_kinds(
    served: Served, owner: Client, painter: Client
):
    for name, kind in (("own", "paint.daily"), ("other", "secret.daily")):
        assert command(served.home, "cron", "add", name, "0 3 * * *", kind, '{"n": 1}').returncode == 0
    assert [each["name"] for each in painter("GET", "/v1/schedules").json["items"]] == ["own"]
    assert {each["name"] for each in owner("GET", "/v1/schedules").json["items"]} == {"own", "other"}
    assert painter("DELETE", "/v1/schedules/other").status == 403
    assert painter("DELETE", "/v1/schedules/own").json == {"name": "own", "removed": True}
    assert owner("DELETE", "/v1/schedules/other").status == 200
    assert owner("GET", "/v1/schedules").json["items"] == []


def test_a_schedule_is_set_and_replaced_by_who_may_schedule_its_kind(served: Served, owner: Client, painter: Client):
    path, plan = "/v1/schedules/hourly", {"expression": "@hourly", "kind": "paint.wall", "payload": {"coats": 2}}
    made = painter("PUT", path, {**plan, "timezone": "Europe/Vienna", "overlap": "queue", "options": {"retries": 2}})
    assert made.status == 200
    shown = made.json
    assert (shown["name"], shown["cron"], shown["timezone"]) == ("hourly", "0 * * * *", "Europe/Vienna")
    assert (shown["kind"], shown["payload"], shown["allowed"]) == ("paint.wall", {"coats": 2}, True)
    assert (shown["options"]["retries"], shown["options"]["overlap"], shown["next_ms"] % 3_600_000) == (2, "queue", 0)
    # The same again writes nothing, and something else replaces it.
    ops = _ops(served, "SetSchedule")
    again = {**plan, "timezone": "Europe/Vienna", "overlap": "queue", "options": {"retries": 2}}
    assert painter("PUT", path, again).json == shown and _ops(served, "SetSchedule") == ops
    assert painter("PUT", path, plan).json["timezone"] == "UTC" and _ops(served, "SetSchedule") == ops + 1
    assert [each["name"] for each in painter("GET", "/v1/schedules").json["items"]] == ["hourly"]
    # Neither a schedule of other kinds nor one in the place of such a schedule.
    assert painter("PUT", "/v1/schedules/own", {"expression": "@daily", "kind": "secret.wall"}).status == 403
    assert owner("PUT", "/v1/schedules/kept", {"expression": "@daily", "kind": "secret.wall"}).status == 200
    assert painter("PUT", "/v1/schedules/kept", plan).status == 403
    for bad in (
        {"expression": "61 * * * *"},
        {"timezone": "Mars/Olympus"},
        {"overlap": "both"},
        {"options": {"after": [UNKNOWN]}},
        {"options": {"colour": "red"}},
        {"payload": [1]},
    ):
        assert owner("PUT", path, plan | bad).status == 400, bad
    for name in ("hourly", "kept"):
        assert owner("DELETE", f"/v1/schedules/{name}").status == 200


def _ops(served: Served, type: str) -> int:
    lines = command(served.home, "log", "--limit", "100", "--json").stdout
    return sum(each["type"] == type for each in json.loads(lines))


def test_a_job_says_why_it_does_not_run(served: Served, owner: Client):
    first = owner("POST", "/v1/jobs", {"kind": "waiting.job"}).json["job_id"]
    second = owner("POST", "/v1/jobs", {"kind": "waiting.job", "after": [first]}).json["job_id"]
    later = owner("POST", "/v1/jobs", {"kind": "waiting.job", "not_before_ms": 4_000_000_000_000}).json["job_id"]

    def why(job: str) -> tuple[str, str]:
        shown = owner("GET", f"/v1/jobs/{job}").json
        return shown["wait_reason"], shown["waits_for"]

    assert why(first) == ("no worker", "no worker that this node knows of serves waiting.job")
    assert why(second) == ("job", f"comes after job {first}, which is pending")
    assert (why(later)[0], why(later)[1][:10]) == ("time", "not before")
    assert owner("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": "c", "kinds": ["waiting.job"]}).json["jobs"]
    assert why(first)[0] == "held" and "until" in why(first)[1]
    owner("POST", f"/v1/jobs/{first}/cancel", {"reason": "enough"})
    assert why(first) == (None, None)


def test_artifacts_of_no_job_are_for_who_may_read_all(served: Served, owner: Client):
    made = command(served.home, "artifacts", "put", __file__, "--type", "acme.note", "--json")
    artifact = json.loads(made.stdout)["artifact_id"]
    narrow = Client(served, "narrow", "artifact:read:paint.")
    assert owner("GET", "/v1/artifacts").json["items"][-1]["artifact_id"] == artifact
    assert owner("GET", f"/v1/artifacts/{artifact}").json["type"] == "acme.note"
    assert narrow("GET", "/v1/artifacts").json["items"] == []
    assert narrow("GET", f"/v1/artifacts/{artifact}").status == 403
    assert Client(served, "none", "job:read")("GET", "/v1/artifacts").status == 403
    assert owner("GET", f"/v1/artifacts/{UNKNOWN}").status == 404


def test_kinds_are_listed_by_who_may_read_their_jobs(served: Served, tmp_path: Path):
    tasks = tmp_path / "tasks.py"
    tasks.write_text(
        "import hocket\n" + "".join(f'hocket.job("{kind}", retries=3)(lambda ctx: None)\n' for kind in KINDS)
    )
    assert command(served.home, "work", str(tasks), "--until-idle").returncode == 0
    for may, kinds in (("all", [*KINDS]), ("job:read:paint.", ["paint.kind"])):
        reader = Client(served, f"reader-{len(kinds)}", may)
        assert [each["kind"] for each in reader("GET", "/v1/kinds").json["items"]] == kinds


def test_the_start_of_a_pending_job_is_moved_without_a_fence(served: Served, owner: Client):
    job = submitted(served, "moved.job")
    path = f"/v1/jobs/{job}/reschedule"
    moved = owner("POST", path, {"delay_ms": 3_600_000, "reason": "no disk"})
    assert (moved.status, moved.json["stage"]) == (200, "delayed")
    at = owner("POST", path, {"not_before_ms": 4_102_444_800_000, "reason": "in 2100"})
    assert at.json["ready_at_ms"] == 4_102_444_800_000
    for bad in (
        {},
        {"reason": "when?"},
        {"delay_ms": 0},
        {"delay_ms": -1, "reason": "r"},
        {"delay_ms": 2**53, "reason": "r"},
        {"delay_ms": 1, "not_before_ms": 1, "reason": "r"},
    ):
        assert owner("POST", path, bad).status == 400, bad
    # The worker's word needs its fence.
    assert owner("POST", f"/v1/jobs/{job}/postpone", {"delay_ms": 1_000, "reason": "r"}).status == 400
    assert owner("POST", path, {"delay_ms": 0, "reason": "there is one"}).json["stage"] == "ready"
    reader, other = Client(served, "moving-reader", "job:read"), Client(served, "mover", "job:schedule:paint.")
    for client in (reader, other):
        assert client("POST", path, {"delay_ms": 0, "reason": "r"}).status == 403
    claimed = owner("POST", "/v1/jobs/claim", {"worker": "w", "kinds": ["moved.job"], "claim_id": "m"}).json["jobs"]
    assert [each["job_id"] for each in claimed] == [job]
    refused = owner("POST", path, {"delay_ms": 0, "reason": "r"})
    assert refused.status == 409 and "only a pending job can be postponed" in refused.json["message"]


def test_a_token_approves_for_its_own_agent_alone(served: Served, owner: Client):
    """Whatever else the token grants, and whichever way the answer comes."""
    body = {"kind": "paint.gate", "payload": {}, "approval_by": "alice", "approval_within_ms": 3_600_000}
    job = owner("POST", "/v1/jobs", body).json["job_id"]
    shown = owner("GET", f"/v1/jobs/{job}").json
    assert shown["wait_reason"] == "approval" and "until" in shown["waits_for"]
    alice = Client(served, "alice", "job:approve:other.", "inbox:all")
    mailed = alice("POST", "/v1/inbox/claim", {"count": 10})
    (message,) = (each for each in mailed.json if job in each["body"])
    reply = {"to": "hocket", "body": "approve", "reply_to": message["id"]}
    path = f"/v1/jobs/{job}/approve"
    assert alice("POST", path, {}).status == alice("POST", "/v1/inbox", reply).status == 403
    mallory = Client(served, "mallory", "all")
    for body in ({"agent": "alice"}, {"agent": "mallory"}, {}):
        assert mallory("POST", path, body).status == 403, body
    for more in ({"agent": "alice"}, {}):
        assert mallory("POST", "/v1/inbox", reply | more).status == 403, more
    assert owner("GET", f"/v1/jobs/{job}").json["ops"][1:] == []
    assert owner("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": "g", "kinds": ["paint.gate"]}).json["jobs"] == []


def test_the_named_agent_approves_or_refuses_with_the_grant(served: Served, owner: Client):
    ann = Client(served, "ann", "job:approve:paint.")
    for answer, state in (("approve", "pending"), ("refuse", "cancelled")):
        body = {"kind": "paint.gate-2", "payload": {}, "approval_by": "ann"}
        job = owner("POST", "/v1/jobs", body).json["job_id"]
        done = ann("POST", f"/v1/jobs/{job}/{answer}", {"note": "as agreed"})
        assert (done.status, done.json["state"]) == (200, state)
        assert ann("POST", f"/v1/jobs/{job}/{answer}", {}).status == 409
        assert ann("GET", f"/v1/jobs/{job}").status == 403
    claimed = owner("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": "h", "kinds": ["paint.gate-2"], "count": 9})
    assert len(claimed.json["jobs"]) == 1
