"""What every bus keeps to: a subscription gets the messages that match, in a bounded queue; nothing that a server or a
receiver does reaches the publisher.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.bus import process_messages
from hocket.bus.envelope import DATA_BYTES_MAX, SEALED_BYTES_MAX
from hocket.bus.messages import BusMessage, MemoryMessages, MemoryServer, MessageBus, MessageQueue, is_match
from hocket.bus.nats_messages import NatsMessages
from hocket.bus.process_messages import ProcessMessages
from hocket.events import Event
from hocket.events.nodes import MessagesDropped
from tests.bus.nats_server import NatsServer, connected
from tests.bus.relayed_messages import relayed

PATIENCE_S = 60.0
SHORT_S = 0.05
Opener = Callable[..., Awaitable[MessageBus]]


@asynccontextmanager
async def opener(kind: str, directory: Path) -> AsyncIterator[Opener]:
    """A function that opens one more participant of the same bus."""
    if kind == "relay":
        async with relayed(directory) as add:
            yield add
        return
    memory, made = MemoryServer(), []
    with NatsServer(directory) if kind == "nats" else MemoryServerStandIn() as server:

        async def open_one(emit: Callable[[Event], None] = lambda event: None) -> MessageBus:
            one: MessageBus
            if kind == "memory":
                one = MemoryMessages(memory, emit)
            elif kind == "processes":
                one = ProcessMessages(directory / "messages", emit)
            else:
                one = NatsMessages([server.url], emit=emit)
                await connected(one)
            made.append(one)
            return one

        try:
            yield open_one
        finally:
            for each in made:
                await each.close()
    if kind == "processes":
        assert list((directory / "messages").glob("*.messages")) == [], "a closed bus leaves no socket behind"


class MemoryServerStandIn:
    url = ""

    def __enter__(self) -> "MemoryServerStandIn":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(
    params=["memory", "processes", "nats", "relay"],
)
def over(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Opener], Awaitable[None]]], None]:
    """Runs a test on each bus."""

    def run(test: Callable[[Opener], Awaitable[None]]) -> None:
        async def body() -> None:
            async with opener(request.param, tmp_path) as open_one:
                await test(open_one)

        asyncio.run(body())

    return run


Over = Callable[[Callable[[Opener], Awaitable[None]]], None]


async def drained(queue: MessageQueue, count: int) -> list[BusMessage]:
    got = []
    for _ in range(count):
        message = await queue.get(PATIENCE_S)
        assert message is not None, f"only {len(got)} of {count} came"
        got.append(message)
    return got


@pytest.mark.touches("GR-05")
def test_a_subscription_gets_what_matches_and_nothing_else(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        here, there = await open_one(), await open_one()
        patterns = ["a.b.c", "a.*.c", "a.>", ">", "a.b", "*.b.*"]
        queues = {pattern: await there.subscribe(pattern) for pattern in patterns}
        subjects = ["a.b.c", "a.x.c", "a.b", "a", "b.b.b", "a.b.c.d"]
        for number, subject in enumerate(subjects):
            await here.publish(subject, bytes([number]))
        await here.publish("a.b.c.d", b"end", reply_to="x.y")
        for pattern, queue in queues.items():
            expected = [BusMessage(each, bytes([n])) for n, each in enumerate(subjects) if is_match(pattern, each)]
            if is_match(pattern, "a.b.c.d"):
                expected.append(BusMessage("a.b.c.d", b"end", "x.y"))
            assert await drained(queue, len(expected)) == expected, pattern
            assert await queue.get(SHORT_S) is None, pattern

    over(test)


def test_a_publisher_hears_itself_and_every_subscription_gets_a_copy(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        first, second = await bus.subscribe("t.>"), await bus.subscribe("t.*")
        await bus.publish("t.k", b"x")
        assert await drained(first, 1) == await drained(second, 1) == [BusMessage("t.k", b"x")]

    over(test)


def test_a_queue_is_bounded_drops_the_oldest_counts_and_says_so_once(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        told: list[Event] = []
        here, there = await open_one(), await open_one(told.append)
        slow, quick = await there.subscribe("t.k", capacity=10), await there.subscribe("t.k")
        for number in range(100):
            await here.publish("t.k", b"%d" % number)
        assert [each.data for each in await drained(quick, 100)] == [b"%d" % number for number in range(100)]
        assert [each.data for each in await drained(slow, 10)] == [b"%d" % number for number in range(90, 100)]
        assert (slow.dropped, quick.dropped) == (90, 0)
        assert [each for each in told if isinstance(each, MessagesDropped)] == [MessagesDropped("t.k", 10)]

    over(test)


def test_a_closed_queue_gets_nothing_and_ends_its_wait(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        queue, other = await bus.subscribe("t.k"), await bus.subscribe("t.k")
        waiting = asyncio.create_task(queue.get(PATIENCE_S))
        await asyncio.sleep(0)
        queue.close()
        assert await waiting is None and queue.is_closed and not other.is_closed
        await bus.publish("t.k", b"x")
        assert await drained(other, 1)
        assert await queue.get(SHORT_S) is None
        queue.close()

    over(test)


def test_two_waiters_share_a_queue_and_none_is_woken_in_vain(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        queue = await bus.subscribe("t.k")
        waiting = [asyncio.create_task(queue.get(PATIENCE_S)) for _ in range(2)]
        await asyncio.sleep(0)
        await bus.publish("t.k", b"1")
        await bus.publish("t.k", b"2")
        assert {each.data for each in await asyncio.gather(*waiting) if each is not None} == {b"1", b"2"}

    over(test)


@pytest.mark.touches("GR-02")
def test_a_late_joiner_gets_announcements_of_the_past_that_it_asks_for(
    over: Over, request: pytest.FixtureRequest
) -> None:
    # What a relay is still carrying when somebody joins reaches him, too.
    carried = (b"0", b"1", b"2") if "relay" in request.node.name else ()

    async def test(open_one: Opener) -> None:
        here = await open_one()
        early = await here.subscribe("jobs.>")
        for number in range(3):
            await here.announce(f"jobs.k{number}", b"%d" % number)
        await here.publish("jobs.k0", b"a plain message is not kept")
        await drained(early, 4)
        there = await open_one()
        late = await there.subscribe("jobs.*", since_s=60.0)
        one, none = await there.subscribe("jobs.k1", since_s=60.0), await there.subscribe("jobs.*")
        assert [each.data for each in await drained(late, 3)] == [b"0", b"1", b"2"]
        assert await drained(one, 1) == [BusMessage("jobs.k1", b"1")]
        await here.announce("jobs.k1", b"new")
        for queue in (late, one, none):
            while (found := (await drained(queue, 1))[0].data) in carried:
                pass
            assert found == b"new"
            assert await queue.get(SHORT_S) is None

    over(test)


def test_a_request_gets_its_reply_or_none(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        here, there = await open_one(), await open_one()
        questions = await there.subscribe("ask.>")

        async def answer() -> None:
            for _ in range(5):
                question = await questions.get(PATIENCE_S)
                assert question is not None
                await there.publish(question.reply_to, b"re: " + question.data)

        answering = asyncio.create_task(answer())
        replies = await asyncio.gather(*(here.request("ask.me", b"%d" % n, PATIENCE_S) for n in range(5)))
        assert [each and each.data for each in replies] == [b"re: %d" % n for n in range(5)]
        await answering
        assert await here.request("ask.me", b"nobody answers", SHORT_S) is None
        assert await here.request("nobody.listens", b"", SHORT_S) is None

    over(test)


def test_bad_subjects_and_too_much_data_are_errors_of_the_caller(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        for subject in ("", "a..b", ".a", "a.", "a b", "a.*", "a.>", "a\n", "a\0b"):
            for attempt in (bus.publish(subject, b""), bus.announce(subject, b"")):
                with pytest.raises(ValueError):
                    await attempt
        for pattern in ("", "a..b", ">.a", "a.>.b", "a b", "a*"):
            with pytest.raises(ValueError):
                await bus.subscribe(pattern)
        with pytest.raises(ValueError):
            await bus.publish("a", b"", reply_to="a b")
        with pytest.raises(ValueError):
            await bus.publish("a", bytes(SEALED_BYTES_MAX + 1))
        with pytest.raises(ValueError):
            await bus.subscribe("a", capacity=0)

    over(test)


def test_the_largest_message_and_the_longest_subject_arrive(over: Over, request: pytest.FixtureRequest) -> None:
    # Over a relay every message is sealed: the seal needs the rest.
    is_sealed = "relay" in request.node.name
    largest, words = (DATA_BYTES_MAX, 60) if is_sealed else (SEALED_BYTES_MAX, 68)

    async def test(open_one: Opener) -> None:
        here, there = await open_one(), await open_one()
        subject = "hocket." + ".".join(["x" * 49] * words)
        queue, wide = await there.subscribe(subject), await there.subscribe("hocket.>")
        await here.publish(subject, bytes(largest), reply_to="hocket.reply")
        await here.announce(subject, b"kept")
        for each in (queue, wide):
            big, kept = await drained(each, 2)
            assert big == BusMessage(subject, bytes(largest), "hocket.reply")
            assert kept == BusMessage(subject, b"kept")

    over(test)


def test_messages_of_several_publishers_all_arrive(over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that does not read for a moment loses messages; on a busy machine it may be the whole process that
    does nothing meanwhile.
    """
    monkeypatch.setattr(process_messages, "PATIENCE_S", PATIENCE_S)

    async def test(open_one: Opener) -> None:
        buses = [await open_one() for _ in range(4)]
        queue = await buses[0].subscribe("t.*", capacity=1000)

        async def publish(number: int, bus: MessageBus) -> None:
            for each in range(200):
                await bus.publish(f"t.{number}", b"%d" % each)

        await asyncio.gather(*(publish(number, bus) for number, bus in enumerate(buses)))
        got: dict[str, list[Any]] = {}
        for message in await drained(queue, 800):
            got.setdefault(message.subject, []).append(int(message.data))
        assert got == {f"t.{number}": list(range(200)) for number in range(4)}

    over(test)


def test_it_says_that_it_is_connected(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        assert bus.state.is_connected and bus.state.keeps and bus.state.lost == 0 and bus.state.what

    over(test)


def test_a_receiver_that_always_finds_a_message_does_not_stop_the_loop(over: Over) -> None:
    async def test(open_one: Opener) -> None:
        bus = await open_one()
        queue = await bus.subscribe("t.k")
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_soon(is_over.set)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(1_000):
                await bus.publish("t.k", b"x")
                await queue.get(PATIENCE_S)
                if is_over.is_set():
                    return
        raise AssertionError("nobody else had the loop")

    over(test)
