"""Messages as programs use them, async and synchronous, on one home."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hocket
from hocket.families import artifacts
from hocket.families.inbox import rules as messages
from hocket.kernel.ids import content_hash, hash_text, parse_ulid
from hocket.node.runtime import Runtime

PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home").close()
    return tmp_path / "home"


@pytest.mark.req("VX-10")
def test_a_synchronous_program_sends_receives_returns_and_acknowledges(home: Path) -> None:
    with hocket.open(home) as node:
        sent = node.send("editor", "hello", agent="writer")
        inbox = node.inbox("editor")
        (message,) = inbox.claim(lease="1m")
        assert (message.id, message.text, message.data.tries) == (sent, "hello", 1)
        assert inbox.claim() == []
        message.nack()
        (again,) = inbox.claim()
        with pytest.raises(hocket.Conflict, match="no longer holds"):
            message.ack()  # it has the same holder, but its own lease is over
        reply = again.reply({"well": "done"})
        again.ack()
        (answer,) = node.inbox("writer").claim()
        assert (answer.id, answer.json(), answer.data.reply_to) == (reply, {"well": "done"}, sent)
        for body, error in ((b"x" * 2_000_000, "more than 1048576 bytes"), ("x", "not a duration")):
            with pytest.raises(hocket.Usage, match=error):
                node.send("editor", body, ttl="7 days" if body == "x" else "7d")


@pytest.mark.req("VX-10")
def test_a_synchronous_program_asks_and_another_thread_answers(home: Path) -> None:
    with hocket.open(home) as node, hocket.open(home) as other:

        def answer() -> None:
            for message in other.inbox("oracle"):
                message.reply(message.text.upper())
                message.ack()
                return

        answering = threading.Thread(target=answer)
        answering.start()
        reply = node.ask("oracle", "why?", wait="30s", agent="pilgrim")
        answering.join(PATIENCE_S)
        assert reply.body == b"WHY?" and reply.sender.startswith("oracle@")
        with pytest.raises(TimeoutError, match="no reply from nobody"):
            node.ask("nobody", "hello?", wait="100ms")


def test_a_waiting_consumer_is_woken_by_a_message_from_another_process(home: Path) -> None:
    async def run() -> str:
        async with hocket.open(home) as node:
            waiting = asyncio.create_task(node.inbox("editor").claim(wait="1h"))
            await asyncio.sleep(0)
            send = "import hocket\nwith hocket.open() as node: print(node.send('editor', 'wake up'))"
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", send],
                env=dict(os.environ) | {"HOCKET_HOME": str(home)},
                capture_output=True,
                check=True,
            )
            (message,) = await asyncio.wait_for(waiting, PATIENCE_S)
            assert message.id == done.stdout.decode().strip()
            await message.ack()
            return message.text

    assert asyncio.run(run()) == "wake up"


def test_attachments_travel_as_artifacts(home: Path, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(b"x" * 200_000)
    with hocket.open(home) as node:
        node.send("editor", "see below", attachments=[("note.txt", b"short"), tmp_path / "large.bin"])
        (message,) = node.inbox("editor").claim()
        first, second = message.data.attachments
        assert (first.name, first.size, second.name, second.size) == ("note.txt", 5, "large.bin", 200_000)
        assert second.hash == hash_text(content_hash(b"x" * 200_000))
        with node.runtime.read() as session:
            found = session.artifact(parse_ulid(second.artifact_id))
            assert found is not None
            assert artifacts.content(session, node.runtime.blobs, found) == b"x" * 200_000


@pytest.mark.req("LW-49")
def test_an_agent_that_comes_too_late_to_a_message_for_all_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "RECEIVERS_MAX", 2)
    with hocket.open(home) as node:
        node.send("all", "hello", agent="writer")
        for agent in ("one", "two"):
            (message,) = node.inbox(agent).claim()
            message.ack()
        with pytest.raises(
            hocket.Conflict, match="three cannot receive a message to a group: too many agents"
        ) as error:
            node.inbox("three").claim()
        assert error.value.exit_code == 3
        node.send("three", "only you", agent="writer")
        (message,) = node.inbox("three").claim()
        assert message.text == "only you"
