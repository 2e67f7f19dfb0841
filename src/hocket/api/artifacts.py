"""Artifacts: list, show, read, store, evict, delete, explain."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.operation import PAGE_MAX, ULID, After, InShell, OverHttp, TokenNeed, operation
from hocket.api.views import Line, Pairs, Table, Terminal, View, moment
from hocket.errors import Usage
from hocket.families import artifacts
from hocket.families.jobs.why import explain
from hocket.kernel.decoding import convert
from hocket.kernel.ids import hash_text, parse_ulid, ulid_text
from hocket.kernel.ops import BeatPlace
from hocket.kernel.texts import counted
from hocket.store import Artifact, Session

LIMIT_MAX = 100_000
JOB_CHARS = 8

ArtifactText = Annotated[
    str,
    OverHttp(Annotated[str, Meta(pattern=ULID, description="The artifact's id.")]),
    Meta(description="An artifact id, or a unique beginning of one."),
    InShell(metavar="ID"),
]
READ = TokenNeed("Artifact", "Read", is_judged_later=True)


class ArtifactBrief(ServiceAnswer, frozen=True):
    """One line of a list. `content` tells where the content is: inline, blob, elsewhere or evicted. One that
    was made under a tempo bears the stamp of its beat.
    """

    artifact_id: str
    type: str
    job_id: str | None
    hash: str
    size: int
    content: str
    created_ms: int
    expires_ms: int | None
    stamp: BeatPlace | None


class ArtifactDetails(ArtifactBrief, frozen=True):
    op_id: str
    author: str
    created: str
    inputs: list[str]
    cites: list[str]
    model_id: str | None
    model_version: str | None


class ArtifactContent(msgspec.Struct, frozen=True):
    artifact_id: str
    data: bytes


class ArtifactKept(ServiceAnswer, frozen=True):
    artifact_id: str
    hash: str
    size: int


class ArtifactEvicted(ServiceAnswer, frozen=True):
    artifact_id: str
    evicted: bool
    freed_bytes: int


def _show_page(page: ListPage[ArtifactBrief]) -> Iterator[View]:
    def table(job: slice) -> Table:
        rows = [
            (
                *(each.artifact_id, each.type, each.size, each.content),
                *("-" if each.job_id is None else each.job_id[job], moment(each.expires_ms) or "-"),
            )
            for each in page.items
        ]
        return Table(("artifact", "type", "bytes", "content", "job", "expires"), rows, "no artifacts")

    # On a terminal the end of the id names the job, too.
    yield Terminal(table(slice(-JOB_CHARS, None)), table(slice(None)))


def _show(shown: ArtifactDetails) -> Iterator[View]:
    names = ("artifact_id", "type", "job_id", "hash", "size", "content", "author", "model_id", "model_version")
    pairs: list[tuple[str, Any]] = [(name.removesuffix("_id"), getattr(shown, name)) for name in names]
    pairs += [("created", moment(shown.created_ms)), ("expires", moment(shown.expires_ms))]
    pairs += [("inputs", " ".join(shown.inputs)), ("cites", " ".join(shown.cites))]
    yield Pairs([(name, value) for name, value in pairs if value not in (None, "")])


def may_read(service: Service, session: Session, artifact: Artifact) -> bool:
    """By the kind of the job that it came from. One that came from no job is for a reader of all artifacts."""
    if service.may("Artifact", "Read"):
        return True
    entry = None if artifact.source_job is None else session.job(artifact.source_job)
    return entry is not None and service.may("Artifact", "Read", entry.job.kind)


@operation("list_artifacts", "GET /v1/artifacts", READ, command="artifacts list", show=_show_page)
def page(
    service: Service,
    job: Annotated[
        str,
        OverHttp(Annotated[str, Meta(pattern=ULID)]),
        Meta(description="Only artifacts of this job."),
        InShell(metavar="JOB"),
    ]
    | None = None,
    limit: Annotated[
        int,
        OverHttp(Annotated[int, Meta(ge=1, le=PAGE_MAX)]),
        Meta(ge=1, le=LIMIT_MAX, description="The most to list."),
        InShell(metavar="N"),
    ] = 50,
    after: Annotated[After, InShell(metavar="ID", help="Begin after this artifact.")] | None = None,
) -> ListPage[ArtifactBrief]:
    """List artifacts, oldest first: id, type, size, where the content is, the job, and when it may be evicted.

    \b
      hocket artifacts list
      hocket artifacts list --job 01J9ZC --json
    """
    start = bytes(16) if after is None else _id(after)
    job_id = None if job is None else service.runtime.find(job)
    with service.read() as session:
        if job_id is None:
            found = artifacts.every(session, after=start)
        else:
            made = session.artifacts_of_job(job_id)
            found = iter(made[next((at for at, each in enumerate(made, 1) if each.id == start), 0) :])
        chosen = list(islice(found, limit + 1))
        blobs = service.runtime.blobs
        readable = [each for each in chosen[:limit] if may_read(service, session, each)]
        items = [convert(artifacts.brief(session, blobs, each), ArtifactBrief) for each in readable]
    return ListPage(items, ulid_text(chosen[limit - 1].id) if len(chosen) > limit else None)


def _id(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not an artifact id: {error}") from None


@operation("show_artifact", "GET /v1/artifacts/{id}", READ, command="artifacts show", show=_show)
def show(service: Service, id: ArtifactText) -> ArtifactDetails:
    """Show everything about one artifact except its content.

    \b
      hocket artifacts show 01J9ZD
    """
    with service.read() as session:
        found = artifacts.find(session, id)
        if not may_read(service, session, found):
            service.check("Artifact", "Read")
        return convert(artifacts.full(session, service.runtime.blobs, found), ArtifactDetails)


def content(service: Service, prefix: str) -> ArtifactContent:
    """The content, fetched from another node if this one lacks it."""
    with service.read() as session:
        found = artifacts.find(session, prefix)
        data = artifacts.content(session, service.runtime.blobs, found, service.fetch)
    return ArtifactContent(ulid_text(found.id), data)


@operation(
    "put_artifact",
    "POST",
    command="artifacts put",
    show=lambda kept: [Line(f"stored {counted(kept.size, 'byte')} as {kept.artifact_id}")],
)
def put(
    service: Service,
    content: Annotated[Path | bytes, Meta(description="The file to store."), InShell(metavar="FILE")],
    type: Annotated[
        str, Meta(description="The type of its content, like acme.texture."), InShell("--type", metavar="TYPE")
    ],
    ttl: Annotated[
        str | float,
        Meta(description="How long before it may be evicted, like 7d."),
        InShell(metavar="DURATION"),
    ]
    | None = None,
) -> ArtifactKept:
    """Store a file as an artifact that belongs to no job.

    \b
      hocket artifacts put texture.png --type acme.texture --ttl 7d
    """
    from hocket.work.run_outputs import check_ttl, check_type, contain

    service.check_writer()
    check_type(type)
    ttl_ms = check_ttl(ttl)
    blobs = service.runtime.blobs
    kept = contain(blobs, content)
    artifact_id = service.runtime.log.run(lambda tx: artifacts.put(tx, blobs, type, kept, ttl_ms))
    return ArtifactKept(ulid_text(artifact_id), hash_text(kept.hash), kept.size)


@operation("evict_artifact", "POST", command="artifacts evict", show=lambda gone: [Line(f"evicted {gone.artifact_id}")])
def evict(service: Service, id: ArtifactText) -> ArtifactEvicted:
    """Record on the log that an artifact's content is gone, on every node. This cannot be undone.

    \b
      hocket artifacts evict 01J9ZD
    """
    service.check_writer()
    runtime = service.runtime
    with service.read() as session:
        found = artifacts.find(session, id)
    runtime.log.run(lambda tx: artifacts.evict(tx, found))
    with runtime.store.write() as session:
        cleared = artifacts.collect(session, runtime.blobs, [found.hash])
    return ArtifactEvicted(ulid_text(found.id), True, cleared.bytes)


class BlobsDeleted(ServiceAnswer, frozen=True):
    blobs: int
    freed_bytes: int


def _show_deleted(done: BlobsDeleted) -> Iterator[View]:
    yield Line(f"deleted {counted(done.blobs, 'blob')}, {counted(done.freed_bytes, 'byte')} freed")


@operation("delete_unused_blobs", "POST", command="artifacts gc", show=_show_deleted)
def clear(service: Service) -> BlobsDeleted:
    """Delete unused blobs: those of evicted artifacts, and those that no op has named for an hour.

    \b
      hocket artifacts gc
    """
    service.check_writer()
    service.runtime.log.settle()
    return BlobsDeleted(*artifacts.clear(service.runtime.store, service.runtime.blobs))


def why(service: Service, prefix: str, full: bool) -> dict[str, Any]:
    """Traces an output back to the model calls and the evidence behind it. For a job that has not ended, `waits_for`
    says why not.
    """
    with service.view_of(prefix) as session:
        told = explain(session, service.runtime.blobs, prefix, full)
    if told["of"] == "job":
        waiting = service.runtime.waiting_of(parse_ulid(told["id"]))
        told["waits_for"] = None if waiting is None else waiting.sentence
    return told
