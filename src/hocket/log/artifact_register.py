"""Which artifacts exist, and which of them are evicted."""

from hocket.kernel.clock import pack
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import CreateArtifact, EvictArtifact, number_of
from hocket.log.memory import Memory
from hocket.log.projectors import Engine
from hocket.store import Artifact, Session

_CREATIONS = (number_of(CreateArtifact),)
# Later than any time that an op can carry.
NEVER = 2**62


class ArtifactRegister:
    """`is_bound` says that ids follow from content."""

    payloads = (CreateArtifact, EvictArtifact)

    def __init__(self, session: Session, engine: Engine, is_bound: bool) -> None:
        self._session, self._engine, self._is_bound = session, engine, is_bound
        # Artifacts that are not stored yet.
        self._made: dict[bytes, Artifact] = {}
        self.memory = Memory((self._made,))

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return self._made.get(artifact_id) or self._session.artifact(artifact_id)

    def enter(self, op: Op) -> None:
        payload = op.payload
        if isinstance(payload, EvictArtifact):
            self._session.add_eviction(op.id, payload.artifact_id)
            return
        assert isinstance(payload, CreateArtifact)
        artifact = artifact_of(op, payload)
        if self._is_bound and artifact.id == op.id:
            # An artifact with the id of its own op can have no rival.
            self._made[artifact.id] = artifact
        else:
            self._enter_rival(artifact, op)

    def strike(self, op: Op) -> None:
        payload = op.payload
        if isinstance(payload, EvictArtifact):
            self._session.drop_eviction(op.id)
            return
        assert isinstance(payload, CreateArtifact)
        artifact = self.artifact(payload.artifact_id)
        if artifact is not None and artifact.op_id == op.id:
            self._made.pop(artifact.id, None)
            self._session.drop_artifact(artifact.id)
            for other in self._engine.counting(_CREATIONS):
                if other.payload.artifact_id == artifact.id:  # type: ignore[union-attr]
                    self.enter(other)

    def _enter_rival(self, artifact: Artifact, op: Op) -> None:
        """If several ops create the same artifact, the earliest counts."""
        rival = self._session.artifact(artifact.id)
        if rival is not None and (other := self._engine.known(rival.op_id)[0]) and other.timestamp > op.timestamp:
            self._session.drop_artifact(artifact.id)
        self._session.add_artifacts([artifact])

    def flush(self) -> None:
        """Stores the new artifacts, so that the store's queries see them."""
        if self._made:
            self._session.add_artifacts(list(self._made.values()))
            self._made.clear()


def artifact_of(op: Op, payload: CreateArtifact) -> Artifact:
    """What an op enters."""
    expires = None if payload.ttl_ms is None else min(op.timestamp.wall + payload.ttl_ms, NEVER)
    what = payload.artifact_type, payload.source_job, payload.content_hash, min(payload.size_bytes, NEVER)
    is_inline = int(payload.content_inline is not None)
    return Artifact(payload.artifact_id, op.id, *what, expires, is_inline, pack(op.timestamp))
