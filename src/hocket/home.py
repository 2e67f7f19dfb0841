"""A home: the directory that makes a machine a node. It holds the user's key, the node's key, the database, and
one file for each living process. Creating one is safe against a second creator and against being killed
half-way: whatever is missing is made by the next `init`, and nothing that is there is ever replaced.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hocket.errors import Conflict, StoreError, Usage
from hocket.kernel.keys import SigningKey, key_text, parse_key

ENVIRONMENT = "HOCKET_HOME"


def default_home() -> Path:
    return Path(os.environ.get(ENVIRONMENT) or Path.home() / ".hocket")


class Home:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().absolute()
        self.database = self.path / "log.db"
        self.processes = self.path / "processes"
        self.blobs = self.path / "blobs"
        self._user_key = self.path / "user.key"
        self._node_key = self.path / "node.key"
        self._complete = self.path / "complete"

    def check(self) -> None:
        """Raises a sentence that says what to do when this is not a usable home."""
        if not self.path.exists():
            raise Usage(f"no home at {self.path}; create it with `hocket --home {self.path} init`")
        if not self.path.is_dir():
            raise Usage(f"{self.path} is not a directory; choose another --home")
        if not self._complete.exists():
            if self._node_key.exists() or self._user_key.exists() or self.database.exists():
                raise Usage(
                    f"the home {self.path} is half-created; run `hocket --home {self.path} init` again to finish it"
                )
            raise Usage(f"{self.path} is not a Hocket home; create one with `hocket --home {self.path} init`")
        for part in (self._node_key, self._user_key, self.database):
            if not part.exists():
                raise Usage(f"the home {self.path} has lost {part.name}; restore it from a backup")
        if not os.access(self.path, os.W_OK) or not os.access(self.database, os.W_OK):
            raise StoreError(f"the home {self.path} is read-only; Hocket needs to write there")

    @contextmanager
    def creation(self) -> Iterator[bool]:
        """Excludes every other creator. Gives False when the home is complete already; marks it complete at the
        end otherwise.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.processes.mkdir(exist_ok=True)
            lock = os.open(self.path / "init.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileExistsError as error:
            raise Usage(f"{error.filename} is in the way and is not a directory; choose another --home") from error
        except OSError as error:
            raise StoreError(f"cannot create the home {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = not self._complete.exists()
            yield fresh
            if fresh:
                _write_once(self._complete, b"1\n")
        finally:
            os.close(lock)

    def user_key(self) -> SigningKey:
        return _read_key(self._user_key)

    def node_key(self) -> SigningKey:
        return _read_key(self._node_key)

    def ensure_keys(self, user: SigningKey | None = None) -> None:
        """Makes the keys that are not there yet. A user's key from elsewhere makes this home another node of
        that user.
        """
        if user is not None and self._user_key.exists() and self.user_key().seed != user.seed:
            raise Conflict(f"the home {self.path} belongs to another user already")
        for path, key in ((self._user_key, user), (self._node_key, None)):
            if not path.exists():
                _write_once(path, (key_text((key or SigningKey(os.urandom(32))).seed) + "\n").encode())


def read_user_key(path: Path) -> SigningKey:
    """A user's key from a file that another home holds."""
    if not path.is_file():
        raise Usage(f"no key file at {path}")
    return _read_key(path)


def _read_key(path: Path) -> SigningKey:
    try:
        return SigningKey(parse_key(path.read_text().strip()))
    except (ValueError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} does not hold a key; restore it from a backup") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _write_once(path: Path, content: bytes) -> None:
    """Writes a whole file or none, readable by its owner alone, and on the disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
