"""Manifests: one content id for everything that means the same, another for everything that does not, and every wrong
shape refused by the name of its field.
"""

import json
from random import Random
from typing import Any

import pytest
import yaml
from blake3 import blake3
from hypothesis import assume, given
from hypothesis import strategies as st

from hocket.extensions.command.manifest import (
    TIMEOUT_S_MAX,
    BadManifest,
    Manifest,
    Pointer,
    canonical,
    content_id,
    manifest_json,
    parse_manifest,
    read_manifest,
)
from hocket.kernel import yaml_subset
from hocket.kernel.ids import ulid_text
from hocket.kernel.jws import canonical_json

pytestmark = pytest.mark.touches("GT-02")

HASH = "ab" * 32
OTHER_HASH = "cd" * 32
POINTER = {"kind": "blobptr", "algo": "blake3", "hash": HASH, "size": 123}
GOOD: dict[str, Any] = {"command": ["make"], "args": ["test"], "timeout": 30}

# The document's own example, and the hash of its canonical form.
YAML = b"""\
command: ["/usr/bin/env", "bash", "-lc"]
args: ["echo", "hello"]
timeout: 30
env: { GREETING: "hello" }
"""
CANONICAL = b'{"args":["echo","hello"],"command":["/usr/bin/env","bash","-lc"],"env":{"GREETING":"hello"},"timeout":30}'
CONTENT_ID = "298aaf4ca1e68cb951a3fae38e69dba73ce6a24d138f773601ff7d264e0d5fdc"

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
NAMES = st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not name.startswith("HOCKET_"))
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
POINTERS = st.builds(
    lambda prefix, digits, size: {"kind": "blobptr", "algo": "blake3", "hash": prefix + digits} | size,
    st.sampled_from(("", "blake3:")),
    HASHES,
    st.just({}) | st.integers(0, 2**53 - 1).map(lambda size: {"size": size}),
)
VALUES = st.fixed_dictionaries(
    {
        "command": st.tuples(TEXTS.filter(bool), st.lists(TEXTS, max_size=3)).map(lambda found: [found[0], *found[1]]),
        "args": st.lists(TEXTS, max_size=4),
        "timeout": st.integers(0, 2**53 - 1),
    },
    optional={
        "env": st.dictionaries(NAMES, TEXTS, max_size=4),
        "cwd": st.sampled_from((".", "a", "a/b", "sub dir/é")),
        "inputs": st.lists(POINTERS, max_size=3),
        "policy_root": HASHES.map(lambda digits: f"sha256:{digits}"),
        "ulid": st.binary(min_size=16, max_size=16).map(lambda b: ulid_text(bytes([b[0] & 0x7F]) + b[1:])),
    },
)


def as_yaml(value: dict[str, Any], flow: bool | None, ascii: bool) -> bytes:
    return yaml.safe_dump(value, allow_unicode=not ascii, default_flow_style=flow, sort_keys=False, width=1000).encode()


def refused(value: object) -> BadManifest:
    with pytest.raises(BadManifest) as raised:
        parse_manifest(value)
    return raised.value


# One id.


@pytest.mark.req("GT-02")
def test_the_documents_example_hashes_alike_from_yaml_and_json() -> None:
    for text in (YAML, CANONICAL):
        manifest = read_manifest(text)
        assert canonical(manifest) == CANONICAL
        assert content_id(manifest).hex() == blake3(CANONICAL).hexdigest() == CONTENT_ID
    assert read_manifest(YAML).argv == ("/usr/bin/env", "bash", "-lc", "echo", "hello")


