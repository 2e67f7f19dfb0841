"""A family that the program knows for the time of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from hocket.kernel import family as registry
from hocket.kernel.family import FAMILIES, Family, register
from hocket.log import projectors


@contextmanager
def registered(family: Family) -> Iterator[None]:
    register(family)
    try:
        yield
    finally:
        del FAMILIES[family.name]
        projectors._rules.pop(family.name, None)
        for table, part in registry._derived:
            others = {key for other in FAMILIES.values() for key in part(other)}
            for key in part(family).keys() - others:
                del table[key]
