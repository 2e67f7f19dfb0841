"""How long a log keeps what has ended, and the horizon up to which it is settled."""

from typing import Any

from hocket.families.retention.facts import RETENTION, RETENTION_KEY, VARIANTS
from hocket.kernel.family import Family


def _rules() -> Any:
    from hocket.families.retention.rules import RETENTIONS

    return RETENTIONS


FAMILY = Family(
    RETENTION,
    VARIANTS,
    lambda payload: RETENTION_KEY,
    _rules,
    is_kept=True,
    key_text=lambda key: RETENTION,
)
