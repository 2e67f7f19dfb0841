"""Connections to PostgreSQL. Behind a pooler in transaction mode, such as PgBouncer, each transaction may get another
session of the server, so nothing may be kept in one: no prepared statement with a name.
"""

import psycopg

from hocket.store.postgres.address import DatabaseAddress
from hocket.store.postgres.exchange import Connection
from hocket.store.postgres.faults import connecting

# A statement that is repeated so often is prepared.
PREPARE_AFTER = 5


def connect(address: DatabaseAddress) -> Connection:
    try:
        prepare_threshold = None if address.is_pooled else PREPARE_AFTER
        return Connection.connect(address.conninfo, autocommit=True, prepare_threshold=prepare_threshold)
    except psycopg.Error as error:
        raise connecting(address.shown, error) from None


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler answers in place of the server: the pooler makes up the number of the server's process."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return row is not None and row[0] != connection.info.backend_pid
