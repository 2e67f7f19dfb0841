"""Compares the rows of artifacts in a store that nodes share with the ops that create these artifacts. The hash in such
a row decides what a program reads, and its expiry whether a node evicts the artifact.
"""

from collections.abc import Callable, Sequence

from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import CreateArtifact
from hocket.log.artifact_register import artifact_of
from hocket.log.naming import keyed
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.store import Artifact, Session

# How many artifacts are remembered as good.
ARTIFACTS_MAX = 16_384


class ArtifactCheck:
    """The checks of one process. `refuse` reports a row."""

    def __init__(self, reader: Callable[[], PermissionsReader], refuse: Callable[[str, str, str], None]) -> None:
        self._reader, self._refuse = reader, refuse
        self._good: dict[Artifact, None] = {}

    def good(self, session: Session, found: Sequence[Artifact], made: set[Artifact]) -> list[Artifact]:
        """Those that are as their ops say; `made` are those of ops that the transaction has yet to store."""
        unknown = [each for each in found if each not in self._good and each not in made]
        if not unknown:
            return list(found)
        permissions = self._reader().read(session, session.head().permissions_state)
        ops = {row.id: keyed(row) for row in session.ops_by_id([each.op_id for each in unknown])}
        bad: set[Artifact] = set()
        for each in unknown:
            if _says(ops.get(each.op_id), each, permissions):
                while len(self._good) >= ARTIFACTS_MAX:
                    self._good.pop(next(iter(self._good)), None)
                self._good[each] = None
            else:
                bad.add(each)
                self._refuse("artifacts", ulid_text(each.id[:16].ljust(16, b"\0")), "no op of its author says so")
        return [each for each in found if each not in bad]


def _says(op: Op | None, artifact: Artifact, permissions: Permissions) -> bool:
    if op is None or not isinstance(op.payload, CreateArtifact):
        return False
    return artifact_of(op, op.payload) == artifact and permissions.refusal(op) is None
