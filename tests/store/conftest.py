"""A store in a database of its own on the PostgreSQL server of the tests. Suites over each store have fixtures of their
own.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest

from hocket.store.postgres import PostgresStore
from tests.postgres_server import prepared, server


@pytest.fixture
def address() -> str:
    return server().new_database(template=prepared())


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened
