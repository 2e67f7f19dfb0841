"""Whose results count: this node's own, those of mesh nodes that may complete jobs from git, and those by keys that the
owner of a home has added. A signature only shows which key made it; this module decides whether that key is trusted.
"""

import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hocket.api import Service, ServiceAnswer
from hocket.errors import StoreError, Usage
from hocket.extensions.command.proofs import GIT_KIND
from hocket.extensions.git.trailers import BadTrailer, any_key_of
from hocket.extensions.git.verify import Verified
from hocket.kernel.keys import key_text, parse_did_key, parse_key
from hocket.log import Log
from hocket.mesh import membership
from hocket.store import Session
from hocket.store.files import sync_directory

KEYS_MAX = 10_000
NAME_CHARS_MAX = 100
Verdict = Literal["good", "unknown", "incomplete", "bad"]


def verdict(found: Verified, trusted: Container[bytes]) -> Verdict:
    """The verdict on a job: `unknown` is a valid result that is unsigned or by an untrusted key; `incomplete` is one of
    which this clone lacks a part. A job without a result needs no trust.
    """
    if any(not finding.is_gap for finding in found.findings):
        return "bad"
    if found.findings:
        return "incomplete"
    return "good" if not found.has_result or found.signer in trusted else "unknown"


def parse_worker(text: str) -> bytes:
    """A worker's key as people write it: `ed25519:` and hex or base64, the hex alone, or a did:key."""
    try:
        if text.startswith("did:"):
            return parse_did_key(text)
        return any_key_of("the key", text if ":" in text else f"ed25519:{text}")
    except (BadTrailer, ValueError):
        raise Usage(
            f"{text[:100]!r} is not a worker's key; give ed25519: and 64 hex digits, as `hocket git show` prints it"
        ) from None


def keys_of_mesh(log: Log, session: Session) -> dict[bytes, str]:
    """The keys of the nodes that may complete jobs from git now, with their names."""
    found = {}
    for member in membership.members(log, session):
        chain = membership.may(log, session, member.node, "Job", "Complete", GIT_KIND).chain
        if chain:
            found[chain[-1].public] = member.shown
    return found


class TrustedKeys:
    """A file of keys, one on each line, with an optional name. A change is made whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[bytes, str]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"cannot read {self._path}: {error}") from None
        found = {}
        for number, line in enumerate(lines, 1):
            key, _, name = line.partition(" ")
            try:
                found[parse_key(key)] = name
            except ValueError:
                raise StoreError(f"line {number} of {self._path} has no key; correct or remove it") from None
        return found

    def add(self, key: bytes, name: str = "") -> bool:
        """False if the key is already there with that name."""
        name = " ".join(name.split())
        if len(name) > NAME_CHARS_MAX or not (name.isprintable() or not name):
            raise Usage(f"{name[:NAME_CHARS_MAX]!r} is not a name; give at most {NAME_CHARS_MAX} printable characters")
        with self._changing() as keys:
            if keys.get(key) == name or (key in keys and not name):
                return False
            if len(keys) >= KEYS_MAX:
                raise Usage(f"{self._path} has {len(keys)} keys, the most possible; remove one first")
            keys[key] = name
        return True

    def remove(self, key: bytes) -> bool:
        with self._changing() as keys:
            return keys.pop(key, None) is not None

    @contextmanager
    def _changing(self) -> Iterator[dict[bytes, str]]:
        """The keys of the file, to be changed; excludes other writers meanwhile."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot write to {self._path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = self.read()
            before = dict(keys)
            yield keys
            if keys != before:
                self._write(keys)
        finally:
            os.close(lock)

    def _write(self, keys: dict[bytes, str]) -> None:
        temporary = self._path.with_suffix(".new")
        text = "".join(f"{key_text(key)} {name}".rstrip() + "\n" for key, name in keys.items())
        try:
            temporary.unlink(missing_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(handle)
            os.replace(temporary, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from error


class TrustedKey(ServiceAnswer, frozen=True):
    key: str
    because: Literal["this node", "mesh", "added"]
    name: str | None


def listing(service: Service) -> list[TrustedKey]:
    with service.read() as session:
        mesh = keys_of_mesh(service.runtime.log, session)
    own = service.runtime.home.node_key().public
    found = [TrustedKey(key_text(own), "this node", mesh.get(own) or None)]
    found += [TrustedKey(key_text(key), "mesh", name or None) for key, name in mesh.items() if key != own]
    return found + [TrustedKey(key_text(key), "added", name or None) for key, name in _written(service).read().items()]


def trusted(service: Service) -> set[bytes]:
    return {parse_key(each.key) for each in listing(service)}


def add(service: Service, key: str, name: str) -> tuple[str, bool]:
    """Returns the key in canonical form, and whether it is new on the list."""
    service.check_writer()
    public = parse_worker(key)
    return key_text(public), _written(service).add(public, name)


def remove(service: Service, key: str) -> tuple[str, bool]:
    """Returns the key in canonical form, and whether it was on the list."""
    service.check_writer()
    public = parse_worker(key)
    return key_text(public), _written(service).remove(public)


def _written(service: Service) -> TrustedKeys:
    return TrustedKeys(service.runtime.home.git_trusted)
