"""Contested rows through `node.rows`, on real nodes: several processes, several nodes, watches, and what a conflict
leaves on the log.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import hocket
from hocket.errors import Conflict, Usage
from hocket.families.inbox.facts import SendMessage
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.families.rows.requests import PAGE, RowConflict, StoredRow
from hocket.families.rows.rules import OPEN_CONFLICTS_MAX
from hocket.kernel.ops import decode
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import Subject
from hocket.log.rebuild import rebuild
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from tests.mesh.world import WORKER, Place, enrolled, world

PATIENCE_S = 60.0
ROWS = (*WORKER, *(Capability("Row", action, {"key_prefix": ["memories/"]}) for action in ("Read", "Write")))


@asynccontextmanager
async def alone(directory: Path) -> AsyncIterator[Node]:
    Runtime.init(directory / "home").close()
    node = Node(Runtime.open(directory / "home"))
    try:
        yield node
    finally:
        await node.close()


@asynccontextmanager
async def mesh(directory: Path, *names: str) -> AsyncIterator[list[Place]]:
    """The owner, who decides, and members that may write one table."""
    async with AsyncExitStack() as stack:
        (owner,) = await stack.enter_async_context(world(directory, "owner"))
        places = [owner]
        for name in names:
            place = await enrolled(directory / name, owner, ROWS)
            stack.push_async_callback(place.close)
            place.node.reach = place.exchanges.consult
            places.append(place)
        yield places


def messages(node: Node) -> list[tuple[int, SendMessage]]:
    with node.runtime.store.read() as session:
        ops = [(row.seq, decode(row.body).payload) for row in session.ops_after(0, 10_000)]
    return [(seq, payload) for seq, payload in ops if isinstance(payload, SendMessage)]


@pytest.mark.req("VX-12")
def test_read_write_delete_and_list(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alone(tmp_path) as node:
            rows = node.rows("memories", agent="editor")
            assert await rows.get("sky") is None
            made = await rows.put("sky", {"colour": "blue"})
            assert made == await rows.get("sky") and (made.value, made.agent) == ({"colour": "blue"}, "editor")
            changed = await rows.put("sky", None, made.version)
            assert changed.value is None and not changed.deleted, "null is a value"
            with pytest.raises(RowConflict) as raised:
                await rows.put("sky", 7, made.version)
            assert raised.value.row.version == changed.version and raised.value.conflict in str(raised.value)
            gone = await rows.delete("sky", changed.version)
            assert gone.deleted and await rows.get("sky") is None
            for number in range(PAGE * 2 + 1):
                await rows.put(f"many/{number:04}", number)
            assert [row.value async for row in rows.list("many/")] == list(range(PAGE * 2 + 1))
            assert [row async for row in node.rows("memorie").list()] == []

    asyncio.run(scenario())


@pytest.mark.touches("VX-12")
def test_the_plain_api_does_the_same(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        rows = node.rows("memories")
        made = rows.put("sky", [1])
        assert rows.get("sky") == made and list(rows.list()) == [made]
        watching = rows.watch()
        assert next(watching) == made
        changed = rows.put("sky", [2], made.version)
        assert next(watching) == changed
        with pytest.raises(Conflict):
            rows.delete("sky", made.version)
        assert rows.delete("sky", changed.version).deleted and next(watching).deleted


@pytest.mark.req("VX-12")
def test_a_conflict_that_is_left_to_an_agent_sends_it_a_message_in_the_same_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alone(tmp_path) as node:
            rows = node.rows("memories", agent="editor")
            made = await rows.put("sky", 1)
            await rows.put("sky", 2, made.version)
            for strategy in ("take-right", "manual", "take-left"):
                try:
                    await rows.put("sky", strategy, made.version, strategy=strategy)
                except RowConflict:
                    pass
            assert messages(node) == []
            with pytest.raises(RowConflict) as raised:
                await rows.put("sky", 3, made.version, strategy="defer-to-agent")
            ((seq, message),) = messages(node)
            assert message.to == f"editor@{made.node}"
            assert json.loads(message.body) == {"conflict": raised.value.conflict, "row": "memories/sky"}
            with node.runtime.store.read() as session:
                before = session.entry(seq - 1)
            assert before is not None and isinstance(decode(before.body).payload, PutRow)

    asyncio.run(scenario())


@pytest.mark.req("VX-12", "VX-13")
def test_the_arbiter_decides_about_other_nodes_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mesh(tmp_path, "one", "two") as (owner, one, two):
            first, second = (place.node.rows("memories", agent=name) for place, name in ((one, "a"), (two, "b")))
            made = await first.put("sky", {"a": 0, "b": 0})
            await two.exchanges.visit(owner.address)
            # Both have read the same version; the owner decides in the order in which it hears of the writes.
            await first.put("sky", {"a": 1, "b": 0}, made.version)
            merged = await second.put("sky", {"a": 0, "b": 2}, made.version)
            assert merged.value == {"a": 1, "b": 2}
            with pytest.raises(RowConflict) as raised:
                await second.put("sky", "mine", made.version, strategy="defer-to-agent")
            assert raised.value.row == msgspec.structs.replace(merged, conflicts=1)
            ((_, message),) = messages(owner.node)
            assert message.to.startswith("b@") and messages(one.node) == []
            await one.exchanges.visit(owner.address)
            assert await first.get("sky") == await owner.node.rows("memories").get("sky") == raised.value.row
            with pytest.raises(hocket.NotAuthorised):
                await one.node.rows("secrets").put("sky", 1)

    asyncio.run(scenario())


def test_what_cannot_count_is_not_offered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mesh(tmp_path, "one") as (_, one):
            rows = one.node.rows("memories")
            made = await rows.put("sky", 0)
            await rows.put("sky", 1, made.version)
            for number in range(OPEN_CONFLICTS_MAX):
                with pytest.raises(RowConflict):
                    await rows.put("sky", number + 10, made.version, strategy="manual")
            with one.log.store.read() as session:
                before = session.head().seq
            with pytest.raises(Conflict, match="too many conflicts"):
                await rows.put("sky", 7, made.version, strategy="manual")
            with pytest.raises(Usage, match="no such row"):
                await rows.delete("sea", None)
            with pytest.raises(Conflict, match="never had the version"):
                await rows.put("sky", 7, made.version.replace("Z+", "Z+9"))
            with one.log.store.read() as session:
                assert session.head().seq == before

    asyncio.run(scenario())


def test_a_watch_tells_of_other_nodes_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with mesh(tmp_path, "one") as (owner, one):
            rows, seen = owner.node.rows("memories"), asyncio.Queue[StoredRow]()
            await rows.put("here", 1)

            async def watch() -> None:
                async for row in rows.watch():
                    seen.put_nowait(row)

            task = asyncio.create_task(watch())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    assert (await seen.get()).key == "here"
                    made = await one.node.rows("memories").put("there", 2)
                    assert (await seen.get()) == made
                    await one.node.rows("memories").delete("there", made.version)
                    assert (await seen.get()).deleted
            finally:
                task.cancel()

    asyncio.run(scenario())


def test_odd_values_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alone(tmp_path) as node:
            rows = node.rows("memories")
            for value in (float("nan"), {"a": [float("inf")]}, {1, object()}, "x" * 70_000, b"\xff" * 70_000):
                with pytest.raises(Usage):
                    await rows.put("sky", value)
            nested: list[object] = []
            for _ in range(2_000):
                nested = [nested]
            with pytest.raises(Usage):
                await rows.put("sky", nested)
            for key in ("", "a\tb", "\ud800", "x" * 513, "a\u200bb"):
                with pytest.raises(Usage):
                    await rows.put(key, 1)
            with pytest.raises(Usage):
                await rows.put("sky", 1, strategy="take-all")
            for agent in ("a b", "a@b", "all", "a//b", "a\x07", "x" * 129):
                with pytest.raises(Usage, match="bad agent"):
                    await node.rows("memories", agent=agent).put("sky", 1)
            for key in ("日本/🙂 λ", "../..", "a'b\"c;--", "%s{0}", "sky/", "é"):
                made = await rows.put(key, {key: key})
                assert await rows.get(key) == made
            assert {row.key async for row in rows.list()} == {"日本/🙂 λ", "../..", "a'b\"c;--", "%s{0}", "sky/", "é"}

    asyncio.run(scenario())


def test_a_deleted_row_leaves_a_small_state_and_a_rebuild_gives_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with alone(tmp_path) as node:
            rows = node.rows("memories", agent="editor")
            row = await rows.put("sky", {"text": "x" * 10_000, "n": 0})
            for number in range(1, 20):
                row = await rows.put("sky", {"text": "x" * 10_000, "n": number}, row.version)
                await rows.put("sky", {"text": "x" * 10_000, "m": number}, row.version, strategy="take-left")
                row = await rows.put("sky", {"text": "y", "n": number}, row.version, strategy="take-left")
            await rows.delete("sky", row.version)
            log = node.runtime.log
            with log.store.read() as session:
                before = session.each_subject()
                state = session.subject_state(Subject(ROW, b"memories/sky"))
            assert state is not None and len(state) < 200
            rebuild(log.store, log.permissions_reader, log.physical())
            with log.store.read() as session:
                assert session.each_subject() == before

    asyncio.run(scenario())


ADDING = """
import sys
import hocket
from hocket.families.rows.requests import RowConflict

home, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with hocket.open(home) as node:
    rows = node.rows("counters", agent=who)
    for _ in range(count):
        while True:
            row = rows.get("visits")
            try:
                rows.put("visits", {"total": row.value["total"] + 1}, row.version)
                break
            except RowConflict:
                pass
        while True:
            row = rows.get("members")
            value = dict(row.value)
            value[who] = value.get(who, 0) + 1
            try:
                rows.put("members", value, row.version)
                break
            except RowConflict:
                raise SystemExit("members of different names are merged")
"""


@pytest.mark.req("VX-13")
def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    home, each = tmp_path / "home", 25
    hocket.init(home)
    with hocket.open(home) as node:
        rows = node.rows("counters")
        rows.put("visits", {"total": 0})
        rows.put("members", {})
        started = [
            subprocess.Popen([sys.executable, "-c", ADDING, str(home), name, str(each)])
            for name in ("a", "b", "c", "d")
        ]
        assert [process.wait(PATIENCE_S * 4) for process in started] == [0] * 4
        visits, members = rows.get("visits"), rows.get("members")
    assert visits is not None and visits.value == {"total": 4 * each}
    assert members is not None and members.value == dict.fromkeys("abcd", each)


def test_the_strategies_have_the_names_of_the_requirements() -> None:
    assert [each.name for each in Strategy] == ["TAKE_LEFT", "TAKE_RIGHT", "DEFER_TO_AGENT", "MANUAL"]
