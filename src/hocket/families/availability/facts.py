"""The payload by which a node takes new work or none."""

from enum import IntEnum

from hocket.kernel.family import FamilyPayload, Judged, Variant
from hocket.kernel.postcard import NODE, STR, enum
from hocket.kernel.postcard import struct as fields

AVAILABILITY = "availability"


class Availability(IntEnum):
    ACTIVE = 0
    DRAINING = 1
    QUARANTINED = 2


class SetAvailability(FamilyPayload, frozen=True):
    """Whether a node takes new work: a draining one finishes what it has, a quarantined one gets nothing at all."""

    node: int
    availability: Availability
    reason: str


VARIANTS = (
    Variant(
        1050,
        fields(SetAvailability, NODE, enum(Availability), STR),
        Judged("Mesh", "Write"),
        texts=("reason",),
        event="node.availability",
    ),
)
