"""The tempo in force, for processes that hear no beats: every process of a home that hears them writes a change of the
tempo into the file `tempo.changes`. Without such a process the tempo in force is the policy's first.
"""

from contextlib import suppress

import msgspec

from hocket.kernel.beats.policy import TempoPolicy, policy_hash
from hocket.kernel.beats.tempo import CHANGES_MAX, TempoChange, Timeline, timeline
from hocket.kernel.decoding import decode_json
from hocket.node.home import Home

FILE_BYTES_MAX = 64 * 1024


class KeptChanges(msgspec.Struct, frozen=True):
    """The changes of the tempo under a policy that has this hash."""

    policy: str
    changes: tuple[TempoChange, ...]


def home_timeline(home: Home, policy: TempoPolicy) -> Timeline:
    """The tempi of the cluster, as far as this home has heard of them."""
    first = timeline(policy.initial_tempo)
    return Timeline((*first.changes, *_kept(home, policy)))


def keep_change(home: Home, policy: TempoPolicy, change: TempoChange) -> None:
    before = tuple(each for each in _kept(home, policy) if each.since_ms < change.since_ms)
    kept = KeptChanges(_hash(policy), (*before, change)[1 - CHANGES_MAX :])
    with suppress(OSError):  # the next change is written again
        home.keep_tempo_changes(msgspec.json.encode(kept).decode())


def _kept(home: Home, policy: TempoPolicy) -> tuple[TempoChange, ...]:
    try:
        with home.tempo_changes.open("rb") as file:
            kept = decode_json(file.read(FILE_BYTES_MAX), KeptChanges)
    except (OSError, msgspec.MsgspecError):
        return ()
    return kept.changes if kept.policy == _hash(policy) else ()


def _hash(policy: TempoPolicy) -> str:
    return policy_hash(policy, policy.initial_tempo)