@pytest.mark.req("GT-02")
@given(VALUES, st.sampled_from((False, True, None)))
def test_yaml_and_json_say_the_same(value: dict[str, Any], flow: bool | None) -> None:
    manifest = parse_manifest(value)
    expected = canonical_json({name: each for name, each in value.items() if name != "ulid"})
    assert canonical(manifest) == expected
    for text in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
        assert read_manifest(text) == manifest
    # What PyYAML writes is YAML 1.1: it leaves a few texts without quotes, and characters without an escape, that 1.2
    # takes for something else.
    for ascii in (True, False):
        try:
            read = read_manifest(as_yaml(value, flow, ascii))
        except BadManifest as error:
            assert "not the same to all YAML readers" in str(error) or "ends a line for some YAML readers" in str(error)
        else:
            assert read == manifest
    assert parse_manifest(manifest_json(manifest)) == manifest
    assert read_manifest(expected) == parse_manifest({k: v for k, v in value.items() if k != "ulid"})


@pytest.mark.req("GT-02")
@given(VALUES, st.randoms())
def test_what_means_the_same_has_the_same_id(value: dict[str, Any], random: Random) -> None:
    expected = content_id(parse_manifest(value))
    names = list(value)
    random.shuffle(names)
    assert content_id(parse_manifest({name: value[name] for name in names})) == expected
    assert content_id(parse_manifest(value | {"ulid": "01J9ZC0000000000000000000A"})) == expected
    days, seconds = divmod(value["timeout"], 86_400)
    for duration in (f"PT{value['timeout']}S", f"P{days}DT{seconds // 60}M{seconds % 60}S"):
        assert content_id(parse_manifest(value | {"timeout": duration})) == expected
    if not value["args"]:
        assert content_id(parse_manifest({name: each for name, each in value.items() if name != "args"})) == expected


@pytest.mark.req("GT-02")
@given(VALUES, st.data())
def test_any_other_change_gives_another_id(value: dict[str, Any], data: st.DataObject) -> None:
    changed = dict(value)
    name = data.draw(st.sampled_from(sorted(set(value) - {"ulid"} | {"env", "cwd", "inputs", "policy_root"})))
    other = data.draw(VALUES)
    if name in other:
        changed[name] = other[name]
    else:
        changed.pop(name, None)
    assume(changed != value)
    assert content_id(parse_manifest(changed)) != content_id(parse_manifest(value))


@pytest.mark.req("GT-02")
def test_absent_is_not_empty() -> None:
    ids = {content_id(parse_manifest(GOOD | more)) for more in ({}, {"env": {}}, {"inputs": []}, {"cwd": "."})}
    assert len(ids) == 4
    assert (
        canonical(parse_manifest(GOOD | {"env": {}})) == b'{"args":["test"],"command":["make"],"env":{},"timeout":30}'
    )


def test_a_hash_is_kept_as_it_was_written() -> None:
    bare, named = (parse_manifest(GOOD | {"inputs": [POINTER | {"hash": text}]}) for text in (HASH, f"blake3:{HASH}"))
    assert bare.inputs == (Pointer(bytes.fromhex(HASH), 123, HASH),)
    assert named.inputs == (Pointer(bytes.fromhex(HASH), 123, f"blake3:{HASH}"),)
    assert content_id(bare) != content_id(named)
    assert b'"hash":"blake3:' in canonical(named)


@pytest.mark.req("GT-02")
def test_a_ulid_is_kept() -> None:
    manifest = parse_manifest(GOOD | {"ulid": "01J9ZC0000000000000000000A"})
    assert manifest.ulid == manifest_json(manifest)["ulid"] == "01J9ZC0000000000000000000A"


@pytest.mark.req("GT-02")
@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0),
        (TIMEOUT_S_MAX, TIMEOUT_S_MAX),
        ("PT0S", 0),
        ("PT30S", 30),
        ("PT90M", 5400),
        ("P1DT12H", 129_600),
        ("P2W", 1_209_600),
        ("P1W1DT1H1M1S", 694_861),
        ("PT0.5M", 30),
        ("PT1,5H", 5400),
        ("P0.25D", 21_600),
        ("PT1.000S", 1),
    ],
)
def test_a_timeout_becomes_whole_seconds(written: int | str, seconds: int) -> None:
    assert parse_manifest(GOOD | {"timeout": written}).timeout == seconds


# What is refused, by its field.


