"""The link from an audited output to the inference that made it. A node under audit may not state what a model told it
without naming the snapshot of that call, and the snapshot must be on the log.
"""

from collections.abc import Callable

from hocket.kernel.authority import Authority
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.snapshot import SNAPSHOT_TYPE
from hocket.kernel.vocabulary import ClaimType, CreateClaim, CreateSuggestedAction
from hocket.store import Session

Cite = Callable[[bytes, bytes], None]


def unlinked(op: Op, authority: Authority, session: Session, cite: Cite) -> Reason | None:
    """NO_SNAPSHOT when the op is an audited output that names none that is here. Claims that say of themselves that
    they were derived, and actions that say by which job, are outputs; a claim names its snapshots in its provenance,
    an action cites them.
    """
    payload = op.payload
    if isinstance(payload, CreateClaim) and (payload.claim_type is ClaimType.DERIVED or payload.provenance.jobs):
        named, all_of_them = payload.provenance.snapshots, True
    elif isinstance(payload, CreateSuggestedAction) and payload.derivation_job is not None:
        named, all_of_them = op.causal_deps, False
    else:
        return None
    if not authority.audited(op.node_id, op.timestamp.wall, None):
        return None
    for artifact_id in named:
        # Should it come later, the op that names it is judged anew.
        cite(artifact_id, op.id)
    here = [_is_snapshot(session, artifact_id) for artifact_id in named]
    return None if here and (all(here) if all_of_them else any(here)) else Reason.NO_SNAPSHOT


def _is_snapshot(session: Session, artifact_id: bytes) -> bool:
    artifact = session.artifact(artifact_id)
    return artifact is not None and artifact.type == SNAPSHOT_TYPE
