"""A home: the directory of a node. It holds the node's key, the database, one file for each running process, and the
user's identity: the owner's home has the user's key, which may be locked with a passphrase; an invited node's home has
only the user's did:key. Creation is safe against a second creator and against being killed half-way: the next `init` or
`join` creates what is missing and never replaces what exists. Only its owner uses a home: other users can neither read
it nor write into it, and no other user runs from it, not even root.
"""

import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from mmap import mmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hocket.errors import Conflict, NotAuthorised, StoreError, Usage
from hocket.kernel.extension import Extension, extensions
from hocket.kernel.keys import (
    RANDOM_BYTES,
    SigningKey,
    WrongPassphrase,
    did_key,
    is_locked,
    key_text,
    lock,
    owner,
    parse_did_key,
    parse_key,
    unlock,
)
from hocket.kernel.postcard import Malformed
from hocket.node.variables import database_path, given, server_address
from hocket.store.connections import without_password
from hocket.store.files import sync_directory

ENVIRONMENT = "HOCKET_HOME"

_OTHERS = 0o077
_MARK_BYTES = 16
DATABASE_ENDS = ("", "-wal", "-shm", "-journal", "-waiting")
# Everything that Hocket puts into a home. It ignores other files.
_PARTS = (
    *(f"{name}{end}" for name in ("log.db", "replica.db") for end in DATABASE_ENDS),
    *("processes", "blobs", "runs", "output", "secrets", "git", "spool"),
    *("messages", "read_position", "ended_rows", "revocations", "rules", "checked_states", "written"),
    *("config.toml", "store", "tempo.yaml", "user.key", "user.did", "node.key", "complete", "init.lock", "crash.log"),
    *("tls_key", "tempo.changes", "revoked_tokens"),
)

# Returns the passphrase; called only if one is needed.
Ask = Callable[[], str]


