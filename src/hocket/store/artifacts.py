"""Artifacts and their evictions. The content is in the ops or in blobs."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Artifact(NamedTuple):
    """`expires` is when it may be evicted, by the HLC's wall; `inline` is 1 if its content is in its op, and `made` is
    the packed HLC of that op.
    """

    id: bytes
    op_id: bytes
    type: str
    source_job: bytes | None
    hash: bytes
    size: int
    expires: int | None
    inline: int
    made: bytes


class ArtifactSession(Protocol):
    def add_artifacts(self, artifacts: Sequence[Artifact]) -> None: ...
    def drop_artifact(self, artifact_id: bytes) -> None: ...
    def artifact(self, artifact_id: bytes) -> Artifact | None: ...

    def artifacts_of_job(self, job_id: bytes) -> list[Artifact]:
        """The artifacts that a job's runs made, in that order, and its result, which is listed with the job."""

    def artifacts_of_hash(self, content_hash: bytes) -> list[Artifact]:
        """The artifacts whose content is that blob."""

    def artifacts(self, after: bytes, limit: int) -> list[Artifact]: ...

    def artifacts_of_type(self, type: str, since: bytes, before: bytes, limit: int) -> list[Artifact]:
        """Those with an id from `since` up to but without `before`, the greatest id first. It looks at every artifact
        in between until it has found so many.
        """

    def expired_artifacts(self, now: int, limit: int, kept: str) -> list[Artifact]:
        """Artifacts whose time to live is over and that are not evicted yet, except those of the kept type that an op
        cites.
        """

    def add_eviction(self, op_id: bytes, artifact_id: bytes) -> None: ...
    def drop_eviction(self, op_id: bytes) -> None: ...
    def is_evicted(self, artifact_id: bytes) -> bool: ...
