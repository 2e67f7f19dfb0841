"""The stores that the suites of the log and of the roster run over. A new store gets one line in STORES; tests/log
runs over each, everything else over the first.
"""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psycopg

from hocket import store
from hocket.kernel.keys import RowMac, SigningKey
from hocket.store import MEMORY, Store
from hocket.store.libsql import LibsqlStore
from hocket.store.libsql.connection import LibsqlConnection
from hocket.store.postgres import PostgresStore
from tests.libsql_server import new_server
from tests.postgres_server import emptied, prepared, server


class StoreKind(NamedTuple):
    """`new` makes a store that nobody else has; `address` is that of one at a place, to be opened again."""

    new: Callable[[], Store]
    address: Callable[[Path], str]


def with_macs(made: Store) -> Store:
    """As the log does, for tests that have none."""
    made.mac_rows(RowMac(SigningKey(bytes(32))))
    return made


class Recycled:
    """Databases of PostgreSQL: one whose store is no longer in use is emptied and used again, which is much cheaper
    than a new one.
    """

    ALIVE_MAX = 8

    def __init__(self) -> None:
        self._stores: dict[str, weakref.ref[Store]] = {}

    def new(self) -> Store:
        if sum(each() is not None for each in self._stores.values()) >= self.ALIVE_MAX:
            gc.collect()
        free = next((address for address, used in self._stores.items() if used() is None), None)
        address = server().new_database(template=prepared(), is_kept=True) if free is None else emptied(free)
        made = with_macs(store.open(address))
        self._stores[address] = weakref.ref(made)
        return made


STORES = {
    "sqlite": StoreKind(lambda: with_macs(store.open(MEMORY)), lambda place: f"sqlite://{place / 'log.db'}"),
    "postgres": StoreKind(Recycled().new, lambda place: server().new_database()),
    "libsql": StoreKind(
        lambda: with_macs(store.open(new_server(has_store=True).address)),
        lambda place: new_server(has_store=True).address,
    ),
}
_in_use = [next(iter(STORES.values()))]


def use(kind: StoreKind) -> None:
    _in_use[0] = kind


def new_store() -> Store:
    return _in_use[0].new()


def raw(kept: Store, statement: str, *values: object) -> list[tuple[object, ...]]:
    """What a person with access to the database can do to its tables. Marks for values are SQLite's."""
    real = getattr(kept, "_store", kept)  # behind the breaker of a home
    if isinstance(real, LibsqlStore):
        connection = LibsqlConnection(real.address)
        connection.begin_write()
        found = connection.execute(statement, values).fetchall()
        connection.commit()
        connection.close()
        return found
    if not isinstance(real, PostgresStore):
        return list(real._writer.execute(statement, values))
    with psycopg.connect(real.address.conninfo) as connection:
        connection.execute("SET search_path = hocket")
        done = connection.execute(statement.replace("?", "%s"), values)
        return [] if done.description is None else done.fetchall()
