"""Lists and counts of jobs by filter, and changes of all that match, over real sockets and in a shell."""

import json
import time
from typing import Any

import pytest

from hocket.api import Service
from hocket.node.runtime import Runtime
from tests.server.served import Served
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client
from tests.server.test_job_streams import lines_of


@pytest.fixture(scope="module")
def owner(served: Served) -> Client:
    return Client(served, "owner", "all")


def submitted(owner: Client, kind: str, **options: Any) -> str:
    return str(owner("POST", "/v1/jobs", {"kind": kind, **options}).json["job_id"])


def ids(owner: Client, query: str) -> list[str]:
    return [each["job_id"] for each in owner("GET", f"/v1/jobs?{query}").json["items"]]


def count(owner: Client, query: str) -> int:
    found = owner("GET", f"/v1/jobs/count?{query}").json
    assert found["is_cut"] is False
    return int(found["jobs"])


def test_jobs_are_found_by_tag_id_error_time_and_submitter(served: Served, owner: Client):
    nightly = submitted(owner, "found.a", tags=["nightly", "team=video"])
    other = submitted(owner, "found.b", tags=["weekly"])
    owner("POST", f"/v1/jobs/{other}/cancel", {"reason": "Out of Memory on box 7"})
    both = [other, nightly]
    for query, expected in {
        "kind=found.": both,
        "kind=found.&tag=nightly": [nightly],
        "kind=found.&tag=team": [nightly],
        "kind=found.&tag=team%3Dvideo": [nightly],
        "kind=found.&tag=team%3Daudio": [],
        "kind=found.&error=memory%20on": [other],
        "kind=found.&error=disk": [],
        f"kind=found.&id={nightly[-6:].lower()}": [nightly],
        "kind=found.&state=cancelled": [other],
        "kind=found.&state=pending&tag=weekly": [],
        "kind=found.&submitter=box": both,
        "kind=found.&submitter=here": both,
        "kind=found.&submitter=00000000000000ff": [],
        "kind=found.&since_ms=0": both,
        "kind=found.&until_ms=1000": [],
        f"kind=found.&since_ms={int(time.time() * 1000) + 600_000}": [],
    }.items():
        assert ids(owner, query) == expected, query
        assert count(owner, query) == len(expected), query
    found = submitted(owner, "indexed.a", payload={"frame": 7}, index=["frame"])
    submitted(owner, "indexed.b", payload={"frame": 7})
    assert ids(owner, "arg=frame%3D7") == [found] and count(owner, "arg=frame%3D7&kind=indexed.a") == 1
    assert ids(owner, "arg=frame%3D7&kind=indexed.b") == [] == ids(owner, "arg=frame%3D8")
    assert owner("GET", "/v1/jobs?arg=frame").status == 400
    assert owner("GET", "/v1/jobs?submitter=nobody").status == 404
    for bad in ("tag=", "id=", "since_ms=-1", "error=", "state=lost", "id=" + "0" * 27):
        assert owner("GET", f"/v1/jobs?{bad}").status == 400, bad
    # A shell finds the same.
    listed = command(served.home, "jobs", "--tag", "nightly", "--kind", "found.", "--since", "1h", "--json")
    assert [each["job_id"] for each in json.loads(listed.stdout)] == [nightly]
    counted = command(served.home, "jobs", "--count", "--kind", "found.", "--error", "out of MEMORY")
    assert counted.stdout == "1\n"
    assert command(served.home, "jobs", "--since", "soon").returncode == 2


def test_all_jobs_that_match_are_cancelled_and_retried_after_a_dry_run(served: Served, owner: Client):
    jobs = [submitted(owner, "many.gone", tags=["old"] if n < 3 else []) for n in range(5)]
    body = {"kind": "many.", "tag": "old", "reason": "not needed"}
    (dry,) = lines_of(owner("POST", "/v1/jobs/cancel", {**body, "dry_run": True}))
    assert (dry["matched"], dry["changed"], dry["is_done"]) == (3, 0, True)
    assert count(owner, "kind=many.&state=cancelled") == 0
    *_, last = lines_of(owner("POST", "/v1/jobs/cancel", body))
    assert (last["matched"], last["visited"], last["changed"], last["is_done"]) == (3, 3, 3, True)
    assert sorted(ids(owner, "kind=many.&state=cancelled")) == sorted(jobs[:3])
    *_, last = lines_of(
        owner("POST", "/v1/jobs/retry", {"kind": "many.", "state": "cancelled", "reason": "r", "limit": 2})
    )
    assert (last["matched"], last["changed"]) == (3, 2)
    # The oldest come first.
    assert ids(owner, "kind=many.&state=cancelled") == [jobs[2]]
    for wrong in ({"reason": "all of them"}, {"kind": "many."}, {"kind": "many.", "state": "succeeded", "reason": "r"}):
        assert owner("POST", "/v1/jobs/cancel", wrong).status == 400, wrong
    counted = command(served.home, "cancel", "--kind", "many.", "--dry-run")
    assert "4 jobs would be cancelled" in counted.stdout
    assert count(owner, "kind=many.&state=pending") == 4


