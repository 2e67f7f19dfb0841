"""What the engine in `projection` works with. A projector keeps the states of one family's subjects, folded from their
ops. A register holds entries of ops that are judged one by one. `SubjectProjector` stores the states of a family,
unless its record names a projector of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.kinds.facts import KIND
from hocket.families.kinds.rules import KINDS
from hocket.kernel.arbitration import FamilyRules, FoldContext, Reason
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.family import FAMILIES, derived
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy, names_of
from hocket.kernel.vocabulary import JOB, AcceptOffer, Payload, Subject
from hocket.log.citations import LASTING_MAX, Citations, Memory
from hocket.log.permissions import Permissions
from hocket.store import Session, SubjectRow

if TYPE_CHECKING:
    from hocket.families.availability.rules import AvailabilityState
    from hocket.kernel.snapshots.horizon import SettledCut

S = TypeVar("S")


class StoredRules(FamilyRules[S], Protocol[S]):
    """A family whose states are stored as bytes."""

    def encode(self, state: S) -> bytes: ...
    def decode(self, data: bytes) -> S: ...


# The payloads after which the node that decides may have to write another op.
FOLLOWED_UP: dict[type, None] = derived(
    {AcceptOffer: None},
    lambda family: {} if family.follow_up is None else dict.fromkeys(each.codec.cls for each in family.variants),
)
_rules: dict[str, StoredRules[Any]] = {}


def family_names() -> tuple[str, ...]:
    """All families, in the order in which a transaction stores what has changed."""
    return JOB, *FAMILIES


def is_known(family: str) -> bool:
    """Whether this program has the rules of a family."""
    return family == JOB or family in FAMILIES


def rules_of(name: str) -> StoredRules[Any]:
    """The rules of a family."""
    if (rules := _rules.get(name)) is None:
        rules = _rules[name] = FAMILIES[name].rules()
    return rules


def follow_up(subject: Subject, state: Callable[[], Any], op: Op) -> Payload | None:
    """What the node that decides on an op also writes, in the same transaction, by the state that the op led to."""
    family = FAMILIES.get(subject.family)
    payload: Payload | None = None
    if family is not None and family.follow_up is not None:
        payload = family.follow_up(state(), op)
    return payload


def defaults_of(session: Session, kind: str) -> Policy:
    """The options that jobs of a kind have unless their submitter says otherwise, as the store has them."""
    for name in names_of(kind):
        state = session.subject_state(Subject(KIND, name.encode()))
        if state is not None:
            return KINDS.decode(state).policy
    return DEFAULT


def is_wrong(session: Session, subject: Subject) -> bool:
    """Whether the stored state of a subject, which was just read, is not what the ops say, and can be put right."""
    check = session.row_check
    return check is not None and subject in check.wrong and not session.is_beside


def availability_of(session: Session, node: int) -> "AvailabilityState | None":
    """What was last said about a node; None if it always took work."""
    state = session.subject_state(Subject(AVAILABILITY, node.to_bytes(8, "big")))
    if state is None:
        return None
    from hocket.families.availability.rules import AVAILABILITIES

    return AVAILABILITIES.decode(state)


class Engine(FoldContext, Protocol):
    """What projectors and registers need from the engine."""

    now: int
    citations: Citations
    is_strict: bool
    settle_log: Callable[[], bool]
    """Folds what is on the log but not in the projections yet; False when there is nothing."""

    @property
    def physical(self) -> int: ...
    @property
    def permissions(self) -> Permissions: ...
    @property
    def cut(self) -> "SettledCut | None":
        """The horizon in force."""

    def known(self, op_id: bytes) -> tuple[Op | None, int]:
        """The op, and its reason: 0 if it counts."""

    def offered_since(self, at: Hlc) -> set[Subject]:
        """The subjects of mere offers that are later."""

    def counting(self, variants: tuple[int, ...]) -> Iterator[Op]:
        """The ops of these variants that count, from the store and from this transaction."""

    def ask_again(self, subject: Subject, permissions: bool = False) -> None:
        """The subject must be refolded. With `permissions`, also the ops that no delegation allowed."""

    def doubt(self, op_id: bytes) -> None:
        """An op without a subject must be judged again."""

    def permissions_changed(self, op: Op) -> None:
        """This op has changed the permissions: what they decide must be judged again."""

    def flush(self) -> None: ...

    def defaults(self, kind: str) -> Policy:
        """The options of a kind."""

    def availability(self, node: int) -> Availability:
        """Whether a node takes new work."""


class Projector(Protocol[S]):
    """The states of one family's subjects, as of one transaction. `touched` are those that were written or dropped."""

    touched: set[bytes]
    memory: Memory
    topics: Mapping[str, set[bytes]]
    """What a transaction announces besides the subjects."""

    @property
    def family(self) -> FamilyRules[S]: ...
    @property
    def context(self) -> Any:
        """What the family's rules need to know about the rest of the log."""

    def state(self, key: bytes) -> S | None: ...
    def keep(self, key: bytes, state: S | None) -> None:
        """Takes a state that follows from the ops, and updates what depends on it."""

    def note(self, key: bytes, state: S) -> None:
        """Takes a state that differs only in the time of the latest op."""

    def prepare(self, keys: Sequence[bytes]) -> None:
        """Reads in one go what will be needed about these subjects."""

    def is_new(self, key: bytes) -> bool:
        """Whether no op on the log is about it, as far as is known."""

    def not_new(self, key: bytes) -> None:
        """From now on there is such an op."""

    def claim(self, key: bytes) -> bytes | None:
        """An op about the subject that is known to count, for families whose later ops usually cite one."""

    def own_fault(self, state: S | None, op: Op) -> Reason | None:
        """Why this node does not write the op, although the fold would let it count."""

    def keys_since(self, hlc: bytes) -> Iterable[bytes]:
        """The subjects that ops later than this are about."""

    def flush(self) -> None:
        """Writes the changes, so that the store's queries see them."""


