"""The states of subjects whose families have no tables of their own."""

from typing import NamedTuple, Protocol

from hocket.kernel.subjects import Subject

# The families of subjects whose states no ops say: which scopes of locks agents wait in.
LOCK_QUEUE = "lock queue"


class SubjectRow(NamedTuple):
    """`last` is the packed time of the latest op about the subject."""

    subject: Subject
    last: bytes
    state: bytes


class SubjectSession(Protocol):
    def subject_state(self, subject: Subject) -> bytes | None:
        """In a store that nodes share, what the ops about the subject say: see `row_check`."""

    def put_subject(self, row: SubjectRow) -> None: ...
    def drop_subject(self, subject: Subject) -> None: ...
    def subject_states(self, family: str, without: bytes) -> list[bytes]:
        """The states of all subjects of a family but one."""

    def has_op_after(self, subject: Subject, hlc: bytes) -> bool:
        """Whether an op about the subject that counts is later than this."""

    def subjects_since(self, family: str, hlc: bytes) -> list[bytes]:
        """The keys of subjects with ops later than this."""

    def subjects_offered(self, family: str, reason: int, hlc: bytes) -> list[Subject]:
        """The subjects of a family with ops later than this that do not count for that reason."""

    def subjects_of(self, family: str) -> list[bytes]:
        """The keys of all subjects of a family that have a state or that ops are about."""

    def each_subject(self) -> list[SubjectRow]: ...
