"""`hocket mesh serve`, `peers` and `sync` as processes of their own, and what becomes of the others when one is
killed.
"""

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket.kernel.mesh_rules import STRICT
from hocket.mesh import peers
from hocket.node.runtime import Runtime
from tests.cli.conftest import TASKS, Program, until


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Programs on homes of their own, by name: the first is the owner's, the others are further nodes of it."""
    (tmp_path / "tasks.py").write_text(TASKS)
    made: dict[str, Program] = {}

    def make(name: str) -> Program:
        if name not in made:
            here = Program(tmp_path / name)
            first = next(iter(made.values()), None)
            here("init", *([] if first is None else ["--user-key", first.home / "user.key"]), code=0)
            made[name] = here
        return made[name]

    yield make
    for each in made.values():
        for process in each.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def serving(hocket: Program, *options: object) -> tuple[str, int]:
    """Starts a server and waits for its address; also gives its process id."""
    process = hocket.start("serve", "--port", "0", "--json", *options)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    return said["address"], said["process"]


def ops(hocket: Program) -> int:
    with Runtime.open(hocket.home) as runtime, runtime.store.read() as session:
        return session.head().seq


def test_two_homes_exchange_by_hand(program: Callable[[str], Program]):
    a, b = program("a"), program("b")
    a.submit("test.echo", "{}")
    address, _ = serving(a)
    assert b("peers", "add", address, code=0).out.startswith(f"peer {address} added")
    done = b("sync", code=0)
    assert done.out.split("\t")[:2] == [address, "ok"]
    assert ops(a) == ops(b)
    again = b("sync", "--peer", address, "--json", code=0).json
    assert (again[0]["pulled"], again[0]["pushed"], again[0]["state"]) == (0, 0, "ok")
    listed = b("peers", "list", "--json", code=0).json
    assert [each["state"] for each in listed["peers"]] == ["ok"]
    assert listed["silent_coordinator"] is None
    assert b("peers", "remove", address, code=0).out == f"peer {address} removed\n"
    assert b("peers", "remove", address, code=2).sentence.startswith("no peer at")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_cleanly(program: Callable[[str], Program], number: signal.Signals):
    a = program("a")
    address, _ = serving(a)
    a.started[0].send_signal(number)
    assert a.finished(a.started[0], 130 if number is signal.SIGINT else 0).err == ""
    b = program("b")
    b("peers", "add", address, code=0)
    unreachable = b("sync", code=5)
    assert "\tunreachable\t" in unreachable.out
    assert "Connection refused" in unreachable.sentence


def test_a_server_says_what_it_refused(program: Callable[[str], Program]):
    a = program("a")
    address, _ = serving(a)
    stranger = Program(a.home.parent / "stranger")
    stranger("init", code=0)
    stranger("peers", "add", address, code=0)
    refused = stranger("sync", code=1)
    assert "\trefused\t" in refused.out
    a.started[0].send_signal(signal.SIGTERM)
    assert "refused 1: an unknown node" in a.finished(a.started[0]).err


@pytest.mark.req("LW-30")
def test_a_pause_is_an_exit_code_and_a_line(program: Callable[[str], Program]):
    a, b = program("a"), program("b")
    address, _ = serving(a)
    b("peers", "add", address, code=0)
    b("sync", code=0)
    with Runtime.open(b.home) as runtime:
        runtime.set_rules(STRICT)
    paused = b("sync", code=1)
    assert "\tpaused\t" in paused.out
    listed = b("peers", "list", "--json").json["peers"][0]
    assert listed["state"] == "paused"
    assert listed["detail"].count("blake3:") == 2
    assert b("peers", "resume", address, code=0).out.startswith(f"peer {address} resumed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sync"], "this node has no peers"),
        (["sync", "--peer", "http://host:1"], "no peer at http://host:1"),
        (["sync", "--peer", "ftp://host"], "is not an address"),
        (["peers", "add", "http://user@host"], "is not an address"),
        (["peers", "add", "http://host", "--pin", "00"], "not a SHA-256 fingerprint"),
        (["peers", "add", "http://host", "--pin", "00" * 32], "only an https:// address"),
        (["peers", "add", "https://host", "--ca", "/nowhere"], "no file at /nowhere"),
        (["peers", "resume", "http://host"], "no peer at"),
        (["serve", "--cert", "/nowhere"], "given together"),
        (["serve", "--host", "no.such.host.invalid"], "not a host of this machine"),
        (["serve", "--port", "0", "--announce"], "only this machine can reach"),
        (["serve", "--address", "nonsense://x"], "is not an address"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(program: Callable[[str], Program], arguments: list[str], said: str):
    assert said in program("a")(*arguments, code=2).sentence


def test_a_taken_port_is_said_in_a_sentence(program: Callable[[str], Program]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "choose another --port" in program("a")("serve", "--port", port, code=5).sentence


@pytest.mark.req("LW-40")
def test_another_process_keeps_in_touch_when_the_first_is_killed(program: Callable[[str], Program]):
    a, b = program("a"), program("b")
    address, _ = serving(a)
    b("peers", "add", address, code=0)
    first = b.start("serve", "--port", "0")
    until(lambda: ops(a) == ops(b), "the first exchange")
    second = b.start("work", "tasks.py", "--kinds", "test.fail")
    third = b.start("work", "tasks.py", "--kinds", "test.fail")
    for process in (first, second, third):
        b.submit("test.echo", "{}")
        until(lambda: ops(a) == ops(b), "an exchange")
        a.submit("test.echo", "{}")
        until(lambda: ops(a) == ops(b), "an exchange")
        process.kill()
        process.wait()


def test_a_worker_keeps_in_touch(program: Callable[[str], Program]):
    a, b = program("a"), program("b")
    address, _ = serving(a)
    b("peers", "add", address, code=0)
    b.start("work", "tasks.py")
    job = b.submit("test.echo", "{}")
    until(lambda: a("show", job).code == 0, "the job to be known elsewhere")
    listed = until(lambda: b("peers", "list", "--json").json["peers"], "the peer")
    assert listed[0]["state"] == peers.OK


@pytest.mark.req("LW-39")
def test_a_worker_elsewhere_runs_what_the_owner_submits(program: Callable[[str], Program]):
    """The owner's node is the arbiter: the claim goes there, its word comes back, and so does the result."""
    a, b = program("a"), program("b")
    address, _ = serving(a)
    b("peers", "add", address, code=0)
    b.start("work", "tasks.py")
    done = a("submit", "test.echo", '{"n": 7}', "--wait", "--json", code=0).json
    assert done["result"] == {"n": 7}
    job = done["id"] if "id" in done else done["job_id"]
    until(lambda: b.show(job)["state"] == "succeeded", "the worker's own node to know")
