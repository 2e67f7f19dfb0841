"""How the tables of a store come to the current version. Opening a store does that; a person can read the SQL first."""

from typing import NamedTuple


class Migration(NamedTuple):
    """The SQL that brings a store from `version`, 0 for none, to `current`. It is one transaction."""

    version: int
    current: int
    statements: tuple[str, ...]

    @property
    def script(self) -> str:
        """For `psql` or `sqlite3`; empty if nothing is to be done."""
        if not self.statements:
            return ""
        return "\n".join(["BEGIN;", *(f"{each.rstrip().rstrip(';')};" for each in self.statements), "COMMIT;"])
