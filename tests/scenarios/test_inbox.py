"""Messages between machines: the same commands work on one home and on either node of a mesh, and no message is lost or
processed twice while the receiver is killed again and again.
"""

import asyncio
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hocket.families.inbox import requests as inbox
from hocket.families.inbox.facts import AcknowledgeMessage
from hocket.families.inbox.requests import MessageDraft
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import number_of
from hocket.mesh import wire
from hocket.mesh.sync import GuardedTransport
from hocket.mesh.wire import Reply, Request
from hocket.node.runtime import Runtime
from tests.mesh.world import Place
from tests.scenarios.machines import MORTAL, Machine, machines, until, verify

pytestmark = pytest.mark.timeout(900)

CONSUMER = Path(__file__).with_name("consumer.py")


def script(machine: Machine) -> None:
    """What an agent and its colleagues do, as commands; the same wherever they are."""

    def run(*arguments: object, code: int = 0) -> Any:
        done = machine(*arguments, "--json", code=code)
        return msgspec.json.decode(done.out) if code == 0 else done.sentence

    def claim(agent: str, count: int = 5, lease: str = "10m") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run("inbox", "--agent", agent, "--claim", count, "--lease", lease)
        return found

    me = machine.name
    first = run("send", f"editor-{me}", "review this", "--type", "review", "--agent", "writer")["id"]
    second = run("send", f"editor-{me}", "and this", "--thread", first, "--agent", "writer")["id"]
    direct = run("send", f"editor-{me}@here", "for you alone", "--agent", "writer")["id"]
    claimed = claim(f"editor-{me}")
    assert [each["id"] for each in claimed] == [first, second, direct]
    assert claimed[0].keys() >= {"id", "from", "type", "thread", "body", "lease_until", "tries"}
    run("ack", first, "--agent", "stranger", code=3)
    for message_id in (first, direct):
        run("ack", message_id, "--agent", f"editor-{me}")
    run("ack", first, "--agent", f"editor-{me}", code=3)
    run("nack", second, "--agent", f"editor-{me}")
    again = until(lambda: claim(f"editor-{me}", lease="3s"), "the message that was returned")
    assert [(each["id"], each["tries"]) for each in again] == [(second, 2)]
    redelivered = until(lambda: claim(f"editor-{me}"), "the lease to run out")
    assert [(each["id"], each["tries"]) for each in redelivered] == [(second, 3)]
    for _ in range(2):
        run("nack", second, "--agent", f"editor-{me}")
        claim(f"editor-{me}")
    run("nack", second, "--agent", f"editor-{me}")
    assert claim(f"editor-{me}") == []
    assert second in [each["id"] for each in run("dead", "list")]
    run("dead", "retry", second)
    assert [each["id"] for each in claim(f"editor-{me}")] == [second]
    reply = run("send", "writer", "done", "--reply-to", second, "--agent", f"editor-{me}")["id"]
    run("ack", second, "--agent", f"editor-{me}")
    assert [each["id"] for each in run("thread", second)] == [first, second, reply]
    assert [each["state"] for each in run("thread", second)] == ["acknowledged", "acknowledged", "waiting"]
    group = run("send", f"team-{me}/", "lunch?", "--agent", "writer")["id"]
    for agent in (f"team-{me}/one", f"team-{me}/two"):
        assert [each["id"] for each in claim(agent)] == [group]


@pytest.mark.soak  # test_one_script.py has the same in short
@pytest.mark.req("VX-01", "VX-10")
def test_the_same_commands_work_on_one_home_and_on_either_node_of_a_mesh(tmp_path: Path) -> None:
    with machines(tmp_path, "alone", "hub", "laptop") as (alone, hub, laptop):
        alone("init")
        script(alone)
        hub("init")
        address = hub.serve()
        laptop("join", hub.invite("laptop", "ops:all", address=address))
        script(hub)
        script(laptop)
        verify(alone, hub, laptop)


@pytest.mark.req("VX-10")
def test_no_message_goes_to_two_processes_of_one_home(tmp_path: Path) -> None:
    with machines(tmp_path, "alone") as (alone,):
        alone("init")
        blobs, drafts = alone.runtime.blobs, [MessageDraft("sink", b"", "source")] * 200
        sent = alone.runtime.log.run(lambda tx: [inbox.send(tx, blobs, draft) for draft in drafts])
        files = [alone.root / f"processed-{number}" for number in range(4)]
        consumers = [consume(alone, path, lease="5m") for path in files]

        def processed() -> list[str]:
            return [line for path in files if path.exists() for line in path.read_text().split()]

        try:
            until(lambda: len(processed()) >= len(sent), "all messages")
        finally:
            for consumer in consumers:
                consumer.kill()
                consumer.wait()
        assert Counter(processed()) == Counter(map(ulid_text, sent))


