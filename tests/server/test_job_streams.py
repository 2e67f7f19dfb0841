"""Many jobs as a stream of lines, and what becomes of one job as a stream, over real sockets."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.fork_server import start_command
from tests.server.served import PATIENCE_S, ROOT, Answer, Served, environment
from tests.server.test_coordination_routes import Client

LINES = "application/x-ndjson"
HANDLERS = """
import time

import hocket


@hocket.job("streamed.words")
def words(ctx, text):
    for word in text.split():
        ctx.progress(word)
        yield word


@hocket.job("streamed.bytes")
def pieces(ctx):
    yield b"\\xff"


@hocket.job("streamed.fails", retries=0)
def fails(ctx):
    raise ValueError("it broke")
"""


@pytest.fixture(scope="module")
def owner(served: Served) -> Client:
    return Client(served, "owner", "all")


@pytest.fixture(scope="module")
def worker(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    handlers = tmp_path_factory.mktemp("handlers") / "streamed.py"
    handlers.write_text(HANDLERS)
    process = start_command(["--home", str(served.home), "work", str(handlers)], environment({}), ROOT)
    yield
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


def lines_of(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.body.splitlines() if line]


def body_of(*lines: Any) -> bytes:
    return b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines)


def test_a_job_is_submitted_with_its_options(owner: Client):
    answer = owner("POST", "/v1/jobs", {"kind": "sub.one", "payload": {"n": 1}, "priority": 5, "lease_ms": 60_000})
    assert answer.status == 201 and answer.json["created"] and answer.json["kind"] == "sub.one"
    shown = owner("GET", f"/v1/jobs/{answer.json['job_id']}").json
    assert (shown["payload"], shown["priority"], shown["options"]) == ({"n": 1}, 5, {"priority": 5, "lease_ms": 60_000})
    after = owner("POST", "/v1/jobs", {"kind": "sub.two", "after": [answer.json["job_id"]], "needs": ["gpu"]}).json
    assert owner("GET", f"/v1/jobs/{after['job_id']}").json["stage"] == "blocked"
    for body in ({}, {"kind": ""}, {"kind": "a b"}, {"kind": "a", "payload": 7}, {"kind": "a", "colour": 1}):
        assert owner("POST", "/v1/jobs", body).status == 400, body
    for options in ({"lease_ms": 1}, {"priority": "x"}, {"claim": "sticky"}, {"budget": {"max_bu": 0}}, {"score": {}}):
        assert owner("POST", "/v1/jobs", {"kind": "sub.bad", **options}).status == 400, options
    assert owner("GET", "/v1/jobs?kind=sub.bad").json["items"] == []


def test_a_submit_is_repeated_under_its_key_and_by_its_unique_key(owner: Client):
    once = [owner("POST", "/v1/jobs", {"kind": "sub.keyed"}, idempotency_key="k1") for _ in range(2)]
    assert once[0].json == once[1].json and once[1].headers["idempotent-replayed"] == "true"
    first, second = (owner("POST", "/v1/jobs", {"kind": "sub.unique", "unique": "u"}).json for _ in range(2))
    assert (first["created"], second["created"], second["job_id"]) == (True, False, first["job_id"])


def test_a_token_submits_only_the_kinds_of_its_grant(served: Served, owner: Client):
    narrow = Client(served, "narrow-submitter", "job:schedule:paint.")
    assert narrow("POST", "/v1/jobs", {"kind": "paint.red"}).status == 201
    assert narrow("POST", "/v1/jobs", {"kind": "secret.plan"}).status == 403
    body = body_of({"kind": "paint.blue"}, {"kind": "secret.plan"})
    made, refused = lines_of(narrow("POST", "/v1/jobs/many", body, content_type=LINES))
    assert made["answer"]["kind"] == "paint.blue" and refused["error"]["error"] == "not_authorised"
    assert owner("GET", "/v1/jobs?kind=secret.plan").json["items"] == []
    assert Client(served, "no-submitter", "job:read")("POST", "/v1/jobs/many", body, content_type=LINES).status == 403


def test_of_many_lines_each_stands_for_itself(owner: Client):
    unknown = "01M7HVJG9XMYB0FTGAN132HCK0"
    body = body_of(
        *({"kind": "many.good", "payload": {"n": 0}}, b"{not json", b"", {"kind": "many.good", "priority": "x"}),
        *({"kind": "many.good", "after": [unknown]}, b"[" * 100_000, {"kind": "many.good", "payload": {"n": 1}}),
    )
    done = lines_of(owner("POST", "/v1/jobs/many", body, content_type=LINES))
    assert [each["line"] for each in done] == [1, 2, 4, 5, 6, 7]
    assert [each["line"] for each in done if "error" in each] == [2, 4, 5, 6]
    assert all(each["error"]["type"] == "/v1/errors/usage" for each in done if "error" in each)
    listed = owner("GET", "/v1/jobs?kind=many.good").json["items"]
    assert {each["job_id"] for each in listed} == {done[0]["answer"]["job_id"], done[5]["answer"]["job_id"]}
    assert len(listed) == 2
    assert owner("POST", "/v1/jobs/many", body).status == 415


def test_a_program_may_send_all_lines_before_it_reads(owner: Client):
    count = 3_000
    body = body_of(*({"kind": "many.bulk", "payload": {"n": n}} for n in range(count)))
    done = lines_of(owner("POST", "/v1/jobs/many", body, content_type=LINES))
    assert [each["line"] for each in done] == list(range(1, count + 1))
    assert len({each["answer"]["job_id"] for each in done}) == count


def test_a_line_is_answered_before_the_next_is_sent(served: Served, owner: Client):
    where = urlsplit(served.address)
    with socket.create_connection((where.hostname or "", where.port), timeout=PATIENCE_S) as connection:
        head = (
            f"POST /v1/jobs/many HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {owner.token}\r\n"
            f"Content-Type: {LINES}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(head.encode())
        reply: http.client.HTTPResponse | None = None
        for n in range(3):
            line = json.dumps({"kind": "many.slowly"}).encode() + b"\n"
            # A line may come in pieces.
            for piece in (line[:5], line[5:]):
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            if reply is None:
                reply = http.client.HTTPResponse(connection)
                reply.begin()
            assert json.loads(reply.readline())["line"] == n + 1
        connection.sendall(b"0\r\n\r\n")
        assert reply is not None and reply.read() == b""


def test_a_line_that_is_too_long_is_refused_and_the_next_one_done(owner: Client):
    long = b'{"kind": "many.long", "payload": {"x": "' + b"x" * (2 * 1024 * 1024) + b'"}}'
    done = lines_of(owner("POST", "/v1/jobs/many", body_of(long, {"kind": "many.long"}), content_type=LINES))
    assert ["error" in each for each in done] == [True, False]


@pytest.mark.usefixtures("worker")
def test_the_parts_of_a_job_come_in_order_and_then_its_end(owner: Client):
    job = owner("POST", "/v1/jobs", {"kind": "streamed.words", "payload": {"text": "one two three"}}).json["job_id"]
    news = lines_of(owner("GET", f"/v1/jobs/{job}/parts"))
    parts = [each["part"] for each in news if "part" in each]
    assert [(each["number"], each["value"]) for each in parts] == [(0, "one"), (1, "two"), (2, "three")]
    assert news[-1] == {"outcome": "succeeded"}
    # A program that was cut off goes on after the last part that it has.
    last = f"{parts[0]['fence']}.0"
    for more in (
        owner("GET", f"/v1/jobs/{job}/parts?after={last}"),
        owner("GET", f"/v1/jobs/{job}/parts", last_event_id=last),
    ):
        assert [each["part"]["number"] for each in lines_of(more) if "part" in each] == [1, 2]
    assert owner("GET", f"/v1/jobs/{job}/parts?after=seven").status == 400


@pytest.mark.usefixtures("worker")
def test_parts_come_as_events_to_who_accepts_them(owner: Client):
    job = owner("POST", "/v1/jobs", {"kind": "streamed.words", "payload": {"text": "one two"}}).json["job_id"]
    answer = owner("GET", f"/v1/jobs/{job}/parts", accept="text/event-stream")
    assert answer.headers["content-type"] == "text/event-stream"
    texts = [each for each in answer.body.decode().split("\n\n") if each]
    events = [dict(line.split(": ", 1) for line in each.splitlines()) for each in texts]
    assert [each["id"].partition(".")[2] for each in events if "id" in each] == ["0", "1"]
    assert events[-1]["event"] == "end" and json.loads(events[-2]["data"]) == {"outcome": "succeeded"}


@pytest.mark.usefixtures("worker")
def test_parts_can_be_bytes_and_a_job_can_fail_or_be_cancelled(owner: Client):
    def news(kind: str) -> list[dict[str, Any]]:
        job = owner("POST", "/v1/jobs", {"kind": kind}).json["job_id"]
        if kind == "streamed.nobody":
            owner("POST", f"/v1/jobs/{job}/cancel", {"reason": "not needed"})
        return lines_of(owner("GET", f"/v1/jobs/{job}/parts"))

    assert news("streamed.bytes")[0]["part"]["value"] == "/w=="
    failed, cancelled = news("streamed.fails")[-1], news("streamed.nobody")[-1]
    assert failed["outcome"] == "failed" and "it broke" in failed["error"]
    assert cancelled["outcome"] == "cancelled" and "not needed" in cancelled["error"]


def test_parts_are_for_who_may_read_the_job_and_its_artifacts(served: Served, owner: Client):
    job = owner("POST", "/v1/jobs", {"kind": "secret.parts"}).json["job_id"]
    reader = Client(served, "parts-reader", "job:read")
    assert reader("GET", f"/v1/jobs/{job}/parts").status == 403
    assert owner("GET", "/v1/jobs/01M7HVJG9XMYB0FTGAN132HCK0/parts").status == 404


def test_the_python_api_has_the_same_operations(tmp_path: Path):
    import hocket
    from hocket.api.job_operations.job_submits import NewJob
    from hocket.api.operation import Lines
    from hocket.errors import HocketError
    from hocket.node.runtime import Runtime

    with Runtime.init(tmp_path / "home"):
        pass
    with hocket.open(tmp_path / "home") as node:
        admin = hocket.admin(node)
        made = admin.submit(NewJob(kind="py.one", payload={"n": 1}))
        assert admin.job(made.job_id).kind == "py.one"
        good, bad = admin.submit_many(Lines([b'{"kind": "py.two"}', b"{}"]))
        assert not isinstance(good, HocketError) and isinstance(bad, HocketError)
        admin.cancel(made.job_id, "over")
        assert [each.outcome for each in admin.parts(made.job_id)] == ["cancelled"]
