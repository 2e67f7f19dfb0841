"""Contested rows as requests and answers: a write names the version that its author has read, and the transaction that
decides compares it with the row's. `families.rows.rules` has the rules. `deciding` brings the decision of another node.
"""

import unicodedata
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, Unreachable, Usage
from hocket.families.access import NodeAccess, acceptance
from hocket.families.json_values import encode_json
from hocket.families.rows.facts import ROW, PutRow, ResolveConflict, Strategy
from hocket.families.rows.rules import (
    AGENT_BYTES_MAX,
    DEPTH_MAX,
    KEY_BYTES_MAX,
    ROWS,
    TABLE_BYTES_MAX,
    VALUE_BYTES_MAX,
    RecordedConflict,
    RowState,
    is_row_value,
)
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import Hlc, hlc_text, pack, parse_hlc
from hocket.kernel.ids import node_text, parse_node, ulid_text
from hocket.kernel.ops import NO_ID, Op, decode
from hocket.kernel.vocabulary import AcceptOffer, Subject
from hocket.log import Transaction
from hocket.store import Session, SubjectRow

# How many rows one query reads.
PAGE = 200

STRATEGIES = {
    "take-left": Strategy.TAKE_LEFT,
    "take-right": Strategy.TAKE_RIGHT,
    "defer-to-agent": Strategy.DEFER_TO_AGENT,
    "manual": Strategy.MANUAL,
}
_encoder = msgspec.json.Encoder(order="sorted")


class RowOutcome(StrEnum):
    """What became of a write. After the last three the row does not have its value."""

    WRITTEN = "written"
    MERGED = "merged"
    TOOK_LEFT = "took-left"
    TOOK_RIGHT = "took-right"
    DEFERRED = "deferred"
    MANUAL = "manual"

    @property
    def is_stored(self) -> bool:
        return self in (RowOutcome.WRITTEN, RowOutcome.MERGED, RowOutcome.TOOK_LEFT)


_IN_CONFLICT = {
    Strategy.TAKE_LEFT: RowOutcome.TOOK_LEFT,
    Strategy.TAKE_RIGHT: RowOutcome.TOOK_RIGHT,
    Strategy.DEFER_TO_AGENT: RowOutcome.DEFERRED,
    Strategy.MANUAL: RowOutcome.MANUAL,
}


class StoredRow(msgspec.Struct, frozen=True):
    """A row and its version. `node` and `agent` wrote that version; `conflicts` wait for a decision. A deleted row has
    no value.
    """

    table: str
    key: str
    value: Any
    version: str
    agent: str
    node: str
    written_ms: int
    conflicts: int
    deleted: bool = False


class RowChange(msgspec.Struct, frozen=True):
    """The row after a write, and what became of the write. `conflict` is the id of the conflict, if there is one."""

    row: StoredRow
    outcome: RowOutcome
    conflict: str | None = None


class ConflictDetails(msgspec.Struct, frozen=True):
    """A conflict: `left` is the value of the write; `right` is what is stored now, or what the write has replaced;
    `base` is what the author of the write had read, as far as it is known. They are JSON, and None stands for no value.
    `met` is the version that the write found, `version` the one that is stored now.
    """

    id: str
    table: str
    key: str
    strategy: str
    agent: str
    node: str
    at_ms: int
    is_open: bool
    left: bytes | None
    right: bytes | None
    base: bytes | None
    met: str | None
    version: str


class RowConflict(Conflict):
    """The row has another version than the writer had read, and the write's value is not in the row."""

    row: StoredRow
    conflict: str | None

    def __init__(self, row: StoredRow, conflict: str | None) -> None:
        changed = "deleted it at" if row.deleted else "wrote version"
        by = f"{row.agent}@{row.node}" if row.agent else f"node {row.node}"
        super().__init__(
            f"row {row.table}/{row.key} has changed: {by} {changed} {row.version}; your value is not stored, but"
            f" recorded as conflict {conflict}; read the row and write again, or resolve the conflict"
        )
        self.row, self.conflict = row, conflict


class RowWrite(NamedTuple):
    """A write that was checked. `value` is JSON, None to delete; `version` is the one that the author has read."""

    row: str
    agent: str
    value: bytes | None
    version: Hlc | None
    strategy: Strategy


# What people and programs give.


