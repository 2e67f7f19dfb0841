"""The stores that the suites of the log and of the roster run over. A new store gets one line in STORES; tests/log
runs over each, everything else over the first.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hocket import store
from hocket.store import MEMORY, Store


class StoreKind(NamedTuple):
    """`new` makes a store that nobody else has; `address` is that of one at a place, to be opened again."""

    new: Callable[[], Store]
    address: Callable[[Path], str]


STORES = {
    "sqlite": StoreKind(lambda: store.open(MEMORY), lambda place: f"sqlite://{place / 'log.db'}"),
}
_in_use = [next(iter(STORES.values()))]


def use(kind: StoreKind) -> None:
    _in_use[0] = kind


def new_store() -> Store:
    return _in_use[0].new()
