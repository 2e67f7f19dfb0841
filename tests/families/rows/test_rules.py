"""The rules of contested rows, by hand: which write counts, what each strategy does, and what is kept."""

from typing import Any

import msgspec
import pytest

from hocket.families.rows.facts import ROW, PutRow, ResolveConflict, Strategy
from hocket.families.rows.rules import (
    OPEN_CONFLICTS_MAX,
    PAST_VERSIONS_MAX,
    ROWS,
    SETTLED_CONFLICTS_MAX,
    VALUE_BYTES_MAX,
    RowState,
    notice,
)
from hocket.kernel.arbitration import Reason, apply
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Payload, Subject, subject_of

SKY = "memories/sky"
NODE = 7


class OneRow:
    """A row, and the log of the ops about it. It is also what the rules ask about the rest of the log."""

    def __init__(self) -> None:
        self.state: RowState | None = None
        self.ops: dict[bytes, Op] = {}

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None

    def arbiter(self, at: Hlc) -> int | None:
        return None

    def is_overtaken(self, at: Hlc) -> bool:
        return False

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        found = self.ops.get(op_id)
        return found if found is not None and subject_of(found.payload) == subject else None

    def say(self, payload: Payload) -> bytes | Reason:
        number = len(self.ops) + 1
        op = Op(number.to_bytes(16, "big"), Hlc(number, 0, NODE), NODE, (), payload)
        said = apply(ROWS, self.state, Subject(ROW, SKY.encode()), op, self, lambda: None)
        self.ops[op.id] = op
        if isinstance(said, Reason):
            return said
        self.state = ROWS.decode(ROWS.encode(said))
        assert self.state == said
        return op.id

    def put(
        self,
        value: Any,
        base: bytes | Reason | None = None,
        strategy: Strategy = Strategy.TAKE_RIGHT,
        agent: str = "editor",
    ) -> bytes | Reason:
        assert not isinstance(base, Reason)
        encoded = None if value is None else msgspec.json.encode(value)
        return self.say(PutRow(SKY, agent, base, encoded, strategy))

    def resolve(self, conflict: Any, value: Any, base: Any) -> bytes | Reason:
        return self.say(ResolveConflict(SKY, "judge", conflict, base, msgspec.json.encode(value)))

    @property
    def value(self) -> Any:
        assert self.state is not None
        return None if self.state.value is None else msgspec.json.decode(self.state.value)


@pytest.fixture
def row() -> OneRow:
    return OneRow()


def test_a_write_that_names_the_version_counts(row: OneRow) -> None:
    first = row.put(1)
    second = row.put(2, first)
    assert row.state is not None and (row.value, row.state.op) == (2, second)
    assert row.state.at == Hlc(2, 0, NODE) and not row.state.conflicts


@pytest.mark.req("VX-12")
@pytest.mark.parametrize(
    ("strategy", "value", "is_open"),
    [
        (Strategy.TAKE_LEFT, "written", False),
        (Strategy.TAKE_RIGHT, "stored", False),
        (Strategy.DEFER_TO_AGENT, "stored", True),
        (Strategy.MANUAL, "stored", True),
    ],
)
def test_what_each_strategy_does(row: OneRow, strategy: Strategy, value: str, is_open: bool) -> None:
    first = row.put("old")
    second = row.put("stored", first)
    late = row.put("written", first, strategy)
    assert row.value == value and row.state is not None
    (record,) = row.state.conflicts
    assert (record.op, record.met, record.is_open, record.strategy) == (late, second, is_open, strategy)
    assert record.replaced == (b'"stored"' if strategy is Strategy.TAKE_LEFT else None)
    assert row.state.op == (late if strategy is Strategy.TAKE_LEFT else second)
    assert ROWS.encode(row.state)[0] == 1
    # What the row has now is what the next write must name.
    assert row.put("next", row.state.op) == row.state.op and row.value == "next"


def test_only_a_conflict_left_to_an_agent_is_told_to_it(row: OneRow) -> None:
    first = row.put("old")
    row.put("stored", first)
    for strategy in Strategy:
        late = row.put(strategy.name, first, strategy)
        assert row.state is not None and isinstance(late, bytes)
        message = notice(row.state, row.ops[late])
        assert (message is not None) == (strategy is Strategy.DEFER_TO_AGENT)
        if message is not None:
            assert message.to == "editor@0000000000000007" and SKY in message.body.decode()


def test_a_write_without_a_version_is_for_a_row_that_is_not_there(row: OneRow) -> None:
    assert row.put(None) is Reason.NO_ROW
    assert row.put(1, b"x" * 16) is Reason.UNKNOWN_VERSION
    first = row.put({"a": 1})
    row.put({"b": 2})
    assert row.value == {"a": 1}, "without a base there is no three-way merge"
    deleted = row.put(None, first)
    assert row.put(None, deleted) is Reason.NO_ROW and row.put(None) is Reason.NO_ROW
    row.put({"b": 2})
    assert row.value == {"b": 2}


