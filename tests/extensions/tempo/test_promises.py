"""Help between agents: promises that are kept, late, broken, or never made, and what becomes of the waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.bus.messages import MemoryMessages, MemoryServer
from hocket.bus.process_messages import ProcessMessages
from hocket.bus.signed import SignedMessages
from hocket.errors import Usage
from hocket.extensions.tempo.messages import PromiseOutcome, PromiseResult, to_json
from hocket.extensions.tempo.promises import (
    AGENTS_MAX,
    HALF_LIFE_MS,
    PromiseCounts,
    PromiseRecord,
    PromiseWatch,
    make_promise,
    may_tell,
)
from hocket.extensions.tempo.run_pace import EXTENSION
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.node.inbox import ReceivedMessage
from hocket.node.node import Node
from hocket.work.presence import read_serving
from tests.mesh.world import Guest

PATIENCE_S = 60.0
POLICY = "cluster_id: choir\ninitial_bpm: 240\nbar_len_beats: 8\n"
SCORE = {"phases": {"work": 8}, "wait_budget": {"help": 8}}


def slow(bpm: int = 60) -> str:
    """A policy whose bar begins now. A request must get a promise before the bar ends: a busy machine can do that."""
    return f"cluster_id: choir\ninitial_bpm: {bpm}\nbar_len_beats: 64\nanchor_ms: {int(time.time() * 1000)}\n"


def watch_of(node: Node) -> Any:
    """What watches the promises that jobs of the node's worker were given."""
    return getattr(node.runtime.pacers.get(EXTENSION), "promises", None)


@hocket.job("help.async", score=SCORE)
async def asks(ctx: hocket.Context, body: Any) -> Any:
    answer = await ctx.wait_for(ctx.ask_help("helper", body), budget="help", fallback=None)
    return None if answer is None else answer.text


@hocket.job("help.plain", score=SCORE)
def asks_in_a_thread(ctx: hocket.Context, body: Any) -> Any:
    answer = ctx.wait_for(ctx.ask_help("helper", body), budget="help", fallback=None)
    return None if answer is None else answer.text


@asynccontextmanager
async def working(home: Path, policy: str = POLICY) -> AsyncIterator[tuple[Node, TempoQueue[PromiseResult]]]:
    await asyncio.to_thread(hocket.init, home)
    (home / "tempo.yaml").write_text(policy)
    async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
        bus = await node.mesh_messages()
        assert bus is not None
        queue = await TempoMessages(bus, node.runtime.log.user).subscribe(PromiseResult, "choir")
        async with node.working([asks, asks_in_a_thread], grace=0.1):
            yield node, queue
        queue.close()


async def promise(message: ReceivedMessage, beats: int, fail_after: int) -> None:
    made = make_promise(message.data.thread, beats, fail_after, 0.5, "fallback")
    await message.reply(to_json(made), type="promise")


async def outcome(queue: TempoQueue[PromiseResult]) -> PromiseResult:
    heard = await queue.get(PATIENCE_S)
    assert heard is not None
    return heard.message


def run(home: Path, act: Callable[[Node, TempoQueue[PromiseResult]], Awaitable[None]], policy: str = POLICY) -> None:
    async def main() -> None:
        async with working(home, policy) as (node, queue):
            await act(node, queue)

    asyncio.run(main())


@pytest.mark.req("BB-08")
@pytest.mark.parametrize("job", [asks, asks_in_a_thread])
def test_help_that_comes_in_time_is_kept(tmp_path: Path, job: Any) -> None:
    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        handle = await node.submit(job, body="how?")
        (message,) = await node.inbox("helper").claim(wait=PATIENCE_S)
        assert message.text == "how?" and message.data.type == "help"
        await promise(message, 1_000, 1_000)
        await message.reply("so")
        assert await handle.result() == "so"
        result = await outcome(queue)
        assert (result.outcome, result.thread_id) == (PromiseOutcome.KEPT, message.id)
        assert result.agent_id == f"helper@{node_text(node.runtime.log.node)}"

    run(tmp_path / "home", act, slow(20))


@pytest.mark.req("BB-08")
def test_a_promise_that_is_not_kept_closes_the_thread_and_is_counted(tmp_path: Path) -> None:
    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        handle = await node.submit(asks, body="how?")
        (message,) = await node.inbox("helper").claim(wait=PATIENCE_S)
        await promise(message, 0, 1)
        assert await handle.result() is None
        result = await outcome(queue)
        assert result.outcome is PromiseOutcome.BROKEN
        watch = watch_of(node)
        assert watch is not None and watch.counts.of(result.agent_id).broken == pytest.approx(1, abs=0.01)
        (record,) = (await handle.status())["degraded"]
        assert record["wait"] == "help"
        assert watch.counts.of_node(node_text(node.runtime.log.node), node.runtime.log.physical()) < 0.6

    run(tmp_path / "home", act, slow())


