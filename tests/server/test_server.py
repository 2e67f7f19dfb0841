"""The server against bad sockets: slow, endless, too many, cut off. Every test uses real ones on loopback."""

import asyncio
import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hocket.bus.hints import ANYTHING, NOTHING, Changes, about
from hocket.errors import Unreachable, Usage
from hocket.kernel.vocabulary import JOB
from hocket.mesh import peers, wire
from hocket.mesh.http import HttpTransport
from hocket.mesh.peers import Trust
from hocket.mesh.wire import Request
from hocket.server.connections import BoundedProtocol
from hocket.server.running import Server
from tests.mesh.world import Place, world
from tests.ports import free_port


class Hasty(BoundedProtocol):
    """The server's protocol with short deadlines, so that the tests need not wait for the real ones."""

    head_s = 0.3
    request_s = 0.6


async def hasty(place: Place) -> int:
    await place.stop_serving()
    await place.serve(protocol=Hasty)
    assert place.server is not None
    return place.server.port


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether the other side ends the connection."""
    try:
        async with asyncio.timeout(20):
            await reader.read()
    except ConnectionError:
        pass
    return True


def alone(directory: Path, test) -> None:  # type: ignore[no-untyped-def]
    async def run() -> None:
        async with world(directory, "a") as (a,):
            await test(a)

    asyncio.run(run())


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"G",
        b"GET /ops?since=AA HTTP/1.1\r\nhost: x\r\n",
        b"POST /ops HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\ncontent-length: 1000\r\n\r\n",
        b"POST /ops HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=["nothing", "a letter", "half a head", "a body by its length", "a body in chunks"],
)
def test_one_byte_at_a_time_is_cut_off(tmp_path: Path, beginning: bytes):
    async def test(a: Place) -> None:
        port = await hasty(a)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(beginning)

        async def drip() -> None:
            while True:
                writer.write(b"1\r\nx\r\n" if b"chunked" in beginning else b"x" if beginning else b"")
                await writer.drain()
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await is_cut(reader)
        dripping.cancel()
        await asyncio.wait([dripping])
        writer.close()

    alone(tmp_path, test)


def test_a_second_request_on_a_connection_has_a_deadline_too(tmp_path: Path):
    async def test(a: Place) -> None:
        port = await hasty(a)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"}")
        writer.write(b"GET /heal")
        assert await is_cut(reader)
        writer.close()

    alone(tmp_path, test)


def test_whoever_does_not_read_its_answer_is_cut_off(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            await b.exchanges.exchange(a.address)
            a.submit(2_000, size=3_000)
            port = await hasty(a)
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, ("127.0.0.1", port))
            lines = [f"{name}: {value}" for name, value in b.headers(a.id).items()]
            head = "\r\n".join(["GET /ops?since=AA&limit=5000 HTTP/1.1", "host: x", *lines, "", ""])
            await loop.sock_sendall(raw, head.encode())
            assert a.server is not None
            server = a.server._app_server._server
            assert server is not None
            async with asyncio.timeout(20):
                while not server.server_state.connections:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.01)
            raw.close()

    asyncio.run(run())


def test_hints_outlive_the_deadline_of_requests(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            await b.exchanges.exchange(a.address)
            await hasty(a)
            hints = b.transport.hints(a.address, b.headers(a.id))
            await anext(hints)
            await asyncio.sleep(1.0)
            a.submit(1)
            async with asyncio.timeout(20):
                await anext(hints)
            await hints.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())


@pytest.mark.req("LW-28")
def test_a_body_without_a_length_is_read_up_to_the_bound(tmp_path: Path):
    async def test(a: Place) -> None:
        assert a.server is not None

        def head() -> bytes:
            lines = [f"{name}: {value}" for name, value in a.headers(a.id).items()]
            chunked = ["host: x", "content-type: application/octet-stream", "transfer-encoding: chunked"]
            return "\r\n".join(["POST /ops HTTP/1.1", *chunked, *lines, "", ""]).encode()

        reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
        writer.write(head())
        piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
        for _ in range(9):
            writer.write(piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413")
        writer.close()
        # One that goes on and on is cut off.
        reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
        writer.write(head())
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(20):
                while True:
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    alone(tmp_path, test)


@pytest.mark.parametrize(
    "garbage", [b"\0" * 100, b"\x16\x03\x01\x02\0\x01", b"GET\r\n\r\n", b"GET /ops HTTP/9.9\r\n\r\n", b"\xff\xfe" * 50]
)
def test_what_is_no_http_is_sent_away(tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture):
    async def test(a: Place) -> None:
        assert a.server is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
        writer.write(garbage)
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert (await a.ask(a, "GET", wire.HEALTH, "")).status == 200
        writer.close()

    alone(tmp_path, test)
    assert caplog.text == ""


def test_it_stops_while_somebody_listens_and_while_somebody_says_nothing(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            await b.exchanges.exchange(a.address)
            assert a.server is not None
            hints = b.transport.hints(a.address, b.headers(a.id))
            await anext(hints)
            _, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
            async with asyncio.timeout(20):
                await a.stop_serving()
            with pytest.raises((StopAsyncIteration, Unreachable)):
                await anext(hints)
            writer.close()

    asyncio.run(run())


def test_a_taken_port_is_told_in_a_sentence(tmp_path: Path):
    async def test(a: Place) -> None:
        assert a.server is not None
        with pytest.raises(Unreachable, match="choose another --port"):
            Server(a.gate, "127.0.0.1", a.server.port)
        with pytest.raises(Usage, match="not a host"):
            Server(a.gate, "no.such.host.invalid", 0)

    alone(tmp_path, test)


# The client against bad servers.


async def answering(*pieces: bytes, pause_s: float = 0.0) -> tuple[asyncio.Server, str]:
    """A server that answers anything with these pieces, one after the other."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("pieces", "pause_s", "said"),
    [
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", *[b"x"] * 99], 0.1, "in time"),
        ([b"HTTP/1.1 200 OK\r\n", *[b"x-y: z\r\n"] * 99], 0.1, "in time"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", *[bytes(1_000_000)] * 10], 0.0, "more than"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"], 0.0, "cannot be reached"),
        ([b"no http"], 0.0, "cannot be reached"),
        ([b""], 0.0, "cannot be reached"),
    ],
    ids=["slow body", "slow head", "endless body", "cut body", "garbage", "nothing"],
)
def test_a_bad_answer_is_no_answer(pieces: list[bytes], pause_s: float, said: str):
    async def run() -> None:
        server, address = await answering(*pieces, pause_s=pause_s)
        async with server, HttpTransport(answer_s=1.0) as transport:
            with pytest.raises(Unreachable, match=said):
                await transport.send(address, Request("GET", wire.OPS))

    asyncio.run(run())


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.req("LW-40")
@pytest.mark.parametrize(
    ("event", "said"),
    [
        (b"event: ops\ndata: {}\n\n", ANYTHING),
        (b":\n\n" + wire.hint(about(JOB, b"x")), about(JOB, b"x")),
        (wire.hint(ANYTHING), ANYTHING),
        (b"event: ops\r\ndata: {}\r\n\r\n", ANYTHING),
        (b'data: {"changes": "AgAA", "more": [1]}\n\n', NOTHING),
        (b'data: {"changes": "BwAA"}\n\n', ANYTHING),
        (b'data: {"changes": "not base64!"}\n\n', ANYTHING),
        (b'data: {"changes": 7}\n\n', ANYTHING),
        (b"data: \xff\n\n", ANYTHING),
        (b"data:\n\n", ANYTHING),
    ],
    ids=["old", "new", "anything", "crlf", "more", "later", "no base64", "no text", "no json", "empty"],
)
def test_a_hint_that_says_nothing_readable_means_anything(event: bytes, said: Changes):
    """Earlier versions send an empty object; they take any event with data for a hint."""

    async def run() -> None:
        server, address = await answering(EVENTS, event, pause_s=0.01)
        async with server, HttpTransport() as transport:
            assert [changes async for changes in transport.hints(address, {})] == [said]

    asyncio.run(run())


