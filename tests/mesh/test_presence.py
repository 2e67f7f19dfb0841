"""What nodes tell each other about their workers: to whom, and for how long it counts."""

from pathlib import Path

import msgspec
import pytest

from hocket.log import Transaction
from hocket.mesh import wire
from hocket.mesh.grants import parse_grants
from hocket.mesh.presence import AWAY_MS, NodeWorkers, is_away, known_workers
from hocket.store import Place as WorkerPlace
from hocket.store import Presence, WorkerRow
from hocket.work.serving import TEXT_CHARS_MAX, Serving, read_serving, serving_text
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
        found = known_workers(session, place.node.environment.liveness, place.log)
    return {each.node: each.workers for each in found if each.workers}


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
            session.put_presence(Presence((7).to_bytes(8, "big"), serving_text([RENDER]), a.log.physical()))
        await shared(b, a)
        assert known(a).keys() == {7} and known(b) == {}

    run(tmp_path, test)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"workers": [{"kinds": 7}]}', b"[" * 10_000])
def test_an_unreadable_body_is_refused(tmp_path: Path, body: bytes) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        reply = await b.ask(a, "POST", wire.PRESENCE, "", body)
        assert reply.status == 400 and known(a) == {}

    run(tmp_path, test)


def test_a_node_that_was_not_heard_for_long_is_away() -> None:
    heard = NodeWorkers(1, [RENDER], 1_000_000)
    assert not is_away(heard, 1_000_000 + AWAY_MS) and is_away(heard, 1_000_001 + AWAY_MS)


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
    assert served.allows(payload) is may
    assert served.allows(b"not a manifest") is served.allow_any


def test_an_exchange_goes_on_when_presence_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        monkeypatch.setattr("hocket.mesh.presence.answer", lambda *_: wire.Reply(500))
        b.keep_in_touch()
        b.submit(1)
        await until(lambda: b.digest() == a.digest(), "the job")
        await until(lambda: b.peer(a.address).state == "ok", "a good state")

    run(tmp_path, test)