@pytest.mark.req("BB-08")
def test_an_answer_after_the_wait_but_before_the_thread_closes_is_late(tmp_path: Path) -> None:
    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        handle = await node.submit(asks.using(score=SCORE | {"wait_budget": {"help": 1}}), body="how?")
        (message,) = await node.inbox("helper").claim(wait=PATIENCE_S)
        await promise(message, 0, 4)
        assert await handle.result() is None  # its budget of a beat is spent before
        await message.reply("sorry")
        assert (await outcome(queue)).outcome is PromiseOutcome.LATE

    run(tmp_path / "home", act, slow())


@pytest.mark.req("BB-08")
def test_a_request_without_a_promise_is_a_spent_wait_that_nobody_is_blamed_for(tmp_path: Path) -> None:
    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        handle = await node.submit(asks, body="anybody?")
        assert await handle.result() is None
        assert await queue.get(0.2) is None

    run(tmp_path / "home", act)


@pytest.mark.req("BB-08")
@pytest.mark.parametrize("junk", [b"", b"{}", b'{"thread_id":"other","promise_beats":1}'])
def test_a_promise_that_is_none_changes_nothing(tmp_path: Path, junk: bytes) -> None:
    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        handle = await node.submit(asks, body="how?")
        (message,) = await node.inbox("helper").claim(wait=PATIENCE_S)
        await message.reply(junk, type="promise")
        assert await handle.result() is None

    run(tmp_path / "home", act)


def test_a_bad_promise_is_refused() -> None:
    for beats, fail_after, confidence in ((2, 1, 0.5), (-1, 1, 0.5), (1, 2, 1.5)):
        with pytest.raises(Usage, match="bad promise"):
            make_promise("01J", beats, fail_after, confidence, "fallback")
    assert make_promise("01J", 2, None, 1.0, "fallback").fail_after_beats == 4


OUTCOMES = st.lists(st.tuples(st.sampled_from(PromiseOutcome), st.integers(0, 10 * HALF_LIFE_MS)), max_size=8)


@pytest.mark.req("BB-08")
@given(OUTCOMES, st.randoms())
def test_the_record_does_not_depend_on_the_order_and_fades(results: list[Any], chance: Any) -> None:
    def record(of: list[Any]) -> PromiseRecord:
        made = PromiseRecord()
        for each in of:
            made = made.after(*each)
        return made

    shuffled = [*results]
    chance.shuffle(shuffled)
    now_ms = 10 * HALF_LIFE_MS
    first, second = record(results), record(shuffled)
    assert first.reliability(now_ms) == pytest.approx(second.reliability(now_ms))
    assert 0 < first.reliability(now_ms) <= 1
    assert first.reliability(now_ms + 40 * HALF_LIFE_MS) == pytest.approx(1)
    broken, kept = first.after(PromiseOutcome.BROKEN, now_ms), first.after(PromiseOutcome.KEPT, now_ms)
    late = first.after(PromiseOutcome.LATE, now_ms)
    assert broken.reliability(now_ms) < late.reliability(now_ms) < kept.reliability(now_ms) + 1e-12
    assert 0 < broken.reliability(now_ms) <= 1.0


