"""What `hocket top` shows at one moment: the beat, the nodes, who holds what until when, the queue, alarms and cost."""

from typing import Any

from hocket.api import Service, ServiceAnswer, locks, nodes
from hocket.api.nodes import LiveNode
from hocket.extensions.cost.costs import CostRow, job_cost
from hocket.extensions.cost.node_costs import prices_of, rates_of
from hocket.extensions.tempo.beats.kpis import Alarm, alarms
from hocket.extensions.tempo.beats.phases import phase_at
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.beats.tempo import beat_at
from hocket.extensions.tempo.window_archive import kept_reports
from hocket.families.jobs.progress import newest_notes
from hocket.families.jobs.view import counted_as, readable
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.store import JobFilter, Session, Stage

# The most holds that are shown, and the newest ended jobs whose costs are summed.
HOLDS_MAX = 200
JOBS_MAX = 500
COST_MS = 3_600_000


class BeatOnTop(ServiceAnswer, frozen=True):
    cluster_id: str
    tempo_bpm: int
    beat_index: int
    bar_len_beats: int
    phase: str
    window: str
    next_ms: int


class HoldOnTop(ServiceAnswer, frozen=True):
    """A job or a lock, its holder, until when it is held, and the progress of a job."""

    type: str
    what: str
    holder: str
    until_ms: int | None
    progress: Any = None


class Top(ServiceAnswer, frozen=True):
    """`alarms` are those of the newest window, `window`, on the log; without a window, None and none. `cost` is that of
    the jobs that ended within an hour; None without a rate card. `unpriced` of their runs have no price by that card,
    and are not in it.
    """

    now_ms: int
    beat: BeatOnTop
    nodes: list[LiveNode]
    holds: list[HoldOnTop]
    queue: dict[str, int]
    window: str | None
    alarms: list[Alarm]
    cost: float | None
    currency: str | None
    unpriced: int


class TopView:
    """Looks again and again. What an ended job has cost does not change, so it is computed once."""

    def __init__(self, service: Service, policy: TempoPolicy) -> None:
        self._service, self._policy = service, policy
        self._rates = rates_of(service.runtime.home)
        self._costs: dict[bytes, CostRow] = {}

    def look(self) -> Top:
        service = self._service
        now_ms = service.runtime.log.physical()
        held = locks.listing(service)
        with service.read() as session:
            names = service.names(session)
            claimed = sorted(session.claimed(), key=lambda entry: entry.job.deadline or 0)
            queue = {counted_as(stage, None): 0 for stage in Stage if stage is not Stage.DONE}
            for (stage, _), count in session.counts().items():
                if stage is not Stage.DONE:
                    queue[counted_as(stage, None)] += count
            costs = self._ended_costs(session, now_ms)
            reports = kept_reports(session, now_ms, 1)
            notes = newest_notes(session, (entry.job for entry in claimed[:HOLDS_MAX]))
        jobs = []
        for entry in claimed[:HOLDS_MAX]:
            holder = "" if entry.job.claimer is None else node_text(entry.job.claimer)
            what = f"{entry.job.kind} {ulid_text(entry.job.id)}"
            note = notes.get(entry.job.id)
            progress = None if note is None else readable(note)
            jobs.append(HoldOnTop("job", what, names.get(holder, holder), entry.job.deadline, progress))
        return Top(
            now_ms,
            _beat(self._policy, now_ms),
            nodes.live(service),
            jobs + [HoldOnTop("lock", each.key, f"{each.agent}@{each.holder}", each.expires_ms) for each in held],
            queue,
            reports[0].window if reports else None,
            alarms(reports[0]) if reports else [],
            None if self._rates is None else sum(each.cost for each in costs),
            None if self._rates is None else self._rates.currency,
            sum(each.unpriced for each in costs),
        )

    def _ended_costs(self, session: Session, now_ms: int) -> list[CostRow]:
        if self._rates is None:
            return []
        newest = [entry.job for entry in session.jobs(JobFilter((Stage.DONE,)), JOBS_MAX)]
        ended = [job for job in newest if job.done is not None and job.done.wall > now_ms - COST_MS]
        runtime, known = self._service.runtime, self._costs
        prices = prices_of(runtime.home, self._rates, runtime.log.reading())
        self._costs = {
            job.id: known[job.id] if job.id in known else job_cost(session, runtime.blobs, job, prices) for job in ended
        }
        return list(self._costs.values())


def _beat(policy: TempoPolicy, now_ms: int) -> BeatOnTop:
    tempo = policy.initial_tempo
    beat = beat_at(tempo, now_ms)
    phase = phase_at(policy.phases, tempo.bar_len, beat.index).name
    next_ms = beat.epoch_ms + tempo.beat_ms
    return BeatOnTop(policy.cluster_id, tempo.bpm, beat.index, tempo.bar_len, phase, wall_text(beat.window_ms), next_ms)
