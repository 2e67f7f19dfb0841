"""A job with which workers over HTTP were lost twice runs alone, and keeps no worker from its work for ever."""

from tests.server.served import Served
from tests.server.test_coordination_routes import Client
from tests.server.test_worker_routes import Worker, shown, submitted
from tests.waiting import wait_for as until

KIND = "deadly.job"


def test_a_job_that_lost_two_workers_goes_to_one_that_holds_nothing_and_gets_nothing_else(served: Served):
    client = Client(served, "ci", "job:claim", "job:read")
    busy, free = Worker(client, KIND, "busy"), Worker(client, KIND, "free")
    (deadly,) = submitted(served, KIND)
    for n in (1, 2):
        (lost,) = Worker(client, KIND, f"lost{n}").claim(8, lease_ms=1_000, wait_ms=50_000)
        assert lost["job_id"] == deadly
    submitted(served, "other.job")
    busy.kind = "other.job"
    (held,) = busy.claim(8)
    busy.kind = KIND
    until(lambda: shown(client, deadly)["state"] == "pending", "the end of the second lease")
    later = submitted(served, KIND, "{}", "{}")
    assert busy.claim(8) == []
    alone = free.claim(8, wait_ms=20_000)
    assert [each["job_id"] for each in alone] == [deadly]
    assert free.claim(8) == []
    assert [each["job_id"] for each in busy.claim(1)] == later[:1]
    assert free.end(alone[0]).status == 200
    assert [each["job_id"] for each in free.claim(8)] == later[1:]
    assert busy.end(held).status == 200
