"""What nodes tell each other about their workers: to whom, and for how long it counts."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hocket.extensions.command.allowance import refusal
from hocket.families.liveness import BEAT_S, Grade
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey
from hocket.log import Log, Transaction
from hocket.mesh import wire
from hocket.mesh.grants import parse_grants
from hocket.mesh.presence import keep
from hocket.store import Place as WorkerPlace
from hocket.store import Presence, WorkerRow
from hocket.work.presence import (
    TEXT_CHARS_MAX,
    AgentSaid,
    NodePresence,
    NodeSaid,
    Serving,
    beat,
    known_nodes,
    read_serving,
    said_text,
    serving_text,
)
from tests.mesh.world import Place, enrolled, run, until

RENDER = Serving(("acme.", "hocket.run", "secret.one"), allow=("ffmpeg -i *",), labels=("gpu",))


def employ(place: Place, *workers: Serving) -> None:
    """Rows as workers write them."""
    node = place.id.to_bytes(8, "big")

    def write(tx: Transaction) -> None:
        for number, each in enumerate(workers):
            row = WorkerRow(0, f"worker-{number}", 1, tx.now, node, tx.now, WorkerPlace(), serving_text([each]))
            tx.session.put_worker(row)

    place.log.run(write)


def known(place: Place) -> dict[int, list[Serving]]:
    with place.runtime.read() as session:
        found = known_nodes(session, place.node.environment.liveness, place.log)
    return {each.node: list(each.workers) for each in found if each.workers}


async def shared(place: Place, other: Place) -> None:
    await place.exchanges.visit(other.address)
    await place.exchanges.share_presence(other.address)


def test_a_node_tells_its_server_and_hears_of_the_others(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
        employ(a, Serving(("hub.one",)))
        employ(b, RENDER, Serving(("acme.two",)))
        await shared(b, a)
        await shared(c, a)
        assert known(a) == {a.id: [Serving(("hub.one",))], b.id: [RENDER, Serving(("acme.two",))]}
        assert known(b) == {a.id: [Serving(("hub.one",))], b.id: [RENDER, Serving(("acme.two",))]}
        assert known(c) == {a.id: [Serving(("hub.one",))], b.id: [RENDER, Serving(("acme.two",))]}

    run(tmp_path, test, "a", "b", "c")


def test_a_reader_hears_only_of_kinds_that_it_may_read_or_submit(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        grants = parse_grants(["job:schedule:acme.render", "job:read:acme.render"])
        leaf = await enrolled(tmp_path / "leaf", a, grants)
        try:
            employ(a, RENDER, Serving(("other.kind",)))
            await shared(leaf, a)
            assert known(leaf) == {a.id: [Serving(("acme.render", "acme.render."), labels=("gpu",))]}
        finally:
            await leaf.close()

    run(tmp_path, test, "a")


def test_a_worker_that_starts_is_told_soon_and_one_that_has_died_is_not(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        b.keep_in_touch()
        await until(lambda: b.peer(a.address).state == "ok", "the first exchange")
        employ(b, RENDER)
        await until(lambda: b.id in known(a), "the worker to be known")
        b.log.run(lambda tx: [tx.session.drop_worker(each.number) for each in tx.session.workers()])
        await until(lambda: b.id not in known(a), "its end to be known")

    run(tmp_path, test)


def test_a_server_of_an_earlier_version_is_left_alone(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        del a.gate._routes["POST", wire.PRESENCE]
        employ(b, RENDER)
        await shared(b, a)
        assert known(a) == {} and b.peer(a.address).state == "ok"

    run(tmp_path, test)


def test_what_a_node_says_of_a_stranger_is_not_kept(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        with a.runtime.store.write() as session:
            session.put_presence(Presence((7).to_bytes(8, "big"), said_text(NodeSaid((RENDER,))), a.log.physical()))
        await shared(b, a)
        assert known(a).keys() == {7} and known(b) == {}

    run(tmp_path, test)


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"workers": [{"kinds": 7}]}', b'{"agents": [{}]}', b"[" * 10_000])
def test_an_unreadable_body_is_refused(tmp_path: Path, body: bytes) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        reply = await b.ask(a, "POST", wire.PRESENCE, "", body)
        assert reply.status == 400 and known(a) == {}

    run(tmp_path, test)


def test_a_text_about_workers_is_bounded_and_an_unreadable_one_names_none() -> None:
    many = [Serving((f"acme.{'x' * 200}.{number}",)) for number in range(1_000)]
    text = serving_text(many)
    assert len(text) <= TEXT_CHARS_MAX
    kept = read_serving(text)
    assert kept and kept == many[: len(kept)]
    for bad in ("", "{", "7", '[{"kinds": 7}]', "[" * 10_000):
        assert read_serving(bad) == []


@pytest.mark.parametrize(
    ("argv", "served", "may"),
    [
        (["ffmpeg", "-i", "x"], RENDER, True),
        (["rm", "x"], RENDER, False),
        (["rm", "x"], Serving(("hocket.run",)), False),
        (["rm", "x"], Serving(("hocket.run",), allow_any=True), True),
    ],
)
def test_which_commands_a_worker_allows(argv: list[str], served: Serving, may: bool) -> None:
    payload = msgspec.json.encode({"command": argv, "args": [], "timeout": 60})
    assert (refusal(payload, [served], "a") is None) is may
    assert (refusal(b"not a manifest", [served], "a") is None) is served.allow_any


def test_an_exchange_goes_on_when_presence_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        monkeypatch.setattr("hocket.mesh.presence.PresenceBoard.answer", lambda *_: wire.Reply(500))
        b.keep_in_touch()
        b.submit(1)
        await until(lambda: b.digest() == a.digest(), "the job")
        await until(lambda: b.peer(a.address).state == "ok", "a good state")

    run(tmp_path, test)


def agent(place: Place, name: str, doing: str = "") -> None:
    with place.runtime.store.write() as session:
        beat(session, place.id, AgentSaid(name, doing), place.log.physical())


def heard(place: Place, other: Place) -> NodePresence | None:
    with place.runtime.read() as session:
        found = known_nodes(session, place.node.environment.liveness, place.log)
    return next((each for each in found if each.node == other.id), None)


async def beats(place: Place, other: Place) -> dict[str, Any]:
    """One heartbeat, as if it were due; gives the answer."""
    sharing, answers = place.exchanges.presence, []
    known = sharing._told.get(other.address)
    if known is not None:
        sharing._told[other.address] = known._replace(at=-BEAT_S)
    client = await place.exchanges.client(other.address)
    share = client.share_presence

    async def noted(body: bytes) -> bytes | None:
        answers.append(await share(body))
        return answers[-1]

    client.share_presence = noted  # type: ignore[method-assign]
    try:
        await sharing.share(client)
    finally:
        client.share_presence = share  # type: ignore[method-assign]
    (answer,) = answers
    found: dict[str, Any] = msgspec.json.decode(answer)
    return found


@pytest.mark.req("VX-11")
def test_a_heartbeat_tells_of_agents_and_the_machine_and_is_passed_on(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        agent(b, "editor", "reviews")
        await beats(b, a)
        await beats(c, a)
        for place in (a, c):
            known = heard(place, b)
            assert known is not None and known.said.agents == (AgentSaid("editor", "reviews"),)
            assert known.said.hardware == b.node.environment.hardware and known.said.hardware.cpus >= 1
            assert known.grade(place.log.physical()) is Grade.LIVE

    run(tmp_path, test, "a", "b", "c")


def test_no_heartbeat_is_an_op(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        agent(b, "editor")
        before = a.ids(), b.ids()
        for _ in range(3):
            await beats(b, a)
        assert (a.ids(), b.ids()) == before

    run(tmp_path, test)


def test_an_answer_has_what_changed_and_otherwise_only_times(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        agent(b, "editor", "reads")
        await beats(b, a)
        first = await beats(c, a)
        assert {each["node"] for each in first["nodes"]} == {node_text(a.id), node_text(b.id)}
        before = heard(c, b)
        later(a, 5_000)
        later(c, 5_000)
        await beats(b, a)
        second = await beats(c, a)
        assert second["nodes"] == [] and second["ages"].keys() == first["ages"].keys()
        after = heard(c, b)
        assert before is not None and after is not None
        assert after.said == before.said and after.heard_ms >= before.heard_ms + 5_000
        agent(b, "editor", "writes")
        await beats(b, a)
        assert [each["node"] for each in (await beats(c, a))["nodes"]] == [node_text(b.id)]
        assert heard(c, b).said.agents == (AgentSaid("editor", "writes"),)  # type: ignore[union-attr]
        # A node that has forgotten what it knew hears everything again.
        with c.runtime.store.write() as session:
            session.drop_presence(0, 0)
        assert (await beats(c, a))["nodes"] == []
        assert len((await beats(c, a))["nodes"]) == 2
        assert heard(c, b) is not None

    run(tmp_path, test, "a", "b", "c")


def test_earlier_versions_send_no_mark_and_answer_with_a_list(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        body = msgspec.json.encode({"workers": [{"kinds": ["acme."], "labels": ["gpu"]}]})
        reply = await b.ask(a, "POST", wire.PRESENCE, "", body)
        assert [each["node"] for each in msgspec.json.decode(reply.body)] == [node_text(a.id)]
        assert known(a) == {b.id: [Serving(("acme.",), labels=("gpu",))]}

        old = [{"node": node_text(b.id), "age_ms": 5, "workers": [{"kinds": ["acme."]}]}]
        a.gate._presence_board.answer = lambda *_: wire.Reply(  # type: ignore[method-assign]
            200, {"content-type": wire.JSON}, msgspec.json.encode(old)
        )
        await c.exchanges.visit(a.address)
        await c.exchanges.share_presence(a.address)
        assert known(c) == {b.id: [Serving(("acme.",))]}

    run(tmp_path, test, "a", "b", "c")


def test_a_node_is_heard_although_the_clock_was_set_back(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        await c.exchanges.visit(a.address)
        for each in (a, c):
            later(each, 3_600_000)
        for each in (b, c):
            await beats(each, a)
        for each in (a, c):
            later(each, -3_600_000)
        later_round(a)
        agent(b, "editor")
        await beats(b, a)
        await beats(c, a)
        for each in (a, c):
            known = heard(each, b)
            assert known is not None and known.said.agents == (AgentSaid("editor"),)
            assert known.heard_ms <= each.log.physical() + 1_000
            assert known.grade(each.log.physical() + 200_000) is Grade.DEAD

    run(tmp_path, test, "a", "b", "c")


def later_round(place: Place) -> None:
    place.gate._presence_board._next_round = 0.0


def later(place: Place, ms: int) -> None:
    physical = place.log.physical
    place.log.physical = lambda: physical() + ms


def test_what_does_not_fit_into_one_answer_comes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        for each in (a, b):
            for number in range(5):
                agent(each, f"agent-{number}", "x" * 200)
        await beats(b, a)
        monkeypatch.setattr("hocket.mesh.presence.BODY_BYTES_MAX", 4_000)
        sizes = [len((await beats(c, a))["nodes"]) for _ in range(3)]
        assert sizes == [1, 1, 0]
        assert heard(c, a) is not None and heard(c, b) is not None

    run(tmp_path, test, "a", "b", "c")


def test_a_node_speaks_for_itself_alone(tmp_path: Path) -> None:
    """Whatever it writes into its heartbeat: its token says which node it is."""

    async def test(a: Place, b: Place, c: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        body = msgspec.json.encode({"node": node_text(c.id), "agents": [{"name": "impostor"}], "ages": {"x": [1]}})
        reply = await b.ask(a, "POST", wire.PRESENCE, "", body)
        assert reply.status == 200 and heard(a, c) is None
        assert heard(a, b).said.agents == (AgentSaid("impostor"),)  # type: ignore[union-attr]
        stranger = SigningKey(b"?" * 32)
        refused = await b.ask(a, "POST", wire.PRESENCE, "", body, b.headers(a.id, key=stranger))
        assert refused.status in (401, 403)

    run(tmp_path, test, "a", "b", "c")


def test_no_answer_makes_a_node_look_alive_in_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile server says negative and huge ages, of this node itself, of strangers, and of nobody."""

    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        await b.exchanges.visit(a.address)
        own, stranger = node_text(b.id), "00000000000000ff"
        ages = {node_text(c.id): [-(10**15), -5], own: [0], stranger: [0], node_text(a.id): []}
        nodes = [
            {"node": node_text(c.id), "age_ms": -(10**15), "agents": [{"name": "x"}], "seen": [-7, -8, -9]},
            {"node": stranger, "age_ms": 0},
            {"node": own, "age_ms": 0},
        ]
        answer = {"mark": "m", "nodes": nodes, "ages": ages}
        monkeypatch.setattr(
            "hocket.mesh.presence.PresenceBoard.answer",
            lambda *_: wire.Reply(200, {"content-type": wire.JSON}, msgspec.json.encode(answer)),
        )
        await beats(b, a)
        known = heard(b, c)
        assert known is not None and known.heard_ms <= b.log.physical()
        assert max(known.seen_ms) <= b.log.physical()
        with b.runtime.read() as session:
            assert {each.node for each in session.presence()} == {c.id.to_bytes(8, "big")}

    run(tmp_path, test, "a", "b", "c")


