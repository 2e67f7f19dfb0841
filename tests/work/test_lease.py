"""A lease as its holder counts it: whatever the holder is told and however late, it stops before the arbiter lets
anybody else in, and it asks often enough to keep what it may keep.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import work
from hocket.events import Event
from hocket.extensions.sim import loop
from hocket.extensions.sim.node import Clocks, SimNode, Up
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.lease import COUNTED, GROWN_S_MAX, WAITED, Lease, may_be_taken_over, run_out, to_renew
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ops import decode
from hocket.kernel.policy import DEFAULT
from hocket.kernel.vocabulary import ClaimWork
from hocket.work.context import Context
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers, JobType
from hocket.work.worker import Worker

DAY_S = 86_400

lengths = st.floats(0.1, 86_400)
times = st.floats(0, 1e6)


class Hold(NamedTuple):
    lease: Lease


class Ask(NamedTuple):
    """A renewal: how long the holder waits before it asks, how long the question and the answer travel, and what comes
    of it.
    """

    wait: float
    there: float
    back: float
    answer: str


asks = st.builds(
    Ask, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from(("granted", "lost answer", "refused"))
)


@pytest.mark.touches("LW-18")
@given(lengths, st.sampled_from((0.991, 1.0, 1.009)), st.lists(asks, max_size=12))
def test_a_holder_never_counts_on_a_lease_that_the_arbiter_has_ended(length: float, rate: float, some: list[Ask]):
    """Two clocks: the holder's, and the arbiter's, which runs at another rate. Waits are parts of the lease."""
    now = 0.0
    lease = Lease(length, now)
    deadline = now * rate + length  # on the arbiter's clock
    assert lease.ends_at * rate <= deadline
    for each in some:
        now += each.wait * length
        if now >= lease.ends_at or lease.is_over:
            break
        asked_at = now
        lease.renewing()
        assert lease.renews_at == math.inf
        now += each.there * length
        is_in_time = now * rate <= deadline
        if each.answer != "refused" and is_in_time:
            deadline = now * rate + length
        now += each.back * length
        if each.answer == "granted" and is_in_time:
            lease.renewed(length, asked_at)
        elif each.answer == "lost answer":
            lease.try_again(now)
        else:
            lease.end()
        assert lease.is_over or lease.ends_at * rate <= deadline


@given(lengths, times)
def test_a_lease_is_renewed_well_before_it_ends(length: float, asked_at: float):
    hold = Hold(Lease(length, asked_at))
    assert to_renew([hold], asked_at) == [] and run_out([hold], asked_at) == []
    renews_at, ends_at = hold.lease.renews_at, hold.lease.ends_at
    assert asked_at < renews_at < ends_at < asked_at + length
    assert to_renew([hold], renews_at) == [hold] and run_out([hold], renews_at) == []
    assert run_out([hold], ends_at) == [hold]


@given(lengths, times, st.floats(0, 2))
def test_a_renewal_that_failed_is_tried_again_soon_but_not_at_once(length: float, asked_at: float, later: float):
    lease = Lease(length, asked_at)
    before = lease.ends_at
    now = lease.renews_at + later * length
    lease.renewing()
    lease.try_again(now)
    assert now < lease.renews_at <= now + length / 5
    assert lease.ends_at == before, "a question alone makes no lease longer"


@given(lengths, times, times)
def test_what_is_over_is_neither_renewed_nor_given_up_again(length: float, asked_at: float, now: float):
    hold = Hold(Lease(length, asked_at))
    hold.lease.end()
    assert to_renew([hold], now) == [] and run_out([hold], now) == []


@given(lengths, times, st.floats(0, 10), st.floats(0.951, 1.049))
def test_who_watches_a_claim_takes_it_over_only_when_its_holder_has_stopped(
    length: float, asked_at: float, seen_after: float, rate: float
):
    """The watcher's clock runs at another rate than the holder's and saw the claim when it was written or later."""
    lease = Lease(length, asked_at)
    seen_at = (asked_at + seen_after) * rate
    assert not may_be_taken_over(seen_at, length, lease.ends_at * rate)
    assert may_be_taken_over(seen_at, length, seen_at + length * WAITED * 1.001)
    assert COUNTED < 1 < WAITED


@pytest.mark.touches("LW-18")
@given(st.floats(0.1, 2_000), times, st.floats(0, 1e6))
def test_a_renewal_asks_for_a_quarter_of_the_time_that_the_job_has_run(length: float, asked_at: float, ran: float):
    lease = Lease(length, asked_at)
    lease.renewed(length, asked_at + ran / 2)  # what a renewal got does not change what the next one asks for
    asked = lease.next_s(asked_at + ran)
    assert asked >= length, "never less than the lease"
    assert asked <= max(length, GROWN_S_MAX)
    assert asked == pytest.approx(max(length, min(ran / 4, GROWN_S_MAX)), abs=1e-6)


@pytest.mark.touches("LW-18")
@pytest.mark.parametrize("length_ms", [100, 30_000])
def test_a_day_of_one_job_leaves_hundreds_of_ops(length_ms: int, monkeypatch: pytest.MonkeyPatch):
    """The real worker, its log and its store, on virtual time."""
    # What else it looks at is no concern here, and it looks hundreds of thousands of times a day.
    for module, name in ((work.worker, "ROUND_S"), (work.held_jobs, "CHECK_S"), (work.worker, "BEAT_S")):
        monkeypatch.setattr(module, name, 3600.0)

    async def sleep(ctx: Context) -> None:
        await asyncio.sleep(DAY_S)

    async def day() -> list[int]:
        node = SimNode(0, SigningKey(b"user" * 8), Clocks(1.0, 0.0), random.Random(1), _Unseen())
        node.install(HOCKET, ())
        up = Up(node)
        handlers = Handlers([JobType("acme.sleep", function=sleep, lease_ms=length_ms)])
        worker = Worker(up, up.environment, WorkerOptions(handlers, 1, until_idle=True, ahead=0))
        await up.run(lambda tx: jobs.submit(tx, [Draft("acme.sleep", b"", DEFAULT)]))
        await worker.run()
        assert worker.succeeded == 1
        with node.store.read() as session:
            ops = [decode(row.body).payload for row in session.ops_after(0, 10_000)]
        return [op.lease_duration_ms for op in ops if isinstance(op, ClaimWork)]

    leases = loop.run(day())
    assert len(leases) < 500, "with leases that do not grow, thousands"
    assert leases == sorted(leases) and leases[0] == length_ms and leases[-1] == GROWN_S_MAX * 1000


class _Unseen:
    def committed(self, node: int) -> None: ...
    def acknowledged(self, node: int, op_ids: Sequence[bytes]) -> None: ...
    def crashed(self, node: int) -> None: ...
    def emitted(self, node: int, event: Event) -> None: ...