@pytest.mark.req("GT-03")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": None}, "command"),
        ({"command": "make test"}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": {"make": 1}}, "command"),
        ({"command": ["make", 7]}, "command[1]"),
        ({"command": ["make", None]}, "command[1]"),
        ({"command": ["ma\0ke"]}, "command[0]"),
        ({"command": ["\ud800"]}, "command[0]"),
        ({"args": None}, "args"),
        ({"args": "test"}, "args"),
        ({"args": ["a", True]}, "args[1]"),
        ({"args": [["a"]]}, "args[0]"),
        ({"args": ["\0"]}, "args[0]"),
        *(({"timeout": wrong}, "timeout") for wrong in (None, -1, 1.0, 30.5, True, [], {}, 2**53, 10**30)),
        *(
            ({"timeout": wrong}, "timeout")
            for wrong in (
                *("", "30", "30s", "1h", "P", "PT", "P1DT", "P1Y", "P1M", "P1Y2M", "-PT1S", "+PT1S", "pt30s", " PT30S"),
                *("PT30S\n", "PT1.5S", "PT0.5H1M", "PT1S1M", "P1D1W", "PT.5M", "PT5.M", "PT٣S", f"PT{2**53}S"),
                f"PT{'9' * 1000}S",
            )
        ),
        ({"env": None}, "env"),
        ({"env": ["A=1"]}, "env"),
        *(({"env": {name: "x"}}, f"env.{name!r}") for name in ("", "1A", "A-B", "A=B", "A B", "É", "A\0", "A\n")),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A": None}}, "env.A"),
        ({"env": {"A": "x\0y"}}, "env.A"),
        *(({"cwd": wrong}, "cwd") for wrong in (None, "", "/", "/tmp", "..", "../a", "a/../../b", "a/..", 7, "a\0b")),
        ({"inputs": None}, "inputs"),
        ({"inputs": POINTER}, "inputs"),
        ({"inputs": [HASH]}, "inputs[0]"),
        ({"inputs": [POINTER, POINTER | {"kind": "file"}]}, "inputs[1].kind"),
        ({"inputs": [{"algo": "blake3", "hash": HASH}]}, "inputs[0].kind"),
        ({"inputs": [POINTER | {"algo": "sha256"}]}, "inputs[0].algo"),
        ({"inputs": [POINTER | {"name": "x"}]}, "inputs[0].'name'"),
        *(
            ({"inputs": [POINTER | {"hash": wrong}]}, "inputs[0].hash")
            for wrong in (
                None,
                7,
                "",
                HASH[1:],
                HASH + "0",
                HASH.upper(),
                f"sha256:{HASH}",
                f"blake3:{HASH} ",
                "blake3:",
            )
        ),
        *(({"inputs": [POINTER | {"size": wrong}]}, "inputs[0].size") for wrong in (None, -1, 1.0, True, "1", 2**53)),
        *(
            ({"policy_root": wrong}, "policy_root")
            for wrong in (None, "", HASH, f"sha256:{HASH.upper()}", f"blake3:{HASH}", f"sha256:{HASH}0", 7)
        ),
        *(
            ({"ulid": wrong}, "ulid")
            for wrong in (None, "", "01J9ZC", "01j9zc0000000000000000000a", "I" * 26, "8" + "0" * 25, 7)
        ),
        ({"shell": True}, "shell"),
        ({"Command": ["x"]}, "Command"),
        ({"": 1}, ""),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(change: dict[str, Any], field: str) -> None:
    error = refused(GOOD | change)
    assert error.field == field
    assert str(error).startswith(field) and len(str(error)) < 250 and "\n" not in str(error)


@pytest.mark.req("GT-03")
@pytest.mark.parametrize("name", ["command", "timeout"])
def test_a_missing_field_is_refused_by_its_name(name: str) -> None:
    error = refused({key: value for key, value in GOOD.items() if key != name})
    assert error.field == name and "missing" in str(error)


@pytest.mark.req("GT-03")
@pytest.mark.parametrize("value", [None, [], "make", 7, True, [GOOD]])
def test_only_a_mapping_is_a_manifest(value: object) -> None:
    assert "mapping" in str(refused(value))


# What the runner reads from env.


def placed(env: dict[str, str], count: int = 2) -> Manifest:
    pointers = [POINTER | {"hash": digits} for digits in (HASH, OTHER_HASH)][:count]
    return parse_manifest(GOOD | {"env": env, "inputs": pointers})


def test_where_inputs_go_and_what_is_collected() -> None:
    plain = parse_manifest(GOOD)
    assert (plain.input_paths, plain.output_patterns, plain.sandbox) == ((), ("outputs/**",), "off")
    assert placed({}).input_paths == (f"inputs/{HASH}", f"inputs/{OTHER_HASH}")
    assert placed({"HOCKET_INPUTS": "a/b:c"}).input_paths == ("a/b", "c")
    assert placed({"HOCKET_INPUTS": "a"}).input_paths == ("a", f"inputs/{OTHER_HASH}")
    assert placed({"HOCKET_INPUTS": ":c"}).input_paths == (f"inputs/{HASH}", "c")
    assert placed({"HOCKET_INPUTS": ""}).input_paths == (f"inputs/{HASH}", f"inputs/{OTHER_HASH}")
    assert placed({"HOCKET_OUTPUTS": "dist/**:*.log"}).output_patterns == ("dist/**", "*.log")
    assert [placed({"HOCKET_SANDBOX": how}).sandbox for how in ("off", "on", "network")] == ["off", "on", "network"]
    assert placed({"HOCKET_ON": "3f9a01c2d4e5f607"}).on == "3f9a01c2d4e5f607" and placed({}).on is None


def test_the_same_bytes_may_be_one_file() -> None:
    twice = parse_manifest(GOOD | {"inputs": [POINTER, POINTER], "env": {"HOCKET_INPUTS": "a:a"}})
    assert twice.input_paths == ("a", "a")


@pytest.mark.req("GT-03")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(
            ("INPUTS", each)
            for each in ("a:b:c", "a:a", "a:a/b", "a/b/c:a/b", "../a", "/a", "a/..", "a//b", "./a", "a/")
        ),
        *(("OUTPUTS", each) for each in (":", "a::b", "/etc/*", "../*", "a/../b", "a:")),
        *(("SANDBOX", each) for each in ("", "ON", "yes", "off ")),
        *(("ON", each) for each in ("", "gpu-box", "3f9a", "3F9A01C2D4E5F607", "3f9a01c2d4e5f6070")),
    ],
)
def test_what_the_runner_could_not_do_is_refused(name: str, wrong: str) -> None:
    with pytest.raises(BadManifest) as raised:
        placed({f"HOCKET_{name}": wrong})
    assert raised.value.field == f"env.HOCKET_{name}"


