"""Artifacts and their evictions. The content is in the ops or in blobs, which are known by their hashes: in files of
each node's home, or in a store that nodes share. There a blob is in the table whole or not at all, and it is split into
parts, so that no statement carries a large one.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from hocket.store.statements import Row, Statements, insert_new

COLUMNS = "id, op_id, type, source_job, hash, size, expires, inline, made"
_ADD = insert_new("artifacts", COLUMNS)
_SELECT = f"SELECT {COLUMNS} FROM artifacts"
_ADD_EVICTION = insert_new("evictions", "op, artifact")
_IS_EVICTED = """
    SELECT EXISTS (SELECT 1 FROM evictions
        WHERE artifact IN (?1, (SELECT source_job FROM artifacts WHERE id = ?1)))"""
# An erasure has two rows in the table of evictions: one with the job in the place of an artifact, and one by which all
# erasures are found. No id begins with this byte.
_ERASURE = b"\xff"
_ERASED = "SELECT DISTINCT artifact FROM evictions WHERE artifact > ? ORDER BY artifact LIMIT ?"
_OF_TYPE = "WHERE id >= ? AND id < ? AND type = ? ORDER BY id DESC LIMIT ?"
_EXPIRED = """
    WHERE expires <= ? AND NOT EXISTS (
        SELECT 1 FROM evictions WHERE artifact IN (artifacts.id, artifacts.source_job))
    AND NOT (type = ? AND EXISTS (
        SELECT 1 FROM cites WHERE dep IN (artifacts.id, substr(artifacts.op_id, 1, 16))))
    LIMIT ?"""


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


class ChecksArtifacts(Protocol):
    """What a store that nodes share asks about artifacts: see `RowCheck`."""

    def artifacts(self, found: Sequence[Artifact]) -> list[Artifact]:
        """The artifacts that are as the ops say that create them, and that these ops' authors may create."""

    def made_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        """The transaction enters artifacts, by ops that it may have yet to store."""


