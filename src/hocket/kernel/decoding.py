"""Decodes JSON, MessagePack and plain values into types, from any thread.

msgspec collects what it has to know about a struct when the struct is first used. As of 0.22.0, another thread that
uses it meanwhile reads what is not there yet, and the process crashes. So types are used for the first time here, by
one thread after the other.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
Hook = Callable[[type, Any], Any]

_first_use = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[T], hook: Hook | None = None) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any, hook: Hook | None = None) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any, hook: Hook | None = None) -> msgspec.json.Decoder[Any]:
    with _first_use:
        return msgspec.json.Decoder(kind, dec_hook=hook)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _first_use:
        return msgspec.msgpack.Decoder(kind)


@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(data: bytes | str, kind: Any) -> Any: ...
def decode_json(data: bytes | str, kind: Any) -> Any:
    if (decoder := _json.get(kind)) is None:
        decoder = _json[kind] = json_decoder(kind)
    return decoder.decode(data)


@overload
def convert(
    value: Any, kind: type[T], *, strict: bool = True, str_keys: bool = False, hook: Hook | None = None
) -> T: ...
@overload
def convert(value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False, hook: Hook | None = None) -> Any: ...
def convert(value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False, hook: Hook | None = None) -> Any:
    _used_before(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys, dec_hook=hook)


def _used_before(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    try:
        found = _msgpack.get(kind)
    except TypeError:  # an annotation of a user's may hold anything, also what has no hash
        return msgpack_decoder(kind)
    if found is None:
        found = _msgpack[kind] = msgpack_decoder(kind)
    return found