# Texts.


@pytest.mark.parametrize(
    "scalar",
    [
        *("y", "Y", "yes", "Yes", "YES", "no", "on", "On", "OFF", "n", "N"),
        *("010", "08", "-010", "0o7", "0b11", "0x1F", "1_000", "1:30", "1:30:00", "1:30.5", "+12", "+1.5"),
        *(".5", "5.", "1e3", "1.5e3", "-1E+9", ".inf", "-.INF", ".nan", "1_0.5"),
        *("2001-12-14", "2001-12-14t21:59:43.10-05:00", "2001-1-1 0:0:0", "=", "<<"),
    ],
)
def test_what_two_readers_read_differently_must_be_quoted(scalar: str) -> None:
    for text in (f"command: [{scalar}]\ntimeout: 1\n", f"command:\n- {scalar}\ntimeout: 1\n"):
        with pytest.raises(BadManifest, match=r"line [12]: .* not the same to all YAML readers"):
            read_manifest(text.encode())
    assert read_manifest(f"command: ['{scalar}']\ntimeout: 1\n".encode()).command == (scalar,)


@pytest.mark.parametrize(
    "scalar", ["a", "1.2.3", "v1", "-", "--all", "PT30S", "12a", "1 2", "0x", "e3", "a:b", "1:", "./x"]
)
def test_what_all_readers_call_a_text_needs_no_quotes(scalar: str) -> None:
    text = f"command:\n- {scalar if scalar not in ('-', '1:') else repr(scalar)}\ntimeout: 1\n"
    assert read_manifest(text.encode()).command == (scalar,)


