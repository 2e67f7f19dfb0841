"""The statements about artifacts and evictions."""

from collections.abc import Sequence
from typing import Any

from hocket.store.artifacts import Artifact
from hocket.store.sqlite.statements import Statements

_ARTIFACT = "id, op_id, type, source_job, hash, size, expires, inline, made"


class ArtifactStatements(Statements):
    def add_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        if self.row_check is not None:
            self.row_check.made_artifacts(artifacts)
        self._many(f"INSERT OR IGNORE INTO artifacts ({_ARTIFACT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", artifacts)

    def drop_artifact(self, artifact_id: bytes) -> None:
        self._sql("DELETE FROM artifacts WHERE id = ?", (artifact_id,))

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return next(iter(self._artifacts("WHERE id = ?", artifact_id)), None)

    def artifacts_of_job(self, job_id: bytes) -> list[Artifact]:
        listed: bytes = self._one("SELECT artifacts FROM jobs WHERE id = ?", job_id) or b""
        found = self._artifacts("WHERE source_job = ? AND type <> 'hocket.result'", job_id)
        found += self._artifacts_of([listed[i : i + 16] for i in range(0, len(listed), 16)])
        of_job = {each.id: each for each in found if each.source_job == job_id}
        return sorted(of_job.values(), key=lambda each: each.made)

    def artifacts_of_hash(self, content_hash: bytes) -> list[Artifact]:
        return self._artifacts("WHERE hash = ? AND inline = 0 ORDER BY id", content_hash)

    def artifacts(self, after: bytes, limit: int) -> list[Artifact]:
        while found := self._stored_artifacts("WHERE id > ? ORDER BY id LIMIT ?", after, limit):
            if good := self._checked_artifacts(found):
                return good
            after = found[-1].id
        return []

    def artifacts_of_type(self, type: str, since: bytes, before: bytes, limit: int) -> list[Artifact]:
        return self._artifacts(
            "WHERE id >= ? AND id < ? AND type = ? ORDER BY id DESC LIMIT ?", since, before, type, limit
        )

    def expired_artifacts(self, now: int, limit: int, kept: str) -> list[Artifact]:
        return self._artifacts(
            """WHERE expires <= ? AND NOT EXISTS (SELECT 1 FROM evictions WHERE artifact = artifacts.id)
               AND NOT (type = ? AND EXISTS (
                   SELECT 1 FROM cites WHERE dep IN (artifacts.id, substr(artifacts.op_id, 1, 16))))
               LIMIT ?""",
            *(now, kept, limit),
        )

    def _artifacts_of(self, ids: list[bytes]) -> list[Artifact]:
        return [found for each in ids if (found := self.artifact(each)) is not None]

    def _artifacts(self, tail: str, *values: Any) -> list[Artifact]:
        return self._checked_artifacts(self._stored_artifacts(tail, *values))

    def _stored_artifacts(self, tail: str, *values: Any) -> list[Artifact]:
        return [Artifact(*row) for row in self._sql(f"SELECT {_ARTIFACT} FROM artifacts {tail}", values)]

    def _checked_artifacts(self, found: list[Artifact]) -> list[Artifact]:
        return found if self.row_check is None or not found else self.row_check.artifacts(found)

    def add_eviction(self, op_id: bytes, artifact_id: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO evictions VALUES (?, ?)", (op_id, artifact_id))

    def drop_eviction(self, op_id: bytes) -> None:
        self._sql("DELETE FROM evictions WHERE op = ?", (op_id,))

    def is_evicted(self, artifact_id: bytes) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM evictions WHERE artifact = ?)", artifact_id))
