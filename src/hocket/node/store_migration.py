"""Bringing the tables of a store to the current version: of a home's store, or of one that an administrator prepares
for others.
"""

from hocket.node.home import Home
from hocket.node.variables import named_store
from hocket.store import Migration, backend
from hocket.store import open as open_store
from hocket.store.secrecy import without_password


def migrate(home: Home, address: str | None, *, dry_run: bool) -> tuple[str, Migration]:
    """Migrates the store at an address, which is created if there is none, or else the home's. Gives its address
    without the password, and what was done; with `dry_run`, what would be done.
    """
    if address is None:
        home.check()
    where = str(home.store_address) if address is None else named_store(address)
    migration = backend(where).migration(where)
    if not dry_run:
        open_store(where, create=address is not None and backend(where).is_server).close()
    return without_password(where), migration
