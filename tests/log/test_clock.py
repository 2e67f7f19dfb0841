"""A node's time: strictly rising for every op that it writes, past everything that it has heard of, and never stuck,
whatever the machine's clock does.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import StoreError
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import State
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.ids import node_id
from hocket.kernel.mesh_rules import STRICT, UNBOUND, Rules, encode_rules
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import RouteKind, ScheduleJob, Unknown
from hocket.log import RULES, Log
from hocket.log.machine_clock import SteadyWall
from hocket.store import open as open_store
from tests.log.roster.world import (
    INTRODUCTIONS,
    KEYS,
    NODES,
    READER,
    STRANGER,
    Clock,
    introduction,
    job_id,
    new_log,
    sent,
    signed,
)
from tests.stores import new_store

pytestmark = pytest.mark.touches("LW-22")

HOUR_S = 3_600.0


class Machine:
    """A machine's two clocks: one that can be set, one that only goes on."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.monotonic = 50.0

    def pass_s(self, seconds: float) -> None:
        self.time += seconds
        self.monotonic += seconds

    def wall(self) -> SteadyWall:
        return SteadyWall(lambda: self.time, lambda: self.monotonic)


def times(log: Log) -> list[Hlc]:
    with log.store.read() as session:
        return [unpack(row.hlc) for row in session.ops_after(0, 100_000)]


@pytest.mark.req("LW-22")
@given(st.lists(st.sampled_from((-5_000, -1, 0, 0, 1, 1_000)), min_size=1, max_size=30), st.data())
def test_every_op_is_later_than_the_one_before_whatever_the_wall_does(moves: list[int], data: st.DataObject) -> None:
    clock = Clock()
    log = Log(new_store(), STRANGER, "", wall=lambda floor: clock.now, randomness=bytes)
    ids = iter(range(1, 1_000))
    log._randomness = lambda size: next(ids).to_bytes(size, "big")
    for move in moves:
        clock.now += move
        if data.draw(st.booleans()):
            log.append_plain("k", b"{}")
        else:
            log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))] * 2))
    written = times(log)
    assert written == sorted(set(written))


@pytest.mark.req("LW-22")
def test_the_clock_goes_on_from_where_it_was_after_a_restart(store_url: str) -> None:
    machine = Machine()
    for back_s in (0.0, HOUR_S, 0.0, HOUR_S):
        machine.time -= back_s
        log = new_log(open_store(store_url, create=True), wall=machine.wall())
        for _ in range(3):
            log.append_plain("k", b"{}")
        log.store.close()
    log = new_log(open_store(store_url))
    written = times(log)
    log.store.close()
    assert written == sorted(set(written)) and len(written) == 12
    assert written[-1].wall >= 1_700_000_000_000


FAR_MS = 60_000
ROUTE = RouteKind("k", None)
FOREIGN = introduction(STRANGER, user=STRANGER).payload


def far(payload: Any, node: int = NODES[0], number: int = 1) -> Op:
    """An op whose time is ahead of the machine's clock, but not so far that it is held."""
    return Op(job_id(number), Hlc(Clock().now + FAR_MS, 9, node), node, (), payload)


@pytest.mark.req("LW-22", "LW-49")
@pytest.mark.parametrize(
    "why, item, is_members",
    [
        (Reason.UNKNOWN_NODE, signed(far(ROUTE, 77), STRANGER), False),
        (Reason.BAD_SIGNATURE, signed(far(ROUTE), STRANGER), False),
        (Reason.FOREIGN_USER, signed(far(FOREIGN, node_id(STRANGER.public)), STRANGER), False),
        (Reason.FOREIGN_USER, signed(far(FOREIGN), STRANGER), False),
        (Reason.FOREIGN_USER, signed(far(FOREIGN)), True),
        (Reason.UNKNOWN_VARIANT, signed(far(Unknown(900, b"what"))), True),
        (Reason.OTHER_BYTES, signed(far(ROUTE, number=2)), True),
        (None, signed(far(ROUTE)), True),
    ],
    ids=["nobody", "forged", "foreigner", "forged-delegation", "delegation", "variant", "other-bytes", "admitted"],
)
@pytest.mark.parametrize("rules", [STRICT, UNBOUND], ids=["strict", "ours"])
def test_a_strict_mesh_hears_the_time_of_refused_ops_and_ours_only_that_of_admitted_ones(
    why: Reason | None, item: tuple[bytes, Op], is_members: bool, rules: Rules
) -> None:
    """Where a coordinator ends leases and locks, an op without effect must not move its clock ahead. What no member has
    signed moves no clock anywhere.
    """
    store = new_store()
    with store.write() as session:
        session.set_meta(RULES, encode_rules(rules))
    log = new_log(store, KEYS[2], Clock())
    log.admit(sent([*INTRODUCTIONS, Op(job_id(2), Hlc(2, 0, NODES[0]), NODES[0], (), ROUTE)]))
    admission = log.admit([item])
    assert admission.refused == ({} if why is None else {why: 1})
    log.append_plain("k", b"{}")
    is_heard = why is None or (rules is STRICT and is_members)
    assert (times(log)[-1].wall >= Clock().now + FAR_MS) == is_heard


