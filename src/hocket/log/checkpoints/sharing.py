"""What two nodes tell each other of checkpoints, in the exchange that they make anyway. One asks: it says of which
notes it has what version, and sends those that have changed since it last asked. The other judges them, cosigns those
that are right, and answers with the notes that the asker does not have so.

A node gives away its own checkpoint only to a node that has the entries. What no other node has may still be taken off
the log by a node that finds itself behind its past, and a checkpoint of it would look like a second history.
"""

import random
from collections.abc import Mapping, Sequence

import msgspec

from hocket.events import Event
from hocket.kernel.checkpoints.notes import NOTE_BYTES_MAX
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import digest
from hocket.kernel.postcard import Malformed
from hocket.log import Log
from hocket.log.lost_past import ops_there
from hocket.store import Session
from hocket.store.checkpoint_rows import CheckpointState

# So many notes, and versions of notes, are in one message.
NOTES_MAX, VERSIONS_MAX = 32, 4_096
BODY_BYTES_MAX = 512 * 1024
_TOLD = (CheckpointState.SIGNED, CheckpointState.AHEAD, CheckpointState.CONFLICT)
_VERSION_BYTES, _TIME_BYTES = 8, 20


class _CheckpointQuestion(msgspec.Struct, frozen=True):
    """`has` is the time of the last op of the receiver that the asker has, in hexadecimal. `versions` are of the notes
    of each author.
    """

    has: str = ""
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class _CheckpointAnswer(msgspec.Struct, frozen=True):
    notes: tuple[str, ...] = ()


Notes = Mapping[str, Sequence[str]]


class CheckpointSharing:
    """What this process has told each peer, by address."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: dict[str, dict[str, str]] = {}
        self._asked = 0

    def question(self, address: str, has_of_peer: Hlc | None, peer_has: Hlc | None) -> bytes | None:
        """What to ask a peer: `has_of_peer` is its last op here, `peer_has` this node's last op there. None if there is
        nothing to share.
        """
        if not self._log.checkpoints.has_checkpoints:
            return None
        with self._log.store.read() as session:
            known = _notes(self._log, session, peer_has)
        told = self._told.setdefault(address, {})
        versions = {author: _version(notes) for author, notes in known.items()}
        news = [author for author, version in versions.items() if told.get(author) != version]
        self._asked += 1
        chance = random.Random(self._asked)
        chosen = _some(news, known, chance)
        told.update({author: versions[author] for author in chosen})
        has = "" if has_of_peer is None else pack(has_of_peer).hex()
        if len(versions) > VERSIONS_MAX:
            versions = dict(chance.sample(sorted(versions.items()), VERSIONS_MAX))
        notes = tuple(note for author in chosen for note in known[author])
        return msgspec.json.encode(_CheckpointQuestion(has, versions, notes))

    def take(self, address: str, answer: bytes) -> list[Event]:
        """Takes the answer of a peer. One that cannot be read says nothing."""
        try:
            notes = decode_json(answer, _CheckpointAnswer).notes
        except (msgspec.MsgspecError, RecursionError):
            return []
        return self._log.checkpoints.receive(_bytes(notes))

    def forget(self, address: str) -> None:
        """The peer may be another one, or has lost what it was told."""
        self._told.pop(address, None)


def last_op(session: Session, node: int) -> Hlc | None:
    """The time of the last op of a node that is here."""
    hlc, _ = session.latest_of(node.to_bytes(8, "big"))
    return unpack(hlc) if any(hlc) else None


def answer(log: Log, body: bytes) -> tuple[bytes, list[Event]]:
    """The answer to a peer's question. Raises Malformed."""
    try:
        asked = decode_json(body, _CheckpointQuestion)
        has = bytes.fromhex(asked.has)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise Malformed("an unreadable question about checkpoints") from None
    if len(has) not in (0, _TIME_BYTES):
        raise Malformed("the time of an op has another length")
    events = log.checkpoints.receive(_bytes(asked.notes))
    with log.store.read() as session:
        known = _notes(log, session, unpack(has) if has else None)
    news = [author for author, notes in known.items() if asked.versions.get(author) != _version(notes)]
    chosen = _some(news, known, random.Random(body))
    notes = tuple(note for author in chosen for note in known[author])
    return msgspec.json.encode(_CheckpointAnswer(notes)), events


def _notes(log: Log, session: Session, peer_has: Hlc | None) -> dict[str, list[str]]:
    """The notes of each author that a peer may have, which has this node's own ops up to this time."""
    if not log.checkpoints.has_checkpoints:
        return {}
    is_same = peer_has is not None and peer_has.node == log.node and bool(ops_there(session, peer_has))
    until = pack(peer_has) if peer_has is not None and is_same else b""
    found: dict[str, list[str]] = {}
    for row in session.checkpoints():
        is_private = row.author == log.author and row.state == CheckpointState.SIGNED and row.hlc > until
        if row.state in _TOLD and not is_private:
            found.setdefault(row.author.hex(), []).append(row.note.decode())
        elif row.state == CheckpointState.HORIZON:
            found[f"{row.state} {row.author.hex()}"] = [row.note.decode()]
    return found


def _some(authors: Sequence[str], known: Notes, chance: random.Random) -> list[str]:
    """So many of them as fit into a message, others each time. A simulation that is repeated gets them again."""
    chosen: list[str] = []
    left = NOTES_MAX
    for author in chance.sample(authors, len(authors)):
        left -= len(known[author])
        if left < 0:
            break
        chosen.append(author)
    return chosen


def _version(notes: Sequence[str]) -> str:
    return digest("\n".join(notes).encode(), _VERSION_BYTES).hex()


def _bytes(notes: Sequence[str]) -> list[bytes]:
    found = [each.encode("utf-8", "replace") for each in notes[:NOTES_MAX]]
    return [each for each in found if len(each) <= NOTE_BYTES_MAX]
