"""One caller against all the others: header bombs, idle connections, bodies without end, joins by the dozen. Each test
lets one address misbehave, and then looks whether an honest caller is served. Loopback has many addresses, so honest
callers and hostile ones have different ones here, as on a network.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hocket.errors import Usage
from hocket.events import sentences
from hocket.kernel.ops import encode_sequence
from hocket.mesh import enrolment, services, wire
from hocket.mesh import gate as gates
from hocket.mesh.wire import Reply, Request
from hocket.server import app, connections
from hocket.server import connections as listening
from hocket.server.connections import Connections, address_of
from hocket.server.running import Server
from tests.mesh.world import Guest, Place, introduced, run, until

HOSTILE, HONEST = "127.0.0.2", "127.0.0.3"
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def port(place: Place) -> int:
    assert place.server is not None
    return place.server.port


async def line(place: Place, address: str = HOSTILE) -> Line:
    """A connection from one address of this machine."""
    return await asyncio.open_connection("127.0.0.1", port(place), local_addr=(address, 0))


@asynccontextmanager
async def lines(place: Place, count: int, address: str = HOSTILE) -> AsyncIterator[list[Line]]:
    opened = [await line(place, address) for _ in range(count)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


def head(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *lines, "", ""]).encode("latin-1")


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(20):
        answer = await reader.readuntil(b"\r\n\r\n")
    return int(answer.split()[1])


async def asked(place: Place, address: str = HONEST) -> int:
    """What an honest caller gets: one request from an address, on a connection of its own."""
    reader, writer = await line(place, address)
    writer.write(head("GET", wire.HEALTH, {}))
    try:
        return await status(reader)
    finally:
        writer.close()


def open_connections(place: Place) -> Connections:
    assert place.server is not None
    return place.server._app_server._listener.connections


# Heads.


@pytest.mark.parametrize("count", [66, 16_000])
def test_too_many_headers_are_refused_before_their_end(tmp_path: Path, count: int):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        writer.write(b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(count)))
        # The head does not end, and the answer comes all the same.
        assert await status(reader) == 431
        writer.close()

    run(tmp_path, test, "a")


def test_many_headers_cost_no_more_than_their_number(tmp_path: Path):
    """Copying them was quadratic: each was looked up among all of them."""

    async def test(a: Place) -> None:
        seen: list[Request] = []

        async def answer(request: Request) -> Reply:
            seen.append(request)
            return Reply(200)

        a.gate.answer = answer  # type: ignore[method-assign]
        looked = 0

        class Headers(list[tuple[bytes, bytes]]):
            def __iter__(self):  # type: ignore[no-untyped-def]
                nonlocal looked
                looked += 1
                return super().__iter__()

        headers = Headers((b"x-%d" % n, b"y") for n in range(5_000))
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers, "client": None}

        async def receive() -> dict[str, object]:
            return {"type": "http.disconnect"}

        async def send(message: object) -> None: ...

        await app.web_app(a.gate)(scope, receive, send)  # type: ignore[arg-type]
        assert len(seen[0].headers) == 5_000
        assert looked <= 2

    run(tmp_path, test, "a")


@pytest.mark.parametrize(
    ("beginning", "answer"),
    [
        (b"GET /" + b"x" * (connections.URL_BYTES_MAX + 1), 414),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * (2 * connections.HEADERS_BYTES_MAX), 431),
        (b"GET / HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 9_000) * 9, 431),
        (b"GET / HTTP/1.1\r\n" + b"x" * (2 * connections.HEADERS_BYTES_MAX), 431),
    ],
    ids=["an address", "one header", "some headers", "a name"],
)
def test_a_head_that_is_too_long_is_refused_before_its_end(tmp_path: Path, beginning: bytes, answer: int):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        for start in range(0, len(beginning), 30_000):
            writer.write(beginning[start : start + 30_000])
            await asyncio.sleep(0)
        assert await status(reader) == answer
        writer.close()
        assert await asked(a) == 200

    run(tmp_path, test, "a")


def test_trailers_are_bounded_like_headers(tmp_path: Path):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        sent = a.headers(a.id) | {"content-type": wire.OCTETS, "transfer-encoding": "chunked"}
        writer.write(head("POST", wire.OPS, sent) + b"1\r\n\0\r\n0\r\n")
        writer.write(b"".join(b"x-%d: y\r\n" % n for n in range(1_000)))
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    run(tmp_path, test, "a")


def test_requests_do_not_queue_up_behind_one_another_without_end(tmp_path: Path):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        writer.write(head("GET", wire.HEALTH, {}) * 1_000)
        async with asyncio.timeout(20):
            answers = await reader.read()
        assert answers.count(b"HTTP/1.1 200") <= connections.PIPELINED_MAX + 2
        writer.close()

    run(tmp_path, test, "a")


# Bodies.


@pytest.mark.req("LW-31")
@pytest.mark.parametrize("path", [wire.OPS, wire.EXCHANGE, "/nowhere"])
def test_a_caller_without_a_token_is_answered_before_its_body(tmp_path: Path, path: str):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        # Not one byte of the body was sent.
        writer.write(head("POST", path, {"content-type": wire.OCTETS, "content-length": "8000000"}))
        assert await status(reader) in (401, 404)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    run(tmp_path, test, "a")


def test_an_honest_client_that_is_refused_hears_why_though_it_is_still_sending(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        # a has never heard of b.
        for _ in range(5):
            reply = await b.ask(a, "POST", wire.OPS, "", bytes(wire.BODY_BYTES_MAX))
            assert reply.status == 401
            assert wire.TIME in reply.headers

    run(tmp_path, test)


def test_unfinished_bodies_of_one_node_leave_room_for_others(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        guest = Guest(7)
        introduced(a, guest)
        sent = {"content-type": wire.OCTETS, "content-length": str(wire.BODY_BYTES_MAX)}
        opened = []
        for _ in range(32):
            reader, writer = await line(a)
            writer.write(head("POST", wire.OPS, a.headers(a.id, key=guest.key) | sent) + bytes(100_000))
            opened.append((reader, writer))
        answers = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in opened]
        first = asyncio.as_completed(answers, timeout=60)
        refused = [await next(first) for _ in range(len(opened) - gates.BODIES_AT_ONCE_MAX)]
        assert {answer.split()[1] for answer in refused} == {b"429"}
        b.submit(1)
        assert (await b.exchanges.exchange(a.address)).pushed == 1
        for answer in answers:
            answer.cancel()
        for _, writer in opened:
            writer.close()
        await until(lambda: not a.gate._sending, "the end of the bodies")

    run(tmp_path, test)


def test_unfinished_bodies_from_one_address_leave_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Even if they are of many nodes."""
    monkeypatch.setattr(app, "BODIES_PER_ADDRESS_BYTES_MAX", 1_000_000)

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        guests = [Guest(7 + n) for n in range(8)]
        for guest in guests:
            introduced(a, guest)
        sent = {"content-type": wire.OCTETS, "content-length": str(wire.BODY_BYTES_MAX)}
        opened = []
        for guest in guests:
            reader, writer = await line(a)
            writer.write(head("POST", wire.OPS, a.headers(a.id, key=guest.key) | sent) + bytes(300_000))
            opened.append((reader, writer))
        answers = {asyncio.create_task(status(reader)) for reader, _ in opened}
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result() for each in done} == {503}
        b.submit(1)
        assert (await b.exchanges.exchange(a.address)).pushed == 1
        for each in waiting:
            each.cancel()
        for _, writer in opened:
            writer.close()

    run(tmp_path, test)


