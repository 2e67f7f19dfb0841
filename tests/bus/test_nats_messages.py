"""Messages over a real NATS server that restarts, dies, hangs, is full, is foreign or refuses: that costs time and
counted messages, and no caller ever sees it.
"""

import asyncio
import base64
import datetime
import itertools
import json
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hocket.bus import nats_messages
from hocket.bus.envelope import SEALED_BYTES_MAX, Drop
from hocket.bus.messages import BusMessage, MessageQueue, subject_name, subject_pattern
from hocket.bus.nats_access import NatsAccess, Nkey, _checksum, read_access, read_servers, shown
from hocket.bus.nats_messages import NatsMessages
from hocket.bus.signed import SignedMessages
from hocket.errors import Usage
from hocket.events import Event
from hocket.events.nodes import BusAway, BusConnected, MessagesDropped
from hocket.events.workers import BreakerOpened
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.retrying import RetryPolicy
from tests.bus.nats_server import NatsServer, connected, two_halves
from tests.ports import free_port

pytestmark = pytest.mark.touches("GR-05")

PATIENCE_S = 60.0
SHORT_S = 0.1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path) as made:
        yield made


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(body())


async def got(queue: MessageQueue) -> bytes:
    message = await queue.get(PATIENCE_S)
    assert message is not None
    return message.data


async def publish_until_heard(bus: NatsMessages, queue: MessageQueue, subject: str = "t.k") -> None:
    """A subscriber may be connected again before the publisher is, or after it."""
    deadline = time.monotonic() + PATIENCE_S
    while await queue.get(SHORT_S) is None:
        assert time.monotonic() < deadline
        await bus.publish(subject, b"again")


# Servers that come and go.


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_after_a_restart_it_is_connected_and_subscribed_again(server: NatsServer, how: str) -> None:
    async def test() -> None:
        told: list[Event] = []
        here, there = NatsMessages([server.url], emit=told.append), NatsMessages([server.url])
        await connected(here)
        await connected(there)
        queue = await there.subscribe("t.*")
        await here.publish("t.k", b"1")
        assert await got(queue) == b"1"
        since_ms = here.state.since_ms
        getattr(server, how)()
        await connected(here, False)
        assert here.state.detail and here.state.since_ms >= since_ms
        for _ in range(5):
            await here.publish("t.k", b"lost")
            await here.announce("t.k", b"lost")
        assert here.state.lost == 10
        late = await here.subscribe("t.k")
        server.start()
        await connected(here)
        await connected(there)
        await here.publish("t.k", b"2")
        assert [await got(queue), await got(late)] == [b"2", b"2"]
        assert isinstance(told[0], BusConnected) and isinstance(told[1], BusAway) and isinstance(told[-1], BusConnected)
        await here.close()
        await there.close()

    run(test)


def test_a_bus_can_be_opened_before_its_server_and_nothing_waits_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        server = NatsServer(tmp_path)
        bus = NatsMessages([server.url])
        queue = await bus.subscribe("t.k", since_s=60)
        await bus.publish("t.k", b"lost")
        assert await bus.request("t.k", b"", 0.01) is None
        await connected_or_failed(bus)
        assert not bus.state.is_connected and bus.state.lost == 2
        with server:
            await connected(bus)
            await bus.publish("t.k", b"1")
            assert await got(queue) == b"1"
            await bus.close()

    run(test)


async def connected_or_failed(bus: NatsMessages) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while bus.state.detail == "connecting":
            await bus.changed.wait()


def test_announcements_survive_a_restart_and_are_given_to_those_who_were_away(server: NatsServer) -> None:
    async def test() -> None:
        here = NatsMessages([server.url])
        await connected(here)
        queue = await here.subscribe("jobs.>", since_s=60)
        await here.announce("jobs.k", b"1")
        assert await got(queue) == b"1"
        server.stop()  # a server that is killed may lose what it has not written yet
        await connected(here, False)
        server.start()
        await connected(here)
        assert await got(queue) == b"1", "what came just before may have been lost, so it comes again"
        there = NatsMessages([server.url])
        await connected(there)
        assert await got(await there.subscribe("jobs.>", since_s=60)) == b"1"
        await here.close()
        await there.close()

    run(test)


