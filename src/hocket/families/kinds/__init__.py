"""The options of kinds of jobs."""

from typing import Any

from hocket.families.kinds.facts import KIND, VARIANTS
from hocket.kernel.family import Family


def _rules() -> Any:
    from hocket.families.kinds.rules import KINDS

    return KINDS


FAMILY = Family(KIND, VARIANTS, lambda payload: payload.kind.encode(), _rules, is_kept=True)
