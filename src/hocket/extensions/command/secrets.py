"""Values that a command needs and the log must not hold. The manifest names the variables; the node that submits the
job keeps their values in its home, in a file that only its owner can read, until the job has ended or the time is up.

When another node's claim on the job counts, this node seals the values with the claimer's key and stores them in a
blob, as an artifact that is evicted when the job has ended. The log has the hash of the sealed data; only the claimer
can open it. The claimer fetches the blob as it fetches inputs.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hocket.errors import Conflict, HocketError, NotAuthorised, StoreError, Usage
from hocket.events import Emit
from hocket.events.jobs import SecretsNotHandedOver
from hocket.events.workers import StoreUnavailable
from hocket.families import artifacts
from hocket.families.access import NodeAccess
from hocket.families.jobs.requests import Content
from hocket.kernel.clock import unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.log import Transaction
from hocket.log.job_check import sound_job
from hocket.store import Artifact, JobSession, Session, Stage

if TYPE_CHECKING:
    from hocket.extensions.command.manifest import Manifest
    from hocket.node.home import Home
    from hocket.node.local_node import LocalNode

# The manifest's variable that lists the names of the secret variables, separated by colons.
SECRETS_NAME = "HOCKET_SECRETS"
SECRETS_BYTES_MAX = 256 * 1024
# How long values are kept for a job that does not end.
KEPT_S_MAX = 7 * 86_400
SEALED_TYPE = "hocket.sealed"
# How often a node that keeps secrets checks whether a claimer needs them, and one without whether it has some.
LOOK_S = 0.25
QUIET_S = 1.0
# When sealed values may be evicted even if the node that sealed them has died.
SEALED_MS_MAX = 24 * 3_600_000
ARTIFACTS_STEP = 500
_TIME_BYTES, _ID_BYTES = 6, 16


def secret_names(manifest: "Manifest") -> tuple[str, ...]:
    named = (manifest.env or {}).get(SECRETS_NAME, "")
    return tuple(named.split(":")) if named else ()


def named_values(given: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of these variables. Raises Usage for one that is not set."""
    for name in given:
        if name not in environment:
            raise Usage(f"the secret variable {name!r} is not set here; set it, or write NAME=VALUE")
    return {name: environment[name] for name in given}


def check_values(values: Mapping[str, str]) -> None:
    """Raises Usage for values that cannot be handed on."""
    size = sum(len(name) + len(os.fsencode(value)) for name, value in values.items())
    if size > SECRETS_BYTES_MAX:
        raise Usage(f"the secrets have {size} bytes, at most {SECRETS_BYTES_MAX}; pass larger ones as an input file")
    for name, value in values.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Usage(f"the value of {name} is not UTF-8; pass it as an input file") from None


class Handed(NamedTuple):
    """Values that were sealed for one claim on a job, and their artifact."""

    job_id: bytes
    fence: int
    artifact_id: bytes


class Secrets:
    """The secrets of one home. Safe to use from several threads and processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, job_id: bytes, values: Mapping[str, str]) -> None:
        """Called before the job's op is committed, so that a claimer finds them. This is not synced to disk: if a crash
        loses the values, the job fails and says why.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path = self._place(job_id)
            unfinished = path.with_suffix(f".{os.getpid()}.new")
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(values))
            unfinished.replace(path)
        except OSError as error:
            raise StoreError(f"cannot keep the secrets of the command: {error.strerror}") from error

    def values(self, job_id: bytes) -> dict[str, str] | None:
        """None if this node has none for that job."""
        try:
            return decode_json(self._place(job_id).read_bytes(), dict[str, str])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot read the secrets of job {ulid_text(job_id)}: {error}") from error

    def job_ids(self) -> list[bytes]:
        """The jobs that have secrets here, in no order."""
        found = []
        for name in self._names():
            with suppress(ValueError):
                found.append(parse_ulid(name))
        return found

    def is_empty(self) -> bool:
        return not self._names()

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []

    def note_handed(self, handed: Handed) -> None:
        """Creates an empty file whose name holds all the information."""
        name = f"{ulid_text(handed.job_id)}.{handed.fence}.{ulid_text(handed.artifact_id)}"
        os.close(os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def forget_handed(self, handed: Handed) -> None:
        name = f"{ulid_text(handed.job_id)}.{handed.fence}.{ulid_text(handed.artifact_id)}"
        (self._directory / name).unlink(missing_ok=True)

    def handed(self) -> list[Handed]:
        found = []
        for name in self._names():
            with suppress(ValueError):
                job_id, fence, artifact_id = name.split(".")
                found.append(Handed(parse_ulid(job_id), int(fence), parse_ulid(artifact_id)))
        return found

    def sweep(self, session: JobSession, now_s: float) -> None:
        """Deletes the secrets of jobs that have ended, and those kept for too long."""
        for job_id in self.job_ids():
            path = self._place(job_id)
            with suppress(FileNotFoundError):
                entry = session.job(job_id)
                is_over = entry is not None and entry.stage is Stage.DONE
                if is_over or now_s - path.stat().st_mtime > KEPT_S_MAX:
                    path.unlink()

    def _place(self, job_id: bytes) -> Path:
        return self._directory / ulid_text(job_id)


def secrets_of(home: "Home") -> Secrets:
    return Secrets(home.secrets)


class Sealed(msgspec.Struct, frozen=True):
    """The sealed content: the values, and the one claim on a job that they are for."""

    job: str
    fence: int
    values: dict[str, str]


def seal(job_id: bytes, fence: int, values: Mapping[str, str], public: bytes) -> bytes:
    """For the node with that key alone."""
    # Libsodium's public bindings are 19 modules, and few jobs have secrets.
    from nacl.bindings import crypto_box_seal, crypto_sign_ed25519_pk_to_curve25519

    plain = msgspec.json.encode(Sealed(ulid_text(job_id), fence, dict(values)))
    return crypto_box_seal(plain, crypto_sign_ed25519_pk_to_curve25519(public))


def unseal(data: bytes, job_id: bytes, fence: int, key: SigningKey) -> dict[str, str] | None:
    """None if it is not for this node, or not for this claim on the job."""
    from nacl.bindings import (
        crypto_box_seal_open,
        crypto_sign_ed25519_pk_to_curve25519,
        crypto_sign_ed25519_sk_to_curve25519,
    )
    from nacl.exceptions import CryptoError

    public = crypto_sign_ed25519_pk_to_curve25519(key.public)
    private = crypto_sign_ed25519_sk_to_curve25519(key.seed + key.public)
    try:
        found = decode_json(crypto_box_seal_open(data, public, private), Sealed)
    except (CryptoError, msgspec.MsgspecError):
        return None
    return found.values if (found.job, found.fence) == (ulid_text(job_id), fence) else None


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


def handing_over(node: "LocalNode", emit: Emit) -> Callable[[], Coroutine[Any, Any, None]]:
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