def test_answers_that_are_not_read_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "UNSENT_PER_ADDRESS_BYTES_MAX", 2_000_000)

    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest)
        a.submit(2_000, size=3_000)
        opened = []
        loop = asyncio.get_running_loop()

        async def ask() -> socket.socket:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.bind((HOSTILE, 0))
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", port(a)))
            sent = head("GET", f"{wire.OPS}?since=AA&limit=5000", a.headers(a.id, key=guest.key))
            await loop.sock_sendall(raw, sent)
            opened.append(raw)
            return raw

        shares = open_connections(a)
        await ask()
        await until(lambda: shares.reads_too_slowly(HOSTILE), "an answer that nobody reads")
        # The next one is told to come back, before anything is made for it.
        assert (await loop.sock_recv(await ask(), 100)).startswith(b"HTTP/1.1 503")
        assert await asked(a) == 200
        for raw in opened:
            raw.close()

    run(tmp_path, test, "a")


def test_one_node_has_only_so_many_requests_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "REQUESTS_AT_ONCE_MAX", 2)

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        begun = asyncio.Event()
        ended = asyncio.Event()
        call = a.node.call

        async def held(work):  # type: ignore[no-untyped-def]
            if "_get_ops" in work.__qualname__:
                begun.set()
                await ended.wait()
            return await call(work)

        a.node.call = held  # type: ignore[method-assign]
        asking = [asyncio.create_task(b.ask(a)) for _ in range(2)]
        await until(lambda: a.gate._asking[b.id] == 2, "both requests")
        assert (await b.ask(a)).status == 429
        ended.set()
        assert [(await each).status for each in asking] == [200, 200]
        assert (await b.ask(a)).status == 200

    run(tmp_path, test)


