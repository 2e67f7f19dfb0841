"""The rules of contested rows. A row `table/key` has a JSON value and a version, which is the time of the op that wrote
it. A write names the version that its author has read. If that is still the row's version, the write counts. If not,
and if both sides have changed different members of an object, the row gets the changes of both. Otherwise the two are
in conflict: the conflict is recorded, and the strategy of the write decides which value the row has.

The two sides of a conflict: left is the write, right is what is stored.
"""

import re
from typing import Any

import msgspec
from msgspec.structs import replace

from hocket.families.inbox.facts import SendMessage
from hocket.families.rows.facts import ROW, PutRow, ResolveConflict, Strategy
from hocket.kernel.arbitration import FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import json_decoder
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.vocabulary import AcceptOffer, Subject

TABLE_BYTES_MAX = 64
KEY_BYTES_MAX = 512
AGENT_BYTES_MAX = 128
VALUE_BYTES_MAX = 65_536
DEPTH_MAX = 32
# How many conflicts of a row wait for a decision at most, and how many that need none are kept for review.
OPEN_CONFLICTS_MAX = 64
SETTLED_CONFLICTS_MAX = 32
# How many earlier versions of a row are remembered: a write that names an older one cannot be merged.
PAST_VERSIONS_MAX = 64
# How long an agent's message about a conflict is delivered, and how often.
NOTICE_TTL_MS = 7 * 86_400_000
NOTICE_TRIES = 5
NOTICE_TYPE = "hocket.row-conflict"
NOTICE_SENDER = "hocket"

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_encoder = msgspec.json.Encoder()


class RecordedConflict(msgspec.Struct, frozen=True, array_like=True):
    """A write that met another version than its author had read. `op` is the op by which the write counts, `met` the op
    that had written the stored version. `replaced` is the stored value, if the write has replaced it. One that
    `is_open` waits for a decision; the others are kept for review.
    """

    op: bytes
    at: Hlc
    author: int
    agent: str
    strategy: Strategy
    met: bytes
    is_open: bool
    replaced: bytes | None = None


class PastVersion(msgspec.Struct, frozen=True, array_like=True):
    """The op that wrote an earlier version, and that version's value if it was merged: no op has it as it is."""

    op: bytes
    merged: bytes | None = None


class RowState(msgspec.Struct, frozen=True, array_like=True):
    """A row as of its latest version: the op that wrote it and that op's time. `value` is None if the row was deleted.
    `past` are the versions before it, the oldest first; `has_forgotten` says that there were more. `last` is the time
    of the latest op about the row.
    """

    op: bytes
    at: Hlc
    author: int
    agent: str
    value: bytes | None
    last: Hlc
    is_merged: bool = False
    past: tuple[PastVersion, ...] = ()
    has_forgotten: bool = False
    conflicts: tuple[RecordedConflict, ...] = ()

    @property
    def open_conflicts(self) -> list[RecordedConflict]:
        return [each for each in self.conflicts if each.is_open]


class Rows(SubjectRules[RowState]):
    """The family of rows."""

    decided: frozenset[type] = frozenset((PutRow, ResolveConflict))

    def apply(self, state: RowState | None, op: Op, context: FoldContext) -> RowState | Reason:
        payload = op.payload
        assert isinstance(payload, PutRow | ResolveConflict)
        if not is_row_name(payload.row) or not _is_name(payload.agent, AGENT_BYTES_MAX):
            return Reason.BAD_ROW
        if payload.value is not None and not is_row_value(payload.value):
            return Reason.BAD_ROW_VALUE
        if isinstance(payload, ResolveConflict):
            return _resolve(state, op, payload)
        return _put(state, op, payload, context)

    def encode(self, state: RowState) -> bytes:
        """The first byte says whether the row has conflicts; the store finds such rows by it."""
        return bytes((bool(state.conflicts),)) + super().encode(state)

    def decode(self, data: bytes) -> RowState:
        return super().decode(data[1:])


ROWS = Rows(RowState)


def is_row_name(row: str) -> bool:
    table, _, key = row.partition("/")
    return bool(table and key) and _is_name(table, TABLE_BYTES_MAX) and _is_name(key, KEY_BYTES_MAX)


def _is_name(name: str, size: int) -> bool:
    """Without control characters. Which other characters can be printed depends on the version of Unicode, and must not
    decide whether an op counts.
    """
    return len(name.encode()) <= size and _CONTROL.search(name) is None


def is_row_value(value: bytes) -> bool:
    if len(value) > VALUE_BYTES_MAX:
        return False
    try:
        decoded = msgspec.json.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return _is_flat(decoded, DEPTH_MAX)