@pytest.mark.req("VX-12")
def test_changes_of_different_members_are_merged(row: OneRow) -> None:
    first = row.put({"a": 1, "b": 1, "c": {"x": 1, "y": 1}})
    row.put({"a": 2, "b": 1, "c": {"x": 2, "y": 1}}, first)
    merged = row.put({"a": 1, "c": {"x": 1, "y": 2}}, first)
    assert row.value == {"a": 2, "c": {"x": 2, "y": 2}} and row.state is not None
    assert row.state.op == merged and row.state.is_merged and not row.state.conflicts
    # The merged value is on no op, and still the base of later merges.
    row.put({"a": 3, "c": {"x": 2, "y": 2}}, merged)
    row.put({"a": 2, "c": {"x": 2, "y": 2}, "d": 4}, merged)
    assert row.value == {"a": 3, "c": {"x": 2, "y": 2}, "d": 4}


def test_a_version_that_never_was_is_refused(row: OneRow) -> None:
    first = row.put(1)
    row.put(2, first)
    assert row.put(3, b"\xff" * 16) is Reason.UNKNOWN_VERSION
    assert row.put(3, bytes(16)) is Reason.UNKNOWN_VERSION
    skipped = row.put(3, first)
    assert row.put(4, skipped) is Reason.UNKNOWN_VERSION, "what was skipped is no version"
    assert row.value == 2


@pytest.mark.parametrize(
    "name", ["", "/", "sky", "/sky", "memories/", "memories/\x00", "a\nb/c", "memories/" + "x" * 513, "x" * 65 + "/k"]
)
def test_bad_names_are_refused(row: OneRow, name: str) -> None:
    assert row.say(PutRow(name, "", None, b"1", Strategy.MANUAL)) is Reason.BAD_ROW


@pytest.mark.parametrize("agent", ["\x07", "x" * 129])
def test_bad_agents_are_refused(row: OneRow, agent: str) -> None:
    assert row.put(1, agent=agent) is Reason.BAD_ROW
    assert row.put(1, agent="", strategy=Strategy.DEFER_TO_AGENT) is Reason.BAD_ROW


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"",
            b"{",
            b"NaN",
            b"[Infinity]",
            b"1e999",
            b"'a'",
            b"\xff",
            b'"\xff"',
            b'{"a":1}}',
        ),
        *(b"[" * 33 + b"]" * 33, b"[" * 30_000 + b"]" * 30_000, b'"' + b"x" * VALUE_BYTES_MAX + b'"'),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_not_json_or_too_large_is_refused(row: OneRow, value: bytes) -> None:
    assert row.say(PutRow(SKY, "", None, value, Strategy.MANUAL)) is Reason.BAD_ROW_VALUE
    assert row.state is None


def test_a_conflict_is_resolved_once_and_only_for_the_version_that_was_read(row: OneRow) -> None:
    first = row.put("old")
    second = row.put("stored", first)
    conflict = row.put("written", first, Strategy.MANUAL)
    third = row.put("stored later", second)
    assert row.resolve(conflict, "both", second) is Reason.STALE_VERSION
    assert row.resolve(second, "both", third) is Reason.NO_CONFLICT
    assert row.value == "stored later"
    assert isinstance(row.resolve(conflict, "both", third), bytes) and row.value == "both"
    assert row.state is not None and not row.state.conflicts and ROWS.encode(row.state)[0] == 0
    assert row.resolve(conflict, "again", row.state.op) is Reason.NO_CONFLICT


def test_conflicts_are_bounded_and_none_that_waits_is_dropped(row: OneRow) -> None:
    first = row.put(0)
    row.put(1, first)
    waiting = [row.put(2, first, Strategy.MANUAL) for _ in range(OPEN_CONFLICTS_MAX)]
    assert row.put(2, first, Strategy.MANUAL) is Reason.CONFLICTS_FULL
    settled = [row.put(3, first) for _ in range(SETTLED_CONFLICTS_MAX + 5)]
    assert row.state is not None
    assert [each.op for each in row.state.conflicts] == [*waiting, *settled[-SETTLED_CONFLICTS_MAX:]]


@pytest.mark.touches("VX-12")
def test_the_state_stays_small_however_long_the_history(row: OneRow) -> None:
    text = "x" * 20_000
    version = old = row.put({"text": text, "n": 0, "m": 0})
    for number in range(1, 300):
        before = version
        version = row.put({"text": text, "n": number, "m": number - 1}, version)
        version = row.put({"text": text, "n": number - 1, "m": number}, before)
        assert row.state is not None and row.value == {"text": text, "n": number, "m": number}
        assert len(row.state.past) <= PAST_VERSIONS_MAX
        assert len(ROWS.encode(row.state)) < 3 * VALUE_BYTES_MAX
    row.put({"text": "y"}, old, Strategy.MANUAL)
    assert len(row.state.open_conflicts) == 1, "too old to be merged, and old enough not to be called unknown"
    assert isinstance(row.put(None, version), bytes)
    assert len(ROWS.encode(row.state)) < 500


def test_a_large_replaced_value_does_not_pile_up(row: OneRow) -> None:
    first = row.put("x" * 60_000)
    row.put("y" * 60_000, first)
    for number in range(20):
        row.put(f"{number:06}" * 10_000, first, Strategy.TAKE_LEFT)
        assert row.state is not None and len(ROWS.encode(row.state)) < 3 * VALUE_BYTES_MAX
    assert row.state is not None and len(row.state.conflicts) == 1
