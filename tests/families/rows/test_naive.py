"""The published way to guard a contested row, and how it loses updates: it reads `written_at` before it writes,
compares two clocks' strings, and writes in a transaction of its own. Real processes, step by step, so that nothing here
is left to chance; and the same steps with ours.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hocket
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import DesignateCoordinator, Subject
from tests.log.roster.world import NOW, Clock
from tests.log.test_families import Node

PATIENCE_S = 60.0

# As published: "SELECT written_at before writing. Compare remote vs local ISO timestamp lexicographically. If remote is
# newer: apply ConflictResolution strategy. Default strategy: TakeRight (remote wins; local write skipped)."
NAIVE = """
import datetime, json, sqlite3, sys

database, ahead_s = sys.argv[1], float(sys.argv[2])
connection = sqlite3.connect(database, isolation_level=None, timeout=30)
clock = lambda: (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead_s)).isoformat()
for line in sys.stdin:
    match line.split():
        case ["read"]:
            (text,) = connection.execute("SELECT value FROM memories WHERE key = 'sky'").fetchone()
            local, value = clock(), json.loads(text)
            print(text, flush=True)
        case ["check"]:
            (remote,) = connection.execute("SELECT written_at FROM memories WHERE key = 'sky'").fetchone()
            may_write = not remote > local
            print("ok" if may_write else "conflict", flush=True)
        case ["write", member]:
            if may_write:
                value[member] = 1
                connection.execute("UPDATE memories SET value = ?, written_at = ?", (json.dumps(value), clock()))
            print("written" if may_write else "skipped", flush=True)
"""

OURS = """
import sys
import hocket
from hocket.families.rows.requests import RowConflict

with hocket.open(sys.argv[1]) as node:
    rows = node.rows("memories")
    for line in sys.stdin:
        match line.split():
            case ["read"]:
                row = rows.get("sky")
                print(row.version, flush=True)
            case ["check"]:
                print("ok" if rows.get("sky").version == row.version else "conflict", flush=True)
            case ["write", member]:
                try:
                    rows.put("sky", [*row.value, member], row.version)
                    print("written", flush=True)
                except RowConflict:
                    print("conflict", flush=True)
"""


class Writer:
    """A process that takes one step at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def step(self, what: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def writers(script: str, *arguments: tuple[str, ...]) -> Iterator[list[Writer]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    try:
        yield [Writer(process) for process in started]
    finally:
        for process in started:
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def database(tmp_path: Path) -> str:
    import sqlite3

    path = str(tmp_path / "naive.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE memories (key TEXT PRIMARY KEY, value TEXT, written_at TEXT)")
    connection.execute("INSERT INTO memories VALUES ('sky', '{}', '2020-01-01T00:00:00+00:00')")
    connection.commit()
    connection.close()
    return path


@pytest.mark.req("VX-13")
def test_a_check_outside_the_transaction_loses_an_update(database: str) -> None:
    with writers(NAIVE, (database, "0"), (database, "0")) as (one, two):
        for step in ("read", "check"):
            for writer in (one, two):
                assert writer.step(step) in ("{}", "ok")
        assert (one.step("write a"), two.step("write b")) == ("written", "written")
        assert json.loads(one.step("read")) == {"b": 1}, "both were told that they had written, and one is gone"


@pytest.mark.req("VX-13")
def test_comparing_two_clocks_strings_loses_an_update_without_any_race(database: str) -> None:
    with writers(NAIVE, (database, "0"), (database, "-3600")) as (right, slow):
        assert right.step("read") == slow.step("read") == "{}"
        assert (slow.step("check"), slow.step("write b")) == ("ok", "written")
        assert right.step("check") == "ok", "the version of the slow clock looks older than what was read"
        assert right.step("write a") == "written"
        assert json.loads(right.step("read")) == {"a": 1}
        # The other way round: what the slow one has read and wants to change looks newer than its own clock.
        slow.step("read")
        assert (slow.step("check"), slow.step("write b")) == ("conflict", "skipped")


@pytest.mark.req("VX-13")
def test_the_same_steps_with_ours_lose_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hocket.init(home)
    with hocket.open(home) as node:
        rows = node.rows("memories")
        rows.put("sky", [])
        with writers(OURS, (str(home),), (str(home),)) as (one, two):
            assert one.step("read") == two.step("read")
            assert (one.step("check"), two.step("check")) == ("ok", "ok")
            assert (one.step("write a"), two.step("write b")) == ("written", "conflict")
            two.step("read")
            assert two.step("write b") == "written"
        row = rows.get("sky")
    assert row is not None and row.value == ["a", "b"]


@pytest.mark.req("VX-13")
@pytest.mark.parametrize("behind_ms", [-5_000, 0, 3_600_000])
def test_a_wrong_clock_makes_no_difference(behind_ms: int) -> None:
    right, wrong = Node(0), Node(1)
    wrong.log.wall = Clock(NOW - behind_ms)
    right.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))

    def put(node: Node, base: bytes | None, value: bytes) -> Op:
        said = node.log.run(lambda tx: tx.author(PutRow("memories/sky", "", base, value, Strategy.TAKE_RIGHT)))
        assert isinstance(said, Op)
        return said

    first = put(right, None, b'"first"')
    wrong.pull(right)
    put(wrong, first.id, b'"by the wrong clock"')
    right.pull(wrong)
    put(right, first.id, b'"too late"')
    wrong.pull(right)
    for node in (right, wrong):
        with node.log.store.read() as session:
            state = session.subject_state(Subject(ROW, b"memories/sky"))
        assert state is not None and b"by the wrong clock" in state and b"too late" not in state
