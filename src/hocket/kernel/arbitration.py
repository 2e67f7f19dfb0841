"""How the ops about one subject become its state, whatever its family: in the order of their times, each judged by who
may write it, by what it cites, by the arbiter, and last by the family's own rules.

The arbiter, the one node that sees every claim in one order, decides some payloads of a family. If another node writes
such a payload, it is an offer, which counts once the arbiter has accepted it, under the acceptance's own id and time.
If the arbiter writes it, it counts at once. Nodes that share the coordinator's store all see every claim in the order
of that store, so each of them is the arbiter of what it writes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.ops import Op
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.vocabulary import ACCEPTANCES, Subject

S = TypeVar("S")
# Returns why an op does not count because of what it cites, if so.
Citing = Callable[[], Reason | None]
# The time of each op and its reason, 0 if it counts.
Standings = dict[bytes, tuple[Hlc, int]]


class FoldContext(Protocol):
    """What the fold of one subject may ask about the rest of the log, always as of the op's own HLC."""

    def refusal(self, op: Op, word: str) -> Reason | None:
        """Why the author had no authority to write this op, if so. `word` is what a caveat is checked against: a job's
        kind.
        """

    def arbiter(self, at: Hlc) -> int | None:
        """The node that decides, if any, about subjects that are not open and an op of this time and author: the author
        itself if it is the coordinator or shares the coordinator's store, and otherwise the coordinator.
        """

    def is_overtaken(self, at: Hlc) -> bool:
        """Whether a successor was designated that did not know what the arbiter decided at that time."""

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        """That op, if it is about that subject."""


class FamilyRules(Protocol[S]):
    """The rules of one family. `S` is the state of one subject; None stands for a subject about which no op counts."""

    @property
    def decided(self) -> frozenset[type]:
        """The payloads that the arbiter decides."""

    def refusal(self, state: S | None, op: Op, context: Any, citing: Citing) -> Reason | None:
        """Why the op does not count in any state: its author may not write it, or what it cites forbids it. Citations
        are checked only if the author may write the op.
        """

    def word(self, state: S | None) -> str:
        """The word that a caveat of the author's grant is checked against, such as the kind of a job."""

    def is_certain(self, state: S | None, op: Op) -> bool:
        """Whether the author of this op is judged by that word, even if earlier ops arrive later."""

    def is_open(self, state: S | None) -> bool:
        """Whether no decision is needed: the earliest op counts. If a subject without a state is not open, then no
        subject of the family ever is, and an offer changes nothing by itself.
        """

    def apply(self, state: S | None, op: Op, context: Any) -> S | Reason:
        """The state after this op, or why the op does not count."""

    def apply_decided(self, state: S | None, op: Op, context: Any, author: int) -> S | Reason:
        """The state after an op of this author that the arbiter wrote or accepted, or why the op does not count. The
        arbiter decided in its own store whatever depends on the rest of the log; that is not checked again when more of
        the log is known.
        """

    def accept_open(self, state: S, op: Op, offered: Op) -> S | Reason:
        """The state after the arbiter's acceptance of an op about an open subject."""

    def seen(self, state: S, op: Op) -> S:
        """The state after an op that does not count. Its time is noted all the same, since an op between the two, if it
        comes late, could make it count.
        """

    def last(self, state: S) -> Hlc:
        """The time of the latest op about the subject."""


class SubjectRules(Generic[S]):
    """What most families have in common: the arbiter decides every `decided` payload, citations are checked after the
    author's permission, and a state is a struct that has the time of the latest op as `last`.
    """

    decided: frozenset[type] = frozenset()

    def __init__(self, state: type[S]) -> None:
        self._decode, self._encode = msgpack_decoder(state).decode, msgspec.msgpack.Encoder().encode

    def refusal(self, state: S | None, op: Op, context: Any, citing: Citing) -> Reason | None:
        refused: Reason | None = context.refusal(op, self.word(state))
        return refused or citing()

    def word(self, state: S | None) -> str:
        return ""

    def is_certain(self, state: S | None, op: Op) -> bool:
        return True

    def is_open(self, state: S | None) -> bool:
        return False

    def apply(self, state: S | None, op: Op, context: Any) -> S | Reason:
        raise NotImplementedError

    def apply_decided(self, state: S | None, op: Op, context: Any, author: int) -> S | Reason:
        return self.apply(state, op, context)

    def accept_open(self, state: S, op: Op, offered: Op) -> S | Reason:
        return Reason.NOT_ARBITER

    def seen(self, state: S, op: Op) -> S:
        return replace(state, last=op.timestamp)  # type: ignore[type-var]

    def last(self, state: S) -> Hlc:
        return state.last  # type: ignore[attr-defined,no-any-return]

    def encode(self, state: S) -> bytes:
        return self._encode(state)

    def decode(self, data: bytes) -> S:
        return self._decode(data)


