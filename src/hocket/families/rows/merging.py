"""The three-way merge of JSON values: what two sides made of one value, put together if they changed different members
of its objects. If both made the same change, they clash too: two that count from 4 to 5 have counted to 6, and two that
remove the same member would both believe that they took it.
"""

import msgspec

from hocket.kernel.decoding import json_decoder

_members = json_decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder(order="sorted")


class MergeClash(Exception):
    """Both sides changed the same thing."""


def merged(base: bytes | None, left: bytes | None, right: bytes | None) -> bytes | None:
    """The value with the changes of both sides; None stands for no value. Values count as equal if their bytes are.
    Raises MergeClash. It does not matter which side is called left.
    """
    if right == base:
        return left
    if left == base:
        return right
    if base is None or left is None or right is None:
        raise MergeClash
    try:
        before, ours, theirs = (_members.decode(each) for each in (base, left, right))
    except msgspec.MsgspecError:
        raise MergeClash from None  # not an object
    together = {}
    for name in before.keys() | ours.keys() | theirs.keys():
        found = merged(*(None if name not in each else bytes(each[name]) for each in (before, ours, theirs)))
        if found is not None:
            together[name] = msgspec.Raw(found)
    return _encoder.encode(together)
