"""The costs that a server keeps are what `hocket cost` counts from all jobs, however the log came."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.extensions.cost import kept_costs
from hocket.extensions.cost.costs import Costs, costs, need_rates, prices_of
from hocket.extensions.cost.kept_costs import GROUPS_MAX, KeptCosts
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import NOTHING, Draft, Held
from hocket.kernel.policy import Budget, Policy
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from tests.server.served import hocket as command
from tests.server.served import serving
from tests.waiting import wait_for
from tests.work.proven import ran, saying
from tests.work.test_costs import HONEST, RATES, replace

# What jobs store is not in the kept sums.
CARD = RATES | {"role_rate_bu": {"default": 0.25, "acme.b": 1.5}}


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with closing(Runtime.init(tmp_path / "home")) as made:
        (made.home.path / "rates.yaml").write_text(json.dumps(CARD))
        yield made


@pytest.fixture
def kept(tmp_path: Path) -> KeptCosts:
    return KeptCosts(tmp_path / "costs.json")


def submit(runtime: Runtime, kind: str, account: str | None, retries: int = 0) -> None:
    policy = Policy(budget=None if account is None else Budget(charge_to=account), retries=retries)

    def request(tx: Transaction) -> list[jobs.Submitted]:
        return jobs.submit(tx, [Draft(kind, b"{}", policy)])

    runtime.log.run(request)


def end(runtime: Runtime, *, fails: bool = False) -> None:
    """Claims a job that waits, and ends the run."""
    (taken,) = runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    held = Held(taken.job.id, taken.job.claim_op or b"")
    if fails:
        runtime.log.run(lambda tx: jobs.fail(tx, held, "out of paper", "", retry=True))
    else:
        runtime.log.run(lambda tx: jobs.complete(tx, held, b"{}", 1, NOTHING))


def advance(runtime: Runtime, kept: KeptCosts) -> bool:
    prices = prices_of(runtime.home, need_rates(runtime.home), runtime.log.reading())
    with runtime.read() as session:
        return kept.advance(session, runtime.blobs, prices, runtime.log.permissions(session).may_charge)


def comparable(found: Costs) -> list[Any]:
    """Sums of floats differ in their last digits by their order."""
    return [
        (row.name, row.jobs, row.runs, row.usage.beats, pytest.approx(row.cost), row.unpriced, row.doubtful)
        for row in (*sorted(found.rows, key=lambda row: row.name or ""), found.total)
    ] + [found.uncharged]


def assert_same(runtime: Runtime, kept: KeptCosts) -> Costs:
    while advance(runtime, kept):
        pass
    found = kept.costs(need_rates(runtime.home))
    assert comparable(found) == comparable(costs(runtime, "account"))
    return found


@pytest.mark.req("BB-14")
def test_each_run_counts_once_whenever_the_server_looks(
    runtime: Runtime, kept: KeptCosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_costs, "OPS", 3)
    advance(runtime, kept)
    for kind, account in (("acme.a", "one"), ("acme.b", "one"), ("acme.b", "two"), ("acme.a", None)):
        submit(runtime, kind, account)
        end(runtime)
        advance(runtime, kept)
    submit(runtime, "acme.b", "two", retries=2)
    end(runtime, fails=True)
    assert assert_same(runtime, kept).total.runs == 5
    kept.save()
    again = KeptCosts(tmp_path / "costs.json")
    assert again.place == kept.place > 0
    wait_for(lambda: runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken, "the next try")
    with runtime.read() as session:
        (held,) = session.claimed()
    runtime.log.run(lambda tx: jobs.complete(tx, Held(held.job.id, held.job.claim_op or b""), b"{}", 1, NOTHING))
    found = assert_same(runtime, again)
    assert (found.total.runs, found.total.jobs) == (6, 5)


@pytest.mark.req("BB-14")
def test_proofs_count_and_so_do_runs_without_a_price(runtime: Runtime, kept: KeptCosts) -> None:
    ran(runtime)
    ran(runtime, exit_code=1, retry=True)
    ran(runtime, change=saying(resources=replace(HONEST, gpu_s={"H200": 0.5})))
    ran(runtime, change=saying(resources=replace(HONEST, cpu_s=1e9)))
    found = assert_same(runtime, kept)
    assert (found.total.runs, found.total.unpriced, found.total.doubtful) == (4, 1, 1)


def test_an_account_that_the_submitter_may_not_charge_gets_nothing(
    runtime: Runtime, kept: KeptCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(runtime, "acme.a", "theirs", retries=1)
    end(runtime, fails=True)
    may_charge = lambda self, node, at_ms, account: account == "ours"  # noqa: E731
    monkeypatch.setattr(type(runtime.log.permissions()), "may_charge", may_charge)
    found = assert_same(runtime, kept)
    assert [row.name for row in found.rows] == [None] and found.uncharged == 1


def test_another_beat_is_counted_anew(runtime: Runtime, kept: KeptCosts) -> None:
    ran(runtime)
    before = assert_same(runtime, kept)
    (runtime.home.path / "rates.yaml").write_text(json.dumps(CARD | {"beat_ms": 10}))
    assert assert_same(runtime, kept).total.usage.beats > before.total.usage.beats


@pytest.mark.parametrize("runs", [1, 3])
def test_another_log_is_counted_anew(runtime: Runtime, kept: KeptCosts, tmp_path: Path, runs: int) -> None:
    for _ in range(2):
        submit(runtime, "acme.a", "one")
        end(runtime)
    assert_same(runtime, kept)
    with closing(Runtime.init(tmp_path / "other")) as other:
        (other.home.path / "rates.yaml").write_text(json.dumps(CARD))
        for _ in range(runs):
            submit(other, "acme.b", "two")
            end(other)
        assert assert_same(other, kept).total.runs == runs


def test_a_card_that_changes_prices_the_kept_sums(runtime: Runtime, kept: KeptCosts) -> None:
    submit(runtime, "acme.b", "one")
    end(runtime)
    before = assert_same(runtime, kept)
    (runtime.home.path / "rates.yaml").write_text(json.dumps(CARD | {"role_rate_bu": {"default": 0.5}}))
    assert assert_same(runtime, kept).total.cost == pytest.approx(before.total.cost / 3)


def test_sums_beyond_a_bound_are_left_out_and_counted(
    runtime: Runtime, kept: KeptCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GROUPS_MAX > 1
    monkeypatch.setattr(kept_costs, "GROUPS_MAX", 1)
    for kind in ("acme.a", "acme.a", "acme.b"):
        submit(runtime, kind, None)
        end(runtime)
    while advance(runtime, kept):
        pass
    assert (kept.costs(need_rates(runtime.home)).total.runs, kept.left_out) == (2, 1)


def test_a_damaged_file_is_counted_anew(runtime: Runtime, tmp_path: Path) -> None:
    ran(runtime)
    (tmp_path / "costs.json").write_bytes(b'{"beat_ms": 100, "pla')
    assert assert_same(runtime, KeptCosts(tmp_path / "costs.json")).total.runs == 1


@pytest.mark.req("BB-14")
def test_runs_on_other_nodes_count_on_each_node(tmp_path: Path) -> None:
    home, far = tmp_path / "home", tmp_path / "far"

    def run(ctx: hocket.Context, number: int) -> None:
        if number == 1:
            raise RuntimeError("the first one fails")

    job_type = hocket.job("far.one", retries=0)(run)
    Runtime.init(home, name="box").close()
    with serving(home):
        invitation = command(home, "invite", "far", "--worker", "far.", "--may", "job:schedule", "--json").stdout
        assert command(far, "join", json.loads(invitation)["token"]).returncode == 0
        with closing(hocket.open_sync(far)) as node:
            made = [node.submit(job_type, number=number) for number in range(3)]
            node.work([job_type], until_idle=True, signals=False)
        for each in made:
            assert json.loads(command(home, "show", each.job_id, "--json").stdout)["outcome"]
    for path in (home, far):
        (path / "rates.yaml").write_text(json.dumps(CARD))
        with closing(Runtime.open(path)) as runtime:
            assert assert_same(runtime, KeptCosts(path / "sums.json")).total.runs == 3
