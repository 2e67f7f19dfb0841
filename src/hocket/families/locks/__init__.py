"""Locks with fences."""

from typing import Any

from hocket.families.locks.facts import LOCK, VARIANTS, AcquireLocks
from hocket.kernel.family import Family


def _rules() -> Any:
    from hocket.families.locks.rules import LOCKS

    return LOCKS


def _projector() -> Any:
    from hocket.families.locks.projector import LockProjector

    return LockProjector


FAMILY = Family(
    LOCK, VARIANTS, lambda payload: payload.scope.encode(), _rules, projector=_projector, accepted=AcquireLocks
)