@pytest.mark.req("LW-22")
def test_a_spent_counter_refuses_to_write_and_keeps_what_is_there() -> None:
    clock = Clock()
    log = new_log(wall=clock)
    log.append_plain("k", b"{}")
    with log.store.write() as session:
        session.put_head(session.head()._replace(logical=U32_MAX))
    before = times(log)
    with pytest.raises(StoreError, match="wall clock"):
        log.append_plain("k", b"{}")
    with pytest.raises(StoreError, match="wall clock"):
        log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))]))
    assert times(log) == before
    clock.now += 1
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))]))
    assert times(log)[-1] == Hlc(clock.now, 0, log.node)


@given(st.lists(st.tuples(st.floats(0, 10_000), st.floats(-2 * HOUR_S, HOUR_S)), min_size=1, max_size=30))
def test_the_steady_wall_never_goes_back_and_never_stands(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    wall = machine.wall()
    last = wall()
    for elapsed, jump in steps:
        machine.pass_s(elapsed)
        machine.time += jump
        now = wall(0)
        # At half speed at least, up to the millisecond that rounding takes.
        assert now >= last + int(elapsed * 500) - 1
        assert now >= int(machine.time * 1000)
        last = now


def test_the_steady_wall_takes_the_time_of_day_again_when_that_has_caught_up() -> None:
    machine = Machine()
    wall = machine.wall()
    before = wall()
    machine.time -= HOUR_S
    machine.pass_s(60)
    assert wall() == before + 30_000
    machine.pass_s(2 * HOUR_S)
    assert wall() == int(machine.time * 1000)


def test_the_steady_wall_stays_with_the_log_that_is_ahead() -> None:
    machine = Machine()
    wall = machine.wall()
    ahead = int(machine.time * 1000) + 5_000
    assert wall(ahead) == ahead
    machine.pass_s(2)
    assert wall(ahead) == ahead + 1_000


@pytest.mark.req("LW-07", "LW-41")
def test_leases_and_delays_end_although_the_clock_was_set_back_an_hour() -> None:
    machine = Machine()
    log = new_log(wall=machine.wall())
    log.run(lambda tx: jobs.submit(tx, [Draft("leased", b"{}", Policy())]))
    soon = int(machine.time * 1000) + 20_000
    log.run(lambda tx: jobs.submit(tx, [Draft("delayed", b"{}", Policy(not_before=soon))]))
    claimed = log.run(lambda tx: claiming.claim(tx, 1, 9, lambda kind: 20_000))
    assert [claim.job.kind for claim in claimed.taken] == ["leased"]
    machine.time -= HOUR_S
    machine.pass_s(39)
    assert log.run(lambda tx: rescue.expire(tx, 9)) == 0
    assert log.run(lambda tx: claiming.claim(tx, 1, 9, lambda kind: 20_000)).taken == []
    machine.pass_s(3)
    assert log.run(lambda tx: rescue.expire(tx, 9)) == 1
    taken = log.run(lambda tx: claiming.claim(tx, 1, 9, lambda kind: 20_000)).taken
    assert {claim.job.kind for claim in taken} == {"leased", "delayed"}
    with log.store.read() as session:
        assert all(entry.job.state is State.CLAIMED for entry in session.each_job())
    written = times(log)
    assert written == sorted(set(written))


@pytest.mark.req("LW-10")
def test_a_twin_of_ones_own_op_from_elsewhere_takes_both_out() -> None:
    """A node whose home was copied writes at one time twice; nobody can say which of the two is meant."""
    log = new_log()
    token = introduction(READER).payload
    log.run(lambda tx: tx.author(token))
    job = log.append_plain("k", b"{}")
    stamp = times(log)[-1]
    twin = signed(Op(job_id(1), stamp, log.node, (), ScheduleJob(job_id(2), "k", b"", b"")))
    log.admit([twin])
    with log.store.read() as session:
        assert session.refusal_counts() == {Reason.INTEGRITY: 2, Reason.TWIN: 1}
        assert session.job(job) is None and session.job(job_id(2)) is None
