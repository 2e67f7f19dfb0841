"""The messages of a node: where its settings say, signed with its key, believed from the members of its mesh."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import hocket
from hocket.api import Service
from hocket.api.status import status
from hocket.bus.envelope import Drop
from hocket.bus.messages import MemoryMessages, MemoryServer, subject_name, subject_pattern
from hocket.errors import Usage
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Transaction
from hocket.mesh import membership
from hocket.node import message_bus
from hocket.node.home import Home
from hocket.node.message_bus import NodeMessages, bus_settings
from hocket.node.node import Node
from hocket.node.running import running_buses
from hocket.node.variables import BUS, BUS_CA, BUS_CREDENTIALS, MESH_ENABLED
from tests.bus.nats_server import NatsServer
from tests.ports import free_port

PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    hocket.init(tmp_path / "home")
    return Home(tmp_path / "home")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (BUS, BUS_CREDENTIALS, BUS_CA, MESH_ENABLED):
        monkeypatch.delenv(name, raising=False)


def with_node(home: Home, test: Callable[[Node], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), hocket.open(home.path) as node:
            await test(node)

    asyncio.run(body())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_without_settings_messages_go_between_the_processes_of_the_home(home: Home) -> None:
    async def test(node: Node) -> None:
        one, same = await asyncio.gather(node.message_bus(), node.message_bus())
        assert one is same
        queue = await one.subscribe(subject_pattern(node.log.user, "test"))
        async with hocket.open(home.path) as other:
            await (await other.message_bus()).publish(subject_name(node.log.user, "test", "a.b"), b"1")
        message = await queue.get(PATIENCE_S)
        assert message is not None and message.at is not None
        assert (message.data, message.at.node) == (b"1", node.log.node)
        assert running_buses(home.processes) == []

    with_node(home, test)
    assert list(home.messages.glob("*.messages")) == []


@pytest.mark.touches("GR-08")
def test_messages_of_members_count_and_those_of_others_do_not(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_bus, "UNKNOWN_S", 0.01)
    monkeypatch.setattr(message_bus, "REFRESH_S", 0.05)
    friend = SigningKey(bytes(31) + b"f")

    async def test(node: Node) -> None:
        server, user, log = MemoryServer(), home.user_key(), node.log
        ours = await NodeMessages.open(node, MemoryMessages(server), home.node_key(), node.environment)
        theirs = NodeMessages(node, MemoryMessages(server), friend, node.environment)
        subject = subject_name(log.user, "test", "k")
        queue = await ours.subscribe(subject)
        token = issue(user, friend.public, ROOT, log.physical() // 1000, None)

        def admit(tx: Transaction) -> None:
            tx.author(DelegateUcan(content_hash(token), token))

        async def counts() -> bool:
            await theirs.publish(subject, b"1")
            return await queue.get(0.05) is not None

        async def told(wanted: bool) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while await counts() is not wanted:
                    pass

        assert not await counts() and ours.counts == {Drop.UNKNOWN: 1}
        await node.run(admit)
        await told(True)
        membership.revoke(log, node_text(node_id(friend.public)), lambda: user)
        await told(False)
        assert set(ours.counts) == {Drop.UNKNOWN}
        assert node_id(friend.public) not in ours._keys
        await ours.close()

    with_node(home, test)


def test_over_a_server_the_status_shows_the_connection_and_its_losses(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_bus, "UNKNOWN_S", 0.01)
    monkeypatch.setattr(message_bus, "REFRESH_S", 0.05)
    server = NatsServer(tmp_path)
    monkeypatch.setenv(BUS, server.url.replace("//", "//me:SECRET@"))

    async def test(node: Node) -> None:
        bus = await node.message_bus()
        subject = subject_name(node.log.user, "test", "k")
        await bus.publish(subject, b"lost")
        await until(lambda: bus.state.detail != "connecting")
        (noted,) = running_buses(home.processes)
        assert not noted.is_connected
        with server:
            await until(lambda: bus.state.is_connected)
            queue = await bus.subscribe(subject)
            await bus.messages.publish(subject, b"noise")
            await bus.publish(subject, b"good")
            message = await queue.get(PATIENCE_S)
            assert message is not None and message.data == b"good"
            await until(lambda: running_buses(home.processes)[0].refused == {"malformed": 1})
            (shown,) = status(Service(node.runtime)).buses
            assert (shown.process, shown.is_connected, shown.keeps, shown.lost) == (os.getpid(), True, True, 1)
            assert "SECRET" not in repr(shown) and str(server.port) in shown.server
            await node.finish()
        assert running_buses(home.processes) == []

    with_node(home, test)


def test_a_node_that_talks_to_no_other_uses_no_server(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUS, f"nats://127.0.0.1:{free_port()}")
    monkeypatch.setenv(MESH_ENABLED, "0")

    async def test(node: Node) -> None:
        bus = await node.message_bus()
        assert bus.state.is_connected and "processes" in bus.state.what

    with_node(home, test)


# Settings.


def test_the_option_comes_before_the_variable_and_that_before_the_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bus_settings(home) is None
    home.configuration.write_text('[bus]\nurl = "nats://file:1, nats://other:2"\n')
    found = bus_settings(home)
    assert found is not None and found.servers == ["nats://file:1", "nats://other:2"]
    monkeypatch.setenv(BUS, "nats://me:SECRET@variable")
    found = bus_settings(home)
    assert found is not None and str(found) == "nats://…@variable"
    found = bus_settings(home, "tls://option")
    assert found is not None and found.servers == ["tls://option"] and found.access.needs_tls


def test_credentials_are_a_file_that_only_its_owner_can_read(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "bus.creds"
    file.write_text("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY")  # from the documentation of NATS
    file.chmod(0o600)
    home.configuration.write_text(f'[bus]\nurl = "nats://h"\ncredentials = "{file}"\n')
    found = bus_settings(home)
    assert found is not None and found.access.key is not None
    assert found.access.key.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    file.chmod(0o644)
    with pytest.raises(Usage, match="chmod 600"):
        bus_settings(home)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("bus = 1", "must be a table"),
        ("[bus]\nurl = 7", "must be a table of texts"),
        ('[bus]\nurl = "nats://h"\npassword = "SECRET"', "unknown key bus.password"),
        ('[bus]\nurl = "http://u:SECRET@h"', r"bad bus.url in .*http://…@h"),
        ("[bus", "cannot read"),
        ('[bus]\nurl = "nats://h"\ncredentials = "/nowhere"', "/nowhere"),
        ('[bus]\nurl = "nats://h"\nca = "/nowhere"', "/nowhere"),
    ],
)
def test_bad_settings_are_one_sentence_without_secrets(home: Home, content: str, why: str) -> None:
    home.configuration.write_text(content)
    with pytest.raises(Usage, match=why) as raised:
        bus_settings(home)
    assert "SECRET" not in str(raised.value)
