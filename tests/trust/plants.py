"""What a review found once, planted back: each of these undoes one fix in the running code. The adversary must find
every one of them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import requests as jobs
from hocket.families.jobs import rules as schedules
from hocket.kernel import arbitration, capabilities
from hocket.kernel.arbitration import FoldContext, Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.ops import Op, decode
from hocket.kernel.signing import Forked
from hocket.kernel.vocabulary import ReportFork, Subject
from hocket.log import author_check, intake, job_projector, permissions, projection, registers
from hocket.mesh import names
from tests.trust import judge

Plant = Callable[[pytest.MonkeyPatch], None]


def ids_are_anybodys(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether ids follow from content or whether a job has its op's."""
    patch.setattr(author_check, "is_bound", lambda data, op: True)
    patch.setattr(author_check, "_is_misnamed", lambda op: False)


def artifacts_have_any_id(patch: pytest.MonkeyPatch) -> None:
    plain = author_check.is_bound

    def lenient(data: bytes, op: Op) -> bool:
        return type(op.payload).__name__ == "CreateArtifact" or plain(data, op)

    patch.setattr(author_check, "is_bound", lenient)


def jobs_have_any_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(author_check, "_is_misnamed", lambda op: False)


def links_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake.Intake, "_follows", lambda self, raw, op: True)


def forks_are_forgiven(patch: pytest.MonkeyPatch) -> None:
    """A proof of two histories changes nothing."""
    plain = permissions.Permissions.__init__

    def forgiving(self: permissions.Permissions, *args: Any) -> None:
        plain(self, *args[:5], {}, *args[6:])

    patch.setattr(permissions.Permissions, "__init__", forgiving)


def later_forks_hide_earlier_ones(patch: pytest.MonkeyPatch) -> None:
    plain = intake.Intake._follows

    def follows(self: intake.Intake, raw: bytes, op: Op) -> bool:
        return op.node_id in self._tx.projection.permissions.forks or plain(self, raw, op)

    patch.setattr(intake.Intake, "_follows", follows)


def accusations_are_believed(patch: pytest.MonkeyPatch) -> None:
    def gullible(report: ReportFork) -> Forked:
        return Forked(node_id(report.public), min(decode(report.left).timestamp, decode(report.right).timestamp))

    patch.setattr(author_check, "read_fork", gullible)
    patch.setattr(registers, "read_fork", gullible)


def pins_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permissions.Permissions, "is_overtaken", lambda self, at: False)


def any_member_revokes(patch: pytest.MonkeyPatch) -> None:
    graph = capabilities.DelegationGraph
    patch.setattr(graph, "may_revoke", lambda self, node, cid, at_ms, revoked: bool(self.of_node.get(node)))


def any_key_revokes_roots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(author_check, "is_root_revocation", lambda user, payload: True)


def every_grant_passes_on(patch: pytest.MonkeyPatch) -> None:
    """Every worker delegates, whether or not it may write registrations."""
    patch.setattr(capabilities, "_passes_on", lambda grant, child, granted: True)


def delegations_widen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(capabilities.Grant, "within", lambda self, other: True)


def ticks_run_as_their_maker(patch: pytest.MonkeyPatch) -> None:
    """The node that writes a tick down is asked, and not the one that set the schedule."""
    patch.setattr(permissions.Permissions, "tick_refusal", lambda self, op, author: self.refusal(op, op.payload.kind))


def ticks_say_anything(patch: pytest.MonkeyPatch) -> None:
    def lenient(op: Op, schedule: Op | None, ended: Hlc | None, is_newest: object) -> Reason | None:
        return None if schedule is not None else Reason.NOT_A_TICK

    patch.setattr(job_projector, "tick_fault", lenient)


def anybody_changes_schedules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedules, "change_fault", lambda op, before, may_schedule: None)


