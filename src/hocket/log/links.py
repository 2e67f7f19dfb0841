"""The link from an audited output to the inference that made it. A node under audit may not state what a model told it
without naming the snapshot of that call, and the snapshot must be on the log.
"""

from collections.abc import Callable

from hocket.kernel.authority import Authority
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.snapshot import SNAPSHOT_TYPE
from hocket.kernel.vocabulary import ClaimType, CreateClaim, CreateSuggestedAction
from hocket.store import Artifact, Session

Cite = Callable[[bytes, bytes], None]


def unlinked(op: Op, authority: Authority, session: Session, cite: Cite) -> Reason | None:
    """NO_SNAPSHOT when the op is an audited output that names none that is here. Claims that say of themselves that
    they were derived, and actions that say by which job, are outputs; a claim names its snapshots in its provenance,
    an action cites them.
    """
    payload = op.payload
    is_claim = isinstance(payload, CreateClaim) and (
        payload.claim_type is ClaimType.DERIVED or bool(payload.provenance.jobs)
    )
    is_action = isinstance(payload, CreateSuggestedAction) and payload.derivation_job is not None
    if not (is_claim or is_action) or not authority.audited(op.node_id, op.timestamp.wall, None):
        return None
    if isinstance(payload, CreateClaim):
        named = payload.provenance.snapshots
        for artifact_id in named:
            # Should it come later, the op that names it is judged anew.
            cite(artifact_id, op.id)
        here = [_is_snapshot(session.artifact(artifact_id)) for artifact_id in named]
        return None if here and all(here) else Reason.NO_SNAPSHOT
    is_linked = any(session.snapshot_by_op(dep) is not None for dep in op.cited)
    return None if is_linked else Reason.NO_SNAPSHOT


def _is_snapshot(artifact: Artifact | None) -> bool:
    return artifact is not None and artifact.type == SNAPSHOT_TYPE
