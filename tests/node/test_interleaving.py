"""Nodes that share a store, with their transactions interleaved in many orders. After each of them the log is whole,
every claim has a fence of its own, and no lease has ended early. Three planted mistakes are found.
"""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import claim
from hocket.families.jobs.requests import Claim, Draft, Held
from hocket.families.jobs.rescue import expire
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import decode
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, ExpireWork
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store.op_rows import Head
from hocket.store.postgres.session import PostgresSession
from tests.node.interleaving import gates, interleave
from tests.node.sharers import Sharers

KIND = "acme.render"
LEASE_MS = 600_000
STEPS = 3
PLANTED_FOUND_WITHIN = 200
ORDERS = [60, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Sharers]:
    made = Sharers(tmp_path)
    yield made
    made.close()


class Violation(AssertionError):
    pass


class World:
    """The nodes, and what they hold between the runs."""

    def __init__(self, nodes: Sharers) -> None:
        self.nodes = nodes
        self.held: dict[int, list[Claim]] = {each.log.node: [] for each in nodes.all}
        self._seen = 0
        self._claims: dict[bytes, int] = {}
        self._completed: set[bytes] = set()

    def run(self, seed: int) -> None:
        """One order of some steps of each node."""
        chance = random.Random(f"order {seed}")
        works = [self._work(each, random.Random(f"{seed} {number}")) for number, each in enumerate(self.nodes.all)]
        errors = interleave(self.nodes.address, works, chance)
        if errors:
            raise Violation(f"seed {seed}: {errors[0]!r}") from errors[0]
        self._check(seed)

    def _work(self, runtime: Runtime, chance: random.Random) -> Callable[[], None]:
        def work() -> None:
            for _ in range(STEPS):
                self._step(runtime, chance)

        return work

    def _step(self, runtime: Runtime, chance: random.Random) -> None:
        log, kind = runtime.log, chance.random()
        if kind < 0.15:
            log.append_plain(KIND, b"{}")
        elif kind < 0.35:
            policy = Policy(unique=f"u{chance.randint(0, 2)}") if chance.random() < 0.3 else DEFAULT
            runtime.submit([Draft(KIND, b"{}", policy)] * chance.randint(1, 3))
        elif kind < 0.45:
            log.run(lambda tx: expire(tx, 10))
        else:
            wanted, ends = chance.randint(1, 3), [chance.random() for _ in range(8)]
            self.held[log.node] = log.run(lambda tx: self._turn(tx, log.node, wanted, ends), beside=True)

    def _turn(self, tx: Transaction, node: int, wanted: int, ends: list[float]) -> list[Claim]:
        for held, end in zip(self.held[node], ends, strict=False):
            hold = Held(held.job.id, held.job.claim_op or b"")
            done = jobs.complete(tx, hold, b"1", 1) if end < 0.7 else jobs.hand_back(tx, hold, "")
            if isinstance(done, Reason):
                raise Violation(f"{done.name}: a job that the node holds was taken away")
        return claim(tx, 1, wanted, lambda kind: LEASE_MS).taken

    def _check(self, seed: int) -> None:
        with self.nodes.founder.read() as session:
            head, rows = session.head(), session.ops_after(self._seen, 100_000)
            numbers = {row.seq for row in (*rows, *session.entries_after(self._seen, 100_000))}
            if numbers != set(range(self._seen + 1, head.seq + 1)):
                raise Violation(f"seed {seed}: the numbers have a gap")
            self._seen = head.seq
            touched: set[bytes] = set()
            for op in (decode(row.body) for row in rows if row.reason == 0):
                if isinstance(op.payload, ExpireWork):
                    raise Violation(f"seed {seed}: a lease ended early")
                if isinstance(op.payload, ClaimWork):
                    touched.add(op.payload.job_id)
                    self._claims[op.payload.job_id] = self._claims.get(op.payload.job_id, 0) + 1
                if isinstance(op.payload, CompleteJob):
                    if op.payload.job_id in self._completed:
                        raise Violation(f"seed {seed}: a job was completed twice")
                    self._completed.add(op.payload.job_id)
            for entry in session.jobs_by_id(sorted(touched)):
                if entry.job.fence != self._claims[entry.job.id]:
                    raise Violation(f"seed {seed}: two claims have one fence")


@pytest.mark.req("VX-18", "LW-39", "VX-01")
@pytest.mark.parametrize("orders", ORDERS)
def test_in_every_order_the_log_is_whole_and_each_job_has_one_holder(nodes: Sharers, orders: int) -> None:
    world = World(nodes)
    with gates():
        for seed in range(orders):
            world.run(seed)
    assert nodes.second.verify().findings == []
    assert nodes.third.rebuild().unchanged


def numbers_before_the_commit(patch: pytest.MonkeyPatch, nodes: Sharers) -> None:
    def lock_end(session: PostgresSession) -> Head:
        session._has_end = True
        return session.head()

    patch.setattr(PostgresSession, "lock_end", lock_end)


def jobs_without_locks(patch: pytest.MonkeyPatch, nodes: Sharers) -> None:
    ready = PostgresSession._ready
    patch.setattr(PostgresSession, "_locking", "")
    patch.setattr(PostgresSession, "_ready", lambda session, *asked, lock="": ready(session, *asked[:3]))


def a_nodes_own_clock(patch: pytest.MonkeyPatch, nodes: Sharers) -> None:
    """It goes much too fast."""
    log, began = nodes.third.log, time.monotonic()
    right = log.physical

    def fast() -> int:
        return right() + round((time.monotonic() - began) * 1e9)

    patch.setattr(log, "physical", fast)
    patch.setattr(log, "wall", lambda told: max(told, fast()))


@pytest.mark.req("VX-18", "LW-39")
@pytest.mark.parametrize("plant", [numbers_before_the_commit, jobs_without_locks, a_nodes_own_clock])
def test_a_planted_mistake_is_found(
    nodes: Sharers, plant: Callable[[pytest.MonkeyPatch, Sharers], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(nodes)
    plant(monkeypatch, nodes)
    with gates(), pytest.raises(Violation) as found:
        for seed in range(PLANTED_FOUND_WITHIN):
            world.run(seed)
    print(f"{plant.__name__}: {found.value}")
