"""How far the archives of this node reach: what the last complete run into each of them left in the home, with the MAC
of the node. Pruning asks it before it deletes; commands that find an op neither here nor in an archive that they were
given look where it says.
"""

from typing import NamedTuple

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.store import Session

ARCHIVES_MAX = 8
# The key of the node.
ARCHIVES = "archives"


class ArchivedHead(NamedTuple):
    """Of an author: the packed time of its last archived op, and the id of the entry that has it. Everything that it
    wrote until then is in the archive.
    """

    hlc: bytes
    entry_id: bytes


class ReachedArchive(msgspec.Struct, frozen=True):
    """An archive, and when a run into it was last complete. `heads` has the packed time and the entry's id, in
    hexadecimal, by the author's id in hexadecimal.
    """

    address: str
    done_ms: int
    until_ms: int
    heads: dict[str, tuple[str, str]]


def reached_archives(session: Session) -> list[ReachedArchive]:
    """The archives that this node has written, the one that was written last first."""
    noted = session.own_meta(ARCHIVES)
    return [] if noted is None else decode_json(noted, list[ReachedArchive])


def archived_heads(session: Session) -> dict[bytes, ArchivedHead]:
    """How far the ops of each author are in some archive of this node. Authors are eight bytes, as in the store."""
    found: dict[bytes, ArchivedHead] = {}
    for archive in reached_archives(session):
        for node, head in noted_heads(session, archive.address).items():
            if node not in found or head.hlc > found[node].hlc:
                found[node] = head
    return found


def noted_heads(session: Session, address: str) -> dict[bytes, ArchivedHead]:
    """Where the last complete run into this archive has ended, for each author."""
    found = next((each.heads for each in reached_archives(session) if each.address == address), {})
    return {
        bytes.fromhex(author): ArchivedHead(bytes.fromhex(hlc), bytes.fromhex(entry))
        for author, (hlc, entry) in found.items()
    }


def note_archive(session: Session, address: str, done_ms: int, until_ms: int, heads: dict[bytes, ArchivedHead]) -> None:
    """A run into an archive is complete."""
    written = {node.hex(): (head.hlc.hex(), head.entry_id.hex()) for node, head in heads.items()}
    others = [each for each in reached_archives(session) if each.address != address]
    noted = [ReachedArchive(address, done_ms, until_ms, written), *others]
    session.set_own_meta(ARCHIVES, msgspec.json.encode(noted[:ARCHIVES_MAX]))
