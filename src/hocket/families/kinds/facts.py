"""The payload that defines a kind of jobs."""

from hocket.kernel.family import FamilyPayload, Judged, Variant
from hocket.kernel.postcard import BYTES, STR
from hocket.kernel.postcard import struct as fields

KIND = "kind"


class DefineKind(FamilyPayload, frozen=True):
    """The options that jobs of a kind have unless their submitter says otherwise."""

    kind: str
    policy_envelope: bytes


VARIANTS = (
    Variant(
        1036,
        fields(DefineKind, STR, BYTES),
        Judged("Job", "Define", "kind_prefix", "kind"),
        json=("policy_envelope",),
        event="kind.defined",
    ),
)
