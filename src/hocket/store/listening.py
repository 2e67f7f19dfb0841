"""Notes between the processes of a store that several machines share. A write transaction may carry one note, and every
process that listens hears it after the commit. Notes are hints: one can be lost. The content is the bus's affair.
"""

from enum import StrEnum
from typing import Protocol

# A longer note would not fit into a notification of PostgreSQL, as text.
NOTE_BYTES_MAX = 2_000


class WakeUp(StrEnum):
    """How a process learns of changes that another machine commits."""

    LISTENING = "listening"
    POLLING = "polling"


class NoteSession(Protocol):
    def carry_note(self, note: bytes) -> None:
        """Tells every process that listens on the store, with the commit. A transaction carries its last note. A store
        of one machine carries none: the processes there have their pipes.
        """


class NoteListener(Protocol):
    """A connection that hears the notes of the store. One thread opens it and waits; any thread may close it."""

    def open(self) -> WakeUp:
        """Connects, again if need be. POLLING if the way to the store carries no notes. Raises StoreError."""

    def wait(self) -> list[bytes]:
        """Waits for notes. None come after `close`. Raises StoreError if the connection broke: notes may be lost."""

    def close(self) -> None: ...


class NoNotes:
    """The listener of a server that carries no notes."""

    def open(self) -> WakeUp:
        return WakeUp.POLLING

    def wait(self) -> list[bytes]:
        return []

    def close(self) -> None:
        pass