class Remembered:
    """Asks for a passphrase at most once, and remembers it."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self.passphrase: str | None = None

    def __call__(self) -> str:
        if self.passphrase is None:
            if self._ask is None:
                raise Usage("the key is locked; give its passphrase")
            self.passphrase = self._ask()
        return self.passphrase


def default_home() -> Path:
    return Path(os.environ.get(ENVIRONMENT) or Path.home() / ".hocket")


def switched_on(home: "Home", settings: Mapping[str, Any] = MappingProxyType({})) -> list[Extension]:
    """The extensions that a file in the home, a variable or one of the settings switches on."""
    return [
        each
        for each in extensions()
        if each.file
        and (settings.get(each.name) or (home.path / each.file).exists() or (each.variable and given(each.variable)))
    ]


class Home:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().absolute()
        self._rules = self.path / "rules"
        self._store = self.path / "store"
        # The address of the store if a database server has it, or else None, and the path of the home's own database.
        self.server = server_address(self._store)
        self.database = database_path(self.path / "log.db")
        self.processes = self.path / "processes"
        self.blobs = self.path / "blobs"
        self.runs = self.path / "runs"
        self.output = self.path / "output"
        self.secrets = self.path / "secrets"
        self.messages = self.path / "messages"
        self.spool = self.path / "spool"
        self.replica = self.path / "replica.db"
        self.revocations = self.path / "revocations"
        self.checked_states = self.path / "checked_states"
        self.written = self.path / "written"
        self._revoked_tokens = self.path / "revoked_tokens"
        self.git_cache = self.path / "git" / "cache"
        self.pending_git_jobs = self.path / "git" / "pending"
        self.git_trusted = self.path / "git" / "trusted"
        self.configuration = self.path / "config.toml"
        self.tempo = self.path / "tempo.yaml"
        self.tempo_changes = self.path / "tempo.changes"
        self._user_key = self.path / "user.key"
        self._user_did = self.path / "user.did"
        self._node_key = self.path / "node.key"
        self._complete = self.path / "complete"
        self._tls_key = self.path / "tls_key"

    def check(self) -> None:
        """Raises an error that says what to do if this is not a usable home."""
        if not self.path.exists():
            raise Usage(f"no home at {self.path}; create it with `hocket --home {self.path} init`")
        if not self.path.is_dir():
            raise Usage(f"{self.path} is not a directory; choose another --home")
        self._check_owner()
        if not self.is_complete():
            if self.is_joining():
                raise Usage(f"the home {self.path} has not joined yet; run `hocket mesh join` with its token again")
            if self._node_key.exists() or self._user_key.exists() or self.has_store():
                raise Usage(
                    f"the home {self.path} is half-created; run `hocket --home {self.path} init` again to finish it"
                )
            raise Usage(f"{self.path} is not a Hocket home; create one with `hocket --home {self.path} init`")
        whose = self._user_did if self._user_did.exists() else self._user_key
        files = (self.database,) if self.server is None else ()
        for part in (self._node_key, whose, *files):
            if not part.exists():
                raise Usage(f"the home {self.path} has lost {part.name}; restore it from a backup")
        if not all(os.access(path, os.W_OK) for path in (self.path, *files)):
            raise StoreError(f"the home {self.path} is read-only; Hocket needs to write there")
        for exposed in filter(None, map(exposure, self.key_files())):
            raise Usage(exposed)

    def revocation_mark(self) -> mmap:
        """Memory that the processes of this home share. It changes when one of them revokes a token of programs."""
        with open(os.open(self._revoked_tokens, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(_MARK_BYTES)
            return mmap(file.fileno(), _MARK_BYTES)

    def mark_revoked_token(self) -> None:
        """Tells servers of this home to read the tokens of programs again."""
        with closing(self.revocation_mark()) as mark:
            mark[:] = os.urandom(_MARK_BYTES)

    def _check_owner(self) -> None:
        """Raises NotAuthorised if another user owns the home or a part of it."""
        us = os.geteuid()
        owner = self.path.stat().st_uid
        if owner != us:
            raise NotAuthorised(
                f"the home {self.path} belongs to {_user(owner)}, but this is {_user(us)};"
                f" run this as {_user(owner)}, or choose another --home"
            )
        parts = self._parts()
        if self.path.stat().st_mode & _OTHERS and self.processes.is_dir():
            parts += self.processes.iterdir()
        for part in parts:
            with suppress(FileNotFoundError):
                if (owner := part.lstat().st_uid) != us:
                    raise NotAuthorised(
                        f"{part} belongs to {_user(owner)}, who does not own this home; inspect it, then remove it,"
                        f" or `chown {_user(us)}` it"
                    )

    def _parts(self) -> list[Path]:
        """Everything that Hocket puts into a home, and the database if it is elsewhere."""
        beside = [self.database.with_name(self.database.name + end) for end in DATABASE_ENDS]
        return [self.path / name for name in _PARTS] + ([] if self.has_own_database() else beside)

    def note_tls_key(self, path: Path) -> None:
        """Remembers where the key of this node's server is, so that workers keep it from commands."""
        text = str(path.absolute())
        if str(self.tls_key()) != text:
            _write(self._tls_key, text)

    def tls_key(self) -> Path | None:
        return Path(self._tls_key.read_text().strip()) if self._tls_key.is_file() else None

    def has_own_database(self) -> bool:
        """Whether the database is in the home itself."""
        return self.server is None and self.database.parent == self.path

    def has_store(self) -> bool:
        """Whether there is a database file, or the home names a server that has the store."""
        return self.server is not None or self.database.exists()

    @property
    def store_address(self) -> str | Path:
        """For `store.open`. It may contain a password."""
        return self.server or self.database

    def exposed(self) -> list[Path]:
        """The home and those of its parts that other users may access."""
        found = []
        for path in (self.path, *self._parts()):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if mode & _OTHERS and not stat.S_ISLNK(mode):
                    found.append(path)
        return found

    def shut_out_others(self) -> None:
        """Removes all access of other users to the home and its content. An older version may have created the home, or
        the directory may have existed before.
        """
        for path in self.exposed():
            try:
                path.chmod(path.stat().st_mode & ~_OTHERS & 0o7777)
            except OSError as error:
                if error.errno != errno.EROFS:  # `check` reports a read-only disk
                    raise StoreError(f"other users can access {path}, and chmod failed: {error.strerror}") from error

    def check_joinable(self, did: str) -> None:
        """Raises Conflict if this cannot be the home of an invited node of that user."""
        if self.is_complete():
            self.check()
        if (self.has_user_key() or self._user_did.exists()) and self.user_did() != did:
            raise Conflict(f"the home {self.path} belongs to another user; choose another --home")
        if self.has_user_key():
            raise Conflict(f"the home {self.path} is the owner's and needs no invitation; choose another --home")

    def is_complete(self) -> bool:
        return self._complete.exists()

    def is_joining(self) -> bool:
        """Whether a `join` has begun here: `join` makes the node's key first, `init` the user's."""
        return self._node_key.exists() and not self._user_key.exists() and not self.is_complete()

    def key_files(self) -> list[Path]:
        return [path for path in (self._user_key, self._node_key) if path.exists()]

    @contextmanager
    def creation(self) -> Iterator[bool]:
        """Excludes every other creator. Yields False if the home is complete; otherwise marks it complete at the
        end.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_owner()
            self.shut_out_others()
            self.processes.mkdir(mode=0o700, exist_ok=True)
            lock_file = os.open(self.path / "init.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileExistsError as error:
            raise Usage(f"{error.filename} is not a directory; choose another --home") from error
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

    def new_store(self, server: str | None = None) -> str | Path:
        """The address for the new store. In a server, notes the address without its password."""
        self.server = server or self.server
        if self.server is not None:
            self.use_store(self.server)
        else:
            self.new_database()
        return self.store_address

    @property
    def keeps_requests(self) -> bool:
        """Whether this home was made for a store in a server, and keeps requests while that is away."""
        return self.server is not None and self._store.is_file()

    def use_store(self, address: str | None) -> None:
        """From now on the home's store is that of a database server, or else the home's own file."""
        if address is not None:
            _write(self._store, without_password(address))
        else:
            self._store.unlink(missing_ok=True)
            sync_directory(self.path)

    def new_database(self) -> None:
        """Creates the database as an empty file, because SQLite copies that file's permissions to the files beside
        it.
        """
        os.close(os.open(self.database, os.O_RDWR | os.O_CREAT, 0o600))

    # Whose node this is.

    def user_did(self) -> str:
        """The user's did:key. Needs no passphrase."""
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
        """Whether the user's key is locked with a passphrase."""
        return is_locked(_read_text(self._user_key))

    def holds_user_key(self) -> bool:
        return self._user_key.exists()

    def user_key(self, ask: Ask | None = None) -> SigningKey:
        """The user's key. Calls `ask` if it is locked."""
        if not self._user_key.exists():
            raise NotAuthorised(
                f"the home {self.path} is an invited node's and has no user's key; run this on the owner's machine"
            )
        return read_user_key(self._user_key, ask)

    def keep_tempo_changes(self, text: str) -> None:
        _write(self.tempo_changes, text)

    def node_key(self) -> SigningKey:
        return _read_key(self._node_key)

    def ensure_keys(self, user: SigningKey | None = None, passphrase: str | None = None) -> None:
        """Makes the missing keys. A `user` key from another home makes this home another node of that user; the user's
        did:key beside the key records this.
        """
        if self.is_joining():
            raise Conflict(f"the home {self.path} has begun to join a mesh; finish the join, or choose another --home")
        known = self._user_key.exists() or self._user_did.exists()
        if user is not None and known and self.user_did() != did_key(user.public):
            raise Conflict(f"the home {self.path} already belongs to another user")
        if user is not None:
            self.note_user(did_key(user.public))
        if not self._user_key.exists():
            if user is None and self._user_did.exists():
                raise Usage(f"the home {self.path} was begun for {self.user_did()}; give its --user-key again")
            self.put_user_key(user or new_key(), passphrase)
        self.ensure_node_key()

    def ensure_node_key(self) -> None:
        """A log that was begun under a key which is gone is begun anew: nobody could go on with it, or prove it."""
        if not self._node_key.exists():
            if self.database.parent == self.path and not self.is_complete():
                for end in DATABASE_ENDS:
                    self.database.with_name(self.database.name + end).unlink(missing_ok=True)
            _write(self._node_key, key_text(new_key().seed))

    def noted_rules(self) -> str | None:
        """The hash of the mesh rules by which this node judges in a store that nodes share, once it is noted."""
        try:
            return self._rules.read_text().strip()
        except FileNotFoundError:
            return None

    def note_rules(self, digest: str) -> None:
        _write(self._rules, digest)

    def note_user(self, did: str) -> None:
        """Records the user of this node, once."""
        if not self._user_did.exists():
            _write(self._user_did, did)

    def made_user(self) -> bool:
        """Whether the user's key was made here, which makes this the user's first node."""
        return not self._user_did.exists()

    def put_user_key(self, key: SigningKey, passphrase: str | None) -> None:
        """Writes the user's key, locked if a passphrase is given. Replaces an existing key."""
        write_user_key(self._user_key, key, passphrase)

    def copy_user_key(self, file: Path) -> None:
        """Copies the user's key to another file, unchanged."""
        _write(file, _read_text(self._user_key))


