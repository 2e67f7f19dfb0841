"""The ops of one transaction as it writes them, and how many become the facts of one bundle."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hocket.kernel.bundles import BundleDraft
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import JOB, Bundle, Payload, ScheduleJob, discriminant, number_of
from hocket.store import NewOp

if TYPE_CHECKING:
    from hocket.log.projection import Projection
    from hocket.log.set_judges import Judge

_SCHEDULE_JOB = number_of(ScheduleJob)
_SETTLED = 1
# A payload, and what its op depends on.
Asked = tuple[Payload, tuple[bytes, ...]]


class WrittenOp(NamedTuple):
    """An op of this node that was written. An offer waits for the arbiter's word."""

    id: bytes
    is_offer: bool


class OpDraft(NamedTuple):
    """An op of this transaction. `body` is the whole op: signed if it was received, marked if it is this node's own. A
    bundle is followed by its facts, which have a `place` in it.
    """

    op: Op
    body: bytes
    is_received: bool
    place: int | None = None

    @property
    def id(self) -> bytes:
        return self.op.id

    @property
    def hlc(self) -> bytes:
        return pack(self.op.timestamp)

    @property
    def is_op(self) -> bool:
        """Whether it is a fact or an op by itself, and no bundle."""
        return type(self.op.payload) is not Bundle


class BundleFacts(NamedTuple):
    """What became of the first payloads of those that were asked for, as many as found room. `drafts` are the facts
    that were written, those of `set_ids` by a judge of sets, with that `reason`; `last` is the time of the last one.
    """

    answers: list[WrittenOp | Reason]
    drafts: list[OpDraft | NewOp]
    set_ids: list[bytes]
    last: Hlc
    reason: int


def write_facts(projection: "Projection", draft: BundleDraft, asked: Sequence[Asked], kind: str | None) -> BundleFacts:
    """Puts facts with payloads of one type about jobs of one kind into a bundle, and applies them."""
    answers, drafts, set_ids, last = list[WrittenOp | Reason](), list[OpDraft | NewOp](), list[bytes](), draft.at
    number, judge = discriminant(asked[0][0]), _judge(projection, draft, asked[0], kind)
    applies, reason = judge or (_applies_none, 0)
    is_new, is_offer = number == _SCHEDULE_JOB, reason == Reason.OFFERED
    for payload, deps in asked:
        at = draft.at
        fact_id = draft.name(deps, payload, at)
        if fact_id is None:
            break
        if applies(payload, deps, fact_id, at):
            key = fact_id if is_new else payload.job_id  # type: ignore[union-attr]
            drafts.append(NewOp(fact_id, pack(at), number, JOB, key, reason, _SETTLED, b"", draft.count))
            answers.append(WrittenOp(fact_id, is_offer))
            set_ids.append(fact_id)
        else:
            op, body = draft.fact(deps, payload, at)
            if isinstance(op.payload, ScheduleJob) and op.payload.job_id == fact_id:
                projection.jobs.expect_new(fact_id)
            refused = projection.newest(op)
            if refused is not None:
                answers.append(refused)
                continue
            answers.append(WrittenOp(fact_id, projection.reason(fact_id) == Reason.OFFERED))
            drafts.append(OpDraft(op, body, False, draft.count))
        draft.keep()
        last = at
    return BundleFacts(answers, drafts, set_ids, last, reason)


def _applies_none(payload: Payload, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
    """For facts that must be judged one by one."""
    return False


def _judge(projection: "Projection", draft: BundleDraft, first: Asked, kind: str | None) -> "Judge | None":
    """Judges facts like the first. None if each must be judged by itself."""
    (payload, deps), at = first, draft.at
    if kind is None or draft.name(deps, payload, at) is None:
        return None
    from hocket.log import set_judges

    return set_judges.judge_of(projection, projection.jobs, draft.fact(deps, payload, at).op, draft.end, kind)