def test_a_server_that_lost_its_data_costs_only_the_past(server: NatsServer) -> None:
    async def test() -> None:
        bus = NatsMessages([server.url])
        await connected(bus)
        await bus.announce("jobs.k", b"forgotten")
        server.kill()
        server.lose_data()
        await connected(bus, False)
        server.start()
        await connected(bus)
        assert bus.state.keeps, "the stream is made again"
        await bus.announce("jobs.k", b"new")
        await bus.subscribe("jobs.k")  # the server has read the announcement
        assert await got(await bus.subscribe("jobs.k", since_s=60)) == b"new"
        await bus.close()

    run(test)


def test_a_server_without_jetstream_carries_announcements_as_messages_and_the_state_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        told: list[Event] = []
        with NatsServer(tmp_path, jetstream=False) as server:
            bus = NatsMessages([server.url], emit=told.append)
            await connected(bus)
            assert not bus.state.keeps
            (event,) = told
            assert "JetStream" in str(event)
            queue = await bus.subscribe("jobs.>", since_s=60)
            await bus.announce("jobs.k", b"1")
            assert await got(queue) == b"1"
            assert await (await bus.subscribe("jobs.>", since_s=60)).get(SHORT_S) is None
            await bus.close()

    run(test)


def test_a_full_server_carries_messages_and_keeps_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        limits = f'jetstream {{ store_dir: "{tmp_path / "full"}", max_file_store: 1MB, max_memory_store: 1MB }}'
        with NatsServer(tmp_path, limits, jetstream=False) as server:
            bus = NatsMessages([server.url])
            await connected(bus)
            assert not bus.state.keeps
            queue = await bus.subscribe("jobs.>", since_s=60)
            await bus.announce("jobs.k", b"1")
            assert await got(queue) == b"1"
            await bus.close()

    run(test)


def test_a_server_whose_disk_is_full_carries_announcements_and_loses_only_the_past(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, file_bytes_max=65_536) as server:
            bus = NatsMessages([server.url])
            await connected(bus)
            assert bus.state.keeps
            queue = await bus.subscribe("jobs.>")
            for number in range(40):
                await bus.announce("jobs.k", b"%d" % number + bytes(8_192))
                assert (await got(queue)).startswith(b"%d" % number)
            assert bus.state.is_connected and bus.state.lost == 0
            late = await bus.subscribe("jobs.>", since_s=60)
            kept = 0
            while await late.get(SHORT_S) is not None:
                kept += 1
            assert kept < 40, "the disk was not full"
            await bus.announce("jobs.k", b"last")
            assert await got(late) == b"last"
            await bus.close()

    run(test)


def test_the_kept_past_is_bounded(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_messages, "ANNOUNCED_MAX", 10)

    async def test() -> None:
        bus = NatsMessages([server.url])
        await connected(bus)
        for number in range(40):
            await bus.announce("jobs.k", b"%d" % number)
        await bus.subscribe("jobs.k")
        queue = await bus.subscribe("jobs.k", since_s=60)
        assert [await got(queue) for _ in range(10)] == [b"%d" % number for number in range(30, 40)]
        assert await queue.get(SHORT_S) is None
        await bus.close()

    run(test)


def test_a_frozen_server_loses_messages_and_delays_no_publisher(server: NatsServer) -> None:
    async def test() -> None:
        here, there = (NatsMessages([server.url], ping_s=0.5) for _ in range(2))
        await connected(here)
        await connected(there)
        queue = await there.subscribe("t.k")
        server.freeze()
        data = bytes(SEALED_BYTES_MAX)
        while here.state.is_connected and here.state.lost < 100:
            await here.publish("t.k", data)
            await asyncio.sleep(0)
        assert here.state.lost > 0
        await connected(here, False)
        assert "no answer" in here.state.detail
        server.thaw()
        await connected(here)
        await connected(there)
        await publish_until_heard(here, queue)
        await here.close()
        await there.close()

    run(test)


def test_a_subscription_that_comes_while_it_connects_is_not_forgotten(server: NatsServer) -> None:
    async def test() -> None:
        bus = NatsMessages([server.url])
        queues, closed = [], []
        while not bus.state.is_connected:
            queues.append(await bus.subscribe("t.k"))
            closed.append(await bus.subscribe("t.k"))
            closed[-1].close()
            await asyncio.sleep(0)
        await bus.subscribe("other.k")
        await bus.publish("t.k", b"1")
        assert [await got(queue) for queue in queues] == [b"1"] * len(queues)
        assert len(bus._subscriptions) == len(queues) + 1
        await bus.close()

    run(test)


