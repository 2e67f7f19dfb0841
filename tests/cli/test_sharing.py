"""Commands on nodes that share a store in PostgreSQL, each with a home of its own; and a node with a file of its own,
which syncs with one of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.cli.conftest import PATIENCE_S, TASKS, Program, until
from tests.postgres_server import server


class Three(NamedTuple):
    first: Program
    second: Program
    third: Program
    store: str


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """The first machine's server runs. The second has joined, the third has the user's key."""
    (tmp_path / "tasks.py").write_text(TASKS)
    made = Three(*(Program(tmp_path / name) for name in ("first", "second", "third")), server().new_database())
    made.first("init", "--store", made.store, "--name", "first", code=0)
    process = made.first.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)
    token = made.first("invite", "second", "--share", "--may", "all", "--json", code=0).json["token"]
    made.second("join", token, "--store", made.store, code=0)
    made.third("init", "--store", made.store, "--user-key", made.first.home / "user.key", "--name", "third", code=0)
    yield made
    for program in made[:3]:
        program.end_started()


@pytest.mark.req("VX-18", "VX-01")
def test_three_machines_on_one_database(three: Three) -> None:
    first, second, third, _ = three
    job_id = first.submit("test.echo", '{"n": 1}')
    second("work", "tasks.py", "--until-idle", code=0)
    assert third.show(job_id)["result"] == {"n": 1}
    # Locks, messages and rows are there at once, without a sync.
    held = second("lock", "acquire", "file:a", "--agent", "ann", "--ttl", "5m", "--json", code=0).json
    assert third("lock", "acquire", "file:a", "--agent", "bob", code=3).code == 3
    second("lock", "release", "file:a", "--agent", "ann", "--fence", held["fence"], code=0)
    third("lock", "acquire", "file:a", "--agent", "bob", code=0)
    third("rows", "put", "agents", "ann", '{"busy": true}', code=0)
    assert second("rows", "get", "agents", "ann", "--json", code=0).json["value"] == {"busy": True}
    first("send", "editor", "look", code=0)
    assert third("inbox", "--agent", "editor", "--claim", 1, "--json", code=0).json
    assert not second("inbox", "--agent", "editor", "--claim", 1, "--json", code=0).json
    assert not list(first.home.parent.rglob("log.db"))
    for program in (first, second, third):
        program("log", "verify", code=0)
        assert "in PostgreSQL, shared by 3 nodes" in program("doctor", code=0).out


@pytest.mark.req("VX-18")
def test_each_node_shows_the_workers_of_all_and_one_can_be_drained(three: Three) -> None:
    first, second, third, _ = three
    worker = second.start("work", "tasks.py")

    def live() -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in third("nodes", "--live", "--json", code=0).json}

    until(lambda: live()["second"]["grade"] == "live", "the second machine's worker")
    # The first runs a server and no worker. It says itself that it is there, and what its machine has.
    assert live()["first"]["grade"] == "live" and live()["first"]["capabilities"]["cpus"]
    until(lambda: live()["second"]["capabilities"]["cpus"], "the second machine's own word")
    job_id = third.submit("test.echo", '{"n": 2}')
    until(lambda: first.show(job_id)["outcome"] == "succeeded", "the job")
    worker.terminate()
    second.finished(worker)
    first("drain", "second", code=0)
    waits = first.submit("test.echo", '{"n": 3}')
    second("work", "tasks.py", "--until-idle", code=0)
    assert first.show(waits)["state"] == "pending"
    third("work", "tasks.py", "--until-idle", code=0)
    assert second.show(waits)["result"] == {"n": 3}


@pytest.mark.req("VX-18")
def test_a_changed_result_is_found_on_any_node_and_the_truth_comes_back(three: Three) -> None:
    first, second, third, store = three
    job_id = first.submit("test.echo", '{"n": 1}')
    second("work", "tasks.py", "--until-idle", code=0)
    with psycopg.connect(store) as connection:
        connection.execute("UPDATE hocket.jobs SET outcome = 1, fence = 99")
    assert third.show(job_id)["outcome"] == "failed"
    third("log", "rebuild", code=0)
    assert first.show(job_id)["outcome"] == "succeeded"
    with psycopg.connect(store) as connection:
        connection.execute(
            "UPDATE hocket.ops SET body = overlay(body PLACING '9' FROM position('{\"n\":1}' IN body) + 5)"
            " WHERE position('{\"n\":1}' IN body) > 0"
        )
    for program in (first, second, third):
        assert "its signature does not fit" in program("log", "verify", code=1).out


@pytest.mark.req("LW-39", "VX-18")
def test_a_node_with_a_file_of_its_own_accepts_what_each_of_them_decides(three: Three, tmp_path: Path) -> None:
    first, second, third, _ = three
    outside = Program(tmp_path / "outside")
    outside("join", first("invite", "outside", "--may", "all", "--json", code=0).json["token"], code=0)
    theirs = []
    for submitter, worker in ((first, second), (second, third), (third, first)):
        theirs.append(submitter.submit("test.echo", json.dumps({"n": len(theirs)})))
        worker("work", "tasks.py", "--until-idle", code=0)
    own = outside.submit("test.echo", '{"n": 7}')
    until(lambda: outside("sync", code=0) and first("show", own, "--json").code == 0, "the job from outside")
    third("work", "tasks.py", "--until-idle", code=0)
    outside("sync", code=0)
    for number, job_id in enumerate(theirs):
        assert outside.show(job_id)["result"] == {"n": number} and outside.show(job_id)["fence"] == 1
    assert outside.show(own)["result"] == {"n": 7}
    # It works for them, too: its claims are offers, which a node of the store accepts.
    job_id = third.submit("test.echo", '{"n": 8}')
    outside("sync", code=0)
    outside("work", "tasks.py", "--until-idle", code=0)
    until(lambda: second.show(job_id)["outcome"] == "succeeded", "the job that ran outside")
    for program in (outside, third):
        program("log", "verify", code=0)
        program("log", "rebuild", code=0)
    assert outside.show(job_id)["result"] == second.show(job_id)["result"] == {"n": 8}


@pytest.mark.req("VX-18")
def test_a_store_that_others_share_is_not_moved_into_a_file(three: Three) -> None:
    file = three.second.home / "log.db"
    refused = three.second("store", "move", three.store, file, code=3).sentence
    assert "shares this store" in refused and "another server" in refused
    job_id = three.third.submit("test.echo")
    assert three.first.show(job_id)["state"] == "pending"
