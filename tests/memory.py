"""Where the files of tests lie: in memory where there is room, since every commit of every store would wait for the
disk, and every new database would make hundreds of files on it.
"""

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")
_BYTES_MIN = 2 * 1024**3


def _has_room(memory: Path) -> bool:
    if not os.access(memory, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(memory)
    return found.f_bavail * found.f_frsize >= _BYTES_MIN and not found.f_flag & os.ST_NOEXEC


IN_MEMORY = _MEMORY if _has_room(_MEMORY) else None
# Short, for the path of a socket.
PLACE = IN_MEMORY or Path("/tmp")