def _is_flat(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return depth > 0 and all(_is_flat(each, depth - 1) for each in value)


def _put(state: RowState | None, op: Op, payload: PutRow, context: FoldContext) -> RowState | Reason:
    if payload.strategy is Strategy.DEFER_TO_AGENT and not payload.agent:
        return Reason.BAD_ROW
    if state is None:
        if payload.base is not None:
            return Reason.UNKNOWN_VERSION
        return _written(None, op, payload.value) if payload.value is not None else Reason.NO_ROW
    if payload.value is None and state.value is None:
        return Reason.NO_ROW
    if payload.base == state.op or (payload.base is None and state.value is None):
        return _written(state, op, payload.value)
    if payload.base is not None:
        before = next((each for each in state.past if each.op == payload.base), None)
        if before is None and not state.has_forgotten:
            return Reason.UNKNOWN_VERSION
        try:
            value = merged(_value_of(before, payload.row, context), payload.value, state.value)
            return _written(state, op, value, is_merged=value != payload.value)
        except MergeClash:
            pass
    return _in_conflict(state, op, payload)


def _value_of(version: PastVersion | None, row: str, context: FoldContext) -> bytes:
    """What the row was at an earlier version. Raises MergeClash if that is no longer known."""
    if version is None:
        raise MergeClash
    if version.merged is not None:
        return version.merged
    found = context.offered(version.op, subject := Subject(ROW, row.encode()))
    if found is not None and isinstance(found.payload, AcceptOffer):
        found = context.offered(found.payload.offer, subject)
    value = found.payload.value if found is not None and isinstance(found.payload, PutRow | ResolveConflict) else None
    if value is None:
        raise MergeClash
    return value


def _written(
    state: RowState | None,
    op: Op,
    value: bytes | None,
    *,
    is_merged: bool = False,
    conflicts: tuple[RecordedConflict, ...] | None = None,
) -> RowState:
    """The row with a new version. A deleted row keeps its version and the conflicts that wait for a
    decision, and no values.
    """
    if state is None:
        return RowState(op.id, op.timestamp, op.node_id, _agent(op), value, op.timestamp)
    conflicts = state.conflicts if conflicts is None else conflicts
    past = (*state.past, PastVersion(state.op, state.value if state.is_merged else None))
    size = sum(len(each.merged or b"") for each in past)
    first = 0
    while len(past) - first > PAST_VERSIONS_MAX or size > VALUE_BYTES_MAX:
        size -= len(past[first].merged or b"")
        first += 1
    if value is None:
        first = len(past)
        conflicts = tuple(replace(each, replaced=None) for each in conflicts if each.is_open or each.op == op.id)
    return RowState(
        op.id,
        op.timestamp,
        op.node_id,
        _agent(op),
        value,
        op.timestamp,
        is_merged,
        past[first:],
        state.has_forgotten or first > 0,
        conflicts,
    )


def _agent(op: Op) -> str:
    assert isinstance(op.payload, PutRow | ResolveConflict)
    return op.payload.agent


def _in_conflict(state: RowState, op: Op, payload: PutRow) -> RowState | Reason:
    is_open = payload.strategy in (Strategy.DEFER_TO_AGENT, Strategy.MANUAL)
    if is_open and len(state.open_conflicts) >= OPEN_CONFLICTS_MAX:
        return Reason.CONFLICTS_FULL
    is_left = payload.strategy is Strategy.TAKE_LEFT
    record = RecordedConflict(
        op.id,
        op.timestamp,
        op.node_id,
        payload.agent,
        payload.strategy,
        state.op,
        is_open,
        state.value if is_left else None,
    )
    conflicts = _trimmed((*state.conflicts, record))
    if is_left:
        return _written(state, op, payload.value, conflicts=conflicts)
    return replace(state, conflicts=conflicts, last=op.timestamp)


def _trimmed(conflicts: tuple[RecordedConflict, ...]) -> tuple[RecordedConflict, ...]:
    """All that wait for a decision, and the newest of the others."""
    kept: list[RecordedConflict] = []
    settled, size = 0, 0
    for each in reversed(conflicts):
        settled += not each.is_open
        size += len(each.replaced or b"")
        if each.is_open or (settled <= SETTLED_CONFLICTS_MAX and size <= VALUE_BYTES_MAX):
            kept.append(each)
    return tuple(reversed(kept))


def _resolve(state: RowState | None, op: Op, payload: ResolveConflict) -> RowState | Reason:
    if state is None or all(each.op != payload.conflict for each in state.conflicts):
        return Reason.NO_CONFLICT
    if payload.base != state.op:
        return Reason.STALE_VERSION
    left = tuple(each for each in state.conflicts if each.op != payload.conflict)
    return _written(state, op, payload.value, conflicts=left)


def notice(state: RowState, op: Op) -> SendMessage | None:
    """The message to the agent that must decide, if this op has left a conflict to it."""
    record = state.conflicts[-1] if state.conflicts else None
    if record is None or record.op != op.id or record.strategy is not Strategy.DEFER_TO_AGENT:
        return None
    subject = op.payload.row if isinstance(op.payload, PutRow) else op.payload.key.decode()  # type: ignore[union-attr]
    body = _encoder.encode({"conflict": ulid_text(record.op), "row": subject})
    to = f"{record.agent}@{node_text(record.author)}"
    return SendMessage(NO_ID, to, NOTICE_SENDER, NOTICE_TYPE, None, None, 0, NOTICE_TTL_MS, NOTICE_TRIES, body)


_members = json_decoder(dict[str, msgspec.Raw])
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class MergeClash(Exception):
    """Both sides changed the same thing."""


def merged(base: bytes | None, left: bytes | None, right: bytes | None) -> bytes | None:
    """The three-way merge of a JSON value that two sides have changed. The result has the changes of both if they are
    to different members of its objects. None stands for no value. Values count as equal if their bytes are. It does not
    matter which side is called left. Raises MergeClash, also if both sides made the same change: two that count from 4
    to 5 have counted to 6, and two that remove the same member would both believe that they took it.
    """
    if right == base:
        return left
    if left == base:
        return right
    if base is None or left is None or right is None:
        raise MergeClash
    try:
        before, ours, theirs = (_members.decode(each) for each in (base, left, right))
    except msgspec.MsgspecError:
        raise MergeClash from None  # not an object
    together = {}
    for name in before.keys() | ours.keys() | theirs.keys():
        found = merged(*(None if name not in each else bytes(each[name]) for each in (before, ours, theirs)))
        if found is not None:
            together[name] = msgspec.Raw(found)
    return _encode_sorted(together)
