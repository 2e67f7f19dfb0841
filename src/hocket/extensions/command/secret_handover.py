"""Hands secrets to another node that runs a command of ours. When its claim counts, this node seals the values with the
claimer's key and stores them in a blob, as an artifact that is evicted when the job has ended. The log has the hash of
the sealed data; only the claimer can open it. The claimer fetches the blob as it fetches inputs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from hocket.errors import Conflict, HocketError, NotAuthorised, StoreError
from hocket.events import Emit
from hocket.events.jobs import SecretsNotHandedOver
from hocket.events.workers import StoreUnavailable
from hocket.extensions.command.secrets import Handed, Secrets, secrets_of
from hocket.families import artifacts
from hocket.families.access import NodeAccess
from hocket.families.jobs.requests import Content
from hocket.kernel.clock import unpack
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.log.job_check import sound_job
from hocket.node.local_node import LocalNode
from hocket.store import Artifact, Session, Stage

SEALED_TYPE = "hocket.sealed"
# How often a node that keeps secrets checks whether a claimer needs them, and one without whether it has some.
LOOK_S = 0.25
QUIET_S = 1.0
# When sealed values may be evicted even if the node that sealed them has died.
SEALED_MS_MAX = 24 * 3_600_000
ARTIFACTS_STEP = 500
_TIME_BYTES, _ID_BYTES = 6, 16


def sealed_since(session: Session, claim: bytes, author: int) -> Iterator[Artifact]:
    """What that node has sealed since a claim, oldest first."""
    row = session.op(claim)
    if row is None:
        return
    # An id begins with the time, and a node that answers a claim has a later clock than the claim.
    after = (unpack(row.hlc).wall - 1).to_bytes(_TIME_BYTES, "big").ljust(_ID_BYTES, b"\xff")
    while found := session.artifacts(after, ARTIFACTS_STEP):
        for each in found:
            if each.type == SEALED_TYPE and not session.is_evicted(each.id):
                op, _ = artifacts.creation_of(session, each)
                if op.node_id == author:
                    yield each
        after = found[-1].id


def handing_over(node: LocalNode, emit: Emit) -> Callable[[], Coroutine[Any, Any, None]]:
    return HandOver(node, secrets_of(node.runtime.home), emit).run


class _Need(NamedTuple):
    """Another node's claim on a job of ours that needs secrets."""

    job_id: bytes
    fence: int
    public: bytes


class HandOver:
    """Every long-running process does this; it is harmless if two do the same."""

    def __init__(self, access: NodeAccess, secrets: Secrets, emit: Emit) -> None:
        self._access, self._blobs, self._secrets, self._emit = access, access.blobs, secrets, emit
        self._failed: set[_Need] = set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            is_quiet = self._secrets.is_empty()
            await asyncio.sleep(QUIET_S if is_quiet else LOOK_S)
            if is_quiet:
                continue
            try:
                await self._round()
            except StoreError as error:
                self._emit(StoreUnavailable(str(error)))

    async def _round(self) -> None:
        for need in await self._access.read(self._needs):
            try:
                await self._hand_over(need)
            except HocketError as error:
                self._failed.add(need)
                self._emit(SecretsNotHandedOver(ulid_text(need.job_id), str(error)))
        for handed in await self._access.read(self._over):
            # If this node may not evict it, it will still expire.
            with suppress(NotAuthorised, Conflict):
                await self._take_back(handed)
            self._secrets.forget_handed(handed)

    def _needs(self, session: Session) -> list[_Need]:
        done = {(each.job_id, each.fence) for each in self._secrets.handed()}
        keys = session.nodes()
        found = []
        for job_id in self._secrets.job_ids():
            entry = sound_job(session, job_id)
            if entry is None or entry.stage is not Stage.CLAIMED or (job_id, entry.job.fence) in done:
                continue
            claimer = entry.job.claimer
            key = None if claimer is None else keys.get(claimer.to_bytes(8, "big"))
            if key is None or claimer == self._access.log.node:
                continue
            need = _Need(job_id, entry.job.fence, key[0])
            found += [need] if need not in self._failed else []
        return found

    async def _hand_over(self, need: _Need) -> None:
        values = self._secrets.values(need.job_id)
        if values is None:
            return
        # Libsodium's public bindings are 19 modules, and few jobs have secrets.
        from hocket.extensions.command.sealed_secrets import seal

        data = seal(need.job_id, need.fence, values, need.public)
        staged = await self._access.call(lambda: self._blobs.stage(data))
        content = Content(staged.hash, staged.size, None, staged)
        made = await self._access.run(
            lambda tx: artifacts.put(tx, self._blobs, SEALED_TYPE, content, SEALED_MS_MAX, need.job_id)
        )
        self._secrets.note_handed(Handed(need.job_id, need.fence, made))

    def _over(self, session: Session) -> list[Handed]:
        """What was handed over for claims that have ended. Also deletes the values of jobs that have ended."""
        self._secrets.sweep(session, time.time())
        found = []
        for each in self._secrets.handed():
            entry = session.job(each.job_id)
            if entry is None or entry.stage is not Stage.CLAIMED or entry.job.fence != each.fence:
                found.append(each)
        return found

    async def _take_back(self, handed: Handed) -> None:
        def evict(tx: Transaction) -> bytes | None:
            artifact = tx.session.artifact(handed.artifact_id)
            if artifact is None or tx.session.is_evicted(artifact.id):
                return None
            artifacts.evict(tx, artifact)
            return artifact.hash

        freed = await self._access.run(evict)
        if freed is not None:
            await self._access.run(lambda tx: artifacts.free(tx, self._blobs, [freed]))
