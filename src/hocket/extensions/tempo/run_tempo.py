"""What a run asks about its beats. `extensions.tempo` has the answers; a run of a job without a score, on a worker
without a tempo, asks nothing.
"""

from typing import Protocol

from hocket.extensions.tempo.beats.score import PhrasePlace
from hocket.extensions.tempo.beats.tempo import Beat, Tempo
from hocket.kernel.policy import Score


class RunTempo(Protocol):
    """The beats of one run. Any thread may call it."""

    @property
    def score(self) -> Score | None:
        """The score of the job, as it fits into the bars of the cluster."""

    @property
    def phrase(self) -> int:
        """Which phrase this run is, from 0."""

    @property
    def beat(self) -> Beat: ...
    @property
    def beat_ms(self) -> int: ...
    @property
    def tempo(self) -> Tempo: ...
    @property
    def now_ms(self) -> int:
        """The time of the cluster."""

    @property
    def place(self) -> PhrasePlace:
        """Where the phrase is. After its end, the beats left are negative."""

    @property
    def is_waiting(self) -> bool: ...
    def begin(self) -> float:
        """The handler starts now. Returns how many seconds its phrase has."""

    def left_s(self) -> float:
        """How many seconds are left until the hard end of the job's budget."""

    def ask(self, thread_id: str) -> None:
        """Help was asked for in this thread."""

    def begin_wait(self, kind: str) -> float:
        """A wait begins. Returns how many seconds it may take."""

    def end_wait(self, kind: str) -> int:
        """A wait has ended. Returns how long the phrase has waited for this kind of thing, in milliseconds."""

    def report(self, note: bytes) -> None:
        """The handler has reported its progress, as JSON. A number from 0 to 1 is the part that is done."""

    def has_new_bar(self) -> bool:
        """Whether a downbeat has passed since this was last asked."""