def configured_table(path: Path, name: str, known: Collection[str]) -> dict[str, Any]:
    """The table with this name in a home's configuration; empty where there is none. Raises Usage for other keys."""
    try:
        text = path.read_text("utf-8")
        import tomllib  # few homes have the file

        table = tomllib.loads(text).get(name, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Usage(f"cannot read {path}: {error}") from None
    if not isinstance(table, dict):
        raise Usage(f"{path}: {name} must be a table, like [{name}]")
    for key in table:
        if key not in known:
            raise Usage(f"{path}: unknown key {name}.{key}; known are {', '.join(known)}")
    return table


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def new_key() -> SigningKey:
    return SigningKey(os.urandom(32))


def exposure(path: Path) -> str | None:
    """The remedy for a key file that other users can read; None if they cannot."""
    mode = path.stat().st_mode & 0o777
    return f"other users can read {path} (mode {mode:04o}); run `chmod 600 {path}`" if mode & 0o077 else None


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
    """A user's key from another home or a backup. Calls `ask` if it is locked."""
    if not path.is_file():
        raise Usage(f"no key file at {path}")
    text = _read_text(path)
    if not is_locked(text):
        return _read_key(path)
    if ask is None:
        raise Usage(f"{path} is locked; give its passphrase")
    try:
        return unlock(text, ask())
    except WrongPassphrase:
        raise NotAuthorised(f"wrong passphrase for {path}") from None
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
    """Writes a whole file or none, readable only by its owner. The file is on disk when this returns."""
    temporary = path.with_name(path.name + ".new")
    # A file left by a killed writer may have other permissions, and permissions count only at creation.
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, f"{text}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
    sync_directory(path.parent)
