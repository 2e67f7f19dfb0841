"""The rules of retention: the owner says how long what has ended is kept, and the coordinator moves the horizon, on a
log without a coordinator a node of the owner. A horizon counts only if it is later than the one before it and far
enough behind its own op. Its op depends on the rules that decide at it, so every node decides alike, whatever has come
since. But it may not pass over a word of the owner that is settled itself.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from hocket.families.retention.facts import (
    KEEP_MS_MIN,
    RETENTION,
    RETENTION_KEY,
    SETTLED_MS,
    MoveHorizon,
    Retained,
    SetRetention,
)
from hocket.kernel.arbitration import Citing, FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op
from hocket.kernel.policy import names_of
from hocket.kernel.vocabulary import Subject

MATCH_CHARS_MAX = 255
# More rules than this on one log are not written.
RULES_MAX = 256
# A note on a root has no more cosignatures, besides that of who has moved the horizon.
WITNESSES_MAX = 7
KEEP_MS_MAX = 100 * 366 * 86_400_000
_SUBJECT = Subject(RETENTION, RETENTION_KEY)


class RetentionRule(msgspec.Struct, frozen=True, array_like=True):
    """The owner's latest word on one match: see `SetRetention`. A rule that was removed stays as one that keeps all."""

    what: Retained
    match: str
    keep_ms: int | None
    keep_count: int | None
    waives_archive: bool
    witnesses: int
    op: bytes
    at: Hlc

    @property
    def is_removed(self) -> bool:
        return self.keep_ms is None and self.keep_count is None


class Horizon(msgspec.Struct, frozen=True, array_like=True):
    """The horizon that the latest op has moved: that op and its time, and the rules that decide at it."""

    op: bytes
    at_ms: int
    moved: Hlc
    rules: tuple[RetentionRule, ...]


class Retention(msgspec.Struct, frozen=True, array_like=True):
    """`rules` are the owner's latest words, by what they are about and their match. `horizon` is the latest, if there
    is one.
    """

    rules: tuple[RetentionRule, ...]
    horizon: Horizon | None
    last: Hlc


_EMPTY = Retention((), None, Hlc(0, 0, 0))


class Retentions(SubjectRules[Retention]):
    """The family of retention. It has one subject."""

    def refusal(self, state: Retention | None, op: Op, context: FoldContext, citing: Citing) -> Reason | None:
        refused = context.refusal(op, "")
        if refused is None and isinstance(op.payload, MoveHorizon) and not may_move(op, context):
            refused = Reason.NOT_COORDINATOR
        return refused or citing()

    def is_certain(self, state: Retention | None, op: Op) -> bool:
        return isinstance(op.payload, SetRetention)

    def is_open(self, state: Retention | None) -> bool:
        return True

    def apply(self, state: Retention | None, op: Op, context: FoldContext) -> Retention | Reason:
        if isinstance(op.payload, SetRetention):
            return _set(state or _EMPTY, op, op.payload)
        assert isinstance(op.payload, MoveHorizon)
        return _moved(state or _EMPTY, op, op.payload, context)


RETENTIONS = Retentions(Retention)


class Movers(Protocol):
    """What decides who may move the horizon: see `FoldContext` and the permissions of a log."""

    def arbiter(self, at: Hlc) -> int | None: ...
    def is_overtaken(self, at: Hlc) -> bool: ...
    def refusal(self, op: Op, word: str, /) -> Reason | None: ...


def may_move(op: Op, context: Movers) -> bool:
    """Whether the author of an op is the one who moves the horizon at that time."""
    arbiter = context.arbiter(op.timestamp)
    if arbiter is not None:
        return arbiter == op.node_id and not context.is_overtaken(op.timestamp)
    return context.refusal(replace(op, payload=_OWNERS_WORD), "") is None


_OWNERS_WORD = SetRetention(Retained.JOBS, "", None, None, False, 0)


