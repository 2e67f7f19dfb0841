"""Events over HTTP: a real server of a real home, listeners over real sockets, kills and resumes."""

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest

import hocket
from hocket.api import Service, programs
from hocket.node.runtime import Runtime
from tests.cli.fork_server import start_command
from tests.server.served import PATIENCE_S, ROOT, Served, environment, serving
from tests.waiting import wait_for

LINES = "application/x-ndjson"


class Listening:
    """A listener, which reads on a thread of its own. `source` is the address that it comes from."""

    def __init__(self, served: Served, token: str, query: str = "", source: str = "", **headers: str) -> None:
        where = urlsplit(served.address)
        self._connection = http.client.HTTPConnection(
            where.hostname or "", where.port, timeout=PATIENCE_S, source_address=(source, 0) if source else None
        )
        sent = {
            "Authorization": f"Bearer {token}",
            "Accept": "text/event-stream",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        self._connection.request("GET", f"/v1/events{query}", headers=sent)
        self._reply = self._connection.getresponse()
        self.status, self.type = self._reply.status, self._reply.headers["content-type"]
        self.lines: list[str] = []
        self.is_over = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self._reply.readline():
                self.lines.append(line.decode().rstrip("\n"))
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            pass
        self.is_over.set()

    @property
    def events(self) -> list[Any]:
        texts = [line.removeprefix("data: ") for line in list(self.lines) if line.startswith(("data: ", "{"))]
        return [json.loads(text) for text in texts]

    @property
    def place(self) -> str:
        """What a browser sends as Last-Event-ID."""
        return [line.removeprefix("id: ") for line in list(self.lines) if line.startswith("id: ")][-1]

    def wait(self, count: int) -> list[Any]:
        return wait_for(lambda: self.events if len(self.events) >= count else [], f"{count} events, not {self.events}")

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        with Runtime.init(path, name="box") as runtime:
            self.token = programs.create(Service(runtime), "owner", ["all"]).token

    def token_for(self, name: str, *may: str) -> str:
        with Runtime.open(self.path) as runtime:
            return programs.create(Service(runtime), name, may).token

    def submit(self, *kinds: str) -> list[str]:
        with closing(hocket.open_sync(self.path)) as node:
            return [node.submit(kind).job_id for kind in kinds]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def served(home: Home) -> Iterator[Served]:
    with serving(home.path) as running:
        yield running


def types(events: list[Any]) -> list[str]:
    return [each["type"] for each in events]


def test_a_listener_hears_what_happens_to_a_job_with_its_fence(home: Home, served: Served) -> None:
    (job_id,) = home.submit("acme.render")
    listening = Listening(served, home.token, "?after=0&kind=acme.")
    assert (listening.status, listening.type) == (200, "text/event-stream")
    (submitted,) = listening.wait(1)
    node = submitted["author"]
    assert (submitted["type"], submitted["subject"]) == ("job.submitted", job_id)
    assert (submitted["submitter"], submitted["fence"], submitted["source"]) == (node, None, f"/v1/nodes/{node}")
    # A worker fails twice: the first time the job is tried again.
    handlers = home.path.parent / "handlers.py"
    handlers.write_text(
        "import hocket\n\n\n@hocket.job('acme.render', retries=1, backoff='1ms')\n"
        "def render(ctx):\n    raise ValueError('it broke')\n"
    )
    worker = start_command(["--home", str(home.path), "work", str(handlers), "--until-idle"], environment({}), ROOT)
    try:
        events = listening.wait(5)
    finally:
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)
        listening.close()
    of_job = [each for each in events if each["subject"] == job_id]
    assert types(of_job) == ["job.submitted", "job.claimed", "job.try_failed", "job.claimed", "job.failed"]
    assert [each["fence"] for each in of_job] == [None, 1, 1, 2, 2]
    assert of_job[-1]["detail"] == "ValueError: it broke"
    assert [each["seq"] for each in events] == sorted({each["seq"] for each in events})
    assert served.ask("GET", of_job[0]["source"], home.token).status == 200


def test_a_listener_goes_on_after_any_time_without_gap_or_repetition(home: Home) -> None:
    with serving(home.path) as served:
        home.submit("acme.a", "other.b")
        listening = Listening(served, home.token, "?after=0&kind=acme.", Accept="text/event-stream")
        (first,) = listening.wait(1)
        listening.close()
        home.submit("acme.c")
        again = Listening(served, home.token, "?after=0&kind=acme.", Last_Event_ID=str(first["seq"]))
        (second,) = again.wait(1)
        assert second["kind"] == "acme.c"
        again.close()
    # The server is away, and the log goes on.
    home.submit("acme.d")
    with serving(home.path) as served:
        home.submit("acme.e")
        # It is JSON lines unless the program accepts events.
        for accept, name in (("*/*", LINES), (LINES, LINES), ("application/jsonl", "application/jsonl")):
            later = Listening(served, home.token, f"?kind=acme.&after={second['seq']}", Accept=accept)
            assert later.type == name
            assert [each["kind"] for each in later.wait(2)] == ["acme.d", "acme.e"]
            later.close()


