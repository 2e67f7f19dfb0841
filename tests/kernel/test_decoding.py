"""Decoding into types: the same as msgspec, and from several threads at once, where msgspec crashes."""

import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest

from hocket.kernel.decoding import convert, decode_json, json_decoder, msgpack_decoder

# One thread begins to use the struct for the first time, and waits in the middle of that. Another one uses it, too.
TWO_THREADS = """
import sys, threading, msgspec
from hocket.kernel import decoding

is_building, is_used = threading.Event(), threading.Event()

def kind():
    is_building.set()
    is_used.wait(0.5)
    return int

class Inner(msgspec.Struct):
    number: "kind()"

class Outer(msgspec.Struct):
    name: str
    inner: Inner

def use():
    {expression}

first = threading.Thread(target=use)
first.start()
is_building.wait()
use()
is_used.set()
first.join()
print("both have decoded")
"""

JSON = b'{"name": "a", "inner": {"number": 1}}'
MSGPACK = msgspec.msgpack.encode(msgspec.json.decode(JSON))
OURS = {
    "decode_json": f"decoding.decode_json({JSON}, Outer)",
    "convert": f"decoding.convert({msgspec.json.decode(JSON)}, Outer)",
    "json_decoder": f"decoding.json_decoder(Outer).decode({JSON})",
    "msgpack_decoder": f"decoding.msgpack_decoder(Outer).decode({MSGPACK})",
}


def two_threads(expression: str) -> subprocess.CompletedProcess[str]:
    program = TWO_THREADS.replace("{expression}", expression)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("expression", OURS.values(), ids=OURS)
def test_two_threads_use_a_struct_for_the_first_time(expression: str) -> None:
    ended = two_threads(expression)
    assert (ended.returncode, ended.stdout) == (0, "both have decoded\n"), ended.stderr


def test_msgspec_itself_still_crashes() -> None:
    """When this fails, msgspec has been mended, and `kernel/decoding` can go."""
    assert two_threads(f"msgspec.json.decode({JSON}, type=Outer)").returncode < 0


class Point(msgspec.Struct):
    x: int
    y: int = 0


@pytest.mark.parametrize("kind", [Point, list[Point], dict[str, Point], Point | None, Annotated[Point, ["no hash"]]])
def test_values_become_what_msgspec_makes_of_them(kind: Any) -> None:
    for value in ({"x": 1}, [{"x": 1, "y": 2}], {"a": {"x": 1}}, None, {"x": "1"}, 7):
        encoded, packed = msgspec.json.encode(value), msgspec.msgpack.encode(value)
        try:
            wanted = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            with pytest.raises(msgspec.ValidationError):
                convert(value, kind)
            with pytest.raises(msgspec.ValidationError):
                msgpack_decoder(kind).decode(packed)
            with pytest.raises(msgspec.ValidationError):
                json_decoder(kind).decode(encoded)
            continue
        assert convert(value, kind) == msgpack_decoder(kind).decode(packed) == wanted
        assert json_decoder(kind).decode(encoded) == wanted


def test_json_becomes_a_type_and_options_are_handed_on() -> None:
    assert decode_json('[{"x": 1}]', list[Point]) == [Point(1)]
    assert convert({"x": "1"}, Point, strict=False) == Point(1)
    assert convert({"1": 2}, dict[int, int], str_keys=True) == {1: 2}
    assert convert("a", complex, hook=lambda kind, value: kind(3)) == 3