@pytest.mark.parametrize("scalar", ["1", "-7", "1.5", "true", "False", "null", "~", ""])
def test_what_is_no_text_is_not_taken_for_one(scalar: str) -> None:
    with pytest.raises(BadManifest) as raised:
        read_manifest(f"command: [a]\nargs:\n- {scalar}\ntimeout: 1\n".encode())
    assert raised.value.field == "args[0]" and "quote it" in str(raised.value)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.req("GT-03")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "line 1: anchors and aliases"),
        ("command: [a]\ntimeout: *x\n", "line 2: anchors and aliases"),
        ("command: [a]\ntimeout: !!int 3\n", "line 2: the tag"),
        ("command: !!python/object/apply:os.system [echo]\ntimeout: 1\n", "line 1: the tag"),
        ("command: ! [a]\ntimeout: 1\n", "line 1: the tag"),
        ("command: [a]\ntimeout: 1\ncommand: [b]\n", "line 3: the key 'command' is repeated"),
        ("command: [a]\ntimeout: 1\nenv: {A: x, 'A': y}\n", "line 3: the key 'A' is repeated"),
        ('{"command": ["a"], "timeout": 1, "timeout": 2}', "the key 'timeout' is repeated"),
        ("command: [a]\ntimeout: 1\n---\ncommand: [b]\ntimeout: 1\n", "line 3: a second document"),
        ("%YAML 1.1\n---\ncommand: [a]\ntimeout: 1\n", "directives"),
        ("%TAG ! tag:x,2000:\n---\ncommand: [a]\ntimeout: 1\n", "directives"),
        ("command: [a]\ntimeout: 1\nenv: {1: x}\n", "line 3: a key must be a text, not '1'"),
        ("command: [a]\ntimeout: 1\nenv: {null: x}\n", "line 3: a key must be a text, not 'null'"),
        ("command: [a]\ntimeout: 1\nenv: {on: x}\n", "line 3: 'on' is not the same"),
        ("command: [a]\ntimeout: 1\nenv: {<<: {A: x}}\n", "line 3: '<<' is not the same"),
        ("command: [a]\ntimeout: 1\n? [a]\n: b\n", "line 3: a key must be a text, not a list"),
        ("command: [a\ntimeout: 1\n", "line 2"),
        ("command: [a]\n\ttimeout: 1\n", "line 2"),
        ("command: [a]\ntimeout: 1\n  env: {}\n", "line 3"),
        ("a: " + "[" * 9 + "]" * 9, "line 1: nested deeper"),
        ("[" * 100_000, "line 1: nested deeper"),
        ("- " * 100_000, "line 1: nested deeper"),
        ('{"a":' * 100_000, "nested"),
        ("command: [a]\ntimeout: 1\ncwd: 'a\u2028b'\n", "line 3: the character U\\+2028"),
        ("command: [a]\ntimeout: 1\ncwd: 'a\x85b'\n", "line 3: the character U\\+0085"),
        ("command: [a\0b]\ntimeout: 1\n", "#x0000"),
        ('{"command": ["a"], "timeout": NaN}', "NaN"),
        (f'{{"command": ["a"], "timeout": {"9" * 5000}}}', "too great"),
        (f"command: [a]\ntimeout: {'9' * 5000}\n", "too great"),
        ("", "it is empty"),
        ("# only a remark\n", "it is empty"),
    ],
)
def test_a_text_that_is_more_than_a_manifest_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadManifest, match=why) as raised:
        read_manifest(text.encode())
    assert len(str(raised.value)) < 250