def test_a_killed_server_loses_no_event(home: Home) -> None:
    words = ["--home", str(home.path), "serve", "--port", "0", "--json"]
    heard: list[Any] = []
    place = "0"
    submitted: list[str] = []
    for _ in range(3):
        ours, theirs = os.pipe()
        process = start_command(words, environment({}), ROOT, (theirs, 2))
        os.close(theirs)
        with open(ours) as said:
            served = Served(home.path, json.loads(said.readline())["address"])
            listening = Listening(served, home.token, "?type=job.submitted", Last_Event_ID=place)
            submitted += home.submit("acme.a", "acme.b", "acme.c")
            # It is killed somewhere among them.
            wait_for(lambda: listening.events, "an event")  # noqa: B023
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
            assert listening.is_over.wait(PATIENCE_S)
        heard += listening.events
        place = str(heard[-1]["seq"])
        listening.close()
    with serving(home.path) as served:
        last = Listening(served, home.token, "?type=job.submitted", Last_Event_ID=place)
        missing = len(submitted) - len(heard)
        heard += last.wait(missing)[:missing] if missing else []
        last.close()
    assert [each["subject"] for each in heard] == submitted


def test_a_place_that_the_log_does_not_have_is_gone(home: Home) -> None:
    home.submit("acme.a", "acme.b")
    # The beginning of the log is archived.
    with closing(apsw.Connection(str(next(home.path.glob("*.db"))))) as database:
        database.execute("DELETE FROM ops WHERE seq <= 2")
    with serving(home.path) as served:
        answer = served.ask("GET", "/v1/events?after=0", home.token)
        assert (answer.status, answer.headers["content-type"]) == (410, "application/problem+json")
        assert (answer.json["type"], answer.json["first"]) == ("/v1/errors/place-gone", 2)
        ahead = served.ask("GET", "/v1/events", home.token, headers={"Last-Event-ID": "4711"})
        assert (ahead.status, ahead.json["first"]) == (410, 2)
        listening = Listening(served, home.token, f"?after={answer.json['first']}")
        assert [each["kind"] for each in listening.wait(2)] == ["acme.a", "acme.b"]
        listening.close()
        for bad in ("x", "-1", "²", "9" * 30):
            assert (
                served.ask(
                    "GET", "/v1/events", home.token, headers={"Last-Event-ID": bad.encode().decode("latin-1")}
                ).status
                == 400
            )


def test_a_token_sees_what_its_grants_allow(home: Home, served: Served) -> None:
    tokens = {name: home.token_for(name, may) for name, may in (("jobs", "job:read:acme."), ("rows", "row:write:t/"))}
    tokens |= {
        "locks": home.token_for("locks", "lock:acquire:file:src/"),
        "nothing": home.token_for("nothing", "mesh:read"),
    }
    heard = {name: Listening(served, token, "?after=0") for name, token in tokens.items()}
    everything = Listening(served, home.token, "?after=0")
    home.submit("other.a", "acme.b")
    assert served.ask("POST", "/v1/locks", home.token, {"keys": ["file:src/a"], "ttl_ms": 60_000}).status == 201
    for row in ("t/k", "u/k"):
        assert served.ask("PUT", f"/v1/rows/{row}", home.token, {"value": 1}).status == 200
    home.submit("acme.last")
    wait_for(lambda: "acme.last" in str(everything.events))
    assert {"job.submitted", "lock.requested", "row.written", "delegation.issued"} <= set(types(everything.events))
    assert [each["kind"] for each in heard["jobs"].wait(2)] == ["acme.b", "acme.last"]
    assert [(each["type"], each["subject"]) for each in heard["rows"].wait(1)] == [("row.written", "t/k")]
    (lock,) = heard["locks"].wait(1)
    assert (lock["type"], lock["detail"], lock["agent"]) == ("lock.requested", "file:src/a", "owner")
    # What another may not see takes the listener's place on all the same, with the next sign of life.
    assert types(heard["nothing"].events) == ["coordinator.designated"]
    for each in (*heard.values(), everything):
        each.close()
    assert served.ask("GET", "/v1/events", "hkt_" + "0" * 12 + "_" + "a" * 43).status == 401


def test_filters_name_a_job_types_and_a_submitter(home: Home, served: Served) -> None:
    first, second = home.submit("acme.a", "acme.b")
    served.ask("POST", f"/v1/jobs/{first}/cancel", home.token, {"reason": "no"})
    by_job = Listening(served, home.token, f"?after=0&job={first}")
    assert types(by_job.wait(2)) == ["job.submitted", "job.cancelled"]
    by_type = Listening(served, home.token, "?after=0&type=job.cancelled,row.")
    assert [each["subject"] for each in by_type.wait(1)] == [first]
    by_node = Listening(served, home.token, "?after=0&submitter=box&type=job.submitted")
    assert [each["subject"] for each in by_node.wait(2)] == [first, second]
    for each in (by_job, by_type, by_node):
        each.close()
    unknown = served.ask("GET", "/v1/events?submitter=nobody", home.token)
    assert (unknown.status, "nobody" in unknown.json["message"]) == (404, True)
    assert served.ask("GET", f"/v1/events?job={'0' * 26}", home.token).status == 404
    assert served.ask("GET", "/v1/events?type=,", home.token).status == 400


def test_a_stop_of_the_server_ends_streams_at_once(home: Home) -> None:
    with serving(home.path) as served:
        listening = [Listening(served, home.token) for _ in range(8)]
    # `serving` has waited for its end.
    assert all(each.is_over.wait(PATIENCE_S) for each in listening)
