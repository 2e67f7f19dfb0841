"""A file of jobs goes in whole or not at all, in whatever order its lines cite each other."""

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from .conftest import Program


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


@pytest.mark.req("LW-41")
@pytest.mark.touches("LW-03")
def test_every_line_becomes_a_job(hocket: Program, tmp_path: Path):
    file = written(
        tmp_path / "jobs.jsonl",
        {"kind": "test.echo", "payload": {"n": 1}, "priority": 5},
        "",
        "   ",
        {"kind": "test.other", "lease": "1m", "retries": 2, "not_before": "+1h", "unique": "k", "rate": "5/s"}
        | {"open": True},
    )
    result = hocket("submit", "--batch", file, code=0)
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines] == [["submitted", "test.echo"], ["submitted", "test.other"]]
    first, second = (hocket.show(line.split()[-1]) for line in lines)
    assert first["payload"] == {"n": 1} and first["priority"] == 5
    assert second["options"]["lease_ms"] == 60_000 and second["stage"] == "delayed"
    assert second["options"]["open"] and "open" not in first["options"]

    again = hocket("submit", "--batch", "-", "--json", input=file.read_text(), code=0).json
    assert [(each["line"], each["created"]) for each in again] == [(1, True), (4, False)]
    assert again[1]["job_id"] == second["job_id"]


@pytest.mark.req("LW-41", "LW-16")
def test_lines_cite_each_other_by_name_in_any_order(hocket: Program, tmp_path: Path):
    earlier = hocket.submit("test.echo")
    file = written(
        tmp_path / "jobs.jsonl",
        {"kind": "test.echo", "name": "last", "after": ["left", "right"]},
        {"kind": "test.echo", "name": "left", "after": "first"},
        {"kind": "test.echo", "name": "right", "after": ["first", earlier[:-2]]},
        {"kind": "test.echo", "name": "first"},
    )
    last, left, right, first = (each["job_id"] for each in hocket("submit", "--batch", file, "--json", code=0).json)
    after = {job_id: hocket.show(job_id)["after"] for job_id in (last, left, right, first)}
    assert after == {last: [left, right], left: [first], right: [first, earlier], first: []}
    hocket("work", "tasks.py", "--until-idle", code=0)
    done = [op["job_id"] for op in hocket("log", "--limit", "100", "--json").json if op["type"] == "CompleteJob"]
    assert done.index(first) < min(done.index(left), done.index(right)) and done.index(last) == len(done) - 1


@pytest.mark.req("LW-41")
def test_a_name_stands_for_the_unique_job_that_was_there(hocket: Program, tmp_path: Path):
    there = hocket.submit("test.echo", "--unique", "one")
    file = written(
        tmp_path / "jobs.jsonl",
        {"kind": "test.echo", "after": "one"},
        {"kind": "test.echo", "name": "one", "unique": "one"},
    )
    follower, same = hocket("submit", "--batch", file, "--json", code=0).json
    assert same == {"line": 2, "job_id": there, "kind": "test.echo", "created": False}
    assert hocket.show(follower["job_id"])["after"] == [there]


def test_a_long_chain_and_many_lines(hocket: Program, tmp_path: Path):
    count = 3_000
    lines = [
        {"kind": "test.echo", "name": f"n{n}", "after": [f"n{n + 1}"] if n + 1 < count else []} for n in range(count)
    ]
    result = hocket("submit", "--batch", written(tmp_path / "jobs.jsonl", *lines), code=0)
    assert len(set(line.split()[-1] for line in result.out.splitlines())) == count
    assert hocket("status", "--json").json["ops"] == count + 2


GOOD = {"kind": "test.echo"}