@pytest.mark.parametrize(("grants", "meets"), [(["job:schedule:acme."], False), (["inbox:write:team/"], True)])
def test_a_reader_hears_of_agents_if_it_may_write_to_them(tmp_path: Path, grants: list[str], meets: bool) -> None:
    async def test(a: Place) -> None:
        leaf = await enrolled(tmp_path / "leaf", a, parse_grants(grants))
        try:
            agent(a, "editor", "reviews")
            await leaf.exchanges.visit(a.address)
            for _ in range(2):
                await beats(leaf, a)
            known = heard(leaf, a)
            assert known is not None and len(known.said.agents) == len(known.seen_ms) == meets
        finally:
            await leaf.close()

    run(tmp_path, test, "a")


def test_heartbeats_that_say_nothing_new_are_stored_once_a_second_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        clock = [a.node.environment.monotonic()]
        a.gate._presence_board._environment = SimpleNamespace(  # type: ignore[assignment]
            monotonic=lambda: clock[0],
            liveness=a.node.environment.liveness,
            hardware=a.node.environment.hardware,
        )
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
            await beats(each, a)
        writes: list[int] = []

        def noted(log: Log, heard: Sequence[NodePresence], times: Any = None) -> bool:
            writes.append(log.node)
            return keep(log, heard, times)

        def stored() -> int:
            return writes.count(a.id)

        monkeypatch.setattr("hocket.mesh.presence.keep", noted)
        clock[0] += 1
        for _ in range(10):
            for each in (b, c):
                await beats(each, a)
        assert stored() == 1
        clock[0] += 1
        await beats(b, a)
        assert stored() == 2
        # Whoever has something new to say every time waits, too.
        for number in range(10):
            agent(c, f"agent-{number}")
            await beats(c, a)
        assert stored() == 3

    run(tmp_path, test, "a", "b", "c")
