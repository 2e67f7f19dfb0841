"""The ops of one transaction that are not stored yet."""

from hocket.kernel.bundles import facts_of
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Subject, subject_of
from hocket.log.memory import Memory


class UnstoredOps:
    """Each op by its key, with its reason, 0 if it counts; and its subject. The facts of a set are taken out of their
    bundle when somebody asks for them, which is rare.
    """

    def __init__(self) -> None:
        self._ops: dict[bytes, tuple[Op, int]] = {}
        self._subjects: dict[bytes, Subject | None] = {}
        self._about: dict[Subject, list[bytes]] = {}
        # The longer keys of ops that share their id with another author's op.
        self._long: dict[bytes, list[bytes]] = {}
        # The facts of sets that are still in their bundles, and those that are ops and have no entry in `_about` yet.
        self._bundled: dict[bytes, tuple[Op, int]] = {}
        self._unlisted: list[bytes] = []
        self.changed: dict[bytes, int] = {}
        """The new reasons of ops that had another one before."""
        known = self._ops, self._subjects, self._about, self._long, self._unlisted, self.changed
        self.memories = Memory(known), Memory((self._bundled,))

    @property
    def ops(self) -> dict[bytes, tuple[Op, int]]:
        self._take_out()
        return self._ops

    def get(self, op_id: bytes) -> tuple[Op, int] | None:
        if op_id in self._bundled:
            self._take_out()
        return self._ops.get(op_id)

    def reason(self, op_id: bytes) -> int | None:
        """The reason of one of these ops."""
        found = self._ops.get(op_id) or self._bundled.get(op_id)
        return None if found is None else found[1]

    def subject(self, op_id: bytes) -> Subject | None:
        """What one of these ops is about."""
        self._take_out()
        if op_id not in self._subjects:
            self._list()
        return self._subjects[op_id]

    def put(self, op: Op, reason: int, subject: Subject | None = None) -> None:
        """`subject` is what the op is about, if the caller knows."""
        before = self.reason(op.id)
        if before is None:
            self._enter(op, subject or subject_of(op.payload))
        elif before != reason:
            self.changed[op.id] = reason
        self._ops[op.id] = (op, reason)

    def _enter(self, op: Op, subject: Subject | None) -> None:
        self._subjects[op.id] = subject
        if subject is not None:
            self._about.setdefault(subject, []).append(op.id)
        if len(op.id) > 16:
            self._long.setdefault(op.id[:16], []).append(op.id)

    def put_set(self, bundle: Op, fact_ids: list[bytes], reason: int) -> None:
        """Facts of a bundle."""
        self._bundled.update(dict.fromkeys(fact_ids, (bundle, reason)))

    def put_fact(self, op: Op, reason: int) -> None:
        """A fact of a set that is an op already."""
        self._ops[op.id] = (op, reason)
        self._unlisted.append(op.id)

    def _take_out(self) -> None:
        if self._bundled:
            bundled = self._bundled.copy()
            self._bundled.clear()
            for bundle in {id(each): each for each, _ in bundled.values()}.values():
                for op, _ in facts_of(bundle):
                    if op.id in bundled:
                        self.put_fact(op, bundled[op.id][1])

    def _list(self) -> None:
        for op_id in self._unlisted:
            op, _ = self._ops[op_id]
            self._enter(op, subject_of(op.payload))
        self._unlisted.clear()

    def about(self, subject: Subject) -> list[tuple[Op, int]]:
        self._take_out()
        self._list()
        return [self._ops[op_id] for op_id in self._about.get(subject, ())]

    def named(self, op_id: bytes) -> list[tuple[Op, int]]:
        """The ops with this id."""
        return [found for key in (op_id, *self._long.get(op_id, ())) if (found := self.get(key)) is not None]
