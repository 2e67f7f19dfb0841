"""What a store keeps beside the log, and what becomes of it when the store is moved or copied. The ops and the head are
copied as they are, and what is derived from the ops is derived again.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from hocket.store.statements import Row, Statements, insert

# The store's key of the address to which it was moved. Such a store refuses writes.
MOVED = "moved"
# The store's key of the store from which an unfinished move copies.
MOVING = "moving"
# The store's key of the store of which it is a replica.
REPLICA = "replica"


class UnloggedTable(NamedTuple):
    """Rows are copied in this order."""

    columns: str
    order: str


# Must survive a move.
KEPT = {
    "meta": UnloggedTable("key, value", "key"),
    "refusals": UnloggedTable("op_id, author, reason, wall", "number"),
    "held": UnloggedTable("of_node, id, wall, body, author, mac", "of_node, id"),
    "late": UnloggedTable("id, author, hlc, received, body", "id"),
    "over_quota": UnloggedTable("node, wall, ops", "node"),
    "rates": UnloggedTable("kind, due", "kind"),
    # The node releases the locks of processes that have ended.
    "lock_requests": UnloggedTable("op, node, scope, process, until, host, boot, namespace, locks, mac", "op"),
    "peers": UnloggedTable("of_node, address, node, pulled, state, detail, seen, added, mac", "of_node, address"),
    "programs": UnloggedTable("node, knows", "node"),
    "invitations": UnloggedTable(
        "of_node, secret_hash, name, grants, expires, used_by, made, mac", "of_node, secret_hash"
    ),
    "tokens": UnloggedTable("of_node, name, id, hash, grants, made, expires, revoked, used, mac", "of_node, name"),
    "answers": UnloggedTable("of_node, token, key, request, status, body, made, mac", "of_node, token, key"),
}
# The settings that each node has for itself where nodes share a store.
OF_NODE = (
    *("address", "behind", "breakers", "clock_offsets", "delivered", "gaps", "home", "newcomer", "reading"),
    *("set_aside", "shared", "trust"),
)
# Only a database server has them, and they are too large for one transaction: a move carries each blob over by itself.
CARRIED = ("blobs", "blob_parts")
# Ends with the processes that wrote it, which must have stopped before a move, or expires within seconds.
LEFT = ("workers", "offers", "presence", "agents", "progress")
# Only a file has it: whether an older program has left rows there that have no MAC.
TO_MAC = "to_mac"


class UnloggedSession(Statements):
    def unlogged(self, table: str) -> list[Row]:
        """The rows of a table in `KEPT`."""
        return self._rows(f"SELECT {KEPT[table].columns} FROM {table} ORDER BY {KEPT[table].order}")

    def put_unlogged(self, table: str, rows: Iterable[Row]) -> None:
        """Replaces all rows of a table in `KEPT`."""
        self._put(f"DELETE FROM {table}")
        self._many(insert(table, KEPT[table].columns), rows)

    @abstractmethod
    def mark_moved(self, address: str) -> None:
        """From now on every write transaction raises StoreMoved with this address. Reads go on."""
