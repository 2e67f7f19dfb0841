"""What users submit and send while the database server of their home is away: it is kept in the home, in order, and
written under its ids when the server answers.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import hocket as library
from hocket.errors import StoreAway
from tests.cli.conftest import TASKS, Program, until
from tests.libsql_server import new_server
from tests.postgres_server import Server

JOBS = 5


class Database(NamedTuple):
    address: str
    stop: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture(params=["postgres", "libsql"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "libsql":
        sqld = new_server()
        yield Database(sqld.address, sqld.kill, sqld.start)
        return
    server = Server()
    try:
        yield Database(server.new_database(), lambda: server.stop(immediate=True), server.start)
    finally:
        server.remove()


@pytest.fixture
def hocket(database: Database, tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "tasks.py").write_text(TASKS)
    program = Program(tmp_path / "home")
    program("init", "--store", database.address, code=0)
    yield program
    program.end_started()


@pytest.mark.req("VX-16")
def test_jobs_and_messages_are_kept_and_delivered_in_order_under_their_ids(
    hocket: Program, database: Database, tmp_path: Path
) -> None:
    before = hocket.submit("test.echo", '{"n": -1}')
    database.stop()
    kept = [hocket("submit", "test.echo", json.dumps({"n": n}), "--priority", "3", code=0) for n in range(JOBS)]
    assert all("is kept in the home" in each.err for each in kept)
    told = hocket("submit", "test.echo", '{"n": 0}', "--json", code=0).json
    assert told["created"] is True and "is kept in the home" in told["waits_here"]
    (tmp_path / "notes.txt").write_text("the notes")
    first = hocket("send", "editor", "first", "--type", "review", "--attach", tmp_path / "notes.txt", code=0)
    second = hocket("send", "editor", "second", "--reply-to", first.out.strip(), "--json", code=0).json
    assert second["state"] == "kept"
    batch = '{"kind": "test.echo", "name": "b", "after": "a"}\n{"kind": "test.echo", "name": "a"}\n'
    lines = hocket("submit", "--batch", "-", "--json", input=batch, code=0)
    later, earlier = (each["job_id"] for each in lines.json)
    database.start()

    expected = [each.job_id for each in kept] + [told["job_id"], earlier, later]
    new = hocket.submit("test.echo")
    found = [each["job_id"] for each in hocket("jobs", "--json", code=0).json]
    assert sorted(found) == sorted([before, *expected, new])
    scheduled = [hocket.show(each)["scheduled_ms"] for each in [before, *expected, new]]
    assert scheduled == sorted(scheduled)
    assert hocket.show(expected[0])["priority"] == 3 and hocket.show(later)["after"] == [earlier]
    mail = {each["id"]: each for each in hocket("inbox", "--agent", "editor", "--json", code=0).json}
    assert list(mail) == [first.out.strip(), second["id"]]
    assert mail[second["id"]]["reply_to"] == first.out.strip()
    assert [each["name"] for each in mail[first.out.strip()]["attachments"]] == ["notes.txt"]
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert [hocket.show(each.job_id)["result"] for each in kept] == [{"n": n} for n in range(JOBS)]
    hocket("log", "verify", code=0)
    hocket("log", "rebuild", code=0)
    assert hocket.show(later)["outcome"] == "succeeded"


@pytest.mark.req("VX-16")
def test_a_worker_delivers_what_was_kept_and_a_killed_one_does_so_once(hocket: Program, database: Database) -> None:
    database.stop()
    kept = [hocket("submit", "test.echo", code=0).job_id for _ in range(JOBS)]
    worker = hocket.start("work", "tasks.py")
    database.start()
    spool = hocket.home / "spool"
    until(lambda: not (spool / "kept.jsonl").exists() and not (spool / "sending.jsonl").exists())
    until(lambda: all(hocket.show(each)["outcome"] == "succeeded" for each in kept))
    worker.terminate()
    hocket.finished(worker)
    assert len(hocket("jobs", "--json", code=0).json) == JOBS


@pytest.mark.req("VX-16")
def test_a_request_that_was_sent_before_the_sender_died_counts_once(hocket: Program, database: Database) -> None:
    """The sender dies after the commit: the file is still there, and the next process sends it again."""
    database.stop()
    job_id, message = (
        hocket("submit", "test.echo", code=0).job_id,
        hocket("send", "editor", "hello", code=0).out.strip(),
    )
    line = (hocket.home / "spool" / "kept.jsonl").read_bytes()
    database.start()
    hocket("jobs", code=0)
    (hocket.home / "spool" / "sending.jsonl").write_bytes(line)
    # A process that was killed while it wrote left half a line.
    (hocket.home / "spool" / "kept.jsonl").write_bytes(line[: len(line) // 3])
    assert [each["job_id"] for each in hocket("jobs", "--json", code=0).json] == [job_id]
    assert [each["id"] for each in hocket("inbox", "--agent", "editor", "--json", code=0).json] == [message]


@pytest.mark.req("VX-16")
def test_what_must_be_decided_now_is_refused(hocket: Program, database: Database) -> None:
    job_id = hocket.submit("test.echo")
    database.stop()
    for command in (
        ("submit", "test.echo", "--unique", "once"),
        ("cancel", job_id),
        ("lock", "acquire", "file:a", "--agent", "ann"),
        ("inbox", "--agent", "editor", "--claim", "1"),
        ("show", job_id),
    ):
        hocket(*command, code=5)
    assert not (hocket.home / "spool" / "kept.jsonl").exists()
    waiting = hocket("submit", "test.echo", "--wait", code=5)
    database.start()
    assert hocket.show(waiting.job_id)["state"] == "pending"


@pytest.mark.req("VX-16")
def test_a_kept_request_that_the_log_refuses_spoils_no_other_and_is_shown(hocket: Program, database: Database) -> None:
    database.stop()
    bad = hocket("submit", "test.echo", "--after", "01J9Z0000000000000000000ZZ", code=0).job_id
    good = hocket("submit", "test.echo", code=0).job_id
    database.start()
    told = hocket("jobs", "--json", code=0)
    assert [each["job_id"] for each in told.json] == [good]
    assert bad in told.err and "is refused now" in told.err
    assert "1 kept request when sent" in hocket("status", code=0).out
    (line,) = (hocket.home / "spool" / "refused.jsonl").read_text().splitlines()
    assert "no job" in json.loads(line)["refused"]


@pytest.mark.req("VX-16")
def test_a_program_that_has_the_node_open_submits_and_sends_on(hocket: Program, database: Database) -> None:
    with library.open(hocket.home) as node:
        node.submit("test.echo", n=0)
        database.stop()
        kept = [node.submit("test.echo", n=n).job_id for n in range(1, JOBS)]
        chain = [each.job_id for each in node.chain(("test.echo", {}), ("test.echo", {}))]
        message = node.send("editor", {"hello": 1})
        once = library.job("test.echo", unique="once")(lambda ctx: None)
        with pytest.raises(StoreAway):
            node.submit(once)
        database.start()
        last = node.submit("test.echo", n=JOBS).job_id
        assert [each["id"] for each in hocket("inbox", "--agent", "editor", "--json", code=0).json] == [message]
        times = [hocket.show(each)["scheduled_ms"] for each in [*kept, *chain, last]]
        assert times == sorted(times) and hocket.show(chain[1])["after"] == [chain[0]]