class Register(Protocol):
    """Entries of ops of some payloads, each judged alone. An op is entered when it counts and struck when it no longer
    does.
    """

    @property
    def payloads(self) -> tuple[type, ...]: ...
    def enter(self, op: Op) -> None: ...
    def strike(self, op: Op) -> None: ...


class SubjectProjector:
    """Keeps the states of a family in a table that such families share."""

    topics: Mapping[str, set[bytes]] = MappingProxyType({})

    def __init__(self, session: Session, engine: FoldContext, name: str) -> None:
        self._session, self._name, self.family = session, name, rules_of(name)
        self._context = engine
        self._states: dict[bytes, Any] = {}
        self._dirty: set[bytes] = set()
        self.touched: set[bytes] = set()
        states, changes = self._states, (self.touched, self._dirty)
        self.memory = Memory(changes, (states,)) if FAMILIES[name].is_kept else Memory((states, *changes))

    @property
    def context(self) -> Any:
        return self._context

    def state(self, key: bytes) -> Any:
        if key not in self._states:
            subject = Subject(self._name, key)
            self._session.lock_subjects((subject,))
            data = self._session.subject_state(subject)
            if len(self._states) >= LASTING_MAX and self.memory.lasting:
                self._forget_unchanged()
            self._states[key] = None if data is None else self.family.decode(data)
            if is_wrong(self._session, subject):
                self._put_right(key)
        return self._states[key]

    def _forget_unchanged(self) -> None:
        for key in self._states.keys() - self._dirty:
            del self._states[key]

    def _put_right(self, key: bytes) -> None:
        """Writes a state that the store has otherwise."""
        self._dirty.add(key)

    def keep(self, key: bytes, state: Any) -> None:
        self._states[key] = state
        self._dirty.add(key)

    note = keep

    @property
    def is_changed(self) -> bool:
        """Whether a state differs from the store's."""
        return bool(self._dirty)

    def prepare(self, keys: Sequence[bytes]) -> None:
        pass

    def is_new(self, key: bytes) -> bool:
        return False

    def not_new(self, key: bytes) -> None:
        pass

    def claim(self, key: bytes) -> bytes | None:
        return None

    def own_fault(self, state: Any, op: Op) -> Reason | None:
        return None

    def keys_since(self, hlc: bytes) -> Iterable[bytes]:
        return self._session.subjects_since(self._name, hlc)

    def flush(self) -> None:
        if not self._dirty:
            return
        for key in self._dirty:
            subject, state = Subject(self._name, key), self._states[key]
            if state is None:
                self._session.drop_subject(subject)
            else:
                last: Hlc = self.family.last(state)
                self._session.put_subject(SubjectRow(subject, pack(last), self.family.encode(state)))
        self.touched |= self._dirty
        self._dirty.clear()


class Projectors(dict[str, Projector[Any]]):
    """The projectors by their families, each made with the first subject of its family."""

    def __init__(
        self, session: Session, engine: Engine, jobs: Projector[Any], remember: Callable[[Memory], None]
    ) -> None:
        super().__init__({JOB: jobs})
        self._session, self._engine, self._remember = session, engine, remember
        self.in_order: list[Projector[Any]] = [jobs]
        """Those that are made, in the order in which a transaction stores what has changed."""

    def __missing__(self, family: str) -> Projector[Any]:
        made = self[family] = self._new(family)
        self._remember(made.memory)
        self.in_order = [self[name] for name in family_names() if name in self]
        return made

    def _new(self, family: str) -> Projector[Any]:
        if (load := FAMILIES[family].projector) is None:
            return SubjectProjector(self._session, self._engine, family)
        made: Projector[Any] = load()(self._session, self._engine)
        return made