def test_a_cancelled_subscriber_does_not_break_the_connection(server: NatsServer) -> None:
    async def test() -> None:
        bus = NatsMessages([server.url])
        await connected(bus)
        for _ in range(20):
            task = asyncio.create_task(bus.subscribe("t.k"))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert bus._subscriptions == {}
        queue = await bus.subscribe("t.k")
        await bus.publish("t.k", b"1")
        assert await got(queue) == b"1"
        await bus.close()

    run(test)


def test_a_subscriber_whose_connection_ends_while_it_waits_gets_its_queue(server: NatsServer) -> None:
    async def test() -> None:
        bus = NatsMessages([server.url])
        await connected(bus)
        server.freeze()
        subscribing = asyncio.create_task(bus.subscribe("t.k"))
        while bus.client is None or not bus.client._pings:
            await asyncio.sleep(0)
        await bus.client.end()
        queue = await subscribing
        server.thaw()
        await publish_until_heard(bus, queue)
        await bus.close()

    run(test)


def test_several_servers_are_one_bus_and_the_end_of_one_is_not_the_end(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(2)]

    def cluster(number: int) -> str:
        return (
            f'cluster {{ name: c, listen: "127.0.0.1:{ports[number]}",'
            f' routes: ["nats://127.0.0.1:{ports[1 - number]}"] }}'
        )

    async def test() -> None:
        with (
            NatsServer(tmp_path, cluster(0), jetstream=False, name="one") as one,
            NatsServer(tmp_path, cluster(1), jetstream=False, name="two") as two,
        ):
            here, there = NatsMessages([one.url, two.url]), NatsMessages([two.url])
            await connected(here)
            await connected(there)
            queue = await there.subscribe("t.k")
            await publish_until_heard(here, queue)
            one.kill()
            await publish_until_heard(here, queue)
            await connected(here)
            # A participant that was told of one server has learnt of the other.
            assert {*there._servers, *there._found} >= {two.url}
            await here.close()
            await there.close()

    run(test)


def test_halves_of_a_cluster_that_are_cut_off_hear_each_other_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_halves(tmp_path) as (one, two, cable):
            here, there = NatsMessages([one.url]), NatsMessages([two.url])
            await connected(here)
            await connected(there)
            queue, own = await there.subscribe("t.k"), await here.subscribe("t.k")
            await publish_until_heard(here, queue)
            await cable.cut()
            async with asyncio.timeout(PATIENCE_S):
                while await queue.get(SHORT_S) is not None:  # until the servers have noticed
                    await here.publish("t.k", b"x")
            await here.publish("t.k", b"in this half")
            assert await queue.get(SHORT_S) is None
            while await got(own) != b"in this half":
                pass
            assert here.state.is_connected and there.state.is_connected and here.state.lost == 0
            await cable.join()
            await publish_until_heard(here, queue)
            await here.close()
            await there.close()

    run(test)


@pytest.mark.req("GR-05")
def test_subjects_of_any_kind_pass_a_real_server(server: NatsServer) -> None:
    async def test() -> None:
        kinds = ["acme.render", "*.>", "a b\n", "", "..", "é/\\ .x", "$JS.API", "\U0001f600" * 255]
        bus = NatsMessages([server.url])
        await connected(bus)
        everything = await bus.subscribe(subject_pattern("did:key:z6Mk", "jobs"))
        for kind in kinds:
            one = await bus.subscribe(subject_pattern("did:key:z6Mk", "jobs", kind) if kind else "hocket.*.jobs.%")
            await bus.announce(subject_name("did:key:z6Mk", "jobs", kind), kind.encode())
            assert [await got(one), await got(everything)] == [kind.encode()] * 2
            one.close()
        await bus.close()

    run(test)


# The breaker.


def test_after_five_failures_the_breaker_opens_and_everything_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_messages, "RETRIES", RetryPolicy(0.01, 0.02))

    async def test() -> None:
        told: list[Event] = []
        bus = NatsMessages([f"nats://127.0.0.1:{free_port()}"], emit=told.append)
        async with asyncio.timeout(PATIENCE_S):
            while not any(isinstance(each, BreakerOpened) for each in told):
                await bus.changed.wait()
        assert bus.breaker.breaker.failures == 5
        assert sum(isinstance(each, BusAway) for each in told) == 1, "said once, not five times"
        await bus.publish("t.k", b"")
        assert bus.state.lost == 1 and not bus.state.is_connected
        await bus.close()

    run(test)