def acceptance_needs_no_authority(patch: pytest.MonkeyPatch) -> None:
    plain = arbitration._accept

    class Lenient:
        def __init__(self, context: FoldContext) -> None:
            self._context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        def refusal(self, op: Op, word: str) -> Reason | None:
            return None

    def accept(family: Any, state: Any, subject: Subject, op: Op, context: FoldContext) -> Any:
        return plain(family, state, subject, op, Lenient(context))

    patch.setattr(arbitration, "_accept", accept)


def anybody_accepts(patch: pytest.MonkeyPatch) -> None:
    plain = arbitration._accept

    class Servile:
        def __init__(self, context: FoldContext, node: int) -> None:
            self._context, self._node = context, node

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        def arbiter(self, at: Hlc) -> int | None:
            return self._node

    def accept(family: Any, state: Any, subject: Subject, op: Op, context: FoldContext) -> Any:
        return plain(family, state, subject, op, Servile(context, op.node_id))

    patch.setattr(arbitration, "_accept", accept)


def open_completions_are_not_accepted(patch: pytest.MonkeyPatch) -> None:
    """A claim dated back displaces the holder of an open job after its completion."""
    for module in (jobs, accepting):
        patch.setattr(module, "stamp", lambda tx, op: False)


def anybody_evicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permissions.Ownership, "_eviction_fault", lambda self, op, artifact_id, permissions: None)


def late_ops_are_taken_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake.Intake, "_is_late", lambda self, op: False)


def nodes_name_themselves(patch: pytest.MonkeyPatch) -> None:
    def last_word(permissions: permissions.Permissions) -> dict[int, str]:
        return {each.node: each.name for each in permissions.delegations if each.name is not None}

    patch.setattr(names, "names", last_word)
    patch.setattr(judge, "names", last_word)


def refused_ops_move_jobs(patch: pytest.MonkeyPatch) -> None:
    """What a member may not write moves the job's position, so that whatever comes next folds it again."""
    patch.setattr(arbitration, "UNAUTHORISED", frozenset())
    patch.setattr(projection, "UNAUTHORISED", frozenset())
    patch.setattr(projection, "_UNAUTHORISED", ())
    plain = projection.Projection._arrived_at

    def arrived_at(self: projection.Projection, subject: Subject, op: Op) -> None:
        projector = self.projectors[subject.family]
        before = projector.state(subject.key)
        plain(self, subject, op)
        if before is not None and op.timestamp > before.last and self.reason(op.id):
            self._note(projector, subject, before, op)

    patch.setattr(projection.Projection, "_arrived_at", arrived_at)


def the_number_of_the_law_returns(patch: pytest.MonkeyPatch) -> None:
    """A forked author's delegation arrives, and the permissions has the number that it had before."""
    plain = projection.trace
    patch.setattr(projection, "trace", lambda name: plain(name.removeprefix(b"arrived")))


PLANTS: dict[str, Plant] = {
    "ids are anybody's": ids_are_anybodys,
    "artifacts have any id": artifacts_have_any_id,
    "jobs have any id": jobs_have_any_id,
    "links are not checked": links_are_not_checked,
    "forks are forgiven": forks_are_forgiven,
    "later forks hide earlier ones": later_forks_hide_earlier_ones,
    "accusations are believed": accusations_are_believed,
    "pins are ignored": pins_are_ignored,
    "any member revokes": any_member_revokes,
    "any key revokes roots": any_key_revokes_roots,
    "every grant passes on": every_grant_passes_on,
    "delegations widen": delegations_widen,
    "ticks run as their maker": ticks_run_as_their_maker,
    "ticks say anything": ticks_say_anything,
    "anybody changes schedules": anybody_changes_schedules,
    "acceptance needs no authority": acceptance_needs_no_authority,
    "anybody accepts": anybody_accepts,
    "open completions are not accepted": open_completions_are_not_accepted,
    "anybody evicts": anybody_evicts,
    "late ops are taken in": late_ops_are_taken_in,
    "nodes name themselves": nodes_name_themselves,
    "refused ops move jobs": refused_ops_move_jobs,
}
