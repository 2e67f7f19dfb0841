"""`--bus` and `hocket status`: a server that is there, one that is not, one that refuses, and bad addresses."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from hocket.node.variables import BUS, BUS_CREDENTIALS
from tests.bus.nats_server import NatsServer
from tests.cli.conftest import PATIENCE_S, TASKS, Program, until
from tests.ports import free_port


def bus_of(hocket: Program, *, is_connected: bool) -> dict[str, object]:
    """What `status` says of the one connection, once it says that it is connected, or why it is not."""

    def look() -> dict[str, object] | None:
        found: list[dict[str, object]] = hocket("status", "--json", code=0).json["buses"]
        is_told = found and found[0]["is_connected"] is is_connected and found[0]["detail"] != "connecting"
        return found[0] if is_told else None

    shown = until(look, "the state of the bus")
    assert shown is not None
    return shown


def stopped(hocket: Program, process: "subprocess.Popen[str]") -> None:
    process.terminate()
    hocket.finished(process)


@pytest.mark.parametrize("command", [["work", "tasks.py"], ["serve", "--port", "0"]], ids=["work", "serve"])
def test_a_long_command_connects_and_the_status_shows_it(hocket: Program, tmp_path: Path, command: list[str]) -> None:
    with NatsServer(tmp_path, "authorization { user: me, password: SECRET }") as server:
        url = server.url.replace("//", "//me:SECRET@")
        process = hocket.start(*command, "--bus", url)
        shown = bus_of(hocket, is_connected=True)
        assert shown["server"] == server.url.replace("//", "//…@") and shown["process"] == process.pid
        said = hocket("status", code=0).out
        assert re.search(rf"bus\s+{re.escape(str(shown['server']))}, process {process.pid}: connected for ", said)
        assert "SECRET" not in said
        stopped(hocket, process)
    assert hocket("status", "--json").json["buses"] == []


@pytest.mark.slow
def test_work_goes_on_without_a_server_and_with_one_that_refuses(
    hocket: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NatsServer(tmp_path, "authorization { user: me, password: right }") as server:
        for url, why in ((f"nats://127.0.0.1:{free_port()}", "refused|Connect"), (server.url, "Authorization")):
            monkeypatch.setenv(BUS, url)
            process = hocket.start("work", "tasks.py")
            # A server that refuses may also be seen to hang up, before it has said why.
            until(lambda why=why: re.search(why, str(bus_of(hocket, is_connected=False)["detail"])), why)
            until(lambda why=why: re.search(why, hocket("doctor").out), why)
            said = hocket("status").out
            assert "away for" in said and "work goes on without it" in said
            hocket("submit", "test.echo", "--wait-for", "30s", code=0)
            stopped(hocket, process)


def test_a_bad_address_is_one_sentence(hocket: Program) -> None:
    url = "nats://me:SECRET@h:0"
    said = hocket("work", "tasks.py", "--until-idle", "--bus", url, code=2).sentence
    assert said.startswith("bad --bus: ") and "SECRET" not in said
    assert "bad HOCKET_BUS" in hocket("doctor", environment={BUS: url}, code=2).err
    said = hocket("serve", "--port", "0", environment={BUS: url}, code=2).sentence
    assert said.startswith(f"bad {BUS}: ") and "SECRET" not in said


def test_missing_credentials_are_one_sentence(hocket: Program) -> None:
    given = {BUS: "nats://h", BUS_CREDENTIALS: "/nowhere/bus.creds"}
    assert "/nowhere/bus.creds" in hocket("work", "tasks.py", "--until-idle", environment=given, code=2).sentence


def test_crash_logs_have_no_password_of_a_bus() -> None:
    from hocket.cli.environment import redacted

    said = redacted(
        "nats://me:SECRET@a:1,tls://me:SE@CRET@b and SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    )
    assert said == "nats://[removed]@a:1,tls://[removed]@b and [removed]"


@pytest.mark.req("GR-05")
def test_a_result_is_published_on_the_topic_of_its_kind(tmp_path: Path) -> None:
    """A plain subscriber of NATS hears of a job when it is ready and when it has ended."""
    (tmp_path / "tasks.py").write_text(TASKS)
    with NatsServer(tmp_path) as nats, socket.create_connection(("127.0.0.1", nats.port), PATIENCE_S) as listener:
        listener.sendall(b'CONNECT {"verbose":false}\r\nSUB hocket.*.results.> 1\r\nPING\r\n')
        hocket, heard = Program(tmp_path / "home"), b""
        hocket("init", code=0)
        (hocket.home / "config.toml").write_text(f'[bus]\nurl = "{nats.url}"\n')
        server = hocket.start("serve", "--port", "0", "--json")
        assert server.stdout is not None and server.stdout.readline()
        job_id = hocket.submit("test.echo", '{"n": 1}')
        hocket("work", "tasks.py", "--until-idle", code=0)
        while f"{job_id} succeeded".encode() not in heard:
            received = listener.recv(65536)
            assert received, heard
            heard += received
        assert b".results.test.echo " in heard
        hocket.end_started()