class ArtifactSession(Statements):
    row_check: ChecksArtifacts | None

    def add_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        if self.row_check is not None:
            self.row_check.made_artifacts(artifacts)
        self._put_artifacts(artifacts)

    def _put_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        self._many(_ADD, artifacts)

    def drop_artifact(self, artifact_id: bytes) -> None:
        self._put("DELETE FROM artifacts WHERE id = ?", (artifact_id,))

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return next(iter(self._artifacts("WHERE id = ?", artifact_id)), None)

    def artifacts_of_job(self, job_id: bytes) -> list[Artifact]:
        """The artifacts that a job's runs made, in that order, and its result, which is listed with the job."""
        listed: bytes = self._one("SELECT artifacts FROM jobs WHERE id = ?", job_id) or b""
        ids = [listed[i : i + 16] for i in range(0, len(listed), 16)]
        rows = self._rows(f"{_SELECT} WHERE source_job = ? AND type <> 'hocket.result'", job_id)
        rows += self._among(f"{_SELECT} WHERE id {{}}", ids)
        of_job = {each.id: each for each in self._checked_artifacts(rows) if each.source_job == job_id}
        return sorted(of_job.values(), key=lambda each: each.made)

    def artifacts_from_job(self, job_id: bytes) -> list[Artifact]:
        """Every artifact that names the job as its source: its payload, results and outputs."""
        return self._artifacts("WHERE source_job = ? ORDER BY made", job_id)

    def artifacts_of_hash(self, content_hash: bytes) -> list[Artifact]:
        """The artifacts whose content is that blob."""
        return self._artifacts("WHERE hash = ? AND inline = 0 ORDER BY id", content_hash)

    def artifacts(self, after: bytes, limit: int) -> list[Artifact]:
        while rows := self._rows(f"{_SELECT} WHERE id > ? ORDER BY id LIMIT ?", after, limit):
            if good := self._checked_artifacts(rows):
                return good
            after = rows[-1][0]
        return []

    def artifacts_of_type(self, type: str, since: bytes, before: bytes, limit: int) -> list[Artifact]:
        """Those with an id from `since` up to but without `before`, the greatest id first. It looks at every artifact
        in between until it has found so many.
        """
        return self._artifacts(_OF_TYPE, since, before, type, limit)

    def expired_artifacts(self, now: int, limit: int, kept: str) -> list[Artifact]:
        """Artifacts whose time to live is over and that are not evicted yet, except those of the kept type that an op
        cites.
        """
        return self._artifacts(_EXPIRED, now, kept, limit)

    def _artifacts(self, tail: str, *values: Any) -> list[Artifact]:
        return self._checked_artifacts(self._rows(f"{_SELECT} {tail}", *values))

    def _checked_artifacts(self, rows: Sequence[Row]) -> list[Artifact]:
        stored = [Artifact(*row) for row in rows]
        return stored if self.row_check is None or not stored else self.row_check.artifacts(stored)

    def add_eviction(self, op_id: bytes, artifact_id: bytes) -> None:
        self._put(_ADD_EVICTION, (op_id, artifact_id))

    def drop_eviction(self, op_id: bytes) -> None:
        self._put("DELETE FROM evictions WHERE op = ?", (op_id,))

    def is_evicted(self, artifact_id: bytes) -> bool:
        """Whether the artifact, or all content of the job that it came from, is gone."""
        return bool(self._one(_IS_EVICTED, artifact_id))

    def add_erasure(self, op_id: bytes, job_id: bytes) -> None:
        """The content of a job is erased."""
        self._put(_ADD_EVICTION, (op_id, job_id))
        self._put(_ADD_EVICTION, (op_id + _ERASURE, _ERASURE + job_id))

    def drop_erasure(self, op_id: bytes) -> None:
        self.drop_eviction(op_id)
        self.drop_eviction(op_id + _ERASURE)

    def erasure_ops(self, job_id: bytes) -> list[bytes]:
        """The ops that erase the content of a job."""
        return self._column("SELECT op FROM evictions WHERE artifact = ? ORDER BY op", job_id)

    def erased_jobs(self, after: bytes, limit: int) -> list[bytes]:
        """The jobs whose content is erased, by their ids."""
        return [found[1:] for found in self._column(_ERASED, _ERASURE + after, limit)]


PART_BYTES = 1024 * 1024

# The store's key of where its nodes keep their blobs.
BLOBS = "blobs"


class BlobPlace(StrEnum):
    """Where the nodes of a store keep blobs: each in its home, or all in the store."""

    HOME = "home"
    STORE = "store"


class ClearedBlobs(NamedTuple):
    blobs: int
    bytes: int


class BlobTable(Protocol):
    """Has connections of its own, so it can be used inside a write transaction and beside it. Safe to use from several
    threads, also from those that an exception may interrupt anywhere.
    """

    shown: str
    """The store's address without its password."""

    def write(self, hash: bytes, size: int, content: Callable[[], Iterator[bytes]]) -> None:
        """Stores a blob, and commits. One that is there already only becomes young again. Raises StoreError, and stores
        nothing, if the content does not match the hash. `content` gives it in parts, and may be called again.
        """

    def among(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Those of the blobs that are there."""

    def part(self, hash: bytes, number: int) -> bytes | None:
        """The part with this number, the first is 0; None if there is none."""

    def all(self) -> Iterator[tuple[bytes, int]]:
        """Every blob with its size."""

    def remove(self, hash: bytes, age_s: float) -> int:
        """Deletes a blob that nobody has written for so long; returns the number of bytes freed."""

    def clear(self, age_s: float) -> ClearedBlobs:
        """Deletes the blobs that nobody has written for so long and that no artifact needs. Nothing while artifacts are
        being derived from the ops.
        """

    def close(self) -> None: ...