def test_a_redirect_is_not_followed():
    async def run() -> None:
        server, address = await answering(
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        )
        async with server, HttpTransport() as transport:
            assert (await transport.send(address, Request("GET", wire.OPS))).status == 302

    asyncio.run(run())


def test_nobody_there():
    async def run() -> None:
        address = f"http://127.0.0.1:{free_port()}"
        async with HttpTransport() as transport:
            with pytest.raises(Unreachable, match="cannot be reached"):
                await transport.send(address, Request("GET", wire.OPS))
            with pytest.raises(Unreachable):
                async for _ in transport.hints(address, {}):
                    pass

    asyncio.run(run())


# TLS.


def certificate(directory: Path) -> tuple[Path, Path, str]:
    """A self-signed certificate for loopback, its key, and its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hocket test")])
    now = datetime.datetime.now(datetime.UTC)
    import ipaddress

    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    cert, secret = directory / "cert.pem", directory / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, secret, made.fingerprint(hashes.SHA256()).hex()


def test_nodes_exchange_over_tls_with_a_pinned_certificate_or_a_ca(tmp_path: Path):
    async def run() -> None:
        cert, key, pin = certificate(tmp_path)
        async with world(tmp_path, "a", "b") as (a, b):
            await a.stop_serving()
            await a.serve(cert=cert, key=key)
            assert a.address.startswith("https://")
            a.submit(3)
            for trust, state in (
                (None, peers.UNREACHABLE),
                (Trust(pin="00" * 32), peers.UNREACHABLE),
                (Trust(pin=pin), peers.OK),
                (Trust(ca=str(cert)), peers.OK),
            ):
                with b.runtime.store.write() as session:
                    if peers.find(session, a.address):
                        peers.remove(session, a.address)
                    peers.add(session, a.address, 0, trust=trust)
                b.services._trusts_until = 0.0
                done = await b.exchanges.visit(a.address)
                assert done.state == state, done
                if state == peers.UNREACHABLE:
                    way_out = "give --pin anew" if trust else "fingerprint with --pin or its CA with --ca"
                    assert way_out in done.detail
            assert a.ids() == b.ids()

    asyncio.run(run())


def test_a_certificate_that_is_none_is_told_in_a_sentence(tmp_path: Path):
    async def test(a: Place) -> None:
        cert, key, _ = certificate(tmp_path)
        (tmp_path / "garbage").write_text("garbage")
        for options in (
            {"cert": cert},
            {"cert": cert, "key": tmp_path / "missing"},
            {"cert": tmp_path / "garbage", "key": key},
            {"cert": cert, "key": cert},
        ):
            with pytest.raises(Usage):
                Server(a.gate, **options)  # type: ignore[arg-type]

    alone(tmp_path, test)


def test_tls_is_not_spoken_in_plain_and_the_other_way_round(tmp_path: Path):
    async def test(a: Place) -> None:
        assert a.server is not None
        with pytest.raises(Unreachable):
            await a.transport.send(a.address.replace("http", "https"), Request("GET", wire.HEALTH))
        cert, key, _ = certificate(tmp_path)
        await a.stop_serving()
        await a.serve(cert=cert, key=key)
        with pytest.raises(Unreachable):
            await a.transport.send(a.address.replace("https", "http"), Request("GET", wire.HEALTH))
        context = ssl.create_default_context(cafile=str(cert))
        _, writer = await asyncio.open_connection("127.0.0.1", a.server.port, ssl=context)
        writer.close()

    alone(tmp_path, test)
