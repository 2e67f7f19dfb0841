"""What a worker with a tempo tells others: a StatusClaim of each job that it runs, when its state changes and on each
beat, in the lane of the job's project, and its load on each beat. Handlers have no part in it. A beat carries a bounded
number of changes; the next beat tells the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from hocket.events import Emit, Event
from hocket.events.jobs import JobHandedBack, JobPostponed, LeaseLost, ResultDiscarded, RunFailed, RunFinished
from hocket.extensions.tempo.heard_beats import BeatSource
from hocket.extensions.tempo.messages import ROLES_MAX, ClaimState, NodeLoad, StatusClaim
from hocket.extensions.tempo.run_pace import ScoreKeeper
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.work.presence import MachineLoad

# How many changes a worker tells between two beats, and how far apart it tells them.
CHANGES_MAX = 256
CHANGES_APART_S = 0.02

_PHASES = {"plan": ClaimState.PLANNING, "review": ClaimState.REVIEW}
_GONE = RunFinished | RunFailed | JobHandedBack | JobPostponed | ResultDiscarded | LeaseLost


class StatusClaims:
    """`agent_id` is the worker, which has so many `slots`. `reading` reads the clock of its log, and `queues`
    counts the jobs that wait, by kind.
    """

    def __init__(
        self,
        beats: BeatSource,
        agent_id: str,
        slots: int,
        reading: Callable[[], Hlc],
        queues: Callable[[], Awaitable[Mapping[str, int]]],
    ) -> None:
        self._beats, self._agent_id, self._slots = beats, agent_id, slots
        self._reading, self._queues, self._machine = reading, queues, MachineLoad()
        self._keepers: dict[str, ScoreKeeper] = {}
        self._told: dict[str, ClaimState] = {}
        self._ended: dict[str, tuple[str, StatusClaim]] = {}
        self._room = CHANGES_MAX
        self._changed = asyncio.Event()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def keeper(self, job: Job) -> ScoreKeeper:
        """The beats of a run of this job. From its start on, the run is told of."""
        made = ScoreKeeper(self._beats, job, self.changed)
        self._keepers[ulid_text(job.id)] = made
        return made

    def changed(self) -> None:
        """May be called from any thread. A worker of short jobs calls it often, and to wake the loop takes long: so it
        is woken once for all changes that the next messages tell.
        """
        if (loop := self._loop) is not None and not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._changed.set)

    def listening(self, emit: Emit) -> Emit:
        """Passes events on, and takes note of runs that end."""

        def hear(event: Event) -> None:
            emit(event)
            if isinstance(event, _GONE):
                self._end(event)

        return hear

    def _end(self, event: _GONE) -> None:
        kept = self._keepers.pop(event.job_id, None)
        self._told.pop(event.job_id, None)
        if kept is None or not isinstance(event, RunFinished | RunFailed):
            return
        state = ClaimState.DONE if isinstance(event, RunFinished) else ClaimState.FAILED
        if len(self._ended) < CHANGES_MAX:
            self._ended[event.job_id] = kept.project, self._claim(event.job_id, kept, state)
        self.changed()

    async def send(self, messages: TempoMessages) -> None:
        """Sends for ever."""
        self._loop = asyncio.get_running_loop()
        beat = asyncio.ensure_future(self._beats.next_beat())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while True:
                await asyncio.wait((beat, changed), return_when=asyncio.FIRST_COMPLETED)
                if is_beat := beat.done():
                    beat.result()
                    beat = asyncio.ensure_future(self._beats.next_beat())
                    self._room = CHANGES_MAX
                if changed.done():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                self._is_woken = False
                for project, claims in self._due(is_beat).items():
                    await messages.publish_all(claims, project)
                if not self._room:  # the rest is for the next beat
                    self._is_woken = True
                if is_beat:
                    await messages.publish(await self._load(), self._beats.policy.cluster_id)
                await asyncio.sleep(CHANGES_APART_S)
        finally:
            beat.cancel()
            changed.cancel()
            self._loop = None

    def _due(self, is_beat: bool) -> dict[str, list[StatusClaim]]:
        """The claims to send now, by the project that has their lane."""
        found: dict[str, list[StatusClaim]] = {}
        for project, claim in self._claims(is_beat):
            found.setdefault(project, []).append(claim)
        return found

    def _claims(self, is_beat: bool) -> list[tuple[str, StatusClaim]]:
        ended = [*self._ended][: self._room]
        self._room -= len(ended)
        running = [(job_id, kept, _state(kept)) for job_id, kept in self._keepers.items() if kept.has_begun]
        if not is_beat:
            running = [each for each in running if self._told.get(each[0]) is not each[2]][: self._room]
            self._room -= len(running)
        self._told |= {job_id: state for job_id, _, state in running}
        told = [(kept.project, self._claim(job_id, kept, state)) for job_id, kept, state in running]
        return [self._ended.pop(job_id) for job_id in ended] + told

    def _claim(self, job_id: str, kept: ScoreKeeper, state: ClaimState) -> StatusClaim:
        now = self._beats.now()
        return StatusClaim(
            agent_id=self._agent_id,
            task_id=job_id,
            beat_index=now.beat.index,
            state=state,
            beats_left=kept.place_at(now).beats_left,
            progress=1.0 if state is ClaimState.DONE else kept.progress,
            notes="",
            hlc=hlc_text(self._reading()),
            wait_for=kept.waits_for if state is ClaimState.WAITING else (),
        )

    async def _load(self) -> NodeLoad:
        busy = sum(kept.has_begun for kept in self._keepers.values())
        now = self._reading()
        queues = await self._queues()
        deepest = dict(sorted(queues.items(), key=lambda each: -each[1])[:ROLES_MAX])
        return NodeLoad(
            node_text(now.node),
            sum(queues.values()),
            min(busy, self._slots),
            self._slots,
            hlc_text(now),
            deepest,
            self._machine.cpu(),
            self._machine.gpu(),
        )


def _state(kept: ScoreKeeper) -> ClaimState:
    if kept.is_waiting:
        return ClaimState.WAITING
    return ClaimState.EXECUTING if kept.score is None else _PHASES.get(kept.place.phase, ClaimState.EXECUTING)
