"""Archives of the log: write one, and prove one from its own bytes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hocket.api import Service
from hocket.errors import Usage
from hocket.kernel.texts import duration_ms
from hocket.log.archives.checking import ArchiveAudit, verify_archive
from hocket.log.archives.day_file import start_of
from hocket.log.archives.writing import Archived, write_archive

_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def archive_log(service: Service, to: str | Path, *, before: str, dry_run: bool = False) -> list[Archived]:
    """Writes the days that had ended before a time into an archive, and gives the files that it wrote. The time is a
    duration ago, like 90d, or the first day that stays out, like 2026-01-31.
    """
    return list(write(service, Path(to), before, dry_run=dry_run))


def write(
    service: Service,
    path: Path,
    before: str,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Archived]:
    """Gives each file when it is on disk."""
    if path.exists() and not path.is_dir():
        raise Usage(f"{path} is no folder; name the folder of the archive")
    return write_archive(service.runtime.log, path, _before_ms(service, before), dry_run=dry_run, progress=progress)


def _before_ms(service: Service, before: str) -> int:
    now = service.runtime.log.physical()
    try:
        found = start_of(before) if _DAY.fullmatch(before) else now - duration_ms(before)
    except ValueError:
        raise Usage(f"bad --before {before!r}; use a duration such as 90d, or a day such as 2026-01-31") from None
    if found > now:
        raise Usage(f"bad --before {before!r}: that day has not ended")
    return max(found, 0)


def verify(
    service: Service | None, path: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> ArchiveAudit:
    """Proves an archive, or a file of one. With a node, it must be the archive of its mesh."""
    if not path.exists():
        raise Usage(f"{path} is not there")
    if service is None:
        return verify_archive(path, progress=progress)
    return verify_archive(path, mesh=service.runtime.log.user, helpers=service.runtime.helpers, progress=progress)


def verify_log_archive(service: Service, path: str | Path) -> ArchiveAudit:
    """Proves an archive of this node's mesh, or a file of one, from its own bytes."""
    return verify(service, Path(path))
