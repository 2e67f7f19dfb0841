"""What a store keeps that is on no log: worker processes and the claims that they have offered, settings, requests for
locks that end with their process, other nodes and invitations, tokens of programs that use the node over HTTP. And what
becomes of all this when the store is moved or copied: the ops and the head are copied as they are, and what is derived
from the ops is derived again.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hocket.store.statements import MAC_COLUMNS, MAC_TABLES, Row, Statements, insert, upsert


class Place(NamedTuple):
    """Where a worker runs: the machine, the boot of that machine, the namespace of its process ids (containers have
    their own), and the directory of its lock. An empty field is unknown.
    """

    host: str = ""
    boot: str = ""
    namespace: str = ""
    locks: str = ""


class WorkerRow(NamedTuple):
    """A process of a node that holds claims. `beat` is its last sign of life, by the store's clock; `serves` is what it
    runs, as `work.presence` writes it.
    """

    number: int
    name: str
    pid: int
    started: int
    node: bytes
    beat: int
    place: Place
    serves: str = ""


class BoundRequest(NamedTuple):
    """`op` is the AcquireLocks op. `process` is the name of the process's OS lock; empty if the request was given up.
    After `until` nothing is left of what the request may have got.
    """

    op: bytes
    node: bytes
    scope: str
    process: str
    until: int
    place: Place


class Peer(NamedTuple):
    """Another node that this one exchanges ops with. `pulled` is the encoded frontier at the end of its last answer;
    `seen` is the time of the last successful exchange, 0 for never.
    """

    address: str
    node: bytes | None
    pulled: bytes
    state: str
    detail: str
    seen: int
    added: int


class Invitation(NamedTuple):
    """The promise of a delegation to the first node that presents the secret."""

    secret_hash: bytes
    name: str
    grants: bytes
    expires: int
    used_by: bytes | None
    made: int


class TokenRow(NamedTuple):
    """A program's token. `id` is the public part of it, `hash` is that of the whole token, `grants` are capabilities as
    JSON. Times are in milliseconds.
    """

    name: str
    id: str
    hash: bytes
    grants: bytes
    made: int
    expires: int | None
    revoked: int | None = None
    used: int | None = None


class AnswerRow(NamedTuple):
    """The answer to the request that a program marked with this key. `request` is the request's hash; a status of None
    means that no answer is known yet.
    """

    token: str
    key: str
    request: bytes
    status: int | None
    body: bytes | None
    made: int


class UnloggedTable(NamedTuple):
    """Rows are copied in this order."""

    columns: str
    order: str


# The columns of a worker that the MAC covers and the MAC, and those after it.
_COVERED = f"{MAC_TABLES['workers'].columns}, mac"
_OTHERS = "number, node, beat, serves"
# Where the node is among all of them.
_NODE_AT = 9
_RENEWED = ("node", "pid", "started", "host", "boot", "namespace", "locks", "mac", "serves")
_PUT_WORKER = (
    insert("workers", f"node, {_COVERED}, beat, serves") + " ON CONFLICT (name) DO UPDATE SET"
    " beat = CASE WHEN excluded.beat > workers.beat THEN excluded.beat ELSE workers.beat + 1 END, "
    + ", ".join(f"{name} = excluded.{name}" for name in _RENEWED)
    + " RETURNING number"
)
_BEAT = "UPDATE workers SET beat = CASE WHEN ? > beat THEN ? ELSE beat + 1 END WHERE name = ?"
_WORKERS = f"SELECT {_COVERED}, {_OTHERS} FROM workers {{}} ORDER BY number"
_PUT_OFFER = upsert("offers", "op, job, worker", "op")
_SET_META = upsert("meta", "key, value", "key")
# The jobs with claims that wait for the arbiter.
OFFERED = "SELECT job FROM offers"
# The states of a peer that was not asked yet, and of one that answered the last exchange. `mesh.peers` has the others.
PEER_NEW, PEER_OK = "new", "ok"
_SET_PROGRAM = upsert("programs", "node, knows", "node")
# How many columns of a token the MAC covers; then come the MAC and the others.
_TOKEN_COVERED = MAC_COLUMNS["tokens"]
# The store's key of the address to which it was moved. Such a store refuses writes.
MOVED = "moved"
# The store's key of the store from which an unfinished move copies.
MOVING = "moving"
# The store's key of the store of which it is a replica.
REPLICA = "replica"


def _with_mac(table: str, others: str = "") -> UnloggedTable:
    each = MAC_TABLES[table]
    return UnloggedTable(f"{each.owner}, {each.columns}{others}, mac", f"{each.owner}, {each.key}")


# Must survive a move.
KEPT = {
    "meta": UnloggedTable("key, value", "key"),
    "refusals": UnloggedTable("op_id, author, reason, wall", "number"),
    "held": _with_mac("held"),
    "late": UnloggedTable("id, author, hlc, received, body", "id"),
    "over_quota": UnloggedTable("node, wall, ops", "node"),
    "rates": UnloggedTable("kind, due", "kind"),
    # The node releases the locks of processes that have ended.
    "lock_requests": _with_mac("lock_requests"),
    "peers": _with_mac("peers"),
    "programs": UnloggedTable("node, knows", "node"),
    "invitations": _with_mac("invitations"),
    "tokens": _with_mac("tokens", ", used"),
    "answers": _with_mac("answers"),
    "checkpoints": _with_mac("checkpoints"),
    "witnessed": _with_mac("witnessed"),
}
# What stands in the place of ops that went comes with the ops that remain; what is left to do is computed again.
SETTLED = ("heads", "bases", "gaps", "pruning")
# The settings that each node has for itself where nodes share a store.
OF_NODE = (
    *("address", "archives", "behind", "breakers", "clock_offsets", "delivered", "gaps", "home"),
    *("lead", "newcomer", "reading"),
    *("set_aside", "shared", "snapshot", "trust", "witness"),
)
# Only a database server has them, and they are too large for one transaction: a move carries each blob over by itself.
CARRIED = ("blobs", "blob_parts")
# Ends with the processes that wrote it, which must have stopped before a move, or expires within seconds.
LEFT = ("workers", "offers", "presence", "agents", "progress")
# Only a file has it: whether an older program has left rows there that have no MAC.
TO_MAC = "to_mac"


class LocalSession(Statements):
    def put_worker(self, worker: WorkerRow) -> int:
        """Adds a worker, or renews the worker of that name: its beat, which rises each time, and what it serves.
        Returns its number.
        """
        _, *covered = self._macs.with_mac("workers", (worker.name, worker.pid, worker.started, *worker.place))
        return int(self._one(_PUT_WORKER, worker.node, *covered, worker.beat, worker.serves))

    def beat_workers(self, names: Collection[str], beat: int) -> set[str]:
        """Renews the beats of workers of the node that uses the store. Returns the names without a row."""
        missing = set(names) - {
            name for (name,) in self._rows("SELECT name FROM workers WHERE node = ?", self._macs.node)
        }
        self._many(_BEAT, [(beat, beat, name) for name in names if name not in missing])
        return missing

    def has_worker(self, number: int) -> bool:
        return self._one("SELECT 1 FROM workers WHERE number = ?", number) is not None

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        """The workers of a node, or of all nodes that share the store. Only those of the node that uses the store are
        known to be what their rows say.
        """
        return self._workers("") if node is None else self._workers("WHERE node = ?", node)

    def worker(self, number: int) -> WorkerRow | None:
        return next(iter(self._workers("WHERE number = ?", number)), None)

    def worker_named(self, name: str) -> WorkerRow | None:
        return next(iter(self._workers("WHERE name = ?", name)), None)

    def _workers(self, which: str, *values: Any) -> list[WorkerRow]:
        rows = self._rows(_WORKERS.format(which), *values)
        return [_worker(row) for row in self._macs.right_or_of_others("workers", rows, _NODE_AT)]

    def drop_worker(self, number: int) -> None:
        self._put("DELETE FROM workers WHERE number = ?", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._put(_PUT_OFFER, (op_id, job_id, worker))

    def offers(self) -> dict[bytes, int]:
        """The worker of each claim that waits for the arbiter, by the claim's op."""
        return {op_id: worker for op_id, worker in self._rows("SELECT op, worker FROM offers")}

    def offered_jobs(self) -> set[bytes]:
        return set(self._column(OFFERED))

    def drop_offer(self, op_id: bytes) -> None:
        self._put("DELETE FROM offers WHERE op = ?", (op_id,))

    def drop_offers_of(self, worker: int) -> None:
        self._put("DELETE FROM offers WHERE worker = ?", (worker,))

    def meta(self, key: str) -> bytes | None:
        value: bytes | None = self._one("SELECT value FROM meta WHERE key = ?", key)
        return value

    def set_meta(self, key: str, value: bytes) -> None:
        self._put(_SET_META, (key, value))

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        """A setting of one of the nodes that share the store; a store of one node has no others."""
        name = f"{key} {node.hex()}"
        return self._macs.value(name, self.meta(name))

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        name = f"{key} {node.hex()}"
        self.set_meta(name, self._macs.value_with_mac(name, value))

    def own_meta(self, key: str) -> bytes | None:
        """A setting of the node that uses the store."""
        return self.node_meta(self._macs.node, key)

    def set_own_meta(self, key: str, value: bytes) -> None:
        self.set_node_meta(self._macs.node, key, value)

    def put_lock_request(self, request: BoundRequest) -> None:
        """Adds it, or replaces the one of the same op."""
        self._put_own("lock_requests", (request.op, *request[2:5], *request.place))

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        """Those of the node that uses the store; of another node there are none to see."""
        rows = self._own("lock_requests") if node == self._macs.node else ()
        return [BoundRequest._make((row[0], node, *row[1:4], Place(*row[4:8]))) for row in rows]

    def drop_lock_request(self, op_id: bytes) -> None:
        self._put("DELETE FROM lock_requests WHERE op = ?", (op_id,))

    def put_peer(self, peer: Peer) -> None:
        self._put_own("peers", peer)

    def drop_peer(self, address: str) -> bool:
        sql = "DELETE FROM peers WHERE of_node = ? AND address = ? RETURNING 1"
        return bool(self._rows(sql, self._macs.node, address))

    def peers(self) -> list[Peer]:
        """SQLite takes longer to sort no rows than to find that there are none."""
        found = [Peer(*row[:-1]) for row in self._own("peers")]
        return sorted(found, key=lambda peer: (peer.added, peer.address))

    def programs(self) -> dict[bytes, str]:
        """What each other node's program knows, if that node has said so."""
        return {node: knows for node, knows in self._rows("SELECT node, knows FROM programs")}

    def set_program(self, node: bytes, knows: str) -> None:
        self._put(_SET_PROGRAM, (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._put_own("invitations", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        return next(self._invitations("AND secret_hash = ?", self._macs.mac.conceal(secret_hash)), None)

    def invitations(self) -> list[Invitation]:
        return sorted(self._invitations(""), key=lambda invitation: invitation.made)

    def _invitations(self, tail: str, *values: bytes) -> Iterator[Invitation]:
        for concealed, *others, _ in self._own("invitations", tail, *values):
            yield Invitation(self._macs.mac.reveal(concealed), *others)

    def put_token(self, token: TokenRow) -> None:
        """Adds a token, or replaces the one of that name."""
        self._put_own("tokens", token[:_TOKEN_COVERED], ", used", token.used)

    def token(self, id: str) -> TokenRow | None:
        return next(self._tokens("AND id = ?", id), None)

    def tokens(self) -> list[TokenRow]:
        return list(self._tokens("ORDER BY made, name"))

    def _tokens(self, tail: str, *values: str) -> Iterator[TokenRow]:
        for row in self._own("tokens", tail, *values, others=", used"):
            yield TokenRow._make((*row[:_TOKEN_COVERED], row[-1]))

    def put_answer(self, answer: AnswerRow) -> None:
        self._put_own("answers", answer)

    def answer(self, token: str, key: str) -> AnswerRow | None:
        row = next(self._own("answers", "AND token = ? AND key = ?", token, key), None)
        return None if row is None else AnswerRow(*row[:-1])

    def answer_count(self, token: str) -> int:
        return int(self._one("SELECT count(*) FROM answers WHERE of_node = ? AND token = ?", self._macs.node, token))

    def drop_answer(self, token: str, key: str) -> None:
        self._put("DELETE FROM answers WHERE of_node = ? AND token = ? AND key = ?", (self._macs.node, token, key))

    def drop_answers(self, before: int) -> None:
        """Drops the answers that were made before this time."""
        self._put("DELETE FROM answers WHERE of_node = ? AND made < ?", (self._macs.node, before))

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


def _worker(row: Sequence[Any]) -> WorkerRow:
    name, pid, started, host, boot, namespace, locks, _, number, node, beat, serves = row
    return WorkerRow(number, name, pid, started, node, beat, Place(host, boot, namespace, locks), serves)