def apply(
    family: FamilyRules[S], state: S | None, subject: Subject, op: Op, context: Any, citing: Citing
) -> S | Reason:
    """The state after this op, or why the op does not count."""
    refused = family.refusal(state, op, context, citing)
    if refused is not None:
        return refused
    kind = type(op.payload)
    if kind in ACCEPTANCES:
        return _accept(family, state, subject, op, context)
    if kind in family.decided and not family.is_open(state):
        arbiter = context.arbiter(op.timestamp)
        if arbiter == op.node_id:
            if context.is_overtaken(op.timestamp):
                return Reason.NOT_ARBITER
            return family.apply_decided(state, op, context, op.node_id)
        if arbiter is not None:
            return Reason.OFFERED
    return family.apply(state, op, context)


def is_mere_offer(family: FamilyRules[S], verdict: object) -> bool:
    """Whether an op is an offer in any state of its subject: it leaves the state as it is, its time included, so that
    neither an early nor a late one makes a subject be folded again. A change of the arbiter does.
    """
    return verdict is Reason.OFFERED and not family.is_open(None)


def could_offer(family: FamilyRules[S], op: Op, context: FoldContext) -> bool:
    """Whether an op that its author may write is a mere offer."""
    if type(op.payload) not in family.decided or family.is_open(None):
        return False
    return context.arbiter(op.timestamp) not in (None, op.node_id)


def is_late_offer(family: FamilyRules[S], state: S | None, op: Op, context: FoldContext) -> bool:
    """Whether an op that its author may write, and that cites nothing, is an offer between earlier and later ops about
    its subject. Those stay as they are, since an offer changes nothing but the time of the latest op.
    """
    if state is None or type(op.payload) not in family.decided or op.cited or family.is_open(state):
        return False
    return op.timestamp <= family.last(state) and context.arbiter(op.timestamp) not in (None, op.node_id)


def _accept(family: FamilyRules[S], state: S | None, subject: Subject, op: Op, context: FoldContext) -> S | Reason:
    """The arbiter's acceptance puts the offered op in force, under the acceptance's own id and time. It helps only ops
    that their author was allowed to offer; it does not matter if the author has lost its delegation or its standing
    since.
    """
    if context.arbiter(op.timestamp) != op.node_id or context.is_overtaken(op.timestamp):
        return Reason.NOT_ARBITER
    offered = context.offered(op.payload.offer, subject)  # type: ignore[union-attr]
    if offered is None or type(offered.payload) not in family.decided:
        return Reason.NOT_ARBITER
    refused = context.refusal(offered, family.word(state))
    if refused not in (None, Reason.REVOKED, Reason.FORKED):
        return Reason.DEPENDENCY_REJECTED
    if state is not None and family.is_open(state):
        return family.accept_open(state, op, offered)
    accepted = replace(offered, id=op.id, timestamp=op.timestamp)
    return family.apply_decided(state, accepted, context, offered.node_id)


def fold(
    family: FamilyRules[S],
    subject: Subject,
    ops: Iterable[Op],
    context: Any,
    dependencies: Callable[[Op, Standings], Reason | None],
    standings: Standings,
    state: S | None = None,
) -> S | None:
    """A subject's state from all its ops, in any order, or from a `state` and all ops after it. `standings` holds the
    ops that are already excluded, and at the end all of them. `dependencies` returns why an op does not count because
    of what it cites, if so.
    """
    for op in sorted(ops, key=lambda op: op.timestamp):
        if op.id in standings:
            continue
        verdict = apply(family, state, subject, op, context, partial(dependencies, op, standings))
        if isinstance(verdict, Reason):
            standings[op.id] = (op.timestamp, int(verdict))
            # An unauthorised op changes nothing: only the permissions could make it count, and then the subject is
            # folded again.
            if state is not None and verdict not in UNAUTHORISED and not is_mere_offer(family, verdict):
                state = family.seen(state, op)
        else:
            standings[op.id] = (op.timestamp, 0)
            state = verdict
    return state
