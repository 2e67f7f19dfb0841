"""What proofs of other nodes can do to costs: no more than a run of that length could have used, and no sum, list or
submit fails because of one. And who may charge an account.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.api import Service
from hocket.errors import NotAuthorised
from hocket.extensions.command import proof as proof_module
from hocket.extensions.command.execution import Execution, Resources
from hocket.extensions.command.proof import BadProof, Proof, prove, signing_bytes, statement
from hocket.extensions.cost.costs import check_budgets, costs, estimate_of, job_cost, need_rates, spent_on
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.top_commands import TopView
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft, Held
from hocket.families.jobs.rules import Job
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.policy import Budget, Policy
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from tests.mesh.world import Guest
from tests.work import proven
from tests.work.proven import KIND, MANIFEST, ran, saying

RATES = {
    "currency": "EUR",
    "beat_ms": 100,
    "role_rate_bu": {"default": 0.25},
    "rate_gpu_sec": {"A100": 4.0},
    "rate_cpu_sec": 2.0,
    "rate_mem_gbs": 0.5,
    "rate_io_mb": 0.125,
    "rate_egress_mb": 1.0,
    "rate_storage_gbh": 0.0,
}
HONEST = Resources(wall_s=0.884, cpu_s=0.25)
HONEST_COST = 9 * 0.25 + 0.25 * 2.0


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with closing(Runtime.init(tmp_path / "home")) as made:
        (made.home.path / "rates.yaml").write_text(json.dumps(RATES))
        yield made


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs are made as another program may make them: nobody looks whether they can be read."""

    def made(execution: Execution, key: SigningKey) -> Proof:
        envelope = proof_module._written(execution)
        digest = content_hash(envelope)
        signed = key.sign(proof_module._signed(execution.content_id, digest))
        return Proof(envelope, key.public, signed, key.sign(signing_bytes(statement(execution, digest, key.public))))

    monkeypatch.setattr(proven, "prove", made)


def hostile(runtime: Runtime, resources: Resources) -> Job:
    return ran(runtime, change=saying(resources=resources))


