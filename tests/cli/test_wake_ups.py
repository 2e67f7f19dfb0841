"""Processes of one node on two machines that share a store wake each other. A copy of the home stands for the second
machine: it has the same keys and store, and processes of its own. Its worker hardly ever looks on its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S, Program, home_in_postgres, until
from tests.postgres_relay import Relay
from tests.postgres_server import server

SLOW_WORKER = """
import sys
from hocket.cli import main
from hocket.work.batch import BatchResult
BatchResult.patience = lambda self, chance: 3600.0
sys.argv = ["hocket", "work", "tasks.py"]
main()
"""


@pytest.fixture
def hocket(tmp_path: Path) -> Program:
    return home_in_postgres(tmp_path)


@pytest.fixture
def elsewhere(hocket: Program, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker on the other machine that has looked once and found nothing."""
    there = tmp_path / "there"
    address = (hocket.home / "store").read_text().strip()
    Program(there)("init", "--store", address, "--user-key", str(hocket.home / "user.key"), code=0)
    environment = hocket.environment(there)
    worker = subprocess.Popen([sys.executable, "-c", SLOW_WORKER], env=environment, cwd=tmp_path)
    try:
        until(lambda: hocket("status", "--json", code=0).json["workers"], "a worker")
        yield worker
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)


@pytest.mark.req("VX-01")
def test_a_job_begins_on_another_machine_at_once_also_after_the_server_restarts(
    hocket: Program, elsewhere: "subprocess.Popen[bytes]"
) -> None:
    for n in range(3):
        assert hocket("submit", "test.echo", f'{{"n": {n}}}', "--wait", code=0)
    server().stop(immediate=True)
    server().start()
    job_id = hocket.submit("test.echo", '{"n": 3}')
    until(lambda: hocket.show(job_id)["state"] == "succeeded", "the job")
    assert hocket("submit", "test.echo", '{"n": 4}', "--wait", code=0)


@pytest.mark.touches("VX-18")
def test_doctor_says_how_processes_wake_up(hocket: Program) -> None:
    def said(**environment: str) -> tuple[str, str]:
        found = hocket("doctor", "--json", environment=environment).json
        ((verdict, says),) = [(each["verdict"], each["says"]) for each in found if each["check"] == "wake-ups"]
        return verdict, says

    address = (hocket.home / "store").read_text().strip()
    assert said() == ("ok", "listening on the store's own address")
    assert said(HOCKET_STORE_LISTEN=address) == ("ok", "listening past the pooler, on HOCKET_STORE_LISTEN")
    with closing(Relay(sessions=2)) as relay:
        name = address.partition("@/")[2].partition("?")[0]
        pooled = f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"
        verdict, says = said(HOCKET_STORE=pooled)
        assert verdict == "warn" and says.startswith("polling, because the store's address leads to a pooler; set")
        assert said(HOCKET_STORE=pooled, HOCKET_STORE_LISTEN=address)[0] == "ok"
        assert "HOCKET_STORE_LISTEN leads to a pooler" in said(HOCKET_STORE_LISTEN=pooled)[1]
    away = said(HOCKET_STORE_LISTEN="postgresql://postgres:hush@127.0.0.1:1/x")
    assert away[0] == "warn" and away[1].startswith("polling: cannot connect") and "hush" not in away[1]
    wrong = hocket("status", environment={"HOCKET_STORE_LISTEN": "mysql://hush@host/db"}, code=2).sentence
    assert wrong.startswith("bad HOCKET_STORE_LISTEN") and "hush" not in wrong
