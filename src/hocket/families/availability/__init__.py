"""Which nodes take new work."""

from typing import Any

from hocket.families.availability.facts import AVAILABILITY, VARIANTS, SetAvailability
from hocket.kernel.family import Family
from hocket.kernel.ids import node_text


def _rules() -> Any:
    from hocket.families.availability.rules import AVAILABILITIES

    return AVAILABILITIES


FAMILY = Family(
    AVAILABILITY,
    VARIANTS,
    lambda payload: payload.node.to_bytes(8, "big"),
    _rules,
    accepted=SetAvailability,
    is_kept=True,
    key_text=lambda key: node_text(int.from_bytes(key, "big")),
)
