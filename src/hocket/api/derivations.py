"""The passes of derivations: which there were, and whether they come out the same here."""

from collections.abc import Sequence
from enum import StrEnum

from hocket.api import Service, ServiceAnswer
from hocket.kernel.ids import node_text, ulid_text
from hocket.store import Session
from hocket.work.derivation import Derivation, DerivationPass, DonePass, done_passes, missing, repeated


class PassVerdict(StrEnum):
    same = "same"
    differs = "differs"
    missing = "missing"


class PassLine(ServiceAnswer, frozen=True):
    """A pass of a derivation: how many ops the function read and derived. `verdict` and `detail` are what a repetition
    on this node gave, if there was one.
    """

    derivation: str
    job_id: str
    node: str | None
    read: int
    derived: int
    verdict: PassVerdict | None = None
    detail: str = ""


def passes(service: Service, wanted: Sequence[Derivation], check: bool = False) -> list[PassLine]:
    """The passes of these derivations, oldest first. With `check` each is repeated here, over the same ops and from
    what the pass before it kept.
    """
    with service.read() as session:
        return [line for each in wanted for line in _lines(session, each, check)]


def _lines(session: Session, made: Derivation, check: bool) -> list[PassLine]:
    lines: list[PassLine] = []
    before: DonePass | None = None
    for done in done_passes(session, made):
        job, record = done.job, done.record
        verdict, detail = _verdict(session, made, record, before) if check else (None, "")
        # The claim of a job that has ended names its last holder.
        node = None if job.claimer is None else node_text(job.claimer)
        lines.append(PassLine(made.name, ulid_text(job.id), node, record.read, record.derived, verdict, detail))
        before = done
    return lines


def _verdict(
    session: Session, made: Derivation, record: DerivationPass, before: DonePass | None
) -> tuple[PassVerdict, str]:
    if record.previous != (None if before is None else ulid_text(before.job.id)):
        return PassVerdict.missing, "the pass before it is not here"
    if absent := missing(session, record):
        return PassVerdict.missing, f"ops of node {node_text(absent)} that it has read are not here yet"
    again = repeated(session, made, record, {} if before is None else before.record.memory).record
    if again.inputs != record.inputs:
        return PassVerdict.differs, f"{again.read} ops count here, and {record.read} did then"
    if (again.outputs, again.memory) != (record.outputs, record.memory):
        return (
            PassVerdict.differs,
            f"the function derives {again.derived} other ops here: it is not pure, or was changed",
        )
    return PassVerdict.same, ""
