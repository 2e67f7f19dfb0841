"""Artifacts: list, show, read, store, evict, delete, explain."""

from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from hocket.errors import Usage
from hocket.kernel.beats.placing import BeatPlace
from hocket.kernel.decoding import convert
from hocket.kernel.ids import hash_text, parse_ulid, ulid_text
from hocket.service import ListPage, Service, ServiceAnswer
from hocket.store.blobs import ClearedBlobs
from hocket.work import artifacts
from hocket.work.run_outputs import check_ttl, check_type, contain
from hocket.work.why import explain

LIMIT_MAX = 100_000


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


def page(service: Service, job: str | None, limit: int, after: str | None = None) -> ListPage[ArtifactBrief]:
    """Artifacts of one job in the order in which it made them, or all in order of id; only those after `after`."""
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
        items = [convert(artifacts.brief(session, blobs, each), ArtifactBrief) for each in chosen[:limit]]
    return ListPage(items, items[-1].artifact_id if len(chosen) > limit else None)


def _id(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not an artifact id: {error}") from None


def show(service: Service, prefix: str) -> ArtifactDetails:
    with service.read() as session:
        found = artifacts.find(session, prefix)
        return convert(artifacts.full(session, service.runtime.blobs, found), ArtifactDetails)


def content(service: Service, prefix: str) -> ArtifactContent:
    """The content, fetched from another node if this one lacks it."""
    with service.read() as session:
        found = artifacts.find(session, prefix)
        data = artifacts.content(session, service.runtime.blobs, found, service.fetch)
    return ArtifactContent(ulid_text(found.id), data)


def put(service: Service, content: bytes | Path, type: str, ttl: str | float | None) -> ArtifactKept:
    """Stores bytes or a file as an artifact that belongs to no job."""
    service.check_writer()
    check_type(type)
    ttl_ms = check_ttl(ttl)
    blobs = service.runtime.blobs
    kept = contain(blobs, content)
    artifact_id = service.runtime.log.run(lambda tx: artifacts.put(tx, blobs, type, kept, ttl_ms))
    return ArtifactKept(ulid_text(artifact_id), hash_text(kept.hash), kept.size)


def evict(service: Service, prefix: str) -> ArtifactEvicted:
    """Records on the log that an artifact's content is gone, and deletes it here."""
    service.check_writer()
    runtime = service.runtime
    with service.read() as session:
        found = artifacts.find(session, prefix)
    runtime.log.run(lambda tx: artifacts.evict(tx, found))
    with runtime.store.write() as session:
        cleared = artifacts.collect(session, runtime.blobs, [found.hash])
    return ArtifactEvicted(ulid_text(found.id), True, cleared.bytes)


def clear(service: Service) -> ClearedBlobs:
    """Deletes unused blobs."""
    service.check_writer()
    service.runtime.log.settle()
    return artifacts.clear(service.runtime.store, service.runtime.blobs)


def why(service: Service, prefix: str, full: bool) -> dict[str, Any]:
    """Traces an output back to the model calls and the evidence behind it. For a job that has not ended, `waits_for`
    says why not.
    """
    with service.read() as session:
        told = explain(session, service.runtime.blobs, prefix, full)
    if told["of"] == "job":
        waiting = service.runtime.waiting_of(parse_ulid(told["id"]))
        told["waits_for"] = None if waiting is None else waiting.sentence
    return told
