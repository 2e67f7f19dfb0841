"""What this system has beside POSIX, asked once in a process. Linux has all of it. Where something is missing, as on
macOS and the BSDs, the parts that need it do without, or say so in one sentence.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def has_fd_paths() -> bool:
    """Whether /proc/self/fd leads to what a descriptor stands for, so that a long path has a short one."""
    return hasattr(os, "O_PATH") and os.path.exists("/proc/self/fd")


@cache
def has_process_control() -> bool:
    """Whether a process can see to it that nothing outlives a command: it reads which processes are below it, adopts
    orphans, and has descriptors for processes.
    """
    return hasattr(os, "pidfd_open") and hasattr(os, "memfd_create") and os.path.exists("/proc/self/stat")


NO_COMMANDS = "this system cannot run commands: it has no /proc, or no descriptors for processes"


class ShortPath:
    """A short path to a file or directory, as `text`, until it is closed, because the address of a socket has about a
    hundred bytes, and a home's path may have more. It leads through a descriptor where the system has paths to them,
    and else through a link in a directory of its own.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd, self._folder = -1, ""
        if has_fd_paths():
            self._fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.text = f"/proc/self/fd/{self._fd}"
        else:
            import tempfile

            self._folder = tempfile.mkdtemp(prefix="hkt")
            self.text = f"{self._folder}/s"
            os.symlink(path.absolute(), self.text)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        else:
            with suppress(OSError):
                os.unlink(self.text)
                os.rmdir(self._folder)
