"""A home: the directory that makes a machine a node. It holds the node's key, the database, one file for each living
process, and says whose node it is: an owner's home by the user's key, which may be locked with a passphrase, an
invited node's by the user's did:key alone. Creating one is safe against a second creator and against being killed
half-way: whatever is missing is made by the next `init` or `join`, and nothing that is there is ever replaced. A home
is its owner's alone: other users can neither read it nor put anything into it, and nobody else, root included, uses it.
"""

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hocket.errors import Conflict, NotAuthorised, StoreError, Usage
from hocket.kernel.keys import SigningKey, did_key, key_text, parse_did_key, parse_key
from hocket.kernel.postcard import Malformed
from hocket.kernel.strongbox import RANDOM_BYTES, WrongPassphrase, is_locked, lock, owner, unlock
from hocket.store.disk import sync_directory

ENVIRONMENT = "HOCKET_HOME"

_OTHERS = 0o077
# Everything that Hocket puts into a home. Whatever else is there is none of its business.
_PARTS = (
    *("log.db", "log.db-wal", "log.db-shm", "log.db-journal", "processes", "blobs", "runs", "secrets", "git"),
    *("config.toml", "user.key", "user.did", "node.key", "complete", "init.lock", "crash.log"),
)

# Gives the passphrase when it turns out to be needed.
Ask = Callable[[], str]


