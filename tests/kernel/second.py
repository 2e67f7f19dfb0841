"""A second encoder, written from docs/wire-format.md and from nothing else: it reads the tables of that page and
encodes plain values (hex for bytes, dicts for structs) by them. It shares no code with the codec that it checks.
The same tables give hypothesis its values."""

import re
import struct
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from hocket.families.availability import facts as availability
from hocket.families.inbox import facts as inbox
from hocket.families.kinds import facts as kinds
from hocket.families.locks import facts as locks
from hocket.families.retention import facts as retention
from hocket.families.rows import facts as rows
from hocket.kernel import vocabulary

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
FIELD = re.compile(r"`(\w+): ([^`]+)`")
Fields = list[tuple[str, str]]

VARIANTS: dict[str, tuple[int, Fields]] = {
    name: (int(number), FIELD.findall(rest))
    for number, name, rest in re.findall(r"^\| (\d+) \| (\w+) \| (.*) \|$", PAGE, re.M)
}
UNIONS: dict[str, dict[str, tuple[int, Fields]]] = {}
for union_, number_, member_, rest_ in re.findall(r"^\| (\w+) \| (\d+) \| (\w+) \| (.*) \|$", PAGE, re.M):
    UNIONS.setdefault(union_, {})[member_] = (int(number_), FIELD.findall(rest_))
CHOICES: dict[str, dict[int, str]] = {
    name: {int(number): word for number, word in re.findall(r"(\d+) (\w+)", rest)}
    for name, rest in re.findall(r"^\| (\w+) \| (\d+ [A-Z]\w+,.*) \|$", PAGE, re.M)
}
PARTS: dict[str, Fields] = {
    name: FIELD.findall(rest) for name, rest in re.findall(r"^\| ([A-Z]\w+) \| (`\w+: .*) \|$", PAGE, re.M)
}


def varint(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n % 128 + 128]) + varint(n // 128)


def arguments(kind: str) -> list[str]:
    inside = kind[kind.index("(") + 1 : -1]
    if kind.startswith("pair"):
        first, _, second = inside.partition(", ")
        return [first, second]
    return [inside]


def put(kind: str, value: Any) -> bytes:
    if kind in ("u32", "u64", "node"):
        return varint(value)
    if kind == "f64":
        return struct.pack("<d", value)
    if kind == "bool":
        return b"\x01" if value else b"\x00"
    if kind == "str":
        return varint(len(value.encode())) + value.encode()
    if kind == "bytes":
        return varint(len(value) // 2) + bytes.fromhex(value)
    if kind in ("ulid", "hash", "signature"):
        return bytes.fromhex(value)
    if kind in CHOICES:
        return varint(value)
    if kind in UNIONS:
        number, fields = UNIONS[kind][value["type"]]
        return varint(number) + put_fields(fields, value)
    if kind in PARTS:
        return put_fields(PARTS[kind], value)
    if kind == "payload":
        return put_payload(value)
    inner = arguments(kind)
    if kind.startswith("option("):
        return b"\x00" if value is None else b"\x01" + put(inner[0], value)
    if kind.startswith("seq("):
        return varint(len(value)) + b"".join(put(inner[0], one) for one in value)
    assert kind.startswith("pair("), kind
    return put(inner[0], value[0]) + put(inner[1], value[1])


def put_fields(fields: Fields, value: dict[str, Any]) -> bytes:
    assert [name for name, _ in fields] == [name for name in value if name != "type"]
    return b"".join(put(kind, value[name]) for name, kind in fields)


def put_payload(value: dict[str, Any]) -> bytes:
    number, fields = VARIANTS[value["type"]]
    return varint(number) + put_fields(fields, value)


def put_unsigned(op: dict[str, Any]) -> bytes:
    wall, logical, node = op["timestamp"]
    return (
        put("ulid", op["id"])
        + put("u32", op["schema_version"])
        + put("u64", wall)
        + put("u32", logical)
        + put("node", node)
        + put("node", op["node_id"])
        + put("seq(ulid)", op["causal_deps"])
        + put_payload(op["payload"])
    )


def plain(value: Any) -> Any:
    """A value of ours as JSON could hold it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if hasattr(value, "__struct_fields__"):
        return {"type": type(value).__name__} | {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


# Small numbers and short varints are as likely as wide ones, so that both branches are walked.
U64S = st.integers(0, 2**64 - 1) | st.integers(0, 300)
ULIDS = st.binary(min_size=16, max_size=16)


def values(kind: str) -> st.SearchStrategy[Any]:
    simple = {
        "u32": st.integers(0, 2**32 - 1),
        "u64": U64S,
        "node": U64S,
        "f64": st.floats(allow_nan=False),
        "bool": st.booleans(),
        "str": st.text(max_size=12),
        "bytes": st.binary(max_size=200),
        "ulid": ULIDS,
        "hash": st.binary(min_size=32, max_size=32),
        "signature": st.binary(min_size=64, max_size=64),
    }
    if kind in simple:
        return simple[kind]
    if kind in CHOICES:
        return st.sampled_from(named(kind))
    if kind in UNIONS:
        return st.one_of([build(name, fields) for name, (_, fields) in UNIONS[kind].items()])
    if kind in PARTS:
        return build(kind, PARTS[kind])
    if kind == "payload":
        plain_ones = sorted(VARIANTS.keys() - {"Sanitised", "Bundle"})
        return st.sampled_from(plain_ones).flatmap(lambda name: build(name, VARIANTS[name][1]))
    inner = [values(one) for one in arguments(kind)]
    if kind.startswith("option("):
        return st.none() | inner[0]
    if kind.startswith("seq("):
        return st.lists(inner[0], max_size=3).map(tuple)
    return st.tuples(*inner)


def named(name: str) -> Any:
    """The payload or the choice of this name, of the vocabulary or of a family."""
    places = (vocabulary, locks, inbox, rows, availability, kinds, retention)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def build(name: str, fields: Fields) -> st.SearchStrategy[Any]:
    return st.builds(named(name), **{field: values(kind) for field, kind in fields})


PAYLOADS = st.sampled_from(sorted(VARIANTS)).flatmap(lambda name: build(name, VARIANTS[name][1]))