def row_name(table: str, key: str) -> str:
    _check_name(table, "table", TABLE_BYTES_MAX)
    if "/" in table:
        raise Usage(f"bad table {table!r}: a table has no slash, only its keys may")
    _check_name(key, "key", KEY_BYTES_MAX)
    return f"{table}/{key}"


def _check_name(name: str, what: str, size: int) -> None:
    shown = repr(name if len(name) <= 40 else f"{name[:40]}…")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise Usage(f"bad {what} {shown}: it is not valid Unicode") from None
    if not name.strip():
        raise Usage(f"bad {what} {shown}: it is empty")
    if length > size:
        raise Usage(f"bad {what} {shown}: it has {length} bytes, and at most {size} are allowed")
    if not name.isprintable():
        raise Usage(f"bad {what} {shown}: it has control characters or characters that cannot be seen")
    if unicodedata.normalize("NFC", name) != name:
        raise Usage(f"bad {what} {shown}: its Unicode is not in normal form C; two such names would look the same")


def _check_agent(agent: str) -> None:
    """An agent's name can be an address, to which a message is sent."""
    if agent:
        _check_name(agent, "agent", AGENT_BYTES_MAX)
        if " " in agent or "@" in agent or agent == "all" or "" in agent.split("/"):
            raise Usage(
                f"bad agent {agent!r}: a name has parts joined by slashes, no spaces and no @, and is not `all`"
            )


def row_value(value: Any) -> bytes:
    try:
        encoded = _encoder.encode(msgspec.json.decode(encode_json(value, "the value")))
    except RecursionError:
        raise Usage("the value is nested too deeply") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise Usage(f"the value is not JSON: {error}") from None
    if len(encoded) > VALUE_BYTES_MAX:
        raise Usage(
            f"the value has {len(encoded)} bytes, and at most {VALUE_BYTES_MAX} are allowed; store it as an artifact,"
            " and put its id into the row"
        )
    if not is_row_value(encoded):
        raise Usage(f"the value is nested more than {DEPTH_MAX} levels deep")
    return encoded


def version_text(at: Hlc) -> str:
    return f"{hlc_text(at)}@{node_text(at.node)}"


def parse_version(text: str) -> Hlc:
    time, _, node = text.rpartition("@")
    try:
        return parse_hlc(time, parse_node(node))
    except ValueError:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise Usage(f"bad version {shown!r}: take one that `hocket rows get` shows") from None


def row_write(
    table: str, key: str, value: bytes | None, *, version: str | None = None, strategy: str = "", agent: str = ""
) -> RowWrite:
    """Raises Usage."""
    _check_agent(agent)
    chosen = STRATEGIES.get(strategy or "take-right")
    if chosen is None:
        raise Usage(f"bad strategy {strategy!r}: it is one of {', '.join(STRATEGIES)}")
    if chosen is Strategy.DEFER_TO_AGENT and not agent:
        raise Usage("the strategy defer-to-agent needs an agent: the one that gets the message about a conflict")
    return RowWrite(row_name(table, key), agent, value, None if version is None else parse_version(version), chosen)


# Requests. Each returns the answer, or the offer that the arbiter decides on; None if this node does not know yet which
# node decides.

RowRequest = Callable[[Transaction], RowChange | Op | None]


async def asked(access: NodeAccess, request: RowRequest) -> RowChange | Op:
    """The answer, or the offer that the arbiter decides on. Raises Unreachable: then nothing was written."""
    said = await access.run(request)
    if said is None:
        await access.consult(())
        said = await access.run(request)
    return informed(said)


def informed(said: RowChange | Op | None) -> RowChange | Op:
    if said is None:
        raise Unreachable("this node does not know yet which node decides; run `hocket mesh sync`, then repeat")
    return said


def decision(session: Session, offer: Op) -> RowChange:
    """What became of an offer, once the arbiter was asked. Raises Conflict if it was not accepted."""
    payload = offer.payload
    assert isinstance(payload, PutRow | ResolveConflict)
    accepted, state = acceptance(session, offer), _stored(session, payload.row)
    if accepted is None or state is None:
        raise refused(Reason.NOT_ACCEPTED, payload.row)
    return _change(state, payload, accepted)


def write(tx: Transaction, wanted: RowWrite) -> RowChange | Op | None:
    if tx.is_uninformed:
        return None
    tx.check_outbox()
    base = None if wanted.version is None else _version(tx, wanted.row, wanted.version)
    return _authored(tx, PutRow(wanted.row, wanted.agent, base, wanted.value, wanted.strategy))


