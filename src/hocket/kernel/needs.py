"""What an op requires: for every payload, its resource, the action needed to write one, and which caveat restricts it
by which word. capabilities.py reads the capabilities that grant this, and `authority` combines the two.
"""

from typing import NamedTuple

from hocket.kernel import coordination_payloads as c
from hocket.kernel import vocabulary as v
from hocket.kernel.subjects import AVAILABILITY, LOCK, MESSAGE, ROW
from hocket.kernel.vocabulary import Payload


class Need(NamedTuple):
    resource: str
    action: str


class Judged(NamedTuple):
    """How ops with one payload are judged. An action of None: no capability decides who writes them. The field is the
    one whose word, or words, the caveat checks; None stands for a word of the subject that the caller knows, such as
    the kind of the job, and an empty one for a word that the payload does not have. An op that is `scoped` has a scope,
    which the caveat `scopes` checks.
    """

    resource: str
    action: str | None
    caveat: str | None = None
    field: str | None = None
    scoped: bool = False


_EVIDENCE = Judged("Evidence", "Write", "source_types", "")
_CLAIM = Judged("Claim", "Write", "predicates", "")
_SCHEDULE = Judged("Job", "Schedule", "kind_prefix")
_COMPLETE = Judged("Job", "Complete", "kind_prefix")
_ENTITY = Judged("Entity", "Write")
_EPISODE = Judged("Episode", "Write")
_ARTIFACT = Judged("Artifact", "Write")
_ACTION = Judged("Action", "Write")
_MESH = Judged("Mesh", "Write")
_ACQUIRE = Judged("Lock", "Acquire", scoped=True)
_RECEIVE = Judged("Inbox", "Claim", "key_prefix", "agent")
_ROW = Judged("Row", "Write", "key_prefix", "row")
_REGISTRATION = Judged("Registration", None)

JUDGED: dict[type[Payload], Judged] = {
    v.IngestEvidence: _EVIDENCE._replace(field="source_type"),
    v.TombstoneEvidence: _EVIDENCE,
    v.CascadeTombstone: _EVIDENCE,
    v.CreateEntity: _ENTITY,
    v.AddEntityAlias: _ENTITY,
    v.MergeEntities: _ENTITY,
    v.SplitEntity: _ENTITY,
    v.CreateClaim: _CLAIM._replace(field="predicate"),
    v.UpdateClaimStatus: _CLAIM,
    v.UpdateClaimConfidence: _CLAIM,
    v.SupersedeClaim: _CLAIM,
    v.ScheduleJob: _SCHEDULE._replace(field="kind"),
    v.SetSchedule: _SCHEDULE._replace(field="kind"),
    # It has a name and no kind, so no kind_prefix can restrict it.
    v.ClearSchedule: _SCHEDULE._replace(caveat=None),
    v.CancelJob: _SCHEDULE,
    v.RetryJob: _SCHEDULE,
    v.ClaimWork: Judged("Job", "Claim", "kind_prefix"),
    v.CompleteJob: _COMPLETE,
    v.YieldWork: _COMPLETE,
    v.ExpireWork: _COMPLETE,
    v.FailWork: _COMPLETE,
    v.ReportProgress: _COMPLETE,
    v.PostponeWork: _COMPLETE,
    v.DefineKind: Judged("Job", "Define", "kind_prefix", "kind"),
    v.SaveCheckpoint: _COMPLETE,
    v.AcceptWork: Judged("Job", None, "kind_prefix"),
    v.AcceptOffer: Judged("Ops", None),
    v.UserAssert: Judged("UserAssertion", "Write"),
    v.CreateArtifact: _ARTIFACT,
    v.EvictArtifact: _ARTIFACT,
    v.CreateEpisode: _EPISODE,
    v.UpdateEpisode: _EPISODE,
    v.CreateSuggestedAction: _ACTION,
    v.UpdateActionStatus: _ACTION,
    v.DesignateCoordinator: _MESH,
    v.RouteKind: _MESH,
    v.DelegateUcan: _REGISTRATION,
    v.RevokeUcan: _REGISTRATION,
    v.RevokeRoot: _REGISTRATION,
    # It holds whole ops, so only nodes that may read every op may read it.
    v.ReportFork: Judged("Ops", None),
    c.AcquireLocks: _ACQUIRE._replace(caveat="key_prefix", field="keys"),
    # These name a fence and no keys; only the holder can use it.
    c.RenewLocks: _ACQUIRE,
    c.ReleaseLocks: _ACQUIRE,
    c.LeaveQueue: _ACQUIRE,
    c.BreakLock: Judged("Lock", "Break", "key_prefix", "key", scoped=True),
    c.SendMessage: Judged("Inbox", "Write", "key_prefix", "to"),
    c.ClaimMessage: _RECEIVE,
    c.AcknowledgeMessage: _RECEIVE,
    c.ReturnMessage: _RECEIVE,
    c.RetryMessage: _RECEIVE._replace(field=None),
    c.PutRow: _ROW,
    c.ResolveConflict: _ROW,
    c.SetAvailability: _MESH,
    # Its content is unknown here, so the same applies.
    v.Unknown: Judged("Ops", None),
    # Its facts are judged one by one.
    v.Bundle: Judged("Ops", None),
}


# Reading the artifacts of some kinds of jobs is judged by the kind of the job that an artifact came from. Writing one
# is not: its author names that job itself.
READING: dict[type[Payload], Judged] = (
    JUDGED
    | dict.fromkeys((v.CreateArtifact, v.EvictArtifact), _ARTIFACT._replace(caveat="kind_prefix"))
    # All locks of a scope are folded together, so a reader of one reads all.
    | dict.fromkeys((c.AcquireLocks, c.BreakLock), _ACQUIRE)
    # What happens to a message is no secret; what it says is.
    | dict.fromkeys(
        (c.ClaimMessage, c.AcknowledgeMessage, c.ReturnMessage, c.RetryMessage),
        _RECEIVE._replace(caveat=None, field=None),
    )
)

# A reader of the ops of a family may read the arbiter's word about them. The payload stands for the family; the
# word of its caveat, if it has one, is the subject's key.
ACCEPTED: dict[str, type[Payload]] = {
    LOCK: c.AcquireLocks,
    MESSAGE: c.ClaimMessage,
    ROW: c.PutRow,
    AVAILABILITY: c.SetAvailability,
}


def need_of(payload: Payload) -> Need | None:
    """The capability needed to write such an op. None: no capability decides it. A delegation carries its own
    authority, a revocation is judged by who issued what it revokes, and an acceptance needs any delegation in force.
    """
    judged = JUDGED[type(payload.payload if isinstance(payload, v.Sanitised) else payload)]
    return None if judged.action is None else Need(judged.resource, judged.action)
