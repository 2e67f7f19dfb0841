"""Anything at all, thrown at the gate and at the client without sockets between: nothing is believed or breaks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hocket.kernel.frontier import frontier_text
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import encode_sequence
from hocket.mesh import peers, wire
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import Reply, Request
from hocket.node.runtime import Runtime
from tests.mesh.world import Place

ANSWERS = {200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 429}
PATHS = st.sampled_from(["/ops", "/exchange", "/hints", "/introduce", "/healthz", "/v1/join", "/", "/ops/../ops", ""])
TEXT = st.text(max_size=80) | st.sampled_from(["since=AA", "since=AA&limit=1", "since=AQ", "limit=9"])


class Fixed:
    """One node on one event loop, for many examples."""

    def __init__(self, home: Path) -> None:
        self.runner = asyncio.Runner()
        self.place = self.runner.run(self._open(home))

    async def _open(self, home: Path) -> Place:
        place = Place(Runtime.init(home))
        await place.gate.open()
        place.submit(3)
        return place

    def close(self) -> None:
        self.runner.run(self.place.close())
        self.runner.close()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixed]:
    made = Fixed(tmp_path_factory.mktemp("hostile") / "home")
    yield made
    made.close()


FUZZ = settings(max_examples=settings().max_examples * 5, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", ""]) | st.text(max_size=8),
    path=PATHS | st.text(max_size=20),
    query=TEXT,
    headers=st.dictionaries(
        st.sampled_from(["authorization", "content-type", wire.RULES_HASH, "accept"]), st.text(max_size=200), max_size=4
    ),
    body=st.binary(max_size=400),
)
def test_no_request_of_a_stranger_gets_anything(fixed: Fixed, method, path, query, headers, body):  # type: ignore[no-untyped-def]
    place = fixed.place
    count = place.count()
    reply = fixed.runner.run(place.gate.answer(Request(method, path, query, headers, body)))
    assert reply.status in ANSWERS - {200} or path == wire.HEALTH
    assert reply.stream is None
    assert reply.headers[wire.RULES_HASH] == rules_hash(place.log.rules).hex()
    assert place.count() == count


@FUZZ
@given(
    path=st.sampled_from(["/ops", "/exchange"]),
    query=TEXT,
    body=st.binary(min_size=1, max_size=2000) | st.lists(st.binary(max_size=300), max_size=4).map(encode_sequence),
)
def test_no_body_of_a_friend_breaks_anything(fixed: Fixed, path, query, body):  # type: ignore[no-untyped-def]
    """The bodies come from a node that may do everything: this one itself."""
    place = fixed.place
    place.gate._callers._levels.clear()

    async def ask() -> Reply:
        headers = place.headers(place.id) | {"content-type": wire.OCTETS}
        return await place.gate.answer(Request("POST", path, query, headers, body))

    ids, digest = place.ids(), place.digest()
    assert fixed.runner.run(ask()).status in {200, 400}
    assert (place.ids(), place.digest()) == (ids, digest)


@FUZZ
@given(
    status=st.integers(100, 599),
    headers=st.dictionaries(
        st.sampled_from([wire.NEXT_FRONTIER, wire.FRONTIER, wire.NODE, wire.TIME, "retry-after", wire.APPENDED]),
        st.text(max_size=60) | st.sampled_from(["AA", "0", "5", "AQ"]),
        max_size=5,
    ),
    body=st.binary(max_size=600),
    health=st.binary(max_size=60) | st.just(b'{"node":"00000000000000ff","protocol":1}'),
)
def test_no_answer_of_a_peer_breaks_anything(fixed: Fixed, status, headers, body, health):  # type: ignore[no-untyped-def]
    place = fixed.place
    given_rules = {wire.RULES_HASH: rules_hash(place.log.rules).hex()}

    class Hostile:
        async def send(self, address: str, request: Request) -> Reply:
            if request.path == wire.HEALTH:
                return Reply(200, {}, health)
            return Reply(status, headers | given_rules, body)

    async def visit() -> str:
        exchanges = Exchanges(place.node, place.key, Hostile(), place.node.environment)  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            return (await exchanges.visit("http://hostile")).state

    ids, digest = place.ids(), place.digest()
    assert fixed.runner.run(visit()) in {peers.OK, peers.PAUSED, peers.REFUSED, peers.UNREACHABLE}
    assert (place.ids(), place.digest()) == (ids, digest)


def test_a_peer_that_never_comes_to_an_end_is_left(fixed: Fixed, monkeypatch: pytest.MonkeyPatch):
    from hocket.kernel.clock import Hlc
    from hocket.mesh import peer_exchange

    monkeypatch.setattr(peer_exchange, "PULLS_MAX", 50)
    place = fixed.place
    asked = 0

    class Endless:
        async def send(self, address: str, request: Request) -> Reply:
            nonlocal asked
            if request.path == wire.HEALTH:
                return Reply(404)
            asked += 1
            headers = {
                wire.RULES_HASH: rules_hash(place.log.rules).hex(),
                wire.NEXT_FRONTIER: frontier_text({5: Hlc(asked, 0, 5)}),
            }
            return Reply(200, headers, b"\0")

    exchanges = Exchanges(place.node, place.key, Endless(), place.node.environment)  # type: ignore[arg-type]
    fixed.runner.run(exchanges.visit("http://endless"))
    assert asked <= 52