def fault(payload: SetRetention) -> str | None:
    """What is wrong with a rule, if anything."""
    if len(payload.match) > MATCH_CHARS_MAX or not (payload.match == "" or payload.match.isprintable()):
        return "its pattern is too long or has control characters"
    if payload.match and payload.what is not Retained.JOBS:
        return "only rules about jobs have a pattern"
    if payload.keep_ms is not None and not KEEP_MS_MIN <= payload.keep_ms <= KEEP_MS_MAX:
        return (
            f"it keeps for {payload.keep_ms / 1000:g} s, and {KEEP_MS_MIN // 60_000} minutes to 100 years are allowed"
        )
    if payload.keep_count is not None and payload.what is not Retained.JOBS:
        return "only jobs are kept by their number"
    if payload.witnesses > WITNESSES_MAX:
        return f"it has at most {WITNESSES_MAX} witnesses"
    return None


def _set(state: Retention, op: Op, payload: SetRetention) -> Retention | Reason:
    others = tuple(each for each in state.rules if (each.what, each.match) != (payload.what, payload.match))
    if fault(payload) is not None or len(others) >= RULES_MAX:
        return Reason.BAD_RETENTION
    return replace(state, rules=_sorted((*others, rule_of(op, payload))), last=op.timestamp)


def rule_of(op: Op, payload: SetRetention) -> RetentionRule:
    what = payload.what, payload.match, payload.keep_ms, payload.keep_count, payload.waives_archive, payload.witnesses
    return RetentionRule(*what, op.id, op.timestamp)


def _sorted(rules: Iterable[RetentionRule]) -> tuple[RetentionRule, ...]:
    return tuple(sorted(rules, key=lambda each: (each.what, each.match)))


def _moved(state: Retention, op: Op, payload: MoveHorizon, context: FoldContext) -> Retention | Reason:
    before = state.horizon
    rules = _cited_rules(op, context)
    is_good = (
        payload.before == (None if before is None else before.op)
        and payload.at_ms > (-1 if before is None else before.at_ms)
        and payload.at_ms + SETTLED_MS <= op.timestamp.wall
        and rules is not None
        and not _passes_over(state.rules, rules, payload)
        and [each.node for each in payload.heads] == sorted({each.node for each in payload.heads})
        and list(payload.kept) == sorted(set(payload.kept))
        and all(each.wall <= payload.at_ms for each in payload.heads)
    )
    if not is_good or rules is None:
        return Reason.BAD_HORIZON
    return replace(state, horizon=Horizon(op.id, payload.at_ms, op.timestamp, rules), last=op.timestamp)


def _cited_rules(op: Op, context: FoldContext) -> tuple[RetentionRule, ...] | None:
    """The rules that the op depends on: one for each match."""
    rules: list[RetentionRule] = []
    for dep in op.cited:
        named = context.offered(dep, _SUBJECT)
        if named is None or not isinstance(named.payload, SetRetention):
            return None
        rules.append(rule_of(named, named.payload))
    matches = {(each.what, each.match) for each in rules}
    return _sorted(rules) if len(matches) == len(rules) else None


def _passes_over(latest: Iterable[RetentionRule], cited: Iterable[RetentionRule], payload: MoveHorizon) -> bool:
    """Whether a word of the owner that is settled at this horizon itself is not among the rules, nor a later one."""
    heads = {each.node: each.at for each in payload.heads}
    named = {(each.what, each.match): each.at for each in cited}
    settled = [each for each in latest if each.at <= heads.get(each.at.node, Hlc(0, 0, 0))]
    return any(each.at > named.get((each.what, each.match), Hlc(0, 0, 0)) for each in settled)


def rule_for(rules: Iterable[RetentionRule], what: Retained, kind: str = "") -> RetentionRule | None:
    """The rule that decides about a kind: its own goes before that of a prefix, a longer prefix before a shorter one,
    and the one for all comes last. None if everything is kept.
    """
    by_match = {each.match: each for each in rules if each.what is what}
    for name in (*names_of(kind), "") if kind else ("",):
        if (found := by_match.get(name)) is not None:
            return None if found.is_removed else found
    return None


def forgotten_ms(horizon: Horizon) -> int:
    """No subject that has gone at this horizon began later than this."""
    keeps = [each.keep_ms or KEEP_MS_MIN for each in horizon.rules if not each.is_removed]
    return horizon.at_ms - min(keeps, default=horizon.at_ms)
