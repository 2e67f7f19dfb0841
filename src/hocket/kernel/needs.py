"""What an op requires: for every payload, its resource, the action needed to write one, and which caveat restricts it
by which word. capabilities.py reads the capabilities that grant this, and `authority` combines the two.
"""

from typing import NamedTuple

from hocket.kernel import vocabulary as v
from hocket.kernel.family import Judged as Judged
from hocket.kernel.family import by_payload, derived
from hocket.kernel.vocabulary import Payload


class Need(NamedTuple):
    resource: str
    action: str


_EVIDENCE = Judged("Evidence", "Write", "source_types", "")
_CLAIM = Judged("Claim", "Write", "predicates", "")
_SCHEDULE = Judged("Job", "Schedule", "kind_prefix")
_COMPLETE = Judged("Job", "Complete", "kind_prefix")
_ENTITY = Judged("Entity", "Write")
_EPISODE = Judged("Episode", "Write")
_ARTIFACT = Judged("Artifact", "Write")
_ACTION = Judged("Action", "Write")
_MESH = Judged("Mesh", "Write")
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
    # Its content is unknown here, so the same applies.
    v.Unknown: Judged("Ops", None),
    # Its facts are judged one by one.
    v.Bundle: Judged("Ops", None),
}


derived(JUDGED, by_payload(lambda each: each.judged))

# Reading the artifacts of some kinds of jobs is judged by the kind of the job that an artifact came from. Writing one
# is not: its author names that job itself.
READING: dict[type[Payload], Judged] = derived(
    JUDGED | dict.fromkeys((v.CreateArtifact, v.EvictArtifact), _ARTIFACT._replace(caveat="kind_prefix")),
    by_payload(lambda each: each.read or each.judged),
)

# A reader of the ops of a family may read the arbiter's word about them. The payload stands for the family; the
# word of its caveat, if it has one, is the subject's key.
ACCEPTED: dict[str, type[Payload]] = derived(
    {}, lambda family: {} if family.accepted is None else {family.name: family.accepted}
)


def need_of(payload: Payload) -> Need | None:
    """The capability needed to write such an op. None: no capability decides it. A delegation carries its own
    authority, a revocation is judged by who issued what it revokes, and an acceptance needs any delegation in force.
    """
    judged = JUDGED[type(payload.payload if isinstance(payload, v.Sanitised) else payload)]
    return None if judged.action is None else Need(judged.resource, judged.action)
