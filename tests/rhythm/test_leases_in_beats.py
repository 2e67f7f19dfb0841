"""Leases of jobs that are counted in beats: they end at the boundary of a phase or a bar, and renewals keep them."""

import asyncio
import threading
from pathlib import Path

import pytest

import hocket
from hocket.coordination.lock_decisions import read_scope
from hocket.errors import Usage
from hocket.kernel.beats.phases import hold_end
from hocket.kernel.beats.policy import read_policy
from hocket.kernel.kinds import with_defaults
from hocket.kernel.policy import DEFAULT, LEASE_MS_DEFAULT
from hocket.node.runtime import Runtime
from hocket.node.worker_tempo import length_ms
from hocket.work.handlers import policy, said

PATIENCE_S = 30.0
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
            # The claim has not quite the time for which its lease was computed.
            off_ms = [min(deadline_ms % 1_000, -deadline_ms % 1_000) for deadline_ms in deadlines]
            assert max(off_ms) < 300
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
def test_each_renewal_of_a_lock_in_beats_is_counted_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def spied(runtime: Runtime, length: str | float) -> int:
        now_ms = runtime.log.physical()
        asked.append((now_ms, length_ms(runtime, length)))
        return asked[-1][1]

    async def main() -> None:
        monkeypatch.setattr("hocket.node.node.length_ms", spied)
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
            async with node.lock("k", agent="a", ttl="2b") as held:
                deadlines: dict[int, int] = {}
                while len(deadlines) < 3:
                    scope = await node.peek(lambda session: read_scope(session, ""))
                    assert scope is not None and not held.lost.is_set()
                    deadlines.setdefault(scope.holds[0].deadline, node.log.physical())
                    await asyncio.sleep(0.02)
            assert len(asked) > len(deadlines), "when it was made, when the block began, and for each renewal"
            for deadline_ms, seen_ms in deadlines.items():
                assert any(at_ms + lasts_ms <= deadline_ms <= seen_ms + lasts_ms for at_ms, lasts_ms in asked)

    asyncio.run(main())


@pytest.mark.req("BB-09")
def test_a_hold_in_beats_needs_a_policy(home: Path) -> None:
    with Runtime.open(home) as runtime:
        assert length_ms(runtime, "30s") == 30_000
        now_ms = runtime.log.physical()
        made = read_policy(POLICY.encode())
        expected = hold_end(made.initial_tempo, made.phases, 4, now_ms) - now_ms
        assert 1_000 <= length_ms(runtime, "4b") <= 4_000 and 1_000 <= expected <= 4_000
        (home / "tempo.yaml").unlink()
        with pytest.raises(Usage, match="4b is a length in beats, and this node has no tempo"):
            length_ms(runtime, "4b")