# Connections.


def test_idle_connections_of_one_address_shut_nobody_out(tmp_path: Path):
    async def test(a: Place) -> None:
        async with lines(a, 511):
            assert len(open_connections(a)) <= listening.CONNECTIONS_PER_ADDRESS_MAX + 1
            assert await asked(a) == 200
            # Not even others at the same address.
            assert await asked(a, HOSTILE) == 200
        assert any("too many connections from one address" in notice for notice in a.notices)

    run(tmp_path, test, "a")


def test_idle_connections_of_many_addresses_make_room_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 40)
    monkeypatch.setattr(listening, "CONNECTIONS_PER_ADDRESS_MAX", 10)

    async def test(a: Place) -> None:
        opened = [await line(a, f"127.0.1.{n % 20 + 1}") for n in range(120)]
        assert len(open_connections(a)) <= 40
        assert await asked(a) == 200
        for _, writer in opened:
            writer.close()

    run(tmp_path, test, "a")


def test_a_connection_that_is_in_use_is_not_closed_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "CONNECTIONS_PER_ADDRESS_MAX", 4)

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        reader, writer = await line(a)
        writer.write(head("GET", wire.HINTS, b.headers(a.id)))
        assert await status(reader) == 200
        async with lines(a, 20):
            async with asyncio.timeout(60):
                await reader.readuntil(b"event: ops")  # what came before it may not be hinted at again
                a.submit(1)
                await reader.readuntil(b"event: ops")
        writer.close()

    run(tmp_path, test)


def test_what_is_closed_is_not_counted_any_more(tmp_path: Path):
    async def test(a: Place) -> None:
        for _ in range(3):
            async with lines(a, 50):
                pass
            assert await asked(a) == 200
        await until(lambda: len(open_connections(a)) == 0, "the end of all connections")

    run(tmp_path, test, "a")


def test_a_tls_handshake_that_never_comes_counts_as_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.server.test_server import certificate

    monkeypatch.setattr(listening, "CONNECTIONS_PER_ADDRESS_MAX", 8)

    async def test(a: Place) -> None:
        cert, key, _ = certificate(tmp_path)
        await a.stop_serving()
        await a.serve(cert=cert, key=key)
        async with lines(a, 30):
            assert len(open_connections(a)) <= 9

    run(tmp_path, test, "a")


# Addresses.


def test_what_counts_as_one_address():
    assert address_of("192.0.2.7") == "192.0.2.7"
    assert address_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert address_of("2001:db8:1:2:3:4:5:6") == address_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert address_of("2001:db8:1:3::9") != address_of("2001:db8:1:2::9")
    assert address_of("fe80::1%eth0") == "fe80::/64"
    assert address_of("::1") == "::1"
    assert address_of("somewhere") == "somewhere"


