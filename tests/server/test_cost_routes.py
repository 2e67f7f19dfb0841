"""What jobs cost, over real sockets: one job, many together, and what is expected."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.node.runtime import Runtime
from tests.server.served import Served, serving
from tests.server.test_coordination_routes import Client
from tests.work.test_costs import RATES

GRANTS = "job:all:render.", "artifact:read:render."


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home: Path = tmp_path_factory.mktemp("priced") / "home"
    Runtime.init(home, name="box").close()
    (home / "rates.yaml").write_text(json.dumps(RATES))
    with serving(home) as running:
        yield running


@pytest.fixture(scope="module")
def owner(priced: Served) -> Client:
    return Client(priced, "owner", "all")


def ran(client: Client, kind: str) -> str:
    job = str(client("POST", "/v1/jobs", {"kind": kind, "budget": {"max_bu": 1000}}).json["job_id"])
    (held,) = client("POST", "/v1/jobs/claim", {"worker": "w", "claim_id": job, "kinds": [kind]}).json["jobs"]
    assert client("POST", f"/v1/jobs/{job}/complete", {"fence": held["fence"], "result": 1}).status == 200
    return job


def test_costs_of_a_job_of_many_and_of_the_next(priced: Served, owner: Client):
    ids = [ran(owner, "render.film") for _ in range(3)] + [ran(owner, "other.film")]
    one = owner("GET", f"/v1/jobs/{ids[0]}/cost").json
    assert (one["name"], one["runs"], one["currency"]) == (ids[0], 1, "EUR")
    assert one["usage"]["beats"] >= 1 and one["cost"] == one["usage"]["beats"] * 0.25
    assert owner("GET", f"/v1/jobs/{ids[0]}").json["options"]["budget"]["max_bu"] == 1000
    found = owner("GET", "/v1/costs").json
    assert {each["name"]: each["jobs"] for each in found["rows"]} == {"render.film": 3, "other.film": 1}
    assert found["total"]["cost"] == sum(each["cost"] for each in found["rows"]) and not found["is_cut"]
    assert owner("GET", "/v1/costs?by=node").json["rows"][0]["jobs"] == 4
    cut = owner("GET", "/v1/costs?jobs=2").json
    assert cut["total"]["jobs"] == 2 and cut["is_cut"]
    assert owner("GET", "/v1/costs?since_ms=9000000000000").json["rows"] == []
    expected = owner("GET", "/v1/costs/estimate?kind=render.film").json
    assert expected["jobs"] == 3 and expected["median"] > 0
    assert owner("GET", "/v1/costs/estimate?kind=never.run").json is None
    for bad in ("by=colour", "jobs=0", "jobs=5001", "since_ms=-1"):
        assert owner("GET", f"/v1/costs?{bad}").status == 400, bad


def test_costs_are_for_who_may_read_the_jobs_and_their_artifacts(priced: Served, owner: Client):
    own, other = ran(owner, "render.own"), ran(owner, "other.own")
    client = Client(priced, "renderer", *GRANTS)
    assert client("GET", f"/v1/jobs/{own}/cost").status == 200
    assert client("GET", f"/v1/jobs/{other}/cost").status == 403
    assert client("GET", "/v1/costs").status == 403, "a sum goes over all kinds"
    assert client("GET", "/v1/costs/estimate?kind=render.own").status == 200
    assert client("GET", "/v1/costs/estimate?kind=other.own").status == 403
    reader = Client(priced, "reader", "job:read")
    for path in (f"/v1/jobs/{own}/cost", "/v1/costs", "/v1/costs/estimate?kind=render.own"):
        assert reader("GET", path).status == 403, path


def test_a_node_without_a_rate_card_says_so(served: Served):
    client = Client(served, "priceless", "all")
    refused = client("GET", "/v1/costs")
    assert refused.status == 400 and "no rate card" in refused.json["message"]
