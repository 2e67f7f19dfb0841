"""Jobs in git, announced to other machines over a real NATS server."""

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest

from hocket.bus.messages import read_subject
from hocket.events import ignore
from hocket.extensions.git.announcements import announce, hearing
from hocket.extensions.git.pending_jobs import pending_subject
from hocket.node.message_bus import bus_settings, open_message_bus
from tests.bus.nats_server import NatsServer
from tests.cli.conftest import Program
from tests.mesh.world import Place, world

PATIENCE_S = 60.0
MANIFEST = b'{"command": ["true"], "timeout": 60}'


def test_the_subject_is_the_topic_of_gatos_under_a_safe_name() -> None:
    subject = pending_subject("did:key:z6Mk")
    assert subject == "hocket.did%3Akey%3Az6Mk.gatos%2Fjobs%2Fpending.%"
    assert read_subject(subject).topic == "gatos/jobs/pending"


@pytest.mark.req("GT-07")
def test_a_job_is_announced_with_its_id_to_workers_on_other_machines(tmp_path: Path) -> None:
    repository = tmp_path / "jobs.git"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    (tmp_path / "job.yaml").write_bytes(MANIFEST)

    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            b.befriend(a.address, a.id)
            await b.exchanges.visit(a.address)
            with NatsServer(tmp_path) as server:
                await asyncio.to_thread(submitted, a, b, server)

    def submitted(a: Place, b: Place, server: NatsServer) -> None:
        program, settings = Program(a.runtime.home.path), bus_settings(b.runtime.home, server.url)
        assert settings is not None
        submit = ("git", "submit", str(repository), str(tmp_path / "job.yaml"), "--json")
        heard, late = threading.Event(), threading.Event()
        with hearing(b.runtime, settings, heard.set, ignore):
            made = program(*submit, environment={"HOCKET_BUS": server.url}, code=0)
            assert "did not take" not in made.err
            assert heard.wait(PATIENCE_S)
        with hearing(b.runtime, settings, late.set, ignore):  # a worker that starts later
            assert late.wait(PATIENCE_S)
        assert asyncio.run(last(b, server)) == made.json["content_id"]

    async def last(b: Place, server: NatsServer) -> str:
        home = b.runtime.home
        bus = await open_message_bus(b.node, home, bus_settings(home, server.url), b.node.environment, ignore)
        try:
            queue = await bus.subscribe(pending_subject(b.log.user), since_s=60)
            message = await queue.get(PATIENCE_S)
            assert message is not None and message.at is not None and message.at.node != b.id
            return message.data.decode()
        finally:
            await bus.close()

    asyncio.run(test())


def test_a_bus_that_is_away_does_not_keep_a_job_from_being_submitted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("hocket.extensions.git.announcements.ANNOUNCE_S", 0.2)

    async def test() -> None:
        async with world(tmp_path, "a") as (a,):
            settings = bus_settings(a.runtime.home, "nats://127.0.0.1:9")
            assert settings is not None
            assert not await asyncio.to_thread(announce, a.runtime, settings, b"\1" * 32)

    asyncio.run(test())
