"""The ops of one transaction that are not stored yet."""

from hocket.kernel.ops import Op
from hocket.kernel.subjects import Subject, subject_of


class UnstoredOps:
    """Each op by its key, with its reason, 0 if it counts; and its subject."""

    def __init__(self) -> None:
        self.ops: dict[bytes, tuple[Op, int]] = {}
        self.subjects: dict[bytes, Subject | None] = {}
        self._about: dict[Subject, list[bytes]] = {}
        # The longer keys of ops that share their id with another author's op.
        self._long: dict[bytes, list[bytes]] = {}

    def put(self, op: Op, reason: int, subject: Subject | None = None) -> None:
        """`subject` is what the op is about, if the caller knows."""
        if op.id not in self.ops:
            subject = self.subjects[op.id] = subject or subject_of(op.payload)
            if subject is not None:
                self._about.setdefault(subject, []).append(op.id)
            if len(op.id) > 16:
                self._long.setdefault(op.id[:16], []).append(op.id)
        self.ops[op.id] = (op, reason)

    def about(self, subject: Subject) -> list[tuple[Op, int]]:
        return [self.ops[op_id] for op_id in self._about.get(subject, ())]

    def named(self, op_id: bytes) -> list[tuple[Op, int]]:
        """The ops with this id."""
        return [self.ops[key] for key in (op_id, *self._long.get(op_id, ())) if key in self.ops]

    def forget(self) -> None:
        for kept in (self.ops, self.subjects, self._about, self._long):
            kept.clear()
