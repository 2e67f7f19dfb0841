"""Bundles with any facts, also those that no node would write."""

from collections.abc import Iterable

from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op, bound, deps_bytes
from hocket.kernel.vocabulary import VARIANTS, Bundle, Payload, number_of


def bundled(
    stamp: Hlc, deps: tuple[bytes, ...], facts: Iterable[tuple[tuple[bytes, ...], Payload]]
) -> tuple[Op, bytes]:
    """The bundle with this time, and its unsigned bytes. `deps` is what it says for each of its facts, and its link. Of
    each fact it gets the ops on which that depends, and its payload, without an id if the fact gives it one.
    """
    content, number = bytearray(), 0
    for cited, payload in facts:
        number = number_of(type(payload))
        content += deps_bytes(cited)
        VARIANTS[number].write(content, payload)
    return bound(stamp, deps, Bundle(number, bytes(content)))
