"""The webhooks of a home and the addresses that its owner allows, in one file that only the owner can read: the secrets
with which deliveries are signed are in it. How far each webhook has come is in a file beside it.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import msgspec

from hocket.errors import StoreError, Unreachable
from hocket.extensions.file_tasks import WEBHOOKS_FILE as FILE
from hocket.families.liveness import ProcessTurn
from hocket.kernel.decoding import decode_json
from hocket.node.log_events import EventFilter

PLACES = "webhooks.places.json"
WEBHOOKS_MAX = 100
ALLOWED_MAX = 1_000
# How long a change waits for that of another process.
CHANGE_S = 10.0
_TURN = "webhooks.change"

T = TypeVar("T")


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id` tells it from an earlier one of the same name. `after` is where it begins. One that a program has made sees
    what the program's token, with this public id, may read.
    """

    id: str
    name: str
    url: str
    secret: str
    after: int
    made_ms: int
    token: str | None = None
    job: str | None = None
    kind: str | None = None
    types: tuple[str, ...] = ()
    submitter: str | None = None

    @property
    def wanted(self) -> EventFilter:
        return EventFilter(self.job, self.kind, self.types, self.submitter)


class Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    allowed: tuple[str, ...] = ()
    hooks: tuple[Webhook, ...] = ()

    def named(self, name: str) -> Webhook | None:
        return next((each for each in self.hooks if each.name == name), None)


class WebhookFile:
    def __init__(self, home: Path, processes: Path) -> None:
        self._path, self._places, self._processes = home / FILE, home / PLACES, processes

    def read(self) -> Webhooks:
        return _read(self._path, Webhooks) or Webhooks()

    @contextmanager
    def changing(self) -> Iterator[list[Webhooks]]:
        """The webhooks now, in a list whose last item is written at the end of the block. One process at a time."""
        with closing(self._turn()):
            webhooks = [self.read()]
            yield webhooks
            if len(webhooks) > 1:
                _write(self._path, webhooks[-1])

    def places(self) -> dict[str, int]:
        """How far each webhook has come, by its id."""
        return _read(self._places, dict[str, int]) or {}

    def keep_places(self, places: dict[str, int]) -> None:
        _write(self._places, places)

    def _turn(self) -> ProcessTurn:
        until = monotonic() + CHANGE_S
        while (turn := ProcessTurn.take(self._processes, _TURN)) is None:
            if monotonic() > until:
                raise Unreachable(f"another process has been changing {self._path} for {CHANGE_S:g} seconds; try again")
            sleep(0.01)
        return turn


def _read(path: Path, type: type[T]) -> T | None:
    try:
        return decode_json(path.read_bytes(), type)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"cannot read {path}: {error}; mend it, or move it away") from None


def _write(path: Path, value: object) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
