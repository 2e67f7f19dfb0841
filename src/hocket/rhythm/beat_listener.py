"""Takes the frames of pulses from the bus. The first frame of a leader waits until the leader's lock has been read
again, because a frame can come before the log has the lock: at most for one beat, and other frames do not wait for it.
"""

from hocket.kernel.beats.messages import PulseMessage
from hocket.rhythm.heard_beats import HeardBeats
from hocket.rhythm.leader_check import LeaderCheck
from hocket.rhythm.tempo_messages import TempoQueue

# How often the members that may lead are read, and how often the lock is while a frame waits.
MEMBERS_S = 5.0
CONFIRM_S = 0.1


class BeatListener:
    """A frame that waits has its place by its sender, so a member that sends many loses its own."""

    def __init__(self, beats: HeardBeats, leaders: LeaderCheck) -> None:
        self._beats, self._leaders, self._clock = beats, leaders, beats.clock
        self._waiting: dict[int, tuple[PulseMessage, int]] = {}
        self._members_ms = self._looked_ms = 0

    async def run(self, queue: TempoQueue[PulseMessage]) -> None:
        """Listens for ever."""
        while True:
            heard = await queue.get(CONFIRM_S if self._waiting else MEMBERS_S)
            if heard is not None:
                self._hear(heard.message, heard.at.node)
            await self._look()

    def _hear(self, message: PulseMessage, sender: int) -> None:
        if self._beats.needs_confirmation(message, sender):
            self._waiting[sender] = message, self._clock.monotonic_ms()
        else:
            self._beats.hear(message, sender)

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._members_ms:
            self._members_ms = now_ms + round(MEMBERS_S * 1000)
            await self._leaders.refresh_members()
        if not self._waiting or now_ms < self._looked_ms + round(CONFIRM_S * 1000):
            return
        self._looked_ms = now_ms
        await self._leaders.refresh()
        for sender, (message, came_ms) in list(self._waiting.items()):
            is_over = self._clock.monotonic_ms() - came_ms > message.frame.beat_ms
            if is_over or not self._beats.needs_confirmation(message, sender):
                del self._waiting[sender]
                self._beats.hear(message, sender, came_ms)