async def seen_from(place: Place, address: str, headers: dict[str, str]) -> str:
    seen: list[Request] = []
    real = place.gate.answer

    async def answer(request: Request) -> Reply:
        seen.append(request)
        return await real(request)

    place.gate.answer = answer  # type: ignore[method-assign]
    reader, writer = await line(place, address)
    writer.write(head("GET", wire.HEALTH, headers))
    assert await status(reader) == 200
    writer.close()
    place.gate.answer = real  # type: ignore[method-assign]
    return seen[0].address


def test_only_a_proxy_that_the_operator_named_is_believed_about_addresses(tmp_path: Path):
    async def test(a: Place) -> None:
        said = {"x-forwarded-for": "203.0.113.9, 198.51.100.4"}
        assert await seen_from(a, "127.0.0.1", said) == "127.0.0.1"
        await a.stop_serving()
        await a.serve(proxies=["127.0.0.1"])
        assert await seen_from(a, "127.0.0.1", said) == "198.51.100.4"
        assert await seen_from(a, "127.0.0.1", {}) == "127.0.0.1"
        assert await seen_from(a, HOSTILE, said) == HOSTILE

    run(tmp_path, test, "a")


def test_a_proxy_is_named_by_its_address(tmp_path: Path):
    async def test(a: Place) -> None:
        with pytest.raises(Usage, match="IP address of a proxy"):
            Server(a.gate, proxies=["nginx"])

    run(tmp_path, test, "a")


def test_a_proxy_holds_as_many_connections_as_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listening, "CONNECTIONS_PER_ADDRESS_MAX", 4)

    async def test(a: Place) -> None:
        await a.stop_serving()
        await a.serve(proxies=[HOSTILE])
        async with lines(a, 12):
            await until(lambda: len(open_connections(a)) == 12, "all of them")

    run(tmp_path, test, "a")


# Joins and introductions.


@pytest.mark.parametrize("path", [enrolment.JOIN, wire.INTRODUCE])
def test_joins_and_introductions_are_counted_by_address(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(services, "JOIN_RATE_PER_S", 0.1)
    monkeypatch.setattr(gates, "STRANGERS_RATE_PER_S", 0.1)

    async def test(a: Place, b: Place) -> None:
        async def knock(address: str) -> int:
            reader, writer = await line(b, address)
            sent = {"content-type": wire.OCTETS, "content-length": "1"}
            sent[wire.RULES_HASH] = b.headers(1)[wire.RULES_HASH]
            writer.write(head("POST", path, sent) + b"\0")
            try:
                return await status(reader)
            finally:
                writer.close()

        from hocket.mesh.services import MeshServices

        b.services = MeshServices(
            b.node,
            b.key,
            b.node.environment,
            b.runtime.home.processes,
            sentences(b.notices.append),
            b.runtime.blobs,
        )
        b.gate = b.services.gate()
        await b.stop_serving()
        await b.serve()
        answers = [await knock(HOSTILE) for _ in range(60)]
        assert answers[-1] == 429
        assert await knock(HONEST) in (400, 403)

    run(tmp_path, test)


def test_a_join_that_is_too_long_is_refused_by_its_head(tmp_path: Path):
    async def test(a: Place) -> None:
        reader, writer = await line(a)
        writer.write(head("POST", enrolment.JOIN, {"content-length": "8000000"}))
        assert await status(reader) == 413
        writer.close()

    run(tmp_path, test, "a")


# The operator.


def test_a_stranger_cannot_fill_the_operators_screen_nor_the_memory(tmp_path: Path):
    """What a caller makes up is told, but it is not what refusals are counted by."""

    async def test(a: Place) -> None:
        for n in range(40):
            made_up = a.headers(f"audience {n}", key=Guest(n + 1).key)
            assert (await a.ask(a, headers=made_up)).status == 401
            assert (await a.ask(a, headers=a.headers(f"audience {n}"))).status == 401
            rules = {wire.RULES_HASH: f"{n:064x}", "content-type": wire.OCTETS}
            assert (await a.ask(a, "POST", wire.INTRODUCE, "", encode_sequence([b"x"]), rules)).status == 409
        assert len(a.gate.refusals) <= 4
        assert len(a.notices) <= 4

    run(tmp_path, test, "a")
