"""Leases of jobs that are counted in beats: they end at the boundary of a phase or a bar, and renewals keep them."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.errors import Usage
from hocket.extensions.tempo.beats import changed, timeline
from hocket.extensions.tempo.node_tempo import lease_ms
from hocket.extensions.tempo.policy import make_policy, read_policy
from hocket.extensions.tempo.policy_file import home_timeline, keep_change
from hocket.families.jobs.drafts import policy, said
from hocket.families.locks.decisions import read_scope
from hocket.kernel.policy import DEFAULT, LEASE_MS_DEFAULT, LEASE_MS_MIN, with_defaults
from hocket.node.runtime import Runtime

PATIENCE_S = 60.0
POLICY = "cluster_id: choir\ninitial_bpm: 60\nbar_len_beats: 4\n"
go = threading.Event()


@hocket.job("beats.held", lease="2b")
def held(ctx: hocket.Context) -> None:
    go.wait(PATIENCE_S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    go.clear()
    hocket.init(tmp_path / "home")
    (tmp_path / "home" / "tempo.yaml").write_text(POLICY)
    return tmp_path / "home"


@pytest.mark.req("BB-09")
def test_a_lease_in_beats_ends_on_a_boundary_and_is_renewed(home: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node, node.working([held], grace=0.1):
            handle = await node.submit(held)
            deadlines = set()
            while len(deadlines) < 3:
                deadline_ms = (await handle.status())["deadline_ms"]
                deadlines |= {deadline_ms} - {None}
                await asyncio.sleep(0.02)
            go.set()
            await handle.result()
            assert all(deadline_ms % 1_000 == 0 for deadline_ms in deadlines), "each ends at a beat"
            assert all(deadline_ms <= node.runtime.log.physical() + 3_300 for deadline_ms in deadlines)

    asyncio.run(main())


@pytest.mark.req("BB-09")
def test_a_lease_in_beats_is_an_option_like_others() -> None:
    assert held.policy.lease_beats == 2 and held.policy.lease_ms is None and held.lease_ms == LEASE_MS_DEFAULT
    given = policy(held.policy, lease="30s")
    assert (given.lease_beats, given.lease_ms) == (None, 30_000)
    assert with_defaults(given, said(["lease"]), held.policy) == given
    assert with_defaults(DEFAULT, said([]), held.policy).lease_beats == 2
    for bad in ("0b", "100001b", "-1b", "b"):
        with pytest.raises(Usage, match="bad lease"):
            policy(DEFAULT, lease=bad)


@pytest.mark.req("BB-09")
def test_each_renewal_of_a_lock_in_beats_ends_at_a_beat(home: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
            async with node.lock("k", agent="a", ttl="2b") as held:
                deadlines: set[int] = set()
                while len(deadlines) < 3:
                    scope = await node.peek(lambda session: read_scope(session, ""))
                    assert scope is not None and not held.lost.is_set()
                    deadlines.add(scope.holds[0].deadline)
                    await asyncio.sleep(0.02)
            assert all(deadline_ms % 1_000 == 0 for deadline_ms in deadlines)

    asyncio.run(main())


@pytest.mark.req("BB-09")
def test_a_hold_in_beats_needs_a_policy(home: Path) -> None:
    with Runtime.open(home) as runtime:
        assert runtime.hold_length("30s") == 30_000
        lasts = runtime.hold_length("4b")
        assert not isinstance(lasts, int)
        # A bar of 4 beats of a second: plan is its first beat, work ends with the third.
        assert [lasts(now_ms) for now_ms in (0, 1, 1_000, 2_999, 3_000)] == [1_000, 2_999, 2_000, 1_001, 1_000]
        (home / "tempo.yaml").unlink()
        with pytest.raises(Usage, match="4b is a length in beats, and this node has no tempo"):
            runtime.hold_length("4b")


@pytest.mark.req("BB-09")
def test_holds_follow_the_tempo_in_force(home: Path) -> None:
    made = read_policy(POLICY.encode())
    with Runtime.open(home) as runtime:
        change = changed(made.initial_tempo, 30, 10_000)
        keep_change(runtime.home, made, change)
        lasts = runtime.hold_length("1b")
        assert not isinstance(lasts, int)
        assert lasts(change.since_ms - 1_000) == 1_000 and lasts(change.since_ms) == 2_000
        assert home_timeline(runtime.home, made).at(change.since_ms) == change.tempo
        keep_change(runtime.home, made, changed(made.initial_tempo, 20, 5_000))
        assert len(home_timeline(runtime.home, made).changes) == 2, "a later change is forgotten"
        other = read_policy(POLICY.replace("60", "120").encode())
        assert home_timeline(runtime.home, other).changes == timeline(other.initial_tempo).changes


@pytest.mark.req("BB-09")
@given(st.integers(1, 1200), st.integers(1, 16), st.integers(1, 40), st.integers(0, 2**42))
def test_a_lease_ends_at_a_beat_and_leaves_time_to_renew(bpm: int, bar_len: int, beats: int, now_ms: int) -> None:
    made = make_policy("choir", bpm, bar_len)
    lasts_ms = lease_ms(made.initial_tempo, made.phases, beats, now_ms)
    assert lasts_ms >= LEASE_MS_MIN and (now_ms + lasts_ms) % made.initial_tempo.beat_ms == 0
