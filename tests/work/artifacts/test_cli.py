"""`hocket artifacts` and `hocket artifacts why`, as a process of its own on a real home."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from hocket.node.runtime import Runtime
from tests.cli.fork_server import run_command

PATIENCE_S = 60.0
TASKS = """
import hocket


@hocket.job("art.make")
def make(ctx, size=10, ttl=None):
    ctx.infer(model="echo", version="1", prompt="line one\\nline \\x1b[31mtwo " + "x" * 1000, call=str.upper)
    ctx.artifact(b"x" * size, type="art.bytes", ttl=ttl)
    return "made"
"""


class Program:
    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        told = os.environ | {"HOCKET_HOME": str(self.home)}
        done = run_command(list(map(str, arguments)), None, told, self.home.parent, PATIENCE_S)
        assert done.returncode == code, done
        assert b"Traceback" not in done.stderr and b"\x1b" not in done.stderr
        return done

    def json(self, *arguments: object) -> object:
        return json.loads(self(*arguments, "--json").stdout)

    def refused(self, *arguments: object, code: int) -> str:
        [line] = self(*arguments, code=code).stderr.decode().splitlines()
        return line.removeprefix("hocket: ")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("art")
    (root / "tasks.py").write_text(TASKS)
    Runtime.init(root / "home").close()
    program = Program(root / "home")
    program("submit", "art.make", '{"size": 100000}')
    program("submit", "art.make", '{"ttl": "1h"}')
    program("work", "tasks.py", "--until-idle")
    return root


@pytest.fixture
def program(made: Path, tmp_path: Path) -> Program:
    shutil.copytree(made, tmp_path / "copy")
    return Program(tmp_path / "copy" / "home")


def artifact_of(program: Program, type: str) -> dict:
    return next(each for each in program.json("artifacts", "list") if each["type"] == type)


def test_list_and_show(program: Program):
    listed = program.json("artifacts", "list")
    assert sorted(each["type"] for each in listed) == sorted(
        ["art.bytes", "likewise.inference.snapshot", "hocket.result"] * 2
    )
    job = listed[0]["job_id"]
    assert {each["job_id"] for each in program.json("artifacts", "list", "--job", job)} == {job}
    assert len(program.json("artifacts", "list", "--limit", 2)) == 2
    rows = program("artifacts", "list").stdout.decode().splitlines()
    assert len(rows) == 6 and all(row.count("\t") == 5 for row in rows)
    blob = next(each for each in listed if each["content"] == "blob")
    shown = program.json("artifacts", "show", blob["artifact_id"])
    assert shown["size"] == 100_000 and shown["op_id"] != shown["artifact_id"] and len(shown["cites"]) == 1
    text = program("artifacts", "show", blob["artifact_id"]).stdout.decode()
    assert "art.bytes" in text and blob["hash"] in text


def test_get_gives_the_bytes(program: Program, tmp_path: Path):
    blob = next(each["artifact_id"] for each in program.json("artifacts", "list") if each["content"] == "blob")
    assert program("artifacts", "get", blob).stdout == b"x" * 100_000
    out = tmp_path / "out"
    assert program.json("artifacts", "get", blob, "-o", out) == {"artifact_id": blob, "size": 100_000, "file": str(out)}
    assert out.read_bytes() == b"x" * 100_000
    assert "cannot write" in program.refused("artifacts", "get", blob, "-o", tmp_path / "no" / "where", code=2)
    assert "give -o FILE" in program.refused("artifacts", "get", blob, "--json", code=2)
    assert [path.name for path in tmp_path.iterdir() if path.name != "copy"] == ["out"]


def test_put_evict_and_gc(program: Program, tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"y" * 70_000)
    put = program.json("artifacts", "put", file, "--type", "art.file", "--ttl", "7d")
    shown = program.json("artifacts", "show", put["artifact_id"])
    assert shown["content"] == "blob" and shown["job_id"] is None
    assert 6.9 < (shown["expires_ms"] / 1000 - time.time()) / 86_400 <= 7.01
    assert program.json("artifacts", "evict", put["artifact_id"])["freed_bytes"] == 70_000
    assert "already evicted" in program.refused("artifacts", "evict", put["artifact_id"], code=3)
    assert "was evicted" in program.refused("artifacts", "get", put["artifact_id"], code=3)
    assert program.json("artifacts", "show", put["artifact_id"])["content"] == "evicted"
    place = program.home / "blobs" / "ab" / ("ab" * 32)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"orphan")
    assert program.json("artifacts", "gc") == {"blobs": 0, "freed_bytes": 0}
    os.utime(place, (1, 1))
    assert program.json("artifacts", "gc") == {"blobs": 1, "freed_bytes": 6}
    program("log", "verify")
    program("log", "rebuild")
    assert program.json("artifacts", "show", put["artifact_id"])["content"] == "evicted"


def test_damage_is_said(program: Program):
    blob = next(each for each in program.json("artifacts", "list") if each["content"] == "blob")
    name = blob["hash"].removeprefix("blake3:")
    (program.home / "blobs" / name[:2] / name).write_bytes(b"z")
    assert "is damaged" in program.refused("artifacts", "get", blob["artifact_id"], code=5)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["show", "7ZZZ"], 2, "no artifact '7ZZZ'"),
        (["get", "!!"], 2, "not an artifact id"),
        (["evict", "7ZZZ"], 2, "no artifact"),
        (["list", "--job", "7ZZZ"], 2, "no job"),
        (["put", "/nowhere", "--type", "t"], 2, "cannot read /nowhere"),
        (["put", "/etc", "--type", "t"], 2, "/etc"),
        (["put", "/etc/hostname", "--type", "hocket.x"], 2, "illegal artifact type"),
        (["put", "/etc/hostname", "--type", "t", "--ttl", "0s"], 2, "bad ttl"),
        (["put", "/etc/hostname"], 2, "missing option"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(program: Program, arguments: list, code: int, why: str):
    assert why in program.refused("artifacts", *arguments, code=code)


@pytest.mark.touches("LW-35")
def test_why(program: Program):
    snapshot = artifact_of(program, "likewise.inference.snapshot")
    for id in (snapshot["job_id"], snapshot["artifact_id"]):
        text = program("why", id).stdout.decode()
        for part in ("echo 1 by python", "line one", "LINE ONE", "\\x1b[31m", "shortened; --full shows all"):
            assert part in text
        assert "\x1b" not in text
        whole = program("why", id, "--full").stdout.decode()
        assert "x" * 1000 in whole and "X" * 1000 in whole and "shortened" not in whole
    told = program.json("why", snapshot["job_id"], "--full")
    assert told["snapshots"][0]["prompt"]["text"].startswith("line one\nline \x1b[31mtwo xxx") and told["missing"] == []
    program("artifacts", "evict", snapshot["artifact_id"])
    text = program("why", snapshot["job_id"]).stdout.decode()
    assert "evicted" in text and "missing:" in text and "line one" not in text
    assert "no job, artifact or claim" in program.refused("why", "7ZZZ", code=2)
    assert "not the id" in program.refused("why", "what", code=2)