class Noting:
    """Notes which messages the receiver says that it has stored."""

    def __init__(self, inner: GuardedTransport) -> None:
        self._inner = inner
        self.stored: set[str] = set()

    async def send(self, address: str, request: Request) -> Reply:
        reply = await self._inner.send(address, request)
        if request.path == wire.DELIVER and reply.status == 200:
            self.stored.update(msgspec.json.decode(reply.body)["stored"])
        return reply

    async def hasten(self, address: str) -> None:
        await self._inner.hasten(address)

    def hints(self, address: str, headers: Mapping[str, str]) -> Any:
        return self._inner.hints(address, headers)


def consume(machine: Machine, processed: Path, lease: str = "2s") -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*MORTAL, sys.executable, str(CONSUMER), "sink", str(processed)],
        env=machine.environment | {"HOCKET_TEST_LEASE": lease},
        cwd=machine.root,
        stdin=subprocess.DEVNULL,
        stderr=(machine.root / "consumer.err").open("ab"),
    )


@pytest.mark.req("VX-09", "VX-10")
@pytest.mark.parametrize("total", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_all_messages_arrive_while_the_receiver_is_killed_again_and_again(tmp_path: Path, total: int) -> None:
    chance = random.Random(total)
    with machines(tmp_path, "sender", "receiver") as (sender, receiver):
        sender("init")

        async def run() -> None:
            place = Place(await asyncio.to_thread(Runtime.open, sender.home))
            place.exchanges.transport = noting = Noting(place.exchanges.transport)
            try:
                await place.serve()
                token = (
                    await asyncio.to_thread(
                        sender, "invite", "receiver", "--may", "ops:all", "--address", place.address, "--json"
                    )
                ).json["token"]
                await asyncio.to_thread(receiver, "join", token)
                address = await asyncio.to_thread(receiver.serve)
                port = re.sub(r".*:", "", address)
                place.befriend(address)
                place.keep_in_touch()
                await asyncio.to_thread(_kill_again_and_again, place, receiver, noting, port, total, chance)
            finally:
                await place.close()

        asyncio.run(run())
        verify(sender, receiver)


def _kill_again_and_again(
    place: Place, receiver: Machine, noting: Noting, port: str, total: int, chance: random.Random
) -> None:
    path, to, sent = receiver.root / "processed", f"sink@{receiver.node}", list[str]()
    kills = max(4, total // 500)

    def processed() -> list[str]:
        return path.read_text().split() if path.exists() else []

    while len(set(processed())) < total:
        consumer = consume(receiver, path)
        try:
            goal = min(total, len(processed()) + max(1, chance.randint(total // (2 * kills), total // kills)))
            while len(sent) < total and len(sent) < goal + total // 10:
                drafts = [MessageDraft(to, f"number {n}".encode(), "source") for n in range(chance.randint(1, 20))]
                drafts = drafts[: total - len(sent)]
                made = place.log.run(lambda tx, drafts=drafts: [inbox.send(tx, place.runtime.blobs, d) for d in drafts])
                sent += [ulid_text(message_id) for message_id in made]
            until(lambda goal=goal: len(processed()) >= goal, f"{goal} of {total} messages")
        finally:
            consumer.kill()
            consumer.wait()
            receiver.cut_power()
        _check(receiver, noting, processed())
        if len(set(processed())) < total:
            receiver.serve("--port", port)
    assert Counter(processed()) == Counter(dict.fromkeys(sent, 1))
    assert noting.stored


def _check(receiver: Machine, noting: Noting, processed: list[str]) -> None:
    """Right after a kill: what was acknowledged to the sender is stored, and what is acknowledged was processed."""
    with receiver.runtime.read() as session:
        here = {ulid_text(message.id) for message in session.each_message()}
        rows = session.ops_of_variants((number_of(AcknowledgeMessage),))
        acknowledged = {ulid_text(row.key) for row in rows if row.key is not None and not row.reason}
    assert noting.stored <= here
    assert acknowledged <= set(processed) <= here
    assert len(set(processed)) == len(processed)