@pytest.mark.req("LW-16", "LW-41")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"kind": "test.echo"', "not JSON"),
        ("nonsense", "not JSON"),
        ("[1]", "not a list"),
        ("{}", '"kind" is missing'),
        ({"kind": 7}, '"kind" must be a string'),
        ({"kind": "bad kind"}, "illegal kind 'bad kind'"),
        ({"kind": "a.b", "payload": [1]}, "must be a JSON object"),
        ({"kind": "a.b", "payload": None}, "must be a JSON object"),
        ({"kind": "a.b", "lease": "-5s"}, "bad lease '-5s'"),
        ({"kind": "a.b", "lease": -5}, "bad lease -5"),
        ({"kind": "a.b", "retries": -1}, "retries"),
        ({"kind": "a.b", "retries": 1.5}, "bad retries 1.5"),
        ({"kind": "a.b", "priority": "high"}, "bad priority 'high'"),
        ({"kind": "a.b", "priority": True}, "bad priority"),
        ({"kind": "a.b", "unique": 7}, "bad unique"),
        ({"kind": "a.b", "open": "yes"}, "bad open"),
        ({"kind": "a.b", "not_before": "soon"}, "bad not_before 'soon'"),
        ({"kind": "a.b", "colour": "red"}, "unknown member 'colour'"),
        ({"kind": "a.b", "after": "nobody"}, "neither the name of a line nor a job"),
        ({"kind": "a.b", "after": "7ZZZ"}, "no job '7ZZZ'"),
        ({"kind": "a.b", "after": {"x": 1}}, '"after" must be'),
        ({"kind": "a.b", "name": ""}, '"name" must be'),
        ({"kind": "a.b", "name": "first"}, "line 1 already has the name 'first'"),
        ({"kind": "a.b", "name": "me", "after": "me"}, "cycle in after: me → me"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_one_bad_line_is_named_and_nothing_is_submitted(hocket: Program, tmp_path: Path, line: Any, says: str):
    file = written(tmp_path / "jobs.jsonl", GOOD | {"name": "first"}, "", GOOD, line, GOOD)
    result = hocket("submit", "--batch", file, code=2)
    assert result.sentence.startswith(f"{file} line 4: ") and says in result.sentence
    assert result.out == ""
    connection = apsw.Connection(str(hocket.home / "log.db"))
    assert connection.execute("SELECT max(seq) FROM ops").fetchall() == [(2,)]
    connection.close()


@pytest.mark.req("LW-16")
def test_a_cycle_is_drawn(hocket: Program, tmp_path: Path):
    file = written(
        tmp_path / "jobs.jsonl",
        GOOD | {"name": "start", "after": "a"},
        GOOD | {"name": "a", "after": "b"},
        GOOD | {"name": "b", "after": ["c", "a"]},
        GOOD | {"name": "c"},
    )
    result = hocket("submit", "--batch", file, code=2)
    assert result.sentence == f"{file} line 2: cycle in after: a → b → a"
    assert hocket("jobs", "--json").json == []


def test_a_conflict_deep_in_a_batch_undoes_it(hocket: Program, tmp_path: Path):
    cancelled = hocket.submit("test.echo")
    hocket("cancel", cancelled, code=0)
    file = written(tmp_path / "jobs.jsonl", *[GOOD] * 20, GOOD | {"after": cancelled})
    assert hocket("submit", "--batch", file, code=3).sentence.startswith(f"{file} line 21: ")
    assert len(hocket("jobs", "--json").json) == 1


@pytest.mark.parametrize("content", ["", "\n  \n\n"], ids=["empty", "blank"])
def test_nothing_to_submit(hocket: Program, content: str):
    assert "nothing to submit" in hocket("submit", "--batch", "-", input=content, code=2).sentence


def test_files_that_cannot_be_read(hocket: Program, tmp_path: Path):
    assert "cannot read the batch" in hocket("submit", "--batch", tmp_path / "none", code=2).sentence
    assert "cannot read the batch" in hocket("submit", "--batch", tmp_path, code=2).sentence
    assert "line 1" in hocket("submit", "--batch", "-", input=b"\xff\xfe\x00", code=2).sentence
