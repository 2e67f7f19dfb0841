"""Opens the sealed messages of one subscription: each counts once. A message whose author is not known yet is kept
aside for a while: a new member talks before every log has its invitation.
"""

from collections import Counter, deque
from collections.abc import Callable

from hocket.bus.messages import BusMessage
from hocket.kernel.envelope import Drop, Envelope, Seen

# The messages of unknown authors that are kept, how long, and how often to look whether the authors are known by now.
EARLY_MAX = 16
EARLY_MS = 10_000
LOOK_S = 0.25


class MessageOpener:
    """`judge` decides whether a message counts, and `counts` has how many did not, by reason."""

    def __init__(
        self,
        judge: Callable[[BusMessage, Seen], Envelope | Drop],
        counts: Counter[Drop],
        now_ms: Callable[[], int],
    ) -> None:
        self._judge, self._counts, self._now_ms = judge, counts, now_ms
        self._seen = Seen()
        self._early: deque[tuple[int, BusMessage]] = deque(maxlen=EARLY_MAX)

    @property
    def has_early(self) -> bool:
        """Whether messages wait for their authors to be known."""
        return bool(self._early)

    def open(self, message: BusMessage) -> Envelope | None:
        """The content of a message that was received sealed; None if it does not count, or not yet."""
        judged = self._judge(message, self._seen)
        if isinstance(judged, Envelope):
            return judged
        self._counts[judged] += 1
        if judged is Drop.UNKNOWN:
            self._early.append((self._now_ms(), message))
        return None

    def open_early(self) -> list[tuple[BusMessage, Envelope]]:
        """The messages that count by now, as received and opened."""
        found = []
        for _ in range(len(self._early)):
            came_ms, message = self._early.popleft()
            judged = self._judge(message, self._seen)
            if isinstance(judged, Envelope):
                self._counts[Drop.UNKNOWN] -= 1
                found.append((message, judged))
            elif judged is Drop.UNKNOWN and self._now_ms() < came_ms + EARLY_MS:
                self._early.append((came_ms, message))
        return found
