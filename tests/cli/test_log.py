"""The log from the command line: reading, following, proving, rebuilding, carrying elsewhere and back."""

import json
import os
import subprocess
from pathlib import Path

import apsw
import pytest

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey, parse_key
from hocket.kernel.ops import NO_ID, bound, encode, encode_sequence, link_to, sign
from hocket.kernel.vocabulary import RouteKind

from .conftest import PROGRAM, Program, until


@pytest.mark.touches("VX-07")
def test_the_newest_ops(used: Program):
    lines = used("log", "--json", "--limit", "5", code=0).json
    numbers = [line["seq"] for line in lines]
    assert numbers == sorted(numbers) and len(lines) == 5
    assert all(set(line) >= {"id", "type", "hlc", "author", "job_id", "counts", "detail"} for line in lines)
    first = used("log", "--limit", "100000", code=0).out.splitlines()[0]
    assert first.split()[0] == "1" and first.split()[3:] == ["DelegateUcan", "-"]
    assert used("log", "--limit", "0", code=0).out == ""


@pytest.mark.touches("VX-07")
def test_the_ops_of_a_job_and_of_a_kind(used: Program):
    failed = used("jobs", "--outcome", "failed", "--json").json[0]["job_id"]
    of_job = used("log", "--job", failed, "--json", code=0).json
    assert [line["type"] for line in of_job] == ["ScheduleJob", "ClaimWork", "FailWork"]
    of_kind = used("log", "--kind", "test.fail", "--json", code=0).json
    assert of_kind == of_job
    assert {line["job_id"] for line in used("log", "--kind", "other.", "--json").json} == {
        used("jobs", "--kind", "other.", "--json").json[0]["job_id"]
    }
    assert "no job '7Z'" in used("log", "--job", "7Z", code=2).sentence


@pytest.mark.touches("VX-07")
def test_follow_shows_ops_as_they_come(hocket: Program):
    follow = hocket.start("log", "--follow", "--json", "--limit", "1")
    assert follow.stdout is not None
    assert json.loads(follow.stdout.readline())["type"] == "DesignateCoordinator"
    job_id = hocket.submit("test.echo")
    scheduled = json.loads(follow.stdout.readline())
    assert (scheduled["type"], scheduled["job_id"], scheduled["seq"]) == ("ScheduleJob", job_id, 3)
    hocket("cancel", job_id, "--reason", "seen", code=0)
    assert json.loads(follow.stdout.readline())["detail"] == "seen"


@pytest.mark.req("VX-07", "VX-08")
def test_verify_and_a_head_that_was_noted(used: Program):
    result = used("log", "verify", code=0)
    ops = used("status", "--json").json["ops"]
    head = result.out.split()[-1]
    assert result.out == f"{ops} ops verified, chain head {head}\n"
    # Bundles have numbers too.
    assert int(head.partition(":")[0]) > ops
    used("submit", "test.echo", code=0)
    used("log", "verify", "--head", head, code=0)
    wrong = head[:-1] + ("0" if head[-1] != "0" else "1")
    result = used("log", "verify", "--head", wrong, code=1)
    assert wrong in result.out and "damaged" in result.sentence


@pytest.mark.req("VX-08")
def test_a_cut_tail_is_found(used: Program):
    connection = apsw.Connection(str(used.home / "log.db"))
    connection.execute("DELETE FROM ops WHERE seq = (SELECT max(seq) FROM ops)")
    connection.close()
    assert "the tail is cut" in used("log", "verify", code=1).out
    findings = used("log", "verify", "--json", code=1).json["findings"]
    assert any("tail is cut" in each["what"] for each in findings)


@pytest.mark.req("LW-33")
def test_rebuild_gives_the_same(used: Program):
    before = used("jobs", "--json").json
    ops = used("status", "--json").json["ops"]
    assert used("log", "rebuild", code=0).out == f"{ops} ops refolded: nothing changed\n"
    assert used("jobs", "--json").json == before
    answer = used("log", "rebuild", "--json", code=0).json
    assert answer["unchanged"] is True and answer["resumed"] is False


@pytest.mark.req("LW-33")
def test_rebuild_says_which_of_all_projections_were_wrong(used: Program):
    used("lock", "acquire", "file:a", "--agent", "editor", code=0)
    used("send", "editor", "hello", code=0)
    used("rows", "put", "memories", "sky", '"blue"', code=0)
    used("drain", "here", code=0)
    assert used("log", "rebuild", code=0).out.endswith("refolded: nothing changed\n")
    damages = {
        "availability": "DELETE FROM subjects WHERE family = 'availability'",
        "job": "DELETE FROM jobs WHERE id = (SELECT min(id) FROM jobs)",
        "lock": "UPDATE subjects SET state = CAST(x'00' || state AS BLOB) WHERE family = 'lock'",
        "message": "DELETE FROM messages",
        "row": "UPDATE subjects SET key = CAST(key || x'41' AS BLOB) WHERE family = 'row'",
    }
    for family, damage in damages.items():
        connection = apsw.Connection(str(used.home / "log.db"))
        connection.execute(damage)
        connection.close()
        answer = used("log", "rebuild", "--json", code=0).json
        assert (answer["unchanged"], answer["changed"]) == (False, [family])
    assert used("log", "rebuild", code=0).out.endswith("refolded: nothing changed\n")
    connection = apsw.Connection(str(used.home / "log.db"))
    connection.execute("DELETE FROM subjects")
    connection.close()
    assert used("log", "rebuild", code=0).out.endswith("refolded: changed: availability, lock, row\n")


