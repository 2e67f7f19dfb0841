"""Values that a command needs and the log must not hold. The manifest names the variables; the node that submits the
job keeps their values in its home, in a file that only its owner can read, until the job has ended or the time is up.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hocket.errors import StoreError, Usage
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.store import JobSession, Stage

if TYPE_CHECKING:
    from hocket.extensions.command.manifest import Manifest
    from hocket.node.home import Home

# The manifest's variable that lists the names of the secret variables, separated by colons.
SECRETS_NAME = "HOCKET_SECRETS"
SECRETS_BYTES_MAX = 256 * 1024
# How long values are kept for a job that does not end.
KEPT_S_MAX = 7 * 86_400


def secret_names(manifest: "Manifest") -> tuple[str, ...]:
    named = (manifest.env or {}).get(SECRETS_NAME, "")
    return tuple(named.split(":")) if named else ()


def named_values(given: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of these variables. Raises Usage for one that is not set."""
    for name in given:
        if name not in environment:
            raise Usage(f"the secret variable {name!r} is not set here; set it, or write NAME=VALUE")
    return {name: environment[name] for name in given}


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
