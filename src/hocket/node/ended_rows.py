"""Which rows of a shared store this node has ended: tokens that it has revoked, invitations that were used or
cancelled. The home remembers their MACs. A node that writes to the store could put such a row back as it was, with its
right MAC.
"""

import os
import threading
from pathlib import Path

from hocket.errors import StoreError
from hocket.kernel.row_mac import MAC_BYTES


class EndedRows:
    """A file to which all processes of the home append."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._macs: set[bytes] = set()
        self._lock = threading.Lock()

    def add(self, mac: bytes) -> None:
        """Returns when it is on the disk."""
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, mac)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}; nothing was ended") from error

    def __contains__(self, mac: object) -> bool:
        with self._lock:
            self._follow()
            return mac in self._macs

    def _follow(self) -> None:
        """Reads what was added since, by any process."""
        try:
            if self._path.stat().st_size < self._read + MAC_BYTES:
                return
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}; make it readable") from error
        whole = len(new) - len(new) % MAC_BYTES
        self._macs |= {new[at : at + MAC_BYTES] for at in range(0, whole, MAC_BYTES)}
        self._read += whole
