"""Where the tempo policy of a node is: `tempo.yaml` in its home, or a file that the caller names; and the tempo in
force, for processes that hear no beats. Every process of a home that hears them writes a change of the tempo into the
file `tempo.changes`. Without such a process the tempo in force is the policy's first.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from os import PathLike
from pathlib import Path

import msgspec

from hocket.errors import Usage
from hocket.extensions.tempo.beats.file_fields import FILE_BYTES_MAX, BadField
from hocket.extensions.tempo.beats.placing import mark_at
from hocket.extensions.tempo.beats.policy import TempoPolicy, make_policy, policy_hash, read_policy
from hocket.extensions.tempo.beats.tempo import CHANGES_MAX, TempoChange, Timeline, timeline
from hocket.kernel.decoding import decode_json
from hocket.kernel.ops import beat_at
from hocket.node.home import Home
from hocket.node.runtime import Runtime

# The cluster of nodes without a policy.
CLUSTER_DEFAULT = "local"
CHANGES_BYTES_MAX = 64 * 1024


def readable_policy(home: Home) -> TempoPolicy | None:
    """The home's own policy; None if it has none that can be read. Who needs one says what is wrong with it."""
    try:
        return tempo_policy(home)
    except Usage:
        return None


def tempo_policy(home: Home, file: PathLike[str] | str | None = None) -> TempoPolicy | None:
    """The policy of the file, or the home's own; None if the home has none. Raises Usage with what is wrong."""
    path = home.tempo if file is None else Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            return read_policy(opened.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        if file is None:
            return None
        raise Usage(f"there is no tempo policy at {path}") from None
    except OSError as error:
        raise Usage(f"cannot read the tempo policy {path}: {error.strerror}") from None
    except BadField as error:
        raise Usage(f"bad tempo policy {path}: {error}") from None


def needed_policy(home: Home, file: str | None) -> TempoPolicy:
    """The policy of the file, or of the home. Raises Usage if there is none."""
    policy = tempo_policy(home, file)
    if policy is None:
        raise Usage(
            f"there is no tempo policy at {home.tempo}; write `cluster_id: NAME` into it, or give --policy FILE"
        )
    return policy


def assumed_policy(home: Home, file: str | None = None) -> TempoPolicy:
    """The policy of the file, or of the home; if there is none, that of a cluster of one machine."""
    return tempo_policy(home, file) or make_policy(CLUSTER_DEFAULT)


class KeptChanges(msgspec.Struct, frozen=True):
    """The changes of the tempo under a policy that has this hash."""

    policy: str
    changes: tuple[TempoChange, ...]


def home_timeline(home: Home, policy: TempoPolicy) -> Timeline:
    """The tempi of the cluster, as far as this home has heard of them."""
    first = timeline(policy.initial_tempo)
    return Timeline((*first.changes, *_kept(home, policy)))


def keep_time(runtime: Runtime) -> None:
    """Ops of a node with a tempo carry their beat."""
    home = runtime.home
    runtime.beat_ms = cache(lambda: None if (found := tempo_policy(home)) is None else found.initial_tempo.beat_ms)
    if (policy := readable_policy(home)) is not None:
        _stamp(runtime, policy)


def _stamp(runtime: Runtime, policy: TempoPolicy) -> None:
    tempi = home_timeline(runtime.home, policy)
    runtime.log.beat = lambda wall: beat_at(mark_at(tempi, wall))


def tempo_changed(runtime: Runtime, policy: TempoPolicy) -> Callable[[TempoChange], None]:
    """What a process does that hears of a change of the tempo under this policy."""

    def keep(change: TempoChange) -> None:
        keep_change(runtime.home, policy, change)
        if runtime.log.beat is not None:
            _stamp(runtime, policy)

    return keep


def keep_change(home: Home, policy: TempoPolicy, change: TempoChange) -> None:
    before = tuple(each for each in _kept(home, policy) if each.since_ms < change.since_ms)
    kept = KeptChanges(_hash(policy), (*before, change)[1 - CHANGES_MAX :])
    with suppress(OSError):  # the next change is written again
        home.keep_tempo_changes(msgspec.json.encode(kept).decode())


def _kept(home: Home, policy: TempoPolicy) -> tuple[TempoChange, ...]:
    try:
        with home.tempo_changes.open("rb") as file:
            kept = decode_json(file.read(CHANGES_BYTES_MAX), KeptChanges)
    except (OSError, msgspec.MsgspecError):
        return ()
    return kept.changes if kept.policy == _hash(policy) else ()


def _hash(policy: TempoPolicy) -> str:
    return policy_hash(policy, policy.initial_tempo)