class Remembered:
    """Asks for a passphrase at most once, and remembers it."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self.passphrase: str | None = None

    def __call__(self) -> str:
        if self.passphrase is None:
            if self._ask is None:
                raise Usage("the key is locked with a passphrase, which was not given")
            self.passphrase = self._ask()
        return self.passphrase


def default_home() -> Path:
    return Path(os.environ.get(ENVIRONMENT) or Path.home() / ".hocket")


class Home:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().absolute()
        self.database = self.path / "log.db"
        self.processes = self.path / "processes"
        self.blobs = self.path / "blobs"
        self.runs = self.path / "runs"
        self.secrets = self.path / "secrets"
        self.git_cache = self.path / "git" / "cache"
        self.git_trusted = self.path / "git" / "trusted"
        self.configuration = self.path / "config.toml"
        self._user_key = self.path / "user.key"
        self._user_did = self.path / "user.did"
        self._node_key = self.path / "node.key"
        self._complete = self.path / "complete"

    def check(self) -> None:
        """Raises a sentence that says what to do when this is not a usable home."""
        if not self.path.exists():
            raise Usage(f"no home at {self.path}; create it with `hocket --home {self.path} init`")
        if not self.path.is_dir():
            raise Usage(f"{self.path} is not a directory; choose another --home")
        self._check_owner()
        if not self.is_complete():
            if self.is_joining():
                raise Usage(f"the home {self.path} has not joined yet; run `hocket join` with its token again")
            if self._node_key.exists() or self._user_key.exists() or self.database.exists():
                raise Usage(
                    f"the home {self.path} is half-created; run `hocket --home {self.path} init` again to finish it"
                )
            raise Usage(f"{self.path} is not a Hocket home; create one with `hocket --home {self.path} init`")
        whose = self._user_did if self._user_did.exists() else self._user_key
        for part in (self._node_key, whose, self.database):
            if not part.exists():
                raise Usage(f"the home {self.path} has lost {part.name}; restore it from a backup")
        if not os.access(self.path, os.W_OK) or not os.access(self.database, os.W_OK):
            raise StoreError(f"the home {self.path} is read-only; Hocket needs to write there")
        for exposed in filter(None, map(exposure, self.key_files())):
            raise Usage(exposed)

    def _check_owner(self) -> None:
        """Raises NotAuthorised when another user could change what is in the home, or is its owner."""
        us = os.geteuid()
        owner = self.path.stat().st_uid
        if owner != us:
            raise NotAuthorised(
                f"the home {self.path} belongs to {_user(owner)}, and this is {_user(us)};"
                f" run this as {_user(owner)}, or choose another --home"
            )
        parts = [self.path / name for name in _PARTS]
        if self.path.stat().st_mode & _OTHERS and self.processes.is_dir():
            parts += self.processes.iterdir()
        for part in parts:
            with suppress(FileNotFoundError):
                if (owner := part.lstat().st_uid) != us:
                    raise NotAuthorised(
                        f"{part} belongs to {_user(owner)}, who does not own this home; look at it, then remove it,"
                        f" or `chown {_user(us)}` it"
                    )

    def exposed(self) -> list[Path]:
        """The home and those of its parts that other users may use."""
        found = []
        for path in (self.path, *(self.path / name for name in _PARTS)):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if mode & _OTHERS and not stat.S_ISLNK(mode):
                    found.append(path)
        return found

    def shut_out_others(self) -> None:
        """Takes from other users every right to the home and to what is in it. A home may have been made by an older
        version, or in a directory that was there before.
        """
        for path in self.exposed():
            try:
                path.chmod(path.stat().st_mode & ~_OTHERS & 0o7777)
            except OSError as error:
                if error.errno != errno.EROFS:  # that the disk is read-only is told elsewhere
                    raise StoreError(f"others can use {path}, and that cannot be changed: {error.strerror}") from error

    def check_joinable(self, did: str) -> None:
        """Raises Conflict when this cannot be the home of an invited node of that user."""
        if self.is_complete():
            self.check()
        if (self.has_user_key() or self._user_did.exists()) and self.user_did() != did:
            raise Conflict(f"the home {self.path} belongs to another user; choose another --home")
        if self.has_user_key():
            raise Conflict(f"the home {self.path} is its owner's and needs no invitation; choose another --home")

    def is_complete(self) -> bool:
        return self._complete.exists()

    def is_joining(self) -> bool:
        """Whether a `join` has begun here: it makes the node's key first, `init` the user's."""
        return self._node_key.exists() and not self._user_key.exists() and not self.is_complete()

    def key_files(self) -> list[Path]:
        return [path for path in (self._user_key, self._node_key) if path.exists()]

    @contextmanager
    def creation(self) -> Iterator[bool]:
        """Excludes every other creator. Gives False when the home is complete already; marks it complete at the
        end otherwise.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self.shut_out_others()
            self.processes.mkdir(mode=0o700, exist_ok=True)
            lock_file = os.open(self.path / "init.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileExistsError as error:
            raise Usage(f"{error.filename} is in the way and is not a directory; choose another --home") from error
        except OSError as error:
            raise StoreError(f"cannot create the home {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            fresh = not self.is_complete()
            yield fresh
            if fresh:
                _write(self._complete, "1")
        finally:
            os.close(lock_file)

    def new_database(self) -> Path:
        """Where the database is to be made. The empty file is there, because SQLite takes over its permissions for
        all that it puts beside it.
        """
        os.close(os.open(self.database, os.O_RDWR | os.O_CREAT, 0o600))
        return self.database

    # Whose node this is.

    def user_did(self) -> str:
        """The user's did:key. It takes no passphrase to know it."""
        try:
            if self._user_did.exists():
                did = self._user_did.read_text().strip()
                parse_did_key(did)
                return did
            return key_owner(self._user_key)
        except (ValueError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._user_did} does not say whose node this is; restore it from a backup") from error
        except OSError as error:
            raise StoreError(f"cannot read {error.filename}: {error.strerror}") from error

    def has_user_key(self) -> bool:
        return self._user_key.exists()

    def is_locked(self) -> bool:
        """Whether the user's key is under a passphrase."""
        return is_locked(_read_text(self._user_key))

    def holds_user_key(self) -> bool:
        return self._user_key.exists()

    def user_key(self, ask: Ask | None = None) -> SigningKey:
        """The user's key; `ask` is called when it is locked."""
        if not self._user_key.exists():
            raise NotAuthorised(
                f"the home {self.path} is an invited node's and holds no user's key; do this on the owner's machine"
            )
        return read_user_key(self._user_key, ask)

    def node_key(self) -> SigningKey:
        return _read_key(self._node_key)

    def ensure_keys(self, user: SigningKey | None = None, passphrase: str | None = None) -> None:
        """Makes the keys that are not there yet. A user's key from elsewhere makes this home another node of
        that user; that it came from elsewhere is noted by the user's did:key beside it.
        """
        if self.is_joining():
            raise Conflict(f"the home {self.path} has begun to join a mesh; finish that, or choose another --home")
        known = self._user_key.exists() or self._user_did.exists()
        if user is not None and known and self.user_did() != did_key(user.public):
            raise Conflict(f"the home {self.path} belongs to another user already")
        if user is not None:
            self.note_user(did_key(user.public))
        if not self._user_key.exists():
            if user is None and self._user_did.exists():
                raise Usage(f"the home {self.path} was begun for {self.user_did()}; give its --user-key again")
            self.put_user_key(user or new_key(), passphrase)
        self.ensure_node_key()

    def ensure_node_key(self) -> None:
        if not self._node_key.exists():
            _write(self._node_key, key_text(new_key().seed))

    def note_user(self, did: str) -> None:
        """Writes down whose node this is, once."""
        if not self._user_did.exists():
            _write(self._user_did, did)

    def made_user(self) -> bool:
        """Whether the user's key was made here, so that this is the user's first node."""
        return not self._user_did.exists()

    def put_user_key(self, key: SigningKey, passphrase: str | None) -> None:
        """Writes the user's key, under a passphrase if there is one. Whatever was there is replaced."""
        write_user_key(self._user_key, key, passphrase)

    def copy_user_key(self, file: Path) -> None:
        """Writes the user's key to another file, as it is here."""
        _write(file, _read_text(self._user_key))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def new_key() -> SigningKey:
    return SigningKey(os.urandom(32))


def exposure(path: Path) -> str | None:
    """What to do about a key file that others can read, None if they cannot."""
    mode = path.stat().st_mode & 0o777
    return f"others can read {path} (mode {mode:04o}); run `chmod 600 {path}`" if mode & 0o077 else None


def write_user_key(path: Path, key: SigningKey, passphrase: str | None) -> None:
    _write(path, key_text(key.seed) if passphrase is None else lock(key, passphrase, os.urandom(RANDOM_BYTES)))


def key_owner(path: Path) -> str:
    """The did:key of the user whose key is in a file, locked or not."""
    text = _read_text(path)
    if not is_locked(text):
        return did_key(_read_key(path).public)
    try:
        return owner(text)
    except Malformed as error:
        raise StoreError(f"cannot read {path}: {error}") from None


def read_user_key(path: Path, ask: Ask | None = None) -> SigningKey:
    """A user's key from a file: another home's, or a backup. `ask` is called when it is locked."""
    if not path.is_file():
        raise Usage(f"no key file at {path}")
    text = _read_text(path)
    if not is_locked(text):
        return _read_key(path)
    if ask is None:
        raise Usage(f"{path} is locked with a passphrase, which was not given")
    try:
        return unlock(text, ask())
    except WrongPassphrase:
        raise NotAuthorised(f"that is not the passphrase of {path}") from None
    except Malformed as error:
        raise StoreError(f"cannot read {path}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} does not hold a key; restore it from a backup") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def _read_key(path: Path) -> SigningKey:
    try:
        return SigningKey(parse_key(_read_text(path)))
    except ValueError as error:
        raise StoreError(f"{path} does not hold a key; restore it from a backup") from error


def _write(path: Path, text: str) -> None:
    """Writes a whole file or none, readable by its owner alone, and on the disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    # What a killed writer left may have other permissions, and permissions only count when a file is made.
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, f"{text}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
    sync_directory(path.parent)
