"""What a run has put on the log, and the content of an artifact to be written."""

from typing import TYPE_CHECKING, NamedTuple

from hocket.kernel.vocabulary import CreateArtifact, Ids

if TYPE_CHECKING:
    from hocket.work.blobs import Staged


class WrittenOutputs(NamedTuple):
    """What a run put on the log, for its completion to name. `records` are the ops that wrote the snapshots."""

    snapshots: Ids = ()
    artifacts: Ids = ()
    claims: Ids = ()
    records: Ids = ()


NOTHING = WrittenOutputs()


class Content(NamedTuple):
    """Where an artifact's bytes are: in the op, or in a blob."""

    hash: bytes
    size: int
    inline: bytes | None
    staged: "Staged | None"


def creation(
    made: bytes, type: str, source_job: bytes | None, inputs: Ids, content: Content, ttl_ms: int | None
) -> CreateArtifact:
    return CreateArtifact(
        made, type, source_job, inputs, content.hash, content.inline, None, None, content.size, ttl_ms
    )