def resolve(
    tx: Transaction, conflict: bytes, agent: str, *, value: bytes | None, side: str | None, version: Hlc | None
) -> RowChange | Op | None:
    """Ends a conflict: the row gets the value, or that of a side, `left` or `right`. Raises Conflict if the row is not
    as the conflict left it, unless `version` names what it is now.
    """
    _check_agent(agent)
    if tx.is_uninformed:
        return None
    row = row_of(tx.session, conflict)
    state = _state(tx, row)
    record = None if state is None else _record(state, conflict)
    if state is None or record is None:
        raise refused(Reason.NO_CONFLICT, row)
    if side == "right" and record.strategy is not Strategy.TAKE_LEFT:
        return _authored(tx, ResolveConflict(row, agent, conflict, state.op, state.value))
    found = record.op if record.strategy is Strategy.TAKE_LEFT else record.met
    base = found if version is None else _version(tx, row, version)
    if base != state.op:
        now = version_text(state.at)
        raise Conflict(
            f"row {row} has changed since: it now has version {now}; look at it, then resolve with --version {now}"
        )
    if side is not None:
        value = _written(tx.session, conflict).value if side == "left" else record.replaced
    return _authored(tx, ResolveConflict(row, agent, conflict, base, value))


def _authored(tx: Transaction, payload: PutRow | ResolveConflict) -> RowChange | Op:
    if tx.projection.arbiter(tx.latest) not in (None, tx.node):
        # What cannot count here is not offered: refused offers stay on the log, and a node may leave only so many.
        draft = Op(NO_ID, tx.latest, tx.node, (), payload)
        verdict = ROWS.apply(_state(tx, payload.row), draft, tx.projection)
        if isinstance(verdict, Reason):
            raise refused(verdict, payload.row)
    said = tx.author(payload)
    if isinstance(said, Reason):
        raise refused(said, payload.row)
    if tx.is_offer(said):
        return said
    state = _state(tx, payload.row)
    assert state is not None
    return _change(state, payload, said.id)


def refused(reason: Reason, row: str) -> HocketError:
    sentence = f"row {row}: {reason.sentence}"
    if reason in UNAUTHORISED:
        return NotAuthorised(f"{sentence}; ask for a grant like `--may row:write:{row.partition('/')[0]}/`")
    if reason in (Reason.BAD_ROW, Reason.BAD_ROW_VALUE, Reason.NO_ROW, Reason.STRICT):
        return Usage(sentence)
    return Conflict(f"{sentence}; read it again with `hocket rows get`")


def _state(tx: Transaction, row: str) -> RowState | None:
    state: RowState | None = tx.projection.projectors[ROW].state(row.encode())
    return state


def _version(tx: Transaction, row: str, at: Hlc) -> bytes:
    """The op that wrote a version. A write that was not stored is no version, although its op counts."""
    state, subject = _state(tx, row), Subject(ROW, row.encode())
    if state is not None and state.at == at:
        return state.op
    skipped = {each.op for each in state.conflicts if each.strategy is not Strategy.TAKE_LEFT} if state else set()
    for found in tx.session.ops_at(pack(at)):
        if found.subject == subject and not found.reason and found.id not in skipped:
            return found.id
    raise refused(Reason.UNKNOWN_VERSION, row)


def _change(state: RowState, payload: PutRow | ResolveConflict, op_id: bytes) -> RowChange:
    row = _shown(payload.row, state)
    if (record := _record(state, op_id)) is not None:
        return RowChange(row, _IN_CONFLICT[record.strategy], ulid_text(op_id))
    is_merged = state.is_merged if state.op == op_id else any(each.op == op_id and each.merged for each in state.past)
    return RowChange(row, RowOutcome.MERGED if is_merged else RowOutcome.WRITTEN)


def _record(state: RowState, conflict: bytes) -> RecordedConflict | None:
    return next((each for each in state.conflicts if each.op == conflict), None)


# Queries.


def find(session: Session, table: str, key: str) -> StoredRow | None:
    state = _stored(session, row := row_name(table, key))
    return None if state is None or state.value is None else _shown(row, state)


def listed(session: Session, table: str, prefix: str = "", after: str = "", limit: int = PAGE) -> list[StoredRow]:
    """Rows of a table whose keys begin with the prefix, after a key, in the order of their keys."""
    return [row for row in _page(session, table, prefix, after, limit) if not row.deleted][:limit]


