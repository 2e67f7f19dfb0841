"""Locks with fences."""

from typing import Any

from hocket.families.locks.facts import LOCK, VARIANTS, AcquireLocks
from hocket.kernel.family import Family, Resource


def _rules() -> Any:
    from hocket.families.locks.rules import LOCKS

    return LOCKS


def _projector() -> Any:
    from hocket.families.locks.projector import LockProjector

    return LockProjector


FAMILY = Family(
    LOCK,
    VARIANTS,
    lambda payload: payload.scope.encode(),
    _rules,
    resource=Resource(
        "Lock",
        "key",
        "locks",
        {"acquire": "Acquire", "break": "Break"},
        written=frozenset({"Acquire"}),
        is_put=False,
    ),
    projector=_projector,
    accepted=AcquireLocks,
    based=lambda scope: {each.op for each in (*scope.holds, *scope.waits)},
)
