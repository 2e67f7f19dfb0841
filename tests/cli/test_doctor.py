"""What `doctor` and `status` find."""

import re
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hocket.api import checks
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_id
from hocket.kernel.keys import RowMac
from hocket.node.home import Home
from hocket.store import Place, WorkerRow
from hocket.store import open as open_store

from .conftest import Program


def verdicts(hocket: Program, code: int = 0) -> dict[str, str]:
    """The worst verdict of each check."""
    order = ("ok", "warn", "bad")
    found: dict[str, str] = {}
    for each in hocket("doctor", "--json", code=code).json:
        found[each["check"]] = max(found.get(each["check"], "ok"), each["verdict"], key=order.index)
    return found


def test_a_healthy_home(used: Program):
    found = verdicts(used)
    assert set(found.values()) == {"ok"}
    expected = {
        "python",
        "installation",
        "home",
        "keys",
        "disk",
        "commands",
        "locks and pipes",
        "database",
        "first op",
        "rows beside the log",
        "integrity",
        "write lock",
        "history",
        "waiting ops",
        "outbox",
        "breakers",
        "environment",
        "clock",
        "workers",
        "rebuild",
        "work",
    }
    assert set(found) - {"sandbox"} == expected, "a sandbox is looked into where one can be made"
    assert all(line.startswith("ok\t") for line in used("doctor", code=0).out.splitlines())
    assert [path.name for path in (used.home / "processes").iterdir()] == []


def test_no_home_at_all(tmp_path: Path):
    hocket = Program(tmp_path / "none")
    assert verdicts(hocket, 1) == {"python": "ok", "installation": "ok", "home": "bad"}
    assert not hocket.home.exists()


def test_keys_that_others_can_read(hocket: Program):
    (hocket.home / "node.key").chmod(0o644)
    result = hocket("doctor", code=1)
    assert "chmod 600" in result.out and "bad" in result.sentence


def test_the_key_of_another_log(hocket: Program, used_home: Path, tmp_path: Path):
    other = Program(tmp_path / "other")
    other("init", code=0)
    (hocket.home / "node.key").write_text((other.home / "node.key").read_text())
    assert verdicts(hocket, 1)["first op"] == "bad"
    (hocket.home / "node.key").write_text("gibberish")
    assert verdicts(hocket, 1)["keys"] == "bad"
    assert "does not hold a key" in hocket("jobs", code=5).sentence


@pytest.mark.req("LW-22")
def test_a_clock_that_was_set_back(hocket: Program):
    """The log has seen a time an hour ahead of this machine's, as after a clock that was wrong and was put right."""
    connection = apsw.Connection(str(hocket.home / "log.db"))
    ahead = int(time.time() * 1000) + 3_600_000
    connection.execute("UPDATE head SET wall = ?", (ahead,))
    connection.close()
    assert verdicts(hocket)["clock"] == "warn"
    (said,) = [each["says"] for each in hocket("doctor", "--json").json if each["check"] == "clock"]
    assert "if the clock is right now, leave it" in said and "caught up, in at most 1" in said and "correct" not in said
    job_id = hocket.submit("test.echo")
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job_id)["outcome"] == "succeeded"
    assert hocket.show(job_id)["scheduled_ms"] >= ahead


@pytest.mark.req("LW-33")
def test_an_interrupted_rebuild(used: Program):
    connection = apsw.Connection(str(used.home / "log.db"))
    connection.execute("UPDATE head SET rebuilding = zeroblob(20)")
    connection.close()
    assert verdicts(used, 1)["rebuild"] == "bad"
    assert "being rebuilt" in used("submit", "test.echo", code=5).sentence
    assert used("status", "--json").json["rebuilding"] is True
    assert "finished the rebuild" in used("log", "rebuild", code=0).out
    assert verdicts(used)["rebuild"] == "ok"
    used("submit", "test.echo", code=0)


@pytest.mark.req("LW-17")
@pytest.mark.touches("VX-01")
def test_status(used: Program):
    status = used("status", "--json", code=0).json
    assert status["jobs"] == {
        "ready": 1,
        "delayed": 0,
        "blocked": 0,
        "running": 0,
        "succeeded": 20,
        "failed": 1,
        "cancelled": 0,
    }
    assert status["workers"] == [] and status["waiting_ops"] == 0 and status["refusals"] == {}
    assert status["chain_head"] == used("log", "verify", "--json").json["head"]
    text = used("status", code=0).out
    for part in (
        status["node"],
        status["user"],
        status["home"],
        status["chain_head"],
        "1 ready, 20 succeeded, 1 failed",
    ):
        assert part in text


def worker_elsewhere(hocket: Program, heard_ms_ago: int) -> None:
    """A row as a worker of this node on another machine writes it."""
    now = int(time.time() * 1000)
    key = Home(hocket.home).node_key()
    place = Place("host", "boot", "pid:[1]", "1-2")
    row = WorkerRow(0, "worker-77-x", 77, now - 600_000, node_id(key.public).to_bytes(8, "big"), 0, place)
    with closing(open_store(hocket.home / "log.db")) as store:
        store.mac_rows(RowMac(key))
        with store.write() as session:
            for each in session.workers():
                session.drop_worker(each.number)
            session.put_worker(row._replace(beat=now - heard_ms_ago))


@pytest.mark.touches("VX-01")
def test_a_worker_on_another_machine(hocket: Program):
    worker_elsewhere(hocket, 0)
    heard = r"worker\t.+: process 77 on another machine, started 10 min ago, heard from [\d.]+ s ago"
    assert re.search(heard, hocket("status", code=0).out)
    (shown,) = hocket("status", "--json").json["workers"]
    assert (shown["pid"], shown["state"], shown["where"]) == (77, "running", "on another machine")
    assert verdicts(hocket)["workers"] == "ok"
    assert "workers are running (process 77)" in hocket("log", "rebuild", code=3).sentence
    worker_elsewhere(hocket, 180_000)
    assert ": process 77 on another machine, started 10 min ago, silent for 3 min" in hocket("status", code=0).out
    advice = "process 77 on another machine has been silent for 3 min; a worker that runs here for 30 s"
    assert advice in hocket("doctor", code=0).out
    assert verdicts(hocket)["workers"] == "warn"
    hocket("log", "rebuild", code=0)


@pytest.mark.req("LW-43")
def test_ops_that_wait_too_long_are_a_worry(used: Program, monkeypatch: pytest.MonkeyPatch):
    connection = apsw.Connection(str(used.home / "log.db"))
    connection.execute("UPDATE ops SET reason = ? WHERE seq = 4", (int(Reason.WAITING),))
    connection.close()
    assert verdicts(used)["waiting ops"] == "ok", "for a while"
    monkeypatch.setattr(checks, "WAITING_MS_MAX", -1)
    (found,) = (each for each in checks.examine(Home(used.home)) if each.check == "waiting ops")
    assert found.verdict == "warn" and "1 ops wait for ops that have not come" in found.says
