"""Canonical JSON: the one spelling of a JSON value that is hashed and signed."""

import msgspec
import rfc8785

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: object) -> bytes:
    """The RFC 8785 form of a value. Everything of ours that is hashed or signed as JSON goes through here, because
    key order, number spelling and escapes must be the same in every language that checks it; a value without such
    a form (an integer beyond 2^53, a NaN) is refused as a ValueError."""
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def canonical_plain(value: object) -> bytes:
    """The same form, several times faster, of a value without floats whose integers lie within 2^53 and whose keys
    are ASCII. The caller sees to that."""
    return _encoder.encode(value)
