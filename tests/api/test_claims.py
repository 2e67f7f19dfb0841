"""`claims.explain` with workers that are there."""

from pathlib import Path

import pytest

from hocket.api import Service, claims
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.kernel.ids import node_text, ulid_text
from tests.work.test_claim_order import FRIEND, TIMEOUT_MS, Fleet, fleet

assert fleet


@pytest.mark.req("GR-07")
def test_the_ranking_and_the_claims_of_a_job_are_told(fleet: Fleet, tmp_path: Path) -> None:
    for number in range(3):
        fleet.worker(f"w{number}", weight=1.0 + number)
    (other,) = fleet.elsewhere(FRIEND.id, "w")
    job = fleet.submit()[0]
    service = Service(fleet.runtime)
    told = claims.explain(service, ulid_text(job.id))
    assert [each.rank for each in told.ranking] == [0, 1, 2, 3]
    assert {each.worker: each.weight for each in told.ranking} == {
        other: 1.0,
        **{id: 1.0 + place for place, id in enumerate(fleet.orders)},
    }
    waits = fleet.waits(job)
    assert {each.worker: each.rank for each in told.ranking if each.worker != other} == waits
    assert [each.may_try_ms - told.ready_ms for each in told.ranking] == [place * TIMEOUT_MS for place in range(4)]
    assert (told.holder, told.tried, told.key) == (None, [], None)

    fleet.later_ms += 3_000
    taken = fleet.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    told = claims.explain(service, ulid_text(job.id))
    assert told.holder == node_text(fleet.log.node)
    assert [each.result for each in told.tried] == ["counts"]
    assert 3_000 <= told.tried[0].after_ms < 60_000
    held = jobs.Held(job.id, taken[0].job.claim_op or b"")
    fleet.later_ms += 3_000
    fleet.log.run(lambda tx: jobs.hand_back(tx, held, "a test"))
    again = claims.explain(service, ulid_text(job.id))
    assert again.ready_ms >= told.ready_ms + 6_000


@pytest.mark.req("GR-01", "LW-51")
def test_the_ranking_that_is_told_of_jobs_submitted_together_is_that_of_the_workers(fleet: Fleet) -> None:
    for number in range(4):
        fleet.worker(f"w{number}", weight=1.0 + number)
    orders = set()
    for job in fleet.submit(8):
        told = claims.explain(Service(fleet.runtime), ulid_text(job.id))
        assert {each.worker: each.rank for each in told.ranking} == fleet.waits(job)
        orders.add(tuple(each.worker for each in told.ranking))
    assert len(orders) > 1


def test_a_sticky_job_names_its_key(fleet: Fleet) -> None:
    fleet.worker("w")
    job = fleet.submit(1, {"repository": "acme"}, claim="sticky", sticky="repository")[0]
    assert claims.explain(Service(fleet.runtime), ulid_text(job.id)).key == "acme"
