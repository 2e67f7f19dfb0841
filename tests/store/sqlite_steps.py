"""What an answer costs SQLite, however busy the machine is."""

from collections.abc import Callable

import apsw

from hocket.store import Session, Store
from hocket.store.sqlite.session import SqliteSession


def steps(store: Store, ask: Callable[[Session], object]) -> int:
    """How many steps SQLite's machine takes to answer."""
    taken: list[int] = []
    with store.read() as view:
        assert isinstance(view, SqliteSession)
        reader = view._connection
    assert isinstance(reader, apsw.Connection)
    reader.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda event: taken.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    with store.read() as session:
        ask(session)
    reader.trace_v2(0, None)
    return sum(taken)