# Slow consumers, small servers, missing permissions.


def test_a_receiver_that_does_not_read_loses_the_oldest_and_is_told(server: NatsServer) -> None:
    async def test() -> None:
        told: list[Event] = []
        here, there = NatsMessages([server.url]), NatsMessages([server.url], emit=told.append)
        await connected(here)
        await connected(there)
        queue, last = await there.subscribe("t.>", capacity=100), await there.subscribe("t.last")
        for number in range(5_000):
            await here.publish("t.k", b"%d" % number)
            if number % 100 == 0:
                await asyncio.sleep(0)
        await here.publish("t.last", b"")
        await got(last)
        assert queue.dropped == 5_001 - 100
        assert await got(queue) == b"4901"
        assert [each for each in told if isinstance(each, MessagesDropped)] == [MessagesDropped("t.>", 100)]
        await here.close()
        await there.close()

    run(test)


def test_a_message_too_large_for_the_server_is_lost_and_the_state_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, "max_payload: 1024") as server:
            bus = NatsMessages([server.url])
            await connected(bus)
            await bus.publish("t.k", bytes(2_000))
            assert bus.state.lost == 1 and "1024" in bus.state.detail and bus.state.is_connected
            queue = await bus.subscribe("t.k")
            await bus.publish("t.k", b"1")
            assert await got(queue) == b"1"
            await bus.close()

    run(test)


def test_a_subject_that_the_server_forbids_is_named_in_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_messages, "ANSWER_S", 0.2)  # the answer about the stream is forbidden, too
    users = 'authorization { users: [{ user: u, password: p, permissions: { publish: ">", subscribe: ["t.>"] } }] }'

    async def test() -> None:
        with NatsServer(tmp_path, users, jetstream=False) as server:
            bus = NatsMessages([server.url.replace("//", "//u:p@")])
            await connected(bus)
            await bus.subscribe("secret.k")
            async with asyncio.timeout(PATIENCE_S):
                while "secret.k" not in bus.state.detail:
                    await bus.changed.wait()
            assert bus.state.is_connected
            assert "u:p" not in bus.state.what
            await bus.close()

    run(test)


# Credentials.


def test_wrong_credentials_are_refused_and_the_state_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, "authorization { user: u, password: right }") as server:
            for url in (server.url, server.url.replace("//", "//u:wrong@")):
                bus = NatsMessages([url])
                await connected_or_failed(bus)
                assert not bus.state.is_connected and "Authorization Violation" in bus.state.detail
                assert "wrong" not in repr(bus.state)
                await bus.publish("t.k", b"")
                await bus.close()
            bus = NatsMessages([server.url.replace("//", "//u:right@")])
            await connected(bus)
            await bus.close()

    run(test)


def seed(prefix: int, raw: bytes) -> str:
    """A seed as `nsc` and `nk` write it."""
    body = bytes(((18 << 3) | (prefix >> 5), (prefix & 31) << 3)) + raw
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


USER, ACCOUNT, OPERATOR = 20 << 3, 0, 14 << 3


def public(prefix: int, key: SigningKey) -> str:
    body = bytes((prefix,)) + key.public
    return base64.b32encode(body + _checksum(body)).decode().rstrip("=")


def jwt(claims: dict[str, object], key: SigningKey) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    text = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(key.sign(text.encode())).decode().rstrip('=')}"


def test_an_nkey_opens_a_server_and_another_does_not(tmp_path: Path) -> None:
    good, bad = seed(USER, bytes(31) + b"g"), seed(USER, bytes(31) + b"b")
    assert good.startswith("SU")
    (tmp_path / "good.nk").write_text(good + "\n")
    (tmp_path / "bad.nk").write_text(bad + "\n")
    users = f"authorization {{ users: [{{ nkey: {Nkey(good).public} }}] }}"

    async def test() -> None:
        with NatsServer(tmp_path, users) as server:
            bus = NatsMessages([server.url], read_access([server.url], tmp_path / "good.nk", None))
            await connected(bus)
            await bus.close()
            bus = NatsMessages([server.url], read_access([server.url], tmp_path / "bad.nk", None))
            await connected_or_failed(bus)
            assert "Authorization Violation" in bus.state.detail
            await bus.close()

    run(test)


def test_a_server_that_refuses_and_resets_the_connection_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server does both at once, and now and then the reset arrives while the client closes."""
    monkeypatch.setattr(nats_messages, "RETRIES", RetryPolicy(0.0, 0.0))
    always_later = itertools.count(step=1_000).__next__  # so the breaker never keeps the bus from trying again
    told: list[Event] = []
    refused = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal refused
        writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        lingers = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingers)
        writer.close()
        refused += 1

    async def test() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        bus = NatsMessages([f"nats://127.0.0.1:{port}"], emit=told.append, monotonic=always_later)
        while refused < 40:
            await bus.changed.wait()
        await bus.close()
        server.close()

    run(test)
    assert {each.error for each in told if isinstance(each, BusAway)} == {"Authorization Violation"}


def test_a_credentials_file_opens_a_server_with_accounts(tmp_path: Path) -> None:
    operator, account, user = (SigningKey(bytes(31) + letter) for letter in (b"o", b"a", b"u"))

    def token(subject: str, issuer: SigningKey, prefix: int, what: dict[str, object], name: str) -> str:
        issued = {"jti": name, "iat": int(time.time()), "iss": public(prefix, issuer), "sub": subject, "name": name}
        return jwt({**issued, "nats": {**what, "version": 2}}, issuer)

    of_operator = token(public(OPERATOR, operator), operator, OPERATOR, {"type": "operator"}, "O")
    unlimited = {name: -1 for name in ("subs", "data", "payload", "imports", "exports", "conn", "leaf")}
    of_account = token(
        public(ACCOUNT, account),
        operator,
        OPERATOR,
        {"type": "account", "limits": {**unlimited, "wildcards": True}},
        "A",
    )
    of_user = token(public(USER, user), account, ACCOUNT, {"type": "user", "subs": -1, "data": -1, "payload": -1}, "U")
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed(USER, user.seed)}\n------END USER NKEY SEED------\n"
    )
    configuration = (
        f"operator: {of_operator}\nresolver: MEMORY\nresolver_preload: {{ {public(ACCOUNT, account)}: {of_account} }}"
    )

    async def test() -> None:
        with NatsServer(tmp_path, configuration, jetstream=False) as server:
            bus = NatsMessages([server.url], read_access([server.url], file, None))
            await connected(bus)
            queue = await bus.subscribe("t.k")
            await bus.publish("t.k", b"1")
            assert await got(queue) == b"1"
            await bus.close()
            bus = NatsMessages([server.url])
            await connected_or_failed(bus)
            assert not bus.state.is_connected
            await bus.close()

    run(test)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "no seed"),
        (b"\xff\xfe", "not text"),
        (b"SU" + b"A" * 56, "mistyped"),
        (b"hello SECRET", "no seed"),
    ],
)
def test_bad_files_of_credentials_are_named_and_never_shown(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Usage, match=why) as raised:
        read_access([], file, None)
    assert str(file) in str(raised.value) and "SECRET" not in str(raised.value)
    assert "SU" not in repr(NatsAccess(Nkey(seed(USER, bytes(32)))))


@pytest.mark.parametrize(
    "text",
    ["", ",", "host:4222", "http://host", "nats://", "nats://host:notaport", "nats://host:99999", "nats://h/path"]
    + ["nats://h?x=1", "nats://h h", "nats://u:SECRET@h:0", "nats://u:SECRET@h/path", ",".join(["nats://h"] * 17)],
)
def test_bad_addresses_are_refused_without_their_secrets(text: str) -> None:
    with pytest.raises(Usage) as raised:
        read_servers(text)
    assert "SECRET" not in str(raised.value)


def test_addresses_are_a_list_and_are_shown_without_their_secrets() -> None:
    assert read_servers("nats://a:4222, tls://u:SECRET@b") == ["nats://a:4222", "tls://u:SECRET@b"]
    assert shown("tls://u:p@SECRET@b:1") == "tls://…@b:1"
    assert shown("u:SECRET@b") == "…@b"
    assert shown("nats://a:4222") == "nats://a:4222"


# TLS.


def certificates(directory: Path) -> tuple[Path, str]:
    """A certificate authority of our own, as a file, and the TLS part of a server's configuration."""

    def write(name: str, data: bytes) -> Path:
        path = directory / name
        path.write_bytes(data)
        return path

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey
    ) -> bytes:
        day = datetime.timedelta(days=1)
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
        )
        if name != issuer:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = write("ca.pem", certificate("our authority", authority, "our authority", authority))
    cert = write("server.pem", certificate("localhost", key, "our authority", authority))
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return ca, f'tls {{ cert_file: "{cert}", key_file: "{write("server.key", private)}" }}'


