"""The projections as one transaction sees them: the states that it has read or made, its ops that are not stored yet,
and the permissions. It answers what the rules, the projectors and the registers ask about the rest of the log. It is
made once for each writing session and begins again for each transaction, because to make one costs more than most
transactions do.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, cast

from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.kinds.facts import KIND
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.family import FAMILIES
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.policy import names_of as kind_names
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import JOB, Subject, discriminant, subject_of
from hocket.log.artifact_register import ArtifactRegister
from hocket.log.citations import Citations
from hocket.log.job_projector import JobProjector
from hocket.log.memory import LASTING_MAX, Clearable, Memory
from hocket.log.naming import Naming, keyed
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.projectors import Engine, Projector, SubjectProjector, family_names
from hocket.log.registers import RouteRegister
from hocket.log.unstored_ops import UnstoredOps
from hocket.store import Head, Session

_COUNTS = 0


def _is_settled() -> bool:
    return False


class Projectors(dict[str, Projector[Any]]):
    """The projectors by their families, each made with the first subject of its family."""

    def __init__(
        self, session: Session, engine: Engine, jobs: JobProjector, remember: Callable[[Memory], None]
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


class ProjectedState:
    """Call `begin` first, for each transaction. A subclass keeps the projections equal to the log: it is the engine of
    the projectors and registers.
    """

    def __init__(self, session: Session, permissions_reader: PermissionsReader) -> None:
        self.session = self._session = session
        self.permissions_reader = permissions_reader
        self.now = self.permissions_state = 0
        self._physical: int | Callable[[], int] = 0
        self.settle_log: Callable[[], bool] = _is_settled
        self._fresh = UnstoredOps()
        self._defaults: dict[str, Policy] = {}
        self.is_strict = permissions_reader.rules.is_strict
        self.is_bound = permissions_reader.rules.bounds is not None
        self._naming = Naming(session, self._fresh, self.is_strict)
        engine = cast(Engine, self)
        self._artifacts = ArtifactRegister(session, engine, self.is_bound)
        self._routes = RouteRegister(session, engine)
        self.jobs = JobProjector(session, engine, self._routes, self._folded_anew)
        self.citations = Citations(
            session,
            self._fresh,
            self.jobs.entry,
            self._artifacts.artifact,
            self.arbiter,
            lambda: self.settle_log(),
            self.is_strict,
        )
        # What is cleared after each transaction, and when the log has changed.
        self._passing: list[tuple[Clearable, ...]] = []
        self._firsts: list[Clearable] = []
        self._lasting: list[Clearable] = [self._defaults]
        for memory in (*self._fresh.memories, self._artifacts.memory, self.citations.memory, self.jobs.memory):
            self._remember(memory)
        self.projectors = Projectors(session, engine, self.jobs, self._remember)
        self._kinds = cast(SubjectProjector, self.projectors[KIND])
        # Whether ops have come in late, or the permissions have changed: then stored states may be those of before.
        self._is_changing = False
        # The op that was just found to be allowed.
        self._allowed: Op | None = None
        # Whether a transaction has begun and not ended: then it was undone.
        self._is_open = False
        # The end of the log that the last transaction left.
        self._left: Head | None = None

    def begin(
        self,
        now: int,
        permissions_state: int,
        *,
        physical: Callable[[], int] | None = None,
        settle: Callable[[], bool] = _is_settled,
        head: Head | None = None,
    ) -> None:
        """A transaction begins. `permissions_state` is the number of the permissions in force. `settle` folds what is
        on the log but not in the projections yet; it gives False when there is nothing. `physical` is the machine's own
        clock, if it decides. With the `head` that the last transaction has left, nobody else has written since.
        """
        if self._is_open or head is None or head is not self._left:
            self._clear()
        if permissions_state != self.permissions_state or self._session.row_check is not None:
            self.__dict__.pop("permissions", None)
        self._is_open, self._is_changing, self._allowed = True, False, None
        self.now, self._physical = now, now if physical is None else physical
        self.permissions_state = permissions_state
        self.settle_log = settle

    def end(self, head: Head) -> None:
        """The transaction has stored everything, and leaves this end of the log. Frees its ops and its states."""
        if (check := self._session.row_check) is not None:
            check.wrote_jobs(self.jobs.written())
        if any(self._firsts):
            for passing in self._passing:
                if passing[0]:
                    for known in passing:
                        known.clear()
        self._is_open, self._left, self.settle_log = False, head, _is_settled

    def _remember(self, memory: Memory) -> None:
        self._passing.append(memory.passing)
        self._firsts.append(memory.passing[0])
        self._lasting += memory.lasting

    def _clear(self) -> None:
        """The last transaction was undone, or others may have written since."""
        for known in (*self._lasting, *chain(*self._passing)):
            known.clear()
        self.jobs.log_changed()
        self._routes.log_changed()
        self.__dict__.pop("permissions", None)

    def _folded_anew(self, subject: Subject) -> tuple[Any, bool]:
        """For a store whose derived columns nobody has to believe: the state that the stored ops about a subject make
        of it, and whether the stored state must be the same.
        """
        raise NotImplementedError

    @property
    def physical(self) -> int:
        """The reading of the machine's own clock: read once, when it is first needed."""
        if not isinstance(self._physical, int):
            self._physical = self._physical()
        return self._physical

    @cached_property
    def permissions(self) -> Permissions:
        """Read again when they have changed."""
        fresh = [op for op, _ in self._fresh.ops.values()]
        return self.permissions_reader.read(self._session, self.permissions_state, fresh)

    # What the rules ask.

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None if op is self._allowed else self.permissions.refusal(op, word)

    def arbiter(self, at: Hlc) -> int | None:
        return self.permissions.arbiter(at)

    def is_overtaken(self, at: Hlc) -> bool:
        return self.permissions.is_overtaken(at)

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        op, _ = self.known(op_id)
        return op if op is not None and subject_of(op.payload) == subject else None

    # What projectors and registers ask.

    def known(self, op_id: bytes) -> tuple[Op | None, int]:
        if (fresh := self._fresh.get(op_id)) is not None:
            return fresh
        row = self.citations.row(op_id)
        return (None, _COUNTS) if row is None else (keyed(row), row.reason)

    def offered_since(self, at: Hlc) -> set[Subject]:
        """The subjects of mere offers that are later."""
        families = [name for name in family_names() if not self.projectors[name].family.is_open(None)]
        stored = {
            subject for name in families for subject in self._session.subjects_offered(name, Reason.OFFERED, pack(at))
        }
        fresh = {
            self._fresh.subject(op.id)
            for op, reason in self._fresh.ops.values()
            if reason == Reason.OFFERED and op.timestamp > at
        }
        return stored | {subject for subject in fresh if subject is not None and subject.family in families}

    def counting(self, variants: tuple[int, ...]) -> Iterator[Op]:
        for row in self._session.ops_of_variants(variants):
            if row.reason == _COUNTS:
                yield keyed(row)
        for op, reason in list(self._fresh.ops.values()):
            if reason == _COUNTS and discriminant(op.payload) in variants:
                yield op

    def flush(self) -> None:
        """Writes what has changed, so that the store's queries see it."""
        self._artifacts.flush()
        if self._kinds.is_changed:
            self._defaults.clear()
        for projector in self.projectors.in_order:
            projector.flush()

    def defaults(self, kind: str) -> Policy:
        if self._kinds.is_changed:
            self._defaults.clear()
        policy = self._defaults.get(kind)
        if policy is None:
            definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
            policy = next((each.policy for each in definitions if each is not None), DEFAULT)
            if len(self._defaults) >= LASTING_MAX:
                self._defaults.clear()
            self._defaults[kind] = policy
        return policy

    def defined_at(self, kind: str) -> Hlc | None:
        """When the options of a kind were defined; None if they were not."""
        definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
        return next((each.defined for each in definitions if each is not None), None)

    def availability(self, node: int) -> Availability:
        state = self.projectors[AVAILABILITY].state(node.to_bytes(8, "big"))
        return Availability.ACTIVE if state is None else state.availability

    # What the transaction asks.

    def reason(self, op_id: bytes) -> int:
        """Whether an op of this transaction counts: 0, or why it does not."""
        reason = self._fresh.reason(op_id)
        assert reason is not None
        return reason

    @property
    def changed(self) -> dict[bytes, int]:
        """The new reasons of ops of this transaction that had another one before."""
        return self._fresh.changed

    def standing(self, op_id: bytes) -> tuple[int, Subject | None]:
        """The reason of an op of this transaction, and what the op is about."""
        return self.reason(op_id), self._fresh.subject(op_id)
