"""Contested rows on the command line: the same script on one home and on either node of a mesh of two, what two shells
make of one row, and a sentence with the right exit code for bad input.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE_S, Program

ROWS = ("--may", "row:write:memories/", "--may", "row:read:memories/")


@pytest.fixture
def mesh(hocket: Program, tmp_path: Path) -> Iterator[tuple[Program, Program]]:
    """The owner, whose server runs and decides, and a member that may write the table."""
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)
    member = Program(tmp_path / "member")
    token = hocket("invite", "member", *ROWS, "--json", code=0).json["token"]
    member("join", token, code=0)
    yield hocket, member


@pytest.fixture(params=["one home", "the owner's node", "the member's node"])
def program(request: pytest.FixtureRequest) -> Program:
    if request.param == "one home":
        found: Program = request.getfixturevalue("hocket")
        return found
    owner, member = request.getfixturevalue("mesh")
    return member if request.param == "the member's node" else owner


def version(program: Program) -> str:
    return str(program("rows", "get", "memories", "sky", "--json", code=0).json["version"])


def value(program: Program) -> Any:
    return program("rows", "get", "memories", "sky", "--json", code=0).json["value"]


@pytest.mark.soak  # scenarios/test_one_script.py has the same in short
@pytest.mark.req("VX-12", "VX-13")
@pytest.mark.touches("VX-01")
def test_the_same_script_everywhere(program: Program):
    """Write, read, merge, conflict by each strategy, resolve, list and delete."""
    put = ("rows", "put", "memories", "sky")
    made = program(*put, '{"colour": "blue", "clouds": 0}', "--agent", "editor", "--json", code=0).json
    assert (made["outcome"], made["conflict"], made["row"]["agent"]) == ("written", None, "editor")
    first = made["row"]["version"]
    program(*put, '{"colour": "grey", "clouds": 0}', "--version", first, code=0)
    merged = program(*put, '{"colour": "blue", "clouds": 3}', "--version", first, "--json", code=0).json
    assert merged["outcome"] == "merged" and value(program) == {"colour": "grey", "clouds": 3}
    assert version(program) == merged["row"]["version"] > first

    lost = program(*put, '{"colour": "red"}', "--version", first, "--json", code=3)
    assert lost.json["outcome"] == "took-right" and lost.json["row"]["value"] == {"colour": "grey", "clouds": 3}
    assert "has changed" in lost.sentence and lost.json["conflict"] in lost.sentence
    again = program(*put, '{"colour": "red"}', code=3)
    assert "not stored" in again.sentence
    left = program(*put, '"green"', "--version", first, "--strategy", "take-left", "--json", code=0).json
    assert left["outcome"] == "took-left" and left["row"]["value"] == "green"
    waits = program(*put, '"black"', "--version", first, "--strategy", "manual", "--json", code=3).json
    asked = ("--strategy", "defer-to-agent", "--agent", "judge")
    deferred = program(*put, '"white"', "--version", first, *asked, "--json", code=3).json
    assert (waits["outcome"], deferred["outcome"], deferred["row"]["value"]) == ("manual", "deferred", "green")

    shown = program("conflicts", "list", "--json", code=0).json
    assert [each["strategy"] for each in shown] == ["take-right"] * 2 + ["take-left", "manual", "defer-to-agent"]
    assert [each["id"] for each in shown if each["open"]] == [waits["conflict"], deferred["conflict"]]
    detail = program("conflicts", "show", waits["conflict"], "--json", code=0).json
    assert (detail["left"], detail["right"], detail["base"]) == ("black", "green", {"colour": "blue", "clouds": 0})
    replaced = program("conflicts", "show", left["conflict"], "--json", code=0).json
    assert replaced["right"] == {"colour": "grey", "clouds": 3}, "nothing is lost"

    resolve = ("conflicts", "resolve")
    black = program(*resolve, waits["conflict"], "--take", "left", "--agent", "judge", "--json", code=0).json["row"]
    assert (black["value"], black["agent"]) == ("black", "judge")
    assert black["version"] in program(*resolve, deferred["conflict"], '"grey"', code=3).sentence
    program(*resolve, deferred["conflict"], '"grey"', "--version", black["version"], code=0)
    assert program("conflicts", "list", "--open", "--json", code=0).json == []
    assert "was resolved" in program(*resolve, deferred["conflict"], '"grey"', code=3).sentence

    sea = program("rows", "put", "memories", "sea", "1", "--json", code=0).json["row"]["version"]
    listed = program("rows", "list", "memories", "--json", code=0).json
    assert [(each["key"], each["value"]) for each in listed] == [("sea", 1), ("sky", "grey")]
    assert [each["key"] for each in program("rows", "list", "memories", "sk", "--json", code=0).json] == ["sky"]
    assert "not stored" in program("rows", "delete", "memories", "sea", code=3).sentence
    program("rows", "delete", "memories", "sea", "--version", sea, code=0)
    assert program("rows", "get", "memories", "sea", code=2).sentence == "there is no row memories/sea"
    assert program("rows", "put", "memories", "sea", "2", "--json", code=0).json["row"]["value"] == 2
    program("log", "verify", code=0)


def test_two_nodes_see_one_row(mesh: tuple[Program, Program]):
    owner, member = mesh
    owner("rows", "put", "memories", "sky", '{"a": 1, "b": 1}', code=0)
    member("sync", code=0)
    seen = version(member)
    assert seen == version(owner)
    owner("rows", "put", "memories", "sky", '{"a": 2, "b": 1}', "--version", seen, code=0)
    # The member has not heard of that; the owner's node decides, and the member has the merged row at once.
    merged = member("rows", "put", "memories", "sky", '{"a": 1, "b": 2}', "--version", seen, "--json", code=0).json
    assert merged["outcome"] == "merged" and merged["row"]["value"] == value(owner) == {"a": 2, "b": 2}
    assert merged["row"]["version"] == version(owner)
    conflict = member("rows", "put", "memories", "sky", "7", "--version", seen, "--json", code=3).json
    assert conflict["row"]["value"] == {"a": 2, "b": 2}
    assert owner("conflicts", "show", conflict["conflict"], "--json", code=0).json["left"] == 7


@pytest.mark.touches("LW-24")
def test_a_table_without_a_grant_is_not_written(mesh: tuple[Program, Program]):
    _, member = mesh
    refused = member("rows", "put", "secrets", "sky", "1", code=4)
    assert "row:write:secrets/" in refused.sentence


def test_a_write_waits_here_while_the_coordinator_is_away(mesh: tuple[Program, Program]):
    owner, member = mesh
    member("rows", "put", "memories", "sky", "1", code=0)
    for process in owner.started:
        process.terminate()
        process.wait(PATIENCE_S)
    kept = member("rows", "put", "memories", "sky", "2", "--version", version(member), code=5)
    assert "the request waits here" in kept.sentence and value(member) == 1


BAD = [
    (("rows", "put", "memories", "a\x01b", "1"), 2, "control characters"),
    (("rows", "put", "memories", "a\u202eb", "1"), 2, "cannot be seen"),
    (("rows", "put", "memories", "x" * 10_000, "1"), 2, "10000 bytes"),
    (("rows", "put", "memories", "e\u0301", "1"), 2, "normal form"),
    (("rows", "put", "mem/ories", "sky", "1"), 2, "no slash"),
    (("rows", "put", "", "sky", "1"), 2, "empty"),
    (("rows", "put", "memories", " ", "1"), 2, "empty"),
    (("rows", "put", "memories", "sky", "NaN"), 2, "not JSON"),
    (("rows", "put", "memories", "sky", json.dumps("x" * 65_536)), 2, "at most 65536"),
    (("rows", "put", "memories", "sky", "[" * 40 + "]" * 40), 2, "nested"),
    (("rows", "put", "memories", "sky", "1", "--strategy", "defer-to-agent"), 2, "needs an agent"),
    (("rows", "put", "memories", "sky", "1", "--agent", "a\x07b"), 2, "control characters"),
    (("rows", "put", "memories", "sky", "1", "--version", "abc"), 2, "bad version"),
    (("rows", "put", "memories", "sky", "1", "--version", "2" * 10_000), 2, "bad version"),
    (("rows", "put", "memories", "sky", "1", "--version", f"2020-01-01T00:00:00.000Z+0@{'0' * 16}"), 3, "never had"),
    (("rows", "put", "memories", "new", "1", "--version", f"2020-01-01T00:00:00.000Z+0@{'0' * 16}"), 3, "never had"),
    (("rows", "delete", "memories", "new"), 2, "no such row"),
    (("conflicts", "show", "abc"), 2, "not the id of a conflict"),
    (("conflicts", "show", "01M7HVJG9XMYB0FTGAN132HCK0"), 2, "no conflict"),
    (("conflicts", "resolve", "01M7HVJG9XMYB0FTGAN132HCK0"), 2, "give a value"),
]


@pytest.mark.req("VX-12")
def test_bad_input_is_one_sentence_and_changes_nothing(hocket: Program):
    hocket("rows", "put", "memories", "sky", '"blue"', code=0)
    before = hocket("log", "verify", "--json", code=0).json
    for arguments, code, words in BAD:
        said = hocket(*arguments, code=code)
        assert words in said.sentence and len(said.sentence) < 400, (arguments, said)
    assert hocket("log", "verify", "--json", code=0).json == before and value(hocket) == "blue"


def test_a_watch_shows_what_there_is_and_what_changes(hocket: Program):
    hocket("rows", "put", "memories", "sky", "1", code=0)
    watching = hocket.start("rows", "watch", "memories", "s", "--json")
    assert watching.stdout is not None

    def told() -> tuple[str, Any, bool]:
        line = json.loads(watching.stdout.readline())  # type: ignore[union-attr]
        return line["key"], line["value"], line["deleted"]

    assert told() == ("sky", 1, False)
    hocket("rows", "put", "memories", "other", "1", code=0)
    hocket("rows", "put", "memories", "sky", "2", code=3)
    hocket("rows", "put", "memories", "sky", "3", "--version", version(hocket), code=0)
    assert told() == ("sky", 3, False), "neither another key nor a write that was not stored is a change"
    hocket("rows", "put", "memories", "sun", "4", code=0)
    assert told() == ("sun", 4, False)
    hocket("rows", "delete", "memories", "sky", "--version", version(hocket), code=0)
    assert told() == ("sky", None, True)
