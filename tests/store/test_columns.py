"""Columns of many rows arrive in PostgreSQL as they were given."""

from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.store.postgres.connecting import connect, read_address
from hocket.store.postgres.exchange import Bytes, Numbers, Texts, columns, unnested
from tests.postgres_server import server

TYPES = (Bytes, Texts, Numbers)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | TEXTS, st.none() | NUMBERS), min_size=1)


@pytest.mark.touches("VX-18")
def test_rows_come_back_as_they_were_given() -> None:
    with closing(connect(read_address(server().new_database()))) as connection:

        @given(ROWS)
        def check(rows: list[tuple[Any, ...]]) -> None:
            (answer,) = connection.ask(((f"SELECT * FROM {unnested(TYPES)}", columns(TYPES, rows)),))
            assert answer.rows == rows

        check()
        assert connection.ask((("SELECT ?::bytea[] = '{}'", [Bytes([])]),))[0].rows == [(True,)]
