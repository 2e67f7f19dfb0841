"""Views of jobs and artifacts that the log has no longer: read back from an archive, in memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from hocket.errors import HocketError
from hocket.families import artifacts
from hocket.families.jobs import view
from hocket.kernel.mesh_rules import encode_rules
from hocket.log import RULES, Log
from hocket.log.archives.reached import reached_archives
from hocket.log.archives.reading import read_archived
from hocket.store import MEMORY, Session, Store
from hocket.store import open as open_store

# So much of an id has its whole time. With less, archives that nobody named are not searched: it could be any day.
_TIME_CHARS = 10


class ArchivedViews:
    """`look` gives views of the `log`, and `log_in` the log of this node in another store. `archive` is the one that
    the caller has named; without it, those count that this node has written. `warn` gets a sentence when a view is from
    an archive.
    """

    def __init__(
        self,
        log: Log,
        look: Callable[[], AbstractContextManager[Session]],
        log_in: Callable[[Store], Log],
        warn: Callable[[str], None],
        archive: str | None,
    ) -> None:
        self._log, self._look, self._log_in, self._warn, self._archive = log, look, log_in, warn, archive
        self._found: dict[str, Store | None] = {}

    @contextmanager
    def view(self, text: str) -> Iterator[Session]:
        """The log, or if it has no job and no artifact whose id is like this text, what an archive has."""
        if text not in self._found:
            self._found[text] = self._searched(text)
        store = self._found[text]
        with self._look() if store is None else store.read() as session:
            yield session

    def _searched(self, text: str) -> Store | None:
        with self._look() as session:
            if view.ids_like(session, text) or artifacts.ids_like(session, text):
                return None
            named = [self._archive] if self._archive is not None else []
            if self._archive is None and len(text) >= _TIME_CHARS:
                named = [each.address for each in reached_archives(session)]
        for address in named:
            try:
                store = read_archived(self._log, self._new_log, address, text)
            except HocketError as error:
                if self._archive is not None:
                    raise
                self._warn(f"the archive {address} could not be searched: {error}")
                continue
            if store is not None:
                self._warn(f"this was read from the archive {address}; the log does not have it")
                return store
        return None

    def _new_log(self) -> Log:
        store = open_store(MEMORY, create=True)
        with store.write() as session:
            session.set_meta(RULES, encode_rules(self._log.rules))
        return self._log_in(store)