HUGE = 1e308
TOO_MUCH = {
    "seconds": replace(HONEST, wall_s=HUGE),
    "processors": replace(HONEST, cpu_s=HUGE),
    "memory": replace(HONEST, memory_gb_s=HUGE),
    "devices": replace(HONEST, gpu_s={"A100": HUGE}),
    "an hour in no time": replace(HONEST, wall_s=3_600.0),
    "a million processors": replace(HONEST, cpu_s=1e9),
    "many devices": replace(HONEST, gpu_s={"A100": 1e6}),
    "bytes": replace(HONEST, disk_written_bytes=2**53 - 1),
    "network": replace(HONEST, network_bytes=2**53 - 1),
}


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-14")
@pytest.mark.parametrize("resources", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_proof_that_says_more_than_its_run_can_use_costs_the_time_of_the_run(
    runtime: Runtime, unchecked: None, resources: Resources
) -> None:
    honest = hostile(runtime, HONEST)
    job = hostile(runtime, resources)
    assert job_cost(runtime, job_id(honest)).cost == pytest.approx(HONEST_COST)
    row = job_cost(runtime, job_id(job))
    assert row.cost == row.usage.beats * 0.25 < HONEST_COST
    for by in ("kind", "node", "account"):
        assert costs(runtime, by).total.cost == pytest.approx(HONEST_COST + row.cost)
    assert row.doubtful == (resources.wall_s < HUGE and resources.cpu_s < HUGE and huge(resources) < HUGE)
    check_everything(runtime)


def huge(resources: Resources) -> float:
    return max(resources.memory_gb_s, *resources.gpu_s.values(), 0.0)


def job_id(job: Job) -> str:
    return proven.ulid_text(job.id)


def check_everything(runtime: Runtime) -> None:
    """The list of costs, `top`, an estimate and a submit with a cap."""
    estimate = estimate_of(runtime, KIND, MANIFEST["command"][0])
    assert estimate is not None and estimate.p90 <= HONEST_COST
    check_budgets(runtime, [draft(Budget(max_cost=100.0))])
    top = TopView(Service(runtime), make_policy("one")).look()
    assert top.cost is not None and HONEST_COST <= top.cost < 3 * HONEST_COST


def draft(budget: Budget) -> Draft:
    return Draft(KIND, json.dumps(MANIFEST).encode(), Policy(budget=budget))


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-14")
def test_a_run_on_a_device_without_a_rate_is_left_out_and_told(runtime: Runtime) -> None:
    honest = hostile(runtime, replace(HONEST, gpu_s={"A100": 0.5}))
    unpriced = hostile(runtime, replace(HONEST, gpu_s={"A100": 0.5, "made up": 1.0}))
    row = job_cost(runtime, job_id(unpriced))
    assert (row.cost, row.runs, row.unpriced, row.unpriced_devices) == (0.0, 1, 1, ["made up"])
    assert job_cost(runtime, job_id(honest)).cost == pytest.approx(HONEST_COST + 2.0)
    shown = costs(runtime, "kind")
    assert shown.total.cost == pytest.approx(HONEST_COST + 2.0)
    assert (shown.total.runs, shown.total.unpriced, shown.total.unpriced_devices) == (2, 1, ["made up"])
    estimate = estimate_of(runtime, KIND, MANIFEST["command"][0])
    assert estimate is not None and estimate.jobs == 1
    check_budgets(runtime, [draft(Budget(max_cost=100.0))])
    top = TopView(Service(runtime), make_policy("one")).look()
    assert (top.cost, top.unpriced) == (pytest.approx(HONEST_COST + 2.0), 1)
    # A cap counts what can be priced of earlier runs.
    with runtime.read() as session:
        spent = spent_on(session, runtime.blobs, unpriced, need_rates(runtime.home), 100, 0)
    assert spent.cost == pytest.approx(HONEST_COST + 2.0)


@pytest.mark.parametrize("amount", [-1.0, 1e13, float("inf"), float("nan")])
def test_an_amount_is_finite_bounded_and_not_negative(runtime: Runtime, amount: float) -> None:
    execution: list[Execution] = []
    ran(runtime, change=lambda made: execution.append(made) or made)  # type: ignore[func-returns-value]
    for resources in (replace(HONEST, cpu_s=amount), replace(HONEST, gpu_s={"A100": amount})):
        with pytest.raises(BadProof):
            prove(replace(execution[0], resources=resources), runtime.home.node_key())


def charged(runtime: Runtime, account: str, **policy: Any) -> Job:
    """A job of this node that is charged to an account, and has ended."""

    def submit(tx: Transaction) -> list[jobs.Submitted]:
        return jobs.submit(tx, [Draft("acme.a", b"{}", Policy(budget=Budget(charge_to=account), **policy))])

    runtime.log.run(submit)
    (taken,) = runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    held = Held(taken.job.id, taken.job.claim_op or b"")
    ended = runtime.log.run(lambda tx: jobs.complete(tx, held, b"{}", 1, proven.NOTHING))
    assert isinstance(ended, Job)
    return ended


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-14")
def test_a_job_counts_for_an_account_that_its_submitter_may_charge(tmp_path: Path) -> None:
    owner = Runtime.init(tmp_path / "owner")
    grants = (
        Capability("Job", "*", {}),
        Capability("Artifact", "Write", {}),
        Capability("Account", "Charge", {"key_prefix": ["team-a/"]}),
    )
    with closing(owner):
        (owner.home.path / "rates.yaml").write_text(json.dumps(RATES))
        charged(owner, "anything")
        assert {row.name for row in costs(owner, "account").rows} == {"anything"}
        permissions = owner.log.permissions()
        now_ms = owner.log.physical()
        guest = Guest(5)
        token = issue(owner.home.user_key(), guest.key.public, grants, now_ms // 1000, None)
        owner.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
        permissions = owner.log.permissions()
        for account, may in (
            ("team-a/nightly", True),
            ("team-b/nightly", False),
            ("team-a", False),
            (node_text(guest.id), True),
            (node_text(owner.log.node), False),
        ):
            assert permissions.may_charge(guest.id, owner.log.physical(), account) is may, account
        assert not permissions.may_charge(Guest(6).id, now_ms, "team-a/nightly")


@pytest.mark.req("LW-49")
def test_a_job_that_names_an_account_which_its_submitter_may_not_charge_counts_for_none(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(runtime, "acme")
    charged(runtime, "beta")
    permissions = runtime.log.permissions()
    monkeypatch.setattr(type(permissions), "may_charge", lambda self, node, at_ms, account: account == "beta")
    shown = costs(runtime, "account")
    assert ({row.name for row in shown.rows}, shown.uncharged) == ({None, "beta"}, 1)
    assert costs(runtime, "kind").uncharged == 0
    with pytest.raises(NotAuthorised, match=r"--may account:charge:acme, and the account [0-9a-f]{16} needs no grant"):
        check_budgets(runtime, [draft(Budget(charge_to="acme"))])
    check_budgets(runtime, [draft(Budget(charge_to="beta"))])
