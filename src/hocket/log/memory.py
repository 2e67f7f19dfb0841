"""What the parts of a projection know, and for how long it is true."""

from typing import Any, NamedTuple

# The most answers of a sort that are kept from one transaction to the next.
LASTING_MAX = 256
Clearable = dict[Any, Any] | set[Any] | list[Any]


class Memory(NamedTuple):
    """What a part of a projection knows of one transaction, and what stays true until the log changes. If the first of
    `passing` is empty after a transaction that was stored, then so are the others.
    """

    passing: tuple[Clearable, ...]
    lasting: tuple[Clearable, ...] = ()