def test_the_start_of_all_that_match_is_moved_after_a_dry_run(served: Served, owner: Client):
    jobs = [submitted(owner, "later.many") for _ in range(3)]
    body = {"kind": "later.", "reason": "no disk"}
    (dry,) = lines_of(owner("POST", "/v1/jobs/reschedule", {**body, "dry_run": True}))
    assert (dry["matched"], dry["changed"]) == (3, 0) and count(owner, "kind=later.&state=delayed") == 0
    *_, last = lines_of(owner("POST", "/v1/jobs/reschedule", {**body, "delay_ms": 3_600_000, "limit": 2}))
    assert (last["matched"], last["changed"]) == (3, 2)
    assert sorted(ids(owner, "kind=later.&state=delayed")) == sorted(jobs[:2])
    assert owner("POST", "/v1/jobs/reschedule", body).status == 400
    *_, last = lines_of(owner("POST", "/v1/jobs/reschedule", {**body, "state": "delayed", "delay_ms": 0}))
    assert last["changed"] == 2 and count(owner, "kind=later.&state=ready") == 3


def test_changes_of_many_are_for_who_may_schedule_the_kind(served: Served, owner: Client):
    submitted(owner, "secret.many")
    narrow = Client(served, "changer", "job:schedule:paint.")
    for body in ({"kind": "secret.", "reason": "r"}, {"state": "pending", "reason": "r"}):
        for change in ("cancel", "retry"):
            assert narrow("POST", f"/v1/jobs/{change}", body).status == 403, body
    assert narrow("POST", "/v1/jobs/cancel", {"kind": "paint.", "reason": "r"}).status == 200
    assert Client(served, "counter", "job:read:paint.")("GET", "/v1/jobs/count?kind=secret.").status == 403
    assert count(owner, "kind=secret.many&state=pending") == 1


def test_a_list_goes_on_where_a_page_had_to_stop(monkeypatch: pytest.MonkeyPatch):
    import hocket
    import hocket.testing
    from hocket.api import job_lists
    from hocket.api.job_operations.job_filters import JobWhich
    from hocket.store import job_pages

    monkeypatch.setattr(job_pages, "JOBS_READ_MAX", 2)
    with hocket.testing.node() as node:
        tagged = [node.submit(hocket.kind("paged.a", tags="rare" if n % 4 == 0 else "common")).job_id for n in range(9)]
        seen, after, pages = list[str](), None, 0
        while True:
            page = job_lists.listing(Service(node.runtime), JobWhich(tag="rare"), 100, after)
            seen, after, pages = seen + [each.job_id for each in page.items], page.next, pages + 1
            if after is None:
                break
        assert sorted(seen) == sorted(tagged[::4]) and len(seen) == 3 and pages > 3


def test_the_python_api_counts_and_changes_many(tmp_path: Any):
    import hocket
    from hocket.api.job_operations.job_filters import JobWhich

    with Runtime.init(tmp_path / "home"):
        pass
    with hocket.open(tmp_path / "home") as node:
        admin = hocket.admin(node)
        node.submit_many([("py.many", {"n": n}) for n in range(3)])
        assert admin.count_jobs(JobWhich(kind="py.many")).jobs == 3
        *_, last = admin.cancel_jobs(JobWhich(kind="py.many"), "over")
        assert last.changed == 3
        *_, last = admin.retry_jobs(JobWhich(state="cancelled"), "again", dry_run=True)  # type: ignore[arg-type]
        assert (last.matched, last.changed) == (3, 0)