def _page(session: Session, table: str, prefix: str, after: str, limit: int) -> Iterator[StoredRow]:
    """All of them, deleted ones included, until `limit` are not deleted."""
    row_name(table, f"{prefix}{after}" or "-")
    beyond, left = f"{table}/{after}".encode(), limit
    while left > 0:
        found = session.rows(f"{table}/{prefix}".encode(), beyond, PAGE)
        for each in found:
            yield (row := _of(each))
            left -= not row.deleted
        if len(found) < PAGE:
            return
        beyond = found[-1].subject.key


def changed(session: Session, table: str, prefix: str, after: int) -> tuple[int, list[StoredRow]]:
    """The rows that got a new version by ops after this number, and the number of the last op."""
    last, rows = session.head().seq, []
    for key in session.rows_written(f"{table}/{prefix}".encode(), after) if last > after else ():
        state = _stored(session, key.decode())
        written = None if state is None else session.op(state.op)
        if state is not None and written is not None and written.seq > after:
            rows.append((written.seq, _shown(key.decode(), state)))
    return last, [row for _, row in sorted(rows, key=lambda each: each[0])]


def conflicts(session: Session, after: str = "", limit: int = PAGE) -> tuple[list[ConflictDetails], str | None]:
    """The conflicts of the next rows after this one, those of a row from the oldest on; and the last row, if there are
    more.
    """
    found: list[ConflictDetails] = []
    contested = session.rows_in_conflict(after.encode(errors="replace"), limit + 1)
    for each in contested[:limit]:
        row, state = each.subject.key.decode(), ROWS.decode(each.state)
        found += [_details(session, row, state, record) for record in state.conflicts]
    return found, contested[limit - 1].subject.key.decode() if len(contested) > limit else None


def conflict(session: Session, conflict_id: bytes) -> ConflictDetails:
    """Raises Usage if there is no such conflict, or it is no longer remembered."""
    row = row_of(session, conflict_id)
    state = _stored(session, row)
    record = None if state is None else _record(state, conflict_id)
    if state is None or record is None:
        raise refused(Reason.NO_CONFLICT, row)
    return _details(session, row, state, record)


def row_of(session: Session, conflict_id: bytes) -> str:
    """The row that a conflict is about. Raises Usage."""
    found = session.op(conflict_id)
    if found is None or found.family != ROW or found.key is None:
        raise NotFound(f"there is no conflict {ulid_text(conflict_id)}; see `hocket rows conflicts list`")
    return found.key.decode()


def _details(session: Session, row: str, state: RowState, record: RecordedConflict) -> ConflictDetails:
    table, _, key = row.partition("/")
    put, met = _written(session, record.op), session.op(record.met)
    return ConflictDetails(
        ulid_text(record.op),
        table,
        key,
        next(name for name, each in STRATEGIES.items() if each is record.strategy),
        record.agent,
        node_text(record.author),
        record.at.wall,
        record.is_open,
        put.value,
        _right(state, record),
        _value_at(session, state, put.base),
        None if met is None else version_text(decode(met.body).timestamp),
        version_text(state.at),
    )


def _right(state: RowState, record: RecordedConflict) -> bytes | None:
    return record.replaced if record.strategy is Strategy.TAKE_LEFT else state.value


def _value_at(session: Session, state: RowState, version: bytes | None) -> bytes | None:
    if version is None:
        return None
    past = next((each.merged for each in state.past if each.op == version and each.merged), None)
    return past or _written(session, version).value


def _written(session: Session, op_id: bytes) -> PutRow | ResolveConflict:
    """The write that counts by this op: its own, or the one that it accepts."""
    found = session.op(op_id)
    payload = None if found is None else decode(found.body).payload
    if isinstance(payload, AcceptOffer):
        return _written(session, payload.offer)
    assert isinstance(payload, PutRow | ResolveConflict)
    return payload


def _stored(session: Session, row: str) -> RowState | None:
    data = session.subject_state(Subject(ROW, row.encode()))
    return None if data is None else ROWS.decode(data)


def _of(row: SubjectRow) -> StoredRow:
    return _shown(row.subject.key.decode(), ROWS.decode(row.state))


def _shown(row: str, state: RowState) -> StoredRow:
    table, _, key = row.partition("/")
    return StoredRow(
        table,
        key,
        None if state.value is None else msgspec.json.decode(state.value),
        version_text(state.at),
        state.agent,
        node_text(state.author),
        state.at.wall,
        len(state.open_conflicts),
        state.value is None,
    )