def test_tls_with_an_authority_of_our_own(tmp_path: Path) -> None:
    ca, tls = certificates(tmp_path)

    async def test() -> None:
        with NatsServer(tmp_path, tls) as server:
            url = f"tls://localhost:{server.port}"
            bus = NatsMessages([url], read_access([url], None, ca))
            await connected(bus)
            queue = await bus.subscribe("t.k")
            await bus.publish("t.k", b"1")
            assert await got(queue) == b"1"
            await bus.close()
            for unknown in ([url], None), ([f"tls://127.0.0.1:{server.port}"], ca):
                bus = NatsMessages(unknown[0], read_access(unknown[0], None, unknown[1]))
                await connected_or_failed(bus)
                assert not bus.state.is_connected and "certificate" in bus.state.detail.lower()
                await bus.close()

    run(test)


def test_where_tls_is_wanted_no_credentials_go_out_without_it(server: NatsServer) -> None:
    """Whoever sits between could say that the server has no TLS."""

    async def test() -> None:
        url = f"tls://u:SECRET@127.0.0.1:{server.port}"
        bus = NatsMessages([url], read_access([url], None, None))
        await connected_or_failed(bus)
        assert not bus.state.is_connected and "no TLS" in bus.state.detail
        await bus.close()

    run(test)


def test_a_bad_file_of_authorities_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    for file in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(Usage, match=str(file)):
            read_access([], None, file)


def test_a_connection_without_tls_reads_no_authorities(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes 20 to 50 ms each time, and a server that is away is tried again and again."""
    reads = []
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: reads.append(1))

    async def test() -> None:
        bus = NatsMessages([server.url], NatsAccess())
        await connected(bus)
        await bus.close()

    run(test)
    assert not reads


# Signed messages over a real server.


@pytest.mark.touches("GR-08")
def test_replayed_and_spoofed_messages_are_dropped_over_a_real_server(server: NatsServer) -> None:
    keys = [SigningKey(bytes(31) + letter) for letter in (b"a", b"b")]
    known = {node_id(key.public): key.public for key in keys}
    cluster = "did:key:zMesh"
    subject = subject_name(cluster, "claims", "acme.render")

    def now_ms() -> int:
        return int(time.time() * 1000)

    async def test() -> None:
        buses = [NatsMessages([server.url], root="hocket.did%3Akey%3AzMesh") for _ in range(3)]
        for bus in buses:
            await connected(bus)
        alice, bob = (
            SignedMessages(bus, key, cluster, known.get, now_ms) for bus, key in zip(buses, keys, strict=False)
        )
        eve = buses[2]
        tap, queue = await eve.subscribe("hocket.>"), await bob.subscribe(subject_pattern(cluster, "claims"))
        await alice.publish(subject, b"mine")
        sealed = await got(tap)
        for _ in range(3):
            await eve.publish(subject, sealed)
        await eve.publish(subject, b'{"job_id": 1, "worker_id": "alice"}')
        for _ in range(4):
            await got(tap)
        await alice.announce(subject, b"last")
        messages = [await queue.get(PATIENCE_S) for _ in range(2)]
        assert [each and each.data for each in messages] == [b"mine", b"last"]
        assert all(each and each.at and each.at.node == node_id(keys[0].public) for each in messages)
        assert bob.counts == {Drop.REPLAYED: 3, Drop.MALFORMED: 1}
        late = await bob.subscribe(subject, since_s=60)
        kept = await late.get(PATIENCE_S)
        assert kept is not None and kept.data == b"last"
        for bus in buses:
            await bus.close()

    run(test)


def test_a_message_without_a_reply_says_so(server: NatsServer) -> None:
    """The server answers a request that nobody hears with a message of its own; that is not a reply."""

    async def test() -> None:
        bus = NatsMessages([server.url])
        await connected(bus)
        queue = await bus.subscribe("reply.x")
        await bus.publish("nobody.listens", b"", reply_to="reply.x")
        await bus.publish("reply.x", b"1")
        assert await queue.get(PATIENCE_S) == BusMessage("reply.x", b"1")
        await bus.close()

    run(test)
