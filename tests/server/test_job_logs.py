"""What jobs print, over real sockets: read, followed to the end, and gone on with from a place."""

import base64
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hocket.api.job_operations.job_logs import _Texts
from hocket.api.output import READ_BYTES, OutputPiece
from tests.cli.fork_server import start_command
from tests.server.served import PATIENCE_S, ROOT, Served, environment
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client
from tests.server.test_job_routes import submitted
from tests.server.test_job_streams import lines_of
from tests.waiting import wait_for as until

HANDLERS = """
import sys, time
from pathlib import Path

import hocket


@hocket.job("logged.words")
def words(ctx, text):
    print(text)


@hocket.job("logged.bytes")
def raw(ctx):
    sys.stdout.buffer.write(b"\\xff\\xfe")
    sys.stdout.flush()


@hocket.job("logged.waits")
def waits(ctx, gate):
    print("begun: \\u00e4")
    sys.stdout.flush()
    while not Path(gate).exists():
        time.sleep(0.02)
    print("ended")
"""


@pytest.fixture(scope="module")
def owner(served: Served) -> Client:
    return Client(served, "owner", "all")


@pytest.fixture(scope="module")
def worker(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handlers = tmp_path_factory.mktemp("handlers") / "logged.py"
    handlers.write_text(HANDLERS)
    with open(os.devnull, "wb") as nowhere:  # a worker also prints what its handlers print
        words = ["--home", str(served.home), "work", str(handlers)]
        process = start_command(words, environment({}), ROOT, (nowhere.fileno(), nowhere.fileno()))
    yield
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


def ended(owner: Client, job: str) -> str:
    return str(owner("GET", f"/v1/jobs/{job}/result?wait_ms=50000").json["outcome"])


def texts(pieces: list[dict[str, Any]]) -> str:
    return "".join(each["text"] for each in pieces)


@pytest.mark.usefixtures("worker")
def test_what_a_job_printed_is_read_and_gone_on_with_from_a_place(served: Served, owner: Client):
    job = submitted(served, "logged.words", json.dumps({"text": "grüße " * 30_000}))
    assert ended(owner, job) == "succeeded"
    pieces = lines_of(owner("GET", f"/v1/jobs/{job}/logs"))
    assert texts(pieces) == "grüße " * 30_000 + "\n" and len(pieces) > 2
    assert [each["start"] for each in pieces] == [0, *(each["end"] for each in pieces[:-1])]
    assert {each["fence"] for each in pieces} == {1}
    rest = lines_of(owner("GET", f"/v1/jobs/{job}/logs?after=1.{pieces[0]['end']}"))
    assert texts(rest) == texts(pieces[1:])
    events = owner("GET", f"/v1/jobs/{job}/logs", accept="text/event-stream", last_event_id=f"1.{pieces[-2]['end']}")
    assert f"id: 1.{pieces[-1]['end']}\n" in events.body.decode() and "event: end" in events.body.decode()
    assert lines_of(owner("GET", f"/v1/jobs/{job}/logs?after=1.{pieces[-1]['end']}")) == []


@pytest.mark.usefixtures("worker")
def test_the_output_of_a_running_job_is_followed_to_its_end(served: Served, owner: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    job = submitted(served, "logged.waits", json.dumps({"gate": str(gate)}))
    where = urlsplit(served.address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
    connection.request("GET", f"/v1/jobs/{job}/logs?follow=true", headers={"Authorization": f"Bearer {owner.token}"})
    reply = connection.getresponse()
    first = json.loads(next(line for line in reply if line.strip()))
    assert (first["text"], first["start"]) == ("begun: ä\n", 0), "it comes while the job runs"
    gate.touch()
    rest = [json.loads(line) for line in reply.read().splitlines() if line]
    assert texts(rest) == "ended\n" and rest[0]["start"] == first["end"]
    connection.close()


@pytest.mark.usefixtures("worker")
def test_without_follow_the_answer_is_what_there_is(served: Served, owner: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    job = submitted(served, "logged.waits", json.dumps({"gate": str(gate)}))
    until(lambda: lines_of(owner("GET", f"/v1/jobs/{job}/logs")), "the first line")
    assert texts(lines_of(owner("GET", f"/v1/jobs/{job}/logs"))) == "begun: ä\n"
    gate.touch()
    assert ended(owner, job) == "succeeded"
    pending = submitted(served, "never.run")
    assert lines_of(owner("GET", f"/v1/jobs/{pending}/logs")) == []


@pytest.mark.usefixtures("worker")
def test_output_that_is_no_text_is_base64(served: Served, owner: Client):
    job = submitted(served, "logged.bytes")
    assert ended(owner, job) == "succeeded"
    (piece,) = lines_of(owner("GET", f"/v1/jobs/{job}/logs"))
    assert piece["is_base64"] and base64.b64decode(piece["text"]) == b"\xff\xfe" and piece["end"] == 2


@pytest.mark.usefixtures("worker")
def test_a_command_has_two_streams_and_they_outlive_its_run(served: Served, owner: Client):
    done = command(served.home, "run", "--json", "--", "sh", "-c", "echo out; echo err >&2")
    assert done.returncode == 0, done.stderr
    (job,) = [each["job_id"] for each in owner("GET", "/v1/jobs?kind=hocket.run").json["items"]]
    assert texts(lines_of(owner("GET", f"/v1/jobs/{job}/logs"))) == "out\n"
    assert texts(lines_of(owner("GET", f"/v1/jobs/{job}/logs?stderr=true&follow=true"))) == "err\n"
    handler = submitted(served, "never.run")
    refused = owner("GET", f"/v1/jobs/{handler}/logs?stderr=true")
    assert refused.status == 400 and "not a command" in refused.json["message"]


def test_output_is_for_who_may_read_the_job_and_its_artifacts(served: Served):
    job = submitted(served, "logged.secret")
    for grants, status in (
        (("job:read:logged.",), 403),
        (("artifact:read:logged.",), 403),
        (("job:read:other.", "artifact:read"), 403),
        (("job:read:logged.", "artifact:read:logged."), 200),
    ):
        client = Client(
            served, f"reader-{status}-{len(grants)}-{grants[0][:7].replace(':', '-')}{grants[0][-6]}", *grants
        )
        assert client("GET", f"/v1/jobs/{job}/logs").status == status, grants
    for bad in ("after=1", "after=x.y", "after=-1.0", "follow=2", "colour=red"):
        assert client("GET", f"/v1/jobs/{job}/logs?{bad}").status == 400, bad


def test_characters_are_never_cut():
    data = ("a€" * READ_BYTES).encode()
    texts = _Texts()
    made = [
        *texts.of([OutputPiece(1, 0, data[:-1])]),
        *texts.of([OutputPiece(1, len(data) - 1, data[-1:])]),
        *texts.rest(),
    ]
    assert "".join(each.text for each in made) == data.decode() and not any(each.is_base64 for each in made)
    assert [each.start for each in made] == [0, *(each.end for each in made[:-1])]
    # What never becomes whole is not lost.
    texts = _Texts()
    cut = [*texts.of([OutputPiece(1, 0, b"a\xe2")]), *texts.of([OutputPiece(2, 0, b"b")]), *texts.rest()]
    assert [(each.fence, each.start, each.text, each.is_base64) for each in cut] == [
        (1, 0, "a", False),
        (1, 1, "4g==", True),
        (2, 0, "b", False),
    ]
