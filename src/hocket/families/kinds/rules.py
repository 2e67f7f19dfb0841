"""The options of kinds: what a job of a kind has unless its submitter says otherwise. `Kinds` holds the rules of this
family: the latest definition of a kind counts, whichever node wrote it. A definition of `acme.` holds for every kind
below it that has none of its own. `authority` decides who may define a kind; the options take effect when a job is
submitted or claimed.
"""

import msgspec

from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.arbitration import FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy, decode_policy, of_kind, readable_policy


class Definition(msgspec.Struct, frozen=True):
    """The options of a kind, by the op that counts: its time, which names its author, and its envelope. `last` is the
    time of the latest op about the kind.
    """

    policy_envelope: bytes
    defined: Hlc
    last: Hlc

    @property
    def policy(self) -> Policy:
        return decode_policy(self.policy_envelope)


class Kinds(SubjectRules[Definition]):
    """The family of kinds."""

    def is_open(self, state: Definition | None) -> bool:
        return True

    def apply(self, state: Definition | None, op: Op, context: FoldContext) -> Definition | Reason:
        assert isinstance(op.payload, DefineKind)
        kind, envelope = op.payload.kind, op.payload.policy_envelope
        if not 0 < len(kind) <= KIND_LENGTH_MAX or not kind.isprintable():
            return Reason.BAD_KIND
        policy = readable_policy(envelope)
        if policy is None or of_kind(policy) != policy:
            return Reason.BAD_POLICY
        return Definition(envelope, op.timestamp, op.timestamp)


KINDS = Kinds(Definition)
