"""Window tokens between real nodes: with one secret they exchange, without it the gate refuses, and a token ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Usage
from hocket.extensions.tempo.beats.tempo import make_tempo, timeline
from hocket.extensions.tempo.window_secret import TOKEN_BARS, WindowTokens, window_tokens
from hocket.mesh import peers, wire
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from tests.mesh.world import Place

ROOT, OTHER = bytes(range(32)), bytes(32)
TEMPO = make_tempo(60, 4)
START = 1_756_865_544_000


def secret(home: Path, content: bytes) -> None:
    path = home / "window.secret"
    path.touch(0o600)
    path.write_bytes(content)


@asynccontextmanager
async def two(directory: Path, *secrets: bytes | None) -> AsyncIterator[tuple[Place, Place]]:
    """Two nodes of one user that have these secrets."""
    async with AsyncExitStack() as stack:
        places: list[Place] = []
        for name, content in zip(("a", "b"), secrets, strict=True):
            user_key = places[0].runtime.home.path / "user.key" if places else None
            runtime = await asyncio.to_thread(Runtime.init, directory / name, user_key)
            if content is not None:
                secret(directory / name, content)
            places.append(Place(runtime))
            stack.push_async_callback(places[-1].close)
            await places[-1].serve()
        one, other = places
        other.befriend(one.address)
        yield one, other


@pytest.mark.req("BB-12")
@pytest.mark.parametrize("server", [ROOT, None])
def test_nodes_with_one_secret_exchange(tmp_path: Path, server: bytes | None) -> None:
    """Also with a server that does not ask for it yet."""

    async def test() -> None:
        async with two(tmp_path, server, ROOT) as (a, b):
            a.submit(3)
            done = await b.exchanges.visit(a.address)
            assert done.state == peers.OK and a.ids() == b.ids()

    asyncio.run(test())


@pytest.mark.req("BB-12")
@pytest.mark.parametrize("client", [OTHER, None])
def test_a_node_without_the_secret_is_refused(tmp_path: Path, client: bytes | None) -> None:
    async def test() -> None:
        async with two(tmp_path, ROOT, client) as (a, b):
            a.submit(3)
            before = b.ids()
            done = await b.exchanges.visit(a.address)
            assert done.state != peers.OK and b.ids() == before
            assert a.gate.refusals["no token of this window"] >= 1
            reply = await b.ask(a)
            assert reply.status == 401 and wire.TIME in reply.headers

    asyncio.run(test())


@pytest.mark.req("BB-12")
@given(st.integers(0, 10**6), st.integers(0, 20), st.text(max_size=20))
def test_a_token_is_of_its_window_and_request_and_ends(at: int, bars: int, bearer: str) -> None:
    tokens = WindowTokens(ROOT, "one", "mesh", timeline(TEMPO))
    made = START + at
    token = tokens.stamp(bearer, made)
    window_ms = made // TEMPO.bar_ms * TEMPO.bar_ms
    assert f".{window_ms}." in token, "the key changes on the downbeat"
    later = window_ms + bars * TEMPO.bar_ms
    assert tokens.is_valid(token, bearer, max(made, later)) == (bars < TOKEN_BARS)
    assert not tokens.is_valid(token, bearer + "x", made)
    for other in (
        WindowTokens(OTHER, "one", "mesh", timeline(TEMPO)),
        WindowTokens(ROOT, "two", "mesh", timeline(TEMPO)),
        WindowTokens(ROOT, "one", "another mesh", timeline(TEMPO)),
    ):
        assert not other.is_valid(token, bearer, made)


@pytest.mark.req("BB-12")
def test_a_clock_that_is_a_little_ahead_is_no_trouble() -> None:
    tokens = WindowTokens(ROOT, "one", "mesh", timeline(TEMPO))
    assert tokens.is_valid(tokens.stamp("t", START + TEMPO.bar_ms), "t", START + 1)


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(5000)])
def test_a_bad_secret_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    assert window_tokens(home, "mesh") is None
    secret(tmp_path, content)
    with pytest.raises(Usage, match=r"window\.secret has"):
        window_tokens(home, "mesh")
    (tmp_path / "window.secret").chmod(0o644)
    with pytest.raises(Usage, match=r"window\.secret"):
        window_tokens(home, "mesh")
