"""Rows that several agents may write at once."""

from typing import Any

from hocket.families.rows.facts import ROW, VARIANTS, PutRow
from hocket.kernel.family import Family, Resource


def _rules() -> Any:
    from hocket.families.rows.rules import ROWS

    return ROWS


def _follow_up(state: Any, op: Any) -> Any:
    from hocket.families.rows.rules import notice

    return notice(state, op)


def _named(state: Any) -> set[bytes]:
    past = (*state.past, *state.conflicts)
    return {state.op, *(each.op for each in past), *(each.met for each in state.conflicts)}


FAMILY = Family(
    ROW,
    VARIANTS,
    lambda payload: payload.row.encode(),
    _rules,
    resource=Resource("Row", "row", "rows"),
    accepted=PutRow,
    follow_up=_follow_up,
    based=_named,
)
