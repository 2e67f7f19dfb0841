"""The git jobs that this home has submitted and that no worker has claimed yet, as far as it knows: a small file each,
so that every process of the home can go on with announcing them, also after a restart.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from hocket.gitplane.addresses import is_address
from hocket.kernel.decoding import decode_json

# Jobs that are noted; more push out the oldest.
NOTED_MAX = 1_024
# A job that nobody has claimed for so long is not announced any more: workers find it when they list the refs.
NOTED_MS_MAX = 86_400_000
_SUFFIX = ".json"
_HASH_BYTES = 32


class PendingGitJob(msgspec.Struct, frozen=True):
    """`content_id` is bare hex. `tries` are the announcements so far, and `next_ms` is when the next is due."""

    repository: str
    content_id: str
    submitted_ms: int
    next_ms: int
    tries: int = 1

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.content_id)


class PendingGitJobs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, repository: str, content_id: bytes, now_ms: int, next_ms: int) -> None:
        """Notes a job that is announced now."""
        where = repository if is_address(repository) else str(Path(repository).expanduser().resolve())
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted(self._files(), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - NOTED_MAX + 1)]:
            path.unlink(missing_ok=True)
        self._put(PendingGitJob(where, content_id.hex(), now_ms, next_ms))

    def due(self, now_ms: int) -> list[PendingGitJob]:
        found = []
        for path in self._files():
            with suppress(OSError):
                job = _read(path)
                if job is None or now_ms > job.submitted_ms + NOTED_MS_MAX:
                    path.unlink(missing_ok=True)
                elif job.next_ms <= now_ms:
                    found.append(job)
        return found

    def announced(self, job: PendingGitJob, next_ms: int) -> bool:
        """Notes that the job is announced now. False if another process has noted that, or has dropped the job."""
        with suppress(OSError):
            if _read(self._path(job.id)) == job:
                self._put(msgspec.structs.replace(job, tries=job.tries + 1, next_ms=next_ms))
                return True
        return False

    def drop(self, job_id: bytes) -> None:
        with suppress(OSError):
            self._path(job_id).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return list(self._directory.glob(f"*{_SUFFIX}"))

    def _path(self, job_id: bytes) -> Path:
        return self._directory / f"{job_id.hex()}{_SUFFIX}"

    def _put(self, job: PendingGitJob) -> None:
        """An address may have a password in it: only the owner reads the file."""
        new = self._directory / f"{job.id.hex()}.{os.getpid()}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(job))
        new.replace(self._path(job.id))


def _read(path: Path) -> PendingGitJob | None:
    try:
        job = decode_json(path.read_bytes(), PendingGitJob)
        return job if len(job.id) == _HASH_BYTES else None
    except (msgspec.MsgspecError, ValueError):
        return None
