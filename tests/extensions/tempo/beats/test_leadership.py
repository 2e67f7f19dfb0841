"""The rules together, on virtual time: three pulses whose leader is killed and paused again and again, a lock with a
lease in beats, a network that delays and repeats, clocks that differ, and an agent that judges frames and counts itself
when there are none.
"""

from itertools import pairwise
from random import Random

import pytest

from hocket.extensions.tempo.beats import beat_at, hold_end
from hocket.extensions.tempo.frame_judge import (
    DegradedTempo,
    FrameRefusal,
    HeardPulse,
    JudgeState,
    degraded_beat,
    is_leaderless,
    judge_frame,
    with_local_beat,
)
from hocket.extensions.tempo.messages import BeatFrame, PulseMessage, make_frame
from hocket.extensions.tempo.policy import make_policy, policy_hash
from hocket.kernel.clock import Hlc, parse_wall

POLICY = make_policy("one", 60, 4)
TEMPO = POLICY.initial_tempo
HASH = policy_hash(POLICY, TEMPO)
BEATS = 200
STEP_MS = 50
SKEW_MS = 500
DELAY_MS_MAX = 300
START_MS = 1_756_865_544_000


class Lock:
    """An arbiter with a clock of its own: one holder at a time, and a new fence for each."""

    def __init__(self) -> None:
        self.holder, self.fence, self.until_ms = 0, 0, 0

    def hold(self, pulse: int, now_ms: int) -> int:
        """The fence if this pulse holds the lock now, else 0."""
        if pulse != self.holder or now_ms >= self.until_ms:
            if now_ms < self.until_ms:
                return 0
            self.holder, self.fence = pulse, self.fence + 1
        self.until_ms = hold_end(TEMPO, {}, 1, now_ms)
        return self.fence


class Pulse:
    """A pulse that wakes sends the beat that it was about to send, and only then looks at the lock."""

    def __init__(self, number: int, off_ms: int) -> None:
        self.number, self.off_ms, self.away_until_ms = number, off_ms, 0
        self.fence = self.sent_ms = 0

    def step(self, lock: Lock, now_ms: int) -> PulseMessage | None:
        if now_ms < self.away_until_ms:
            return None
        here_ms = now_ms + self.off_ms
        epoch_ms, fence = beat_at(TEMPO, here_ms).epoch_ms, self.fence
        self.fence = lock.hold(self.number, now_ms)
        if epoch_ms == self.sent_ms or not (fence or self.fence):
            return None
        self.sent_ms = epoch_ms
        return PulseMessage(
            make_frame("one", TEMPO, POLICY.phases, HASH, here_ms, Hlc(here_ms, 0, 0)), fence or self.fence
        )


class Agent:
    """`beats` are those that it lived through, each with the fence of its leader, or 0 if it counted itself."""

    def __init__(self) -> None:
        self.state, self.heard_ms = JudgeState(), 0
        self.heard: dict[int, HeardPulse] = {}
        self.beats: list[tuple[BeatFrame, int]] = []
        self.refusals: list[FrameRefusal] = []

    def hear(self, message: PulseMessage, sender: int, now_ms: int) -> None:
        told_ms = parse_wall(message.frame.deadline_at) - TEMPO.beat_ms
        self.heard[sender] = HeardPulse(told_ms - now_ms, now_ms)
        found = judge_frame(POLICY, self.state, message, sender, now_ms, SKEW_MS)
        if isinstance(found, FrameRefusal):
            self.refusals.append(found)
            return
        self.state, self.heard_ms = found, now_ms
        self.beats.append((message.frame, message.fence))

    def step(self, now_ms: int) -> None:
        last = self.state.last
        if last is None or not is_leaderless(last.tempo, self.heard_ms, now_ms):
            return
        _, beat = degraded_beat(DegradedTempo(last.tempo, 0, last.epoch_ms), self.heard, now_ms)
        if beat is not None:
            frame = make_frame("one", last.tempo, POLICY.phases, HASH, beat.epoch_ms, Hlc(now_ms, 0, 0))
            self.state = with_local_beat(self.state, frame)
            self.beats.append((frame, 0))


def played(seed: int, pulses_away: int) -> Agent:
    rng = Random(seed)
    lock, agent = Lock(), Agent()
    pulses = [Pulse(number, rng.randint(-80, 80)) for number in (1, 2, 3)]
    on_the_way: list[tuple[int, int, int, PulseMessage]] = []
    for now_ms in range(START_MS, START_MS + BEATS * TEMPO.beat_ms, STEP_MS):
        for pulse in rng.sample(pulses, 3):
            if (message := pulse.step(lock, now_ms)) is not None:
                for _ in range(rng.choice((1, 1, 2))):
                    arrival_ms = now_ms + rng.randint(0, DELAY_MS_MAX)
                    on_the_way.append((arrival_ms, rng.randint(0, 10**9), pulse.number, message))
        if rng.random() < 0.02:
            # Mostly the leader, sometimes all of them.
            gone = [each for each in pulses if each.fence] if rng.random() < 0.8 else pulses[:pulses_away]
            for pulse in gone:
                pulse.away_until_ms = now_ms + rng.randint(200, 6000)
                if rng.random() < 0.5:
                    pulse.fence = 0  # killed, and started again with nothing in mind
        for each in sorted(each for each in on_the_way if each[0] <= now_ms):
            on_the_way.remove(each)
            agent.hear(each[3], each[2], now_ms)
        agent.step(now_ms)
    return agent


@pytest.mark.slow
@pytest.mark.touches("BB-03", "BB-04", "BB-09")
@pytest.mark.parametrize("pulses_away", [2, 3])
def test_leaders_come_and_go_for_200_beats(pulses_away: int) -> None:
    deposed = degraded = 0
    for seed in range(5):
        agent = played(seed, pulses_away)
        frames = [frame for frame, _ in agent.beats]
        for before, after in pairwise(frames):
            away_ms = after.epoch_ms - before.epoch_ms
            assert TEMPO.beat_ms <= away_ms <= 2 * TEMPO.beat_ms, f"seed {seed}: {before.beat_epoch} {after.beat_epoch}"
        assert {frame.tempo for frame in frames} == {TEMPO}
        fences = [fence for _, fence in agent.beats if fence]
        assert fences == sorted(fences), f"seed {seed}: a deposed leader was heard"
        deposed += agent.refusals.count(FrameRefusal.DEPOSED)
        degraded += len(frames) - len(fences)
    # The story had what it is about.
    assert deposed and degraded
