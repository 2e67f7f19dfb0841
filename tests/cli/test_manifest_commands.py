"""`hocket manifest`, which needs no home."""

import json
from pathlib import Path

import pytest
from blake3 import blake3

from .conftest import Program, Result

CONTENT_ID = "blake3:298aaf4ca1e68cb951a3fae38e69dba73ce6a24d138f773601ff7d264e0d5fdc"
CANONICAL = '{"args":["echo","hello"],"command":["/usr/bin/env","bash","-lc"],"env":{"GREETING":"hello"},"timeout":30}'
YAML = """\
# A greeting.
timeout: PT30S
env: { GREETING: "hello" }
command: ["/usr/bin/env", "bash", "-lc"]
args: ["echo", "hello"]
ulid: 01J9ZC0000000000000000000A
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program where no home is."""
    (tmp_path / "job.yaml").write_text(YAML)
    (tmp_path / "job.json").write_text(CANONICAL)
    return Program(tmp_path / "nowhere" / "home")


@pytest.mark.req("GT-02")
def test_one_id_from_yaml_and_json(program: Program) -> None:
    for file in ("job.yaml", "job.json"):
        assert program("manifest", "id", file, code=0).out == f"{CONTENT_ID}\n"
        assert program("manifest", "id", file, "--json", code=0).json == {"content_id": CONTENT_ID}
    assert program("manifest", "id", "-", input=YAML, code=0).out == f"{CONTENT_ID}\n"
    assert not program.home.exists()


@pytest.mark.req("GT-02")
def test_the_canonical_form_is_what_is_hashed(program: Program) -> None:
    out = program("manifest", "canonical", "job.yaml", code=0).out
    assert out == CANONICAL and f"blake3:{blake3(out.encode()).hexdigest()}" == CONTENT_ID
    assert program("--json", "manifest", "canonical", "-", input=YAML, code=0).out == CANONICAL


def test_a_good_manifest_is_called_good(program: Program) -> None:
    assert program("manifest", "check", "job.yaml", code=0).out == f"good: {CONTENT_ID}\n"
    told = program("manifest", "check", "job.yaml", "--json", code=0).json
    manifest = json.loads(CANONICAL) | {"ulid": "01J9ZC0000000000000000000A"}
    assert told == {"good": True, "content_id": CONTENT_ID, "manifest": manifest}


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (name, name, b",".join([b"*%c" % before] * 9))
    for before, name in zip(b"abcdefgh", b"bcdefghi", strict=True)
)


@pytest.mark.req("GT-03")
@pytest.mark.parametrize(
    ("text", "field", "why"),
    [
        (b"command: [a]\ntimeout: -1\n", "timeout", "timeout: -1 is not a duration"),
        (b"command: [a]\ntimeout: 1\nshell: true\n", "shell", "shell: unknown field"),
        (b"command: [a]\ntimeout: 1\nenv: {A-B: x}\n", "env.'A-B'", "not a variable name"),
        (b"command: [a, \x1b[31m]\ntimeout: 1\n", None, "x001b"),
        (b'{"command": ["a"], "timeout": 1, "cwd": "\\u001b[31m/.."}', "cwd", "not inside the job's directory"),
        (b"command: [yes]\ntimeout: 1\n", None, "line 1: 'yes' is not the same"),
        (b"command: [a]\ntimeout: 1\ntimeout: 2\n", None, "line 3: the key 'timeout' is repeated"),
        (BOMB, None, "line 1: anchors and aliases"),
        (b"\x7fELF\x02\x01\x01\xff\xfe" * 100, None, "not UTF-8"),
        (b"#" * 2 * 1024 * 1024, None, "longer than 1048576 bytes"),
        (b"", None, "it is empty"),
        (b"- a\n", None, "a manifest must be a mapping"),
    ],
)
def test_a_bad_manifest_is_refused_in_one_sentence(
    program: Program, tmp_path: Path, text: bytes, field: str | None, why: str
) -> None:
    (tmp_path / "bad.yaml").write_bytes(text)
    done = program("manifest", "check", "bad.yaml", code=1)
    assert done.sentence.startswith("bad.yaml: ") and why in done.sentence and done.out == ""
    done = program("manifest", "check", "-", "--json", input=text, code=1)
    assert done.json["good"] is False and done.json["field"] == field and why in done.json["problem"]
    assert done.sentence.startswith("standard input: ")


def test_a_bad_manifest_has_no_id(program: Program) -> None:
    for command in ("id", "canonical"):
        done = program("manifest", command, "-", input="command: [a]\ntimeout: -1\n", code=1)
        assert "timeout: -1" in done.sentence and done.out == ""


def test_what_cannot_be_read_is_a_wrong_usage(program: Program, tmp_path: Path) -> None:
    def refused(name: str) -> Result:
        return program("manifest", "check", name, code=2)

    assert refused("missing.yaml").sentence == "cannot read missing.yaml: No such file or directory"
    assert refused(".").sentence == "cannot read .: Is a directory"
    assert "cannot read" in refused("x" * 5000).sentence
    assert "missing argument" in program("manifest", "id", code=2).sentence
    assert "no such command" in program("manifest", "sign", "job.yaml", code=2).sentence


def test_the_help_names_the_commands(program: Program) -> None:
    shown = program("manifest", "--help", code=0).out
    assert all(word in shown for word in ("id", "canonical", "check"))
    assert "manifest" in program("--help", code=0).out
