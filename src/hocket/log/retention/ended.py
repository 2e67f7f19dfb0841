"""When a job, a message or a window has ended, for the rules of retention. What has not ended is never let go."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hocket.families.inbox.rules import DeliveryState, Message
from hocket.families.jobs.rules import Job
from hocket.families.retention.facts import KEEP_MS_MIN, REPORT_TYPE, WINDOW_TYPE, Retained
from hocket.families.retention.rules import RetentionRule, rule_for
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import CreateArtifact


def _keep_ms(rule: RetentionRule) -> int:
    return KEEP_MS_MIN if rule.keep_ms is None else rule.keep_ms


class _Ended(NamedTuple):
    done: int
    job_id: bytes


class EndedJobs:
    """Collects the jobs that the rules let go at a horizon: give it every job, then ask."""

    def __init__(self, rules: Iterable[RetentionRule], at_ms: int) -> None:
        self._rules, self._at_ms = tuple(rules), at_ms
        self._by_kind: dict[str, RetentionRule | None] = {}
        self._old: dict[bytes, str] = {}
        # Of kinds of which a number is kept: every ended job.
        self._counted: dict[str, list[_Ended]] = {}
        # The newest tick of each schedule stays: the next one is counted from it.
        self._newest_ticks: dict[bytes, bytes] = {}

    def take(self, job: Job) -> None:
        set_by = job.policy.set_by()
        if set_by is not None:
            before = self._newest_ticks.get(set_by)
            if before is None or (ulid_ms(job.id), job.id) > (ulid_ms(before), before):
                self._newest_ticks[set_by] = job.id
        if job.outcome is None or job.done is None:
            return
        if job.kind not in self._by_kind:
            self._by_kind[job.kind] = rule_for(self._rules, Retained.JOBS, job.kind)
        if (rule := self._by_kind[job.kind]) is None:
            return
        if rule.keep_count is not None:
            self._counted.setdefault(job.kind, []).append(_Ended(job.done.wall, job.id))
        has_key = job.policy.unique is not None and job.policy.unique_for_ms is not None
        holds_key = has_key and job.scheduled.wall + (job.policy.unique_for_ms or 0) > self._at_ms
        if job.done.wall + _keep_ms(rule) <= self._at_ms and not holds_key:
            self._old[job.id] = job.kind

    def gone(self) -> dict[bytes, str]:
        """The jobs that go, with their kinds."""
        stay = set(self._newest_ticks.values())
        for kind, ended in self._counted.items():
            rule = self._by_kind[kind]
            assert rule is not None and rule.keep_count is not None
            ended.sort(reverse=True)
            stay.update(each.job_id for each in ended[: rule.keep_count])
        return {job_id: kind for job_id, kind in self._old.items() if job_id not in stay}


def thread_of(message: Message) -> bytes:
    return message.thread or message.id


def ended_threads(messages: Iterable[Message], rules: Iterable[RetentionRule], at_ms: int) -> dict[bytes, list[bytes]]:
    """The threads that the rules let go, with their messages: a thread goes whole, so that no order changes."""
    rule = rule_for(rules, Retained.MESSAGES)
    if rule is None:
        return {}
    threads: dict[bytes, list[bytes]] = {}
    lasting: set[bytes] = set()
    for message in messages:
        threads.setdefault(thread_of(message), []).append(message.id)
        if max(_message_ended(message), message.last.wall) + _keep_ms(rule) > at_ms:
            lasting.add(thread_of(message))
    return {thread: ids for thread, ids in threads.items() if thread not in lasting}


def _message_ended(message: Message) -> int:
    if not message.is_group and message.deliveries[0].state in (DeliveryState.ACKNOWLEDGED, DeliveryState.DEAD):
        return message.last.wall
    return message.expires


def ended_window(op: Op, rules: Iterable[RetentionRule], at_ms: int) -> bool:
    """Whether an op has made a window, or the report of one, that the rules let go: the window is as old as the rule
    says, and so is what was written about it.
    """
    made = op.payload
    if not isinstance(made, CreateArtifact) or made.source_job is not None:
        return False
    if made.artifact_type not in (WINDOW_TYPE, REPORT_TYPE):
        return False
    rule = rule_for(rules, Retained.WINDOWS)
    return rule is not None and max(ulid_ms(made.artifact_id), op.timestamp.wall) + _keep_ms(rule) <= at_ms


def named_by(values: object) -> Iterator[bytes]:
    """Every id among the fields of a payload."""
    if isinstance(values, bytes):
        if len(values) == 16:
            yield values
    elif isinstance(values, tuple):
        for each in values:
            yield from named_by(each)
    elif hasattr(values, "__struct_fields__"):
        for name in values.__struct_fields__:
            yield from named_by(getattr(values, name))