@pytest.mark.req("LW-33")
def test_rebuild_waits_for_no_worker(hocket: Program, tmp_path: Path):
    hocket.start("work", "tasks.py")
    until(lambda: hocket("status", "--json").json["workers"], "the worker")
    assert "workers are running" in hocket("log", "rebuild", code=3).sentence


@pytest.mark.req("LW-32", "LW-23")
def test_a_log_goes_to_another_node_and_back(used: Program, tmp_path: Path):
    total = used("status", "--json").json["ops"]
    file = tmp_path / "log.ops"
    assert used("log", "export", file, code=0).out == f"{total} ops exported to {file}\n"
    other = Program(tmp_path / "other")
    other("init", "--user-key", used.home / "user.key", code=0)
    assert other("log", "import", file, "--json", code=0).json == {
        "appended": total,
        "duplicated": 0,
        "rejected": 0,
        "collided": 0,
        "unread": 0,
        "reasons": {},
    }
    assert other("log", "import", file, code=0).out == f"0 appended, {total} duplicated, 0 rejected\n"
    other("log", "verify", code=0)
    there, here = other("jobs", "--json").json, used("jobs", "--json").json
    assert [(job["job_id"], job["outcome"]) for job in there] == [(job["job_id"], job["outcome"]) for job in here]
    own = other.submit("test.echo")
    other("log", "export", file, code=0)
    assert used("log", "import", file, "--json", code=0).json["appended"] == 2
    assert used.show(own)["state"] == "pending"


@pytest.mark.req("LW-32")
def test_through_a_pipe(used: Program, tmp_path: Path):
    exported = subprocess.run([*PROGRAM, "log", "export", "-"], capture_output=True, env=used.environment(), check=True)
    assert exported.stderr.endswith(b"ops exported\n")
    total = used("status", "--json").json["ops"]
    assert used("log", "import", "-", "--json", input=exported.stdout, code=0).json["duplicated"] == total


@pytest.mark.req("LW-34", "LW-23")
def test_what_is_rejected_says_why(used: Program, fresh_home: Path, tmp_path: Path):
    stranger = tmp_path / "stranger.ops"
    other = Program(tmp_path / "other")
    other("init", code=0)
    other("log", "export", stranger, code=0)
    result = used("log", "import", stranger, code=1)
    assert "0 appended, 0 duplicated, 2 rejected" in result.out and "issued by another user" in result.out
    assert "rejected ops were not imported" in result.sentence
    result = used("log", "import", "-", input=b"\x05nonsense", code=1)
    assert "its bytes cannot be read" in result.out and "4 ops after that were not imported" in result.sentence
    refusals = used("status", "--json").json["refusals"]
    assert sum(refusals.values()) == 3
    used("log", "verify", code=0)


def test_files_that_cannot_be_read_or_written(hocket: Program, tmp_path: Path):
    assert "cannot read" in hocket("log", "import", tmp_path / "none", code=2).sentence
    assert hocket("log", "import", tmp_path).code in (2, 5)
    assert "cannot write" in hocket("log", "export", tmp_path / "no" / "where", code=5).sentence
    assert "cannot write" in hocket("log", "export", tmp_path, code=5).sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "tasks.py"]


def test_an_export_replaces_a_file_and_goes_through_a_pipe(hocket: Program, tmp_path: Path):
    (tmp_path / "old").write_bytes(b"old")
    hocket("log", "export", tmp_path / "old", code=0)
    os.mkfifo(tmp_path / "pipe")
    export = hocket.start("log", "export", tmp_path / "pipe")
    assert (tmp_path / "pipe").read_bytes() == (tmp_path / "old").read_bytes()
    hocket.finished(export)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.req("LW-10")
def test_two_ops_of_one_author_with_one_timestamp_are_loud(used: Program, tmp_path: Path):
    key = SigningKey(parse_key((used.home / "node.key").read_text().strip()))
    node = node_id(key.public)
    stamp = Hlc(1_000, 0, node)
    twins = [sign(bound(stamp, (link_to(NO_ID),), RouteKind(f"k{n}", None))[0], key) for n in (1, 2)]
    file = tmp_path / "twins.ops"
    file.write_bytes(encode_sequence([encode(op) for op in twins]))
    said = used("log", "import", file, code=1)
    assert "integrity failure: 2 ops have the same timestamp as another" in said.sentence
    assert "has two histories" in said.out
    assert "two ops of one author carry the same timestamp" in used("status").out
    assert "has two histories" in used("doctor", code=1).out
    used("log", "verify", code=0)