@pytest.mark.req("BB-08")
@pytest.mark.parametrize("weighs", [True, False])
def test_broken_promises_lower_the_weight_of_a_worker_that_weighs_them(tmp_path: Path, weighs: bool) -> None:
    async def main() -> None:
        hocket.init(tmp_path / "home")
        (tmp_path / "home" / "tempo.yaml").write_text(slow())
        async with asyncio.timeout(PATIENCE_S), hocket.open(tmp_path / "home") as node:
            async with node.working([asks], grace=0.1, weight=2.0, weighs_promises=weighs) as worker:
                watch, now = watch_of(node), node.runtime.log.reading()
                assert watch is not None
                agent = f"helper@{node_text(now.node)}"
                watch.counts.add(PromiseResult("t", agent, PromiseOutcome.BROKEN, hlc_text(now)), now.wall)
                weight, wanted = None, 1.0 if weighs else 2.0
                while weight != wanted:
                    weight = read_serving(worker._sign.serves)[0].weight
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-08")
def test_only_the_parties_of_a_promise_say_how_it_ended(tmp_path: Path) -> None:
    """The helper's worker hears them. A third node says that each agent broke its promise."""
    third = Guest(4)

    async def act(node: Node, queue: TempoQueue[PromiseResult]) -> None:
        watch, log = watch_of(node), node.runtime.log
        assert watch is not None
        own = f"helper@{node_text(log.node)}"
        handle = await node.submit(asks, body="how?")
        (message,) = await node.inbox("helper").claim(wait=PATIENCE_S)
        await promise(message, 1_000, 1_000)

        def tells(thread: str, agent: str, outcome: PromiseOutcome, author: int) -> Any:
            result = PromiseResult(thread, agent, outcome, hlc_text(log.reading()))
            return node.peek(lambda session: may_tell(session, result, author))

        broken, kept = PromiseOutcome.BROKEN, PromiseOutcome.KEPT
        assert await tells(message.id, own, kept, log.node), "the one that asked"
        assert not await tells(message.id, own, broken, third.id), "a third node"
        assert not await tells(message.id, own, kept, third.id)
        assert not await tells(message.id, "other@0123456789abcdef", broken, log.node), "it has promised nothing"
        assert not await tells("t", own, kept, log.node), "no such thread"
        assert await tells("t", own, broken, log.node), "a helper, of itself"

        grants = (Capability("Job", "Read", {}),)
        token = issue(node.runtime.home.user_key(), third.key.public, grants, log.physical() // 1000, None)
        await node.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
        raw = ProcessMessages(node.runtime.home.messages, lambda event: None)
        keys = {third.id: third.key.public}
        bus = SignedMessages(raw, third.key, log.user, keys.get, node.environment.physical_ms)
        lies = TempoMessages(bus, log.user)
        for _ in range(3):
            await lies.publish(PromiseResult("thread", own, broken, hlc_text(log.reading())), "choir")
            heard = await queue.get(PATIENCE_S)
            assert heard is not None and heard.at.node == third.id
        await message.reply("so")
        assert await handle.result() == "so"
        while not watch.counts.of(own).kept:
            await asyncio.sleep(0.01)
        assert (watch.counts.of(own).kept, watch.counts.of(own).broken) == (1, 0)
        await raw.close()

    run(tmp_path / "home", act, slow(20))


@pytest.mark.req("BB-08")
def test_who_promised_is_released_when_another_agent_has_helped() -> None:
    async def answered_at(thread_id: str, agent_id: str) -> int | None:
        raise AssertionError("the thread is closed")

    async def may_tell(result: PromiseResult, node: int) -> bool:
        raise AssertionError("no other node tells anything")

    async def main() -> None:
        server, key = MemoryServer(), SigningKey(bytes(32))
        bus = SignedMessages(MemoryMessages(server), key, "mesh", {node_id(key.public): key.public}.get, lambda: 0)
        watch = PromiseWatch(
            TempoMessages(bus, "mesh"), "choir", lambda: Hlc(0, 0, 0), lambda: 0, answered_at, may_tell
        )
        made = make_promise("thread", 1, 2, 0.9, "fallback")
        for agent in ("a@node", "b@node"):
            watch.promised(agent, made, 0, 1_000_000)
        watch.answered("thread", "a@node", 1)
        while watch.counts.of("a@node") == PromiseRecord():
            await asyncio.sleep(0)
        assert watch.counts.of("a@node").kept == 1
        assert watch.counts.of("b@node") == PromiseRecord() and not watch._open

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.req("BB-08")
def test_a_node_is_as_reliable_as_its_worst_agent() -> None:
    counts = PromiseCounts()
    for agent, outcome in (("a@one", PromiseOutcome.BROKEN), ("b@one", PromiseOutcome.KEPT), ("a@two", "late")):
        counts.add(PromiseResult("t", agent, PromiseOutcome(outcome), "1970-01-01T00:00:00.000Z+0"), 0)
    assert counts.of_node("one", 0) == counts.of("a@one").reliability(0) < counts.of("b@one").reliability(0)
    assert counts.of_node("one", 0) < counts.of_node("two", 0) < counts.of_node("three", 0) == 1.0


def test_counts_are_bounded_and_each_result_counts_once() -> None:
    counts = PromiseCounts()
    for n in range(AGENTS_MAX + 10):
        for _ in range(2):
            counts.add(PromiseResult(str(n), f"agent-{n}@node", PromiseOutcome.BROKEN, "1970-01-01T00:00:00.000Z+0"), 0)
    assert counts.of("agent-0@node") == PromiseRecord()
    assert counts.of(f"agent-{AGENTS_MAX}@node").broken == 1
