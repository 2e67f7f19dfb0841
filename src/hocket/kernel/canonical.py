"""Canonical JSON: the one spelling of a JSON value that is hashed and signed."""

import msgspec
import rfc8785

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: object) -> bytes:
    """The RFC 8785 form of a value. Everything of ours that is hashed or signed as JSON uses this, because key order,
    number spelling and escapes must be the same in every language that checks it. Raises ValueError for a value without
    such a form (an integer beyond 2^53, a NaN).
    """
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def canonical_plain(value: object) -> bytes:
    """Builds the RFC 8785 form several times faster. The caller must ensure that the value has no floats, that its
    integers lie within 2^53 and that its keys are ASCII.
    """
    return _encoder.encode(value)