def test_what_is_no_text_or_too_long_is_refused() -> None:
    for data, why in ((b"\x7fELF\x02\x01\xff", "not UTF-8"), (YAML + b"#" * 2**21, "longer than")):
        with pytest.raises(BadManifest, match=why):
            read_manifest(data)
    room = yaml_subset.TEXT_BYTES_MAX - len(YAML)
    assert content_id(read_manifest(YAML + b"#" * room)).hex() == CONTENT_ID


def test_json_escapes_are_read_as_json() -> None:
    text = rb'{"command": ["\ud83d\ude00\/\u00e9"], "timeout": 1}'
    assert read_manifest(text).command == ("\U0001f600/é",)


def test_block_texts_are_read() -> None:
    text = b'command: [sh, -c]\nargs:\n- |\n  one\n  two\n- >-\n  three\n  four\n- "a\\tb"\ntimeout: PT1M\n'
    assert read_manifest(text).args == ("one\ntwo\n", "three four", "a\tb")


PIECES = [*" \n:-?,[]{}#&*!|>'\"%@`\t~<=ab01.", "\n  ", "\n- ", ": ", "---\n", "\r\n", "é", "\ufeff", "\\", ">-\n"]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.sampled_from(PIECES)), min_size=1, max_size=5))
def test_both_parsers_give_one_value_where_both_give_one(edits: list[tuple[int, int, str]]) -> None:
    """Where libyaml is missing, PyYAML's own parser reads. One may refuse what the other reads; never is it another
    manifest."""
    text = YAML.decode() + "cwd: a\ninputs:\n- kind: blobptr\n  algo: 'blake3'\nulid: |\n  x\n"
    for at, size, piece in edits:
        text = text[:at] + piece + text[at + size :]
    found = []
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yaml, "CSafeLoader", loader)
            try:
                found.append(yaml_subset._yaml(text))
            except yaml_subset.BadText:
                pass
    assert len(found) < 2 or found[0] == found[1]


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_manifest(data)
    except BadManifest:
        pass


@pytest.mark.parametrize(
    "piece", [b"- a\n", b"? ", b"a: b\n", b"{a, ", b"'", b'"\\n', b"#", b"|\n ", b"a ", b"&a ", b"\n"]
)
@pytest.mark.timeout(30)
def test_a_megabyte_of_anything_comes_to_an_end(piece: bytes) -> None:
    with pytest.raises(BadManifest):
        read_manifest(piece * (yaml_subset.TEXT_BYTES_MAX // len(piece)))


LONG = 1_000_000  # with a pass for each character this takes hours


@pytest.mark.req("GT-03")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "scalar",
    [
        "1" * LONG,
        "-" + "1" * LONG,
        "1" * LONG + "x",
        "0" * LONG + "x",
        "1" * (LONG // 2) + "_" * (LONG // 2) + "x",
        "1" * (LONG // 2) + "." + "1" * (LONG // 2),
        "1" * (LONG // 2) + "." + "1" * (LONG // 2) + "x",
        "." + "1" * LONG + "x",
        "1e" + "1" * LONG + "x",
        "1:" * (LONG // 2) + "x",
        "0x" + "1" * LONG + "g",
        "0b" + "1" * LONG + "2",
        "2000-01-01 " + " " * LONG + "x",
    ],
    ids=lambda scalar: f"{scalar[:3]}…{scalar[-3:]}",
)
def test_a_scalar_of_a_million_characters_is_refused_in_one_pass(scalar: str) -> None:
    """A scalar of 18,000 digits and a letter took 16 seconds."""
    for text in (f"command: [x]\ntimeout: {scalar}\n", f'{{"command": ["x"], "timeout": {scalar}}}'):
        with pytest.raises(BadManifest):
            read_manifest(text.encode())


@pytest.mark.req("GT-03")
@pytest.mark.parametrize("value", [10**20_000, -(10**20_000), 2**193], ids=["great", "negative", "not so great"])
@pytest.mark.parametrize("field", ["timeout", "cwd", "command", "ulid", "inputs"])
def test_a_number_that_python_does_not_write_down_is_refused_by_its_field(field: str, value: int) -> None:
    assert refused({"command": ["x"], "timeout": 1} | {field: value}).field == field
