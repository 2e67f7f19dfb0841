"""The options of kinds: what a job of a kind has unless its submitter says otherwise. `Kinds` holds the rules of this
family: the latest definition of a kind counts, whichever node wrote it. A definition of `acme.` holds for every kind
below it that has none of its own. `authority` decides who may define a kind; the options take effect when a job is
submitted or claimed.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from hocket.kernel.arbitration import Citing, FoldContext
from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import decode_msgpack
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy, decode_policy, readable_policy
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import KIND_LENGTH_MAX
from hocket.kernel.vocabulary import DefineKind

# What belongs to one job and not to its kind.
_OF_ONE_JOB = frozenset(
    {"not_before", "after", "unique", "unique_for_ms", "schedule", "schedule_op", "trace", "overlap"}
)
_OF_A_KIND = tuple(name for name in Policy.__struct_fields__ if name not in _OF_ONE_JOB)

# How a job waits in the queue; its submitter's node writes this down. The other options say how it runs.
_OF_A_PLACE = ("priority", "ttl_ms", "open", "claim", "sticky", "claim_timeout_ms")
_OF_A_RUN = tuple(name for name in _OF_A_KIND if name not in _OF_A_PLACE)


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


class Kinds:
    """The family of kinds."""

    decided: frozenset[type] = frozenset()

    def refusal(self, state: Definition | None, op: Op, context: FoldContext, citing: Citing) -> Reason | None:
        return context.refusal(op, "") or citing()

    def word(self, state: Definition | None) -> str:
        return ""

    def is_certain(self, state: Definition | None, op: Op) -> bool:
        return True

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

    def apply_decided(self, state: Definition | None, op: Op, context: FoldContext, author: int) -> Definition | Reason:
        return self.apply(state, op, context)

    def accept_open(self, state: Definition, op: Op, offered: Op) -> Definition | Reason:
        return Reason.NOT_ARBITER

    def seen(self, state: Definition, op: Op) -> Definition:
        return replace(state, last=op.timestamp)

    def last(self, state: Definition) -> Hlc:
        return state.last

    def encode(self, state: Definition) -> bytes:
        return msgspec.msgpack.encode(state)

    def decode(self, data: bytes) -> Definition:
        return decode_msgpack(data, Definition)


KINDS = Kinds()


def names_of(kind: str) -> Iterator[str]:
    """The definitions and the routes that can hold for jobs of a kind, the first that exists: `a.b.c`, `a.b.`, `a.`"""
    yield kind
    for end in range(len(kind) - 1, 0, -1):
        if kind[end - 1] == ".":
            yield kind[:end]


def routed_to(kind: str, routes: Mapping[str, int]) -> int | None:
    """The node that a kind is routed to, by the routes of kinds and of prefixes."""
    return next((routes[name] for name in names_of(kind) if name in routes), None)


def of_kind(policy: Policy) -> Policy:
    """The options that a handler can set for its kind; the others belong to one job."""
    return replace(policy, **{name: getattr(DEFAULT, name) for name in _OF_ONE_JOB})


def with_defaults(policy: Policy, said: Collection[str], defaults: Policy) -> Policy:
    """A job's policy, with the options of its kind for those that its submitter has not said."""
    if defaults == DEFAULT:
        return policy
    taken = {
        name: getattr(defaults, name)
        for name in _OF_A_KIND
        if name not in said and getattr(policy, name) == getattr(DEFAULT, name)
    }
    return replace(policy, **taken)


def with_open(policy: Policy, is_ranked_open: bool) -> Policy:
    """A job's policy with the answer whether it is open. If nobody has said it, a job that workers claim by rank is
    open where the rules of the mesh say so.
    """
    if policy.open is None and is_ranked_open and policy.claim != "first":
        return replace(policy, open=True)
    return replace(policy, open=None) if policy.open is False else policy


def run_options(policy: Policy, options: Policy) -> Policy:
    """A job's policy while it runs: the options of its handler hold where the job says nothing, also for a job that was
    submitted before the kind was defined.
    """
    if options is DEFAULT or policy == options:
        return policy
    taken = {
        name: getattr(options, name)
        for name in _OF_A_RUN
        if getattr(policy, name) == getattr(DEFAULT, name) != getattr(options, name)
    }
    if policy.lease_ms is not None or policy.lease_beats is not None:
        taken = {name: value for name, value in taken.items() if name not in ("lease_ms", "lease_beats")}
    return replace(policy, **taken) if taken else policy


def is_placed(options: Policy) -> bool:
    """Whether the options say how jobs wait in the queue, which is decided when they are submitted."""
    return any(getattr(options, name) != getattr(DEFAULT, name) for name in _OF_A_PLACE)


def covers(wanted: str, kind: str) -> bool:
    """How a command names kinds: `acme.` with its dot stands for every kind below it, `acme.render` for that kind
    alone.
    """
    return kind.startswith(wanted) if wanted.endswith(".") else kind == wanted
