"""What jobs used and cost, from the log: the proofs of commands and the usage records of handlers have what was
measured, and every other run is charged for its time. Both are the word of the node that ran the job. One that says
more than a machine can use in the time of its run does not count, and a run on a device without a rate has no price;
sums leave it out and say so. What a job has stored is charged for as long as it is there.

The rate card of a node is the file that $HOCKET_RATES names, else `rates.yaml` in its home. By it jobs of the log are
priced, others like them are estimated, and jobs that would cost too much are refused.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from hocket.errors import HocketError, NotAuthorised, OverBudget, Usage
from hocket.extensions.command.execution import Resources
from hocket.extensions.command.proof import PROOF_TYPE, BadProof, check, decode_proof
from hocket.extensions.command.request import KIND as COMMAND
from hocket.extensions.cost.budgets import Spent
from hocket.extensions.cost.rate_card import (
    USAGE_TYPE,
    BadRateCard,
    Estimate,
    RateCard,
    ResourceUse,
    UsageRecord,
    beats_used,
    charge,
    estimate,
    read_rate_card,
    skipped_rates,
    unpriced_devices,
    usage_of,
)
from hocket.extensions.tempo.policy_file import tempo_policy
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs
from hocket.families.jobs import view
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_id, node_text, ulid_text
from hocket.kernel.ops import decode, schedule_payload
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeWork,
    Subject,
    YieldWork,
)
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from hocket.node.variables import RATES, given
from hocket.store import Artifact, JobFilter, Session, Stage

# The newest jobs that a sum looks at, and the newest of a kind that an estimate does.
JOBS_MAX = 100_000
HISTORY_MAX = 200
_GB = 1e9
_HOUR_MS = 3_600_000
ENDS = (CompleteJob, FailWork, YieldWork, PostponeWork, ExpireWork, CancelJob)
MayCharge = Callable[[int, int, str], bool]
FILE = "rates.yaml"


class RunSpan(NamedTuple):
    """One run, and the op that is its `end`. `ran_ms` is how long its handler ran if the worker said so, else how long
    the node held the job.
    """

    node: int
    began_ms: int
    ended_ms: int
    ran_ms: int
    end: bytes


def run_spans(session: Session, job_id: bytes) -> list[RunSpan]:
    """The runs that have ended, in their order."""
    rows = sorted(session.ops_about(Subject(JOB, job_id)), key=lambda row: unpack(row.hlc))
    ops = [(row, decode(row.body)) for row in rows]
    accepted = {op.payload.offer for row, op in ops if row.reason == 0 and isinstance(op.payload, AcceptWork)}
    spans: list[RunSpan] = []
    holder: int | None = None
    began_ms = 0
    for row, op in ops:
        if row.reason != 0 and op.id not in accepted:
            continue
        at_ms = op.timestamp.wall
        if isinstance(op.payload, ClaimWork) and holder is None:
            holder, began_ms = op.node_id, at_ms
        elif isinstance(op.payload, ENDS) and holder is not None:
            held_ms = max(0, at_ms - began_ms)
            ran_ms = held_ms
            if isinstance(op.payload, CompleteJob):
                ran_ms = min(held_ms, op.payload.telemetry.duration_ms)
            spans.append(RunSpan(holder, began_ms, at_ms, ran_ms, op.id))
            holder = None
    return spans


class MeteredRun(NamedTuple):
    """A run and what it used. `resources` are those of its proof; None for a run that has none that counts. Of a
    doubtful run the proof or the usage record says more than the run can have used.
    """

    node: int
    ended_ms: int
    end: bytes
    resources: Resources | None
    usage: ResourceUse
    is_doubtful: bool = False


def metered_runs(
    session: Session, blobs: Blobs, job: Job, beat_ms: int, now_ms: int, fetch: Fetch | None = None
) -> Iterator[MeteredRun]:
    """The ended runs of a job. A proof or record counts for the last run of its author that began before it was on the
    log, if the run lasted long enough for what it says. `beat_ms` is for runs without a record of their beat.
    """
    spans = run_spans(session, job.id)
    proofs: dict[RunSpan, Resources] = {}
    records: dict[RunSpan, UsageRecord] = {}
    stored: dict[RunSpan, float] = {}
    for artifact in session.artifacts_of_job(job.id) if spans else ():
        made = unpack(artifact.made)
        before = [span for span in spans if span.node == made.node and span.began_ms <= made.wall]
        if not before:
            continue
        span = before[-1]
        stored[span] = stored.get(span, 0.0) + _stored_gbh(session, artifact, made.wall, now_ms)
        try:
            if artifact.type == PROOF_TYPE:
                proof = decode_proof(artifacts.content(session, blobs, artifact, fetch))
                if node_id(proof.worker) == made.node:
                    proofs[span] = check(proof).resources
            elif artifact.type == USAGE_TYPE:
                records[span] = decode_json(artifacts.content(session, blobs, artifact, fetch), UsageRecord)
        except (HocketError, BadProof, msgspec.MsgspecError):
            continue  # the run is charged for its time
    for span in spans:
        yield _metered(span, proofs.get(span), records.get(span), beat_ms, stored.get(span, 0.0))


def _metered(
    span: RunSpan, proof: Resources | None, record: UsageRecord | None, beat_ms: int, stored_gbh: float
) -> MeteredRun:
    held_ms = span.ended_ms - span.began_ms
    is_doubtful = (proof is not None and not proof.fits(held_ms)) or (
        record is not None and not record.usage.fits(record.beat_ms, held_ms)
    )
    if is_doubtful:
        proof = record = None
    if record is not None:
        beat_ms = record.beat_ms
    if proof is not None:
        usage = usage_of(proof, beat_ms)
    else:
        usage = ResourceUse(beats_used(span.ran_ms, beat_ms)) if record is None else record.usage
    used = usage + ResourceUse(storage_gbh=stored_gbh)
    return MeteredRun(span.node, span.ended_ms, span.end, proof, used, is_doubtful)


def _stored_gbh(session: Session, artifact: Artifact, made_ms: int, now_ms: int) -> float:
    """How many gigabyte-hours the content of the artifact was kept so far."""
    until_ms = now_ms if artifact.expires is None else min(now_ms, artifact.expires)
    if artifact.expires is None and session.is_evicted(artifact.id):
        return 0.0
    return artifact.size / _GB * max(0, until_ms - made_ms) / _HOUR_MS


def spent_on(session: Session, blobs: Blobs, job: Job, rates: RateCard | None, beat_ms: int, now_ms: int) -> Spent:
    """What the runs of a job have used so far. Without a rate card they cost nothing, and a resource for which the card
    has no rate costs nothing.
    """
    used = [each.usage for each in metered_runs(session, blobs, job, beat_ms, now_ms)]
    costs = [] if rates is None else [charge(each, rates, job.kind).total for each in used]
    return Spent(sum(each.beats for each in used), math.fsum(costs))


class CostRow(msgspec.Struct, frozen=True):
    """What the runs of a kind, on a node, for an account or of a job used and cost. `name` is None for the runs of jobs
    without an account. `unpriced` of the runs used devices that the card does not price, which are in
    `unpriced_devices`; these runs are not in `cost`. `doubtful` of them have a proof that says more than they can have
    used, and are charged for their time. `skipped_rates` are the rates that the card does not name, of resources that
    were used; these resources are not in `cost`.
    """

    name: str | None
    jobs: int
    runs: int
    usage: ResourceUse
    cost: float
    currency: str
    unpriced: int = 0
    unpriced_devices: list[str] = []
    doubtful: int = 0
    skipped_rates: list[str] = []


class CostsBy(StrEnum):
    KIND = "kind"
    NODE = "node"
    ACCOUNT = "account"


class Costs(msgspec.Struct, frozen=True):
    """`rows` are those that cost most first, `total` is their sum. `is_cut` is whether there are older jobs that were
    not looked at. `uncharged` jobs name an account that their submitter may not charge, and count for none.
    """

    rows: list[CostRow]
    total: CostRow
    is_cut: bool = False
    uncharged: int = 0


class Prices(NamedTuple):
    """How runs are priced: by a card, by the beat of the home's tempo where a run does not say its own, and as of
    now.
    """

    rates: RateCard
    beat_ms: int
    now_ms: int


def row_of_job(session: Session, blobs: Blobs, job: Job, prices: Prices, fetch: Fetch | None = None) -> CostRow:
    rates = prices.rates
    runs = list(metered_runs(session, blobs, job, prices.beat_ms, prices.now_ms, fetch))
    return _row(ulid_text(job.id), [(job, each) for each in runs], rates)


def costs_by(
    session: Session,
    blobs: Blobs,
    by: CostsBy,
    prices: Prices,
    may_charge: MayCharge,
    since_ms: int = 0,
    jobs_max: int = JOBS_MAX,
) -> Costs:
    """The costs of the runs that ended since that time, of the newest jobs. `may_charge` decides whether a node may
    charge an account at a time.
    """
    found: dict[str | None, list[tuple[Job, MeteredRun]]] = {}
    uncharged: set[bytes] = set()
    newest = session.jobs(JobFilter(), jobs_max + 1)
    for entry in newest[:jobs_max]:
        job, account = entry.job, account_of(entry.job) if by is CostsBy.ACCOUNT else None
        metered = metered_runs(session, blobs, job, prices.beat_ms, prices.now_ms)
        runs = [run for run in metered if run.ended_ms >= since_ms]
        if runs and account is not None and not may_charge(*submitted(session, job), account):
            uncharged.add(job.id)
            account = None
        for run in runs:
            name = {CostsBy.KIND: job.kind, CostsBy.NODE: node_text(run.node), CostsBy.ACCOUNT: account}[by]
            found.setdefault(name, []).append((job, run))
    rows = [_row(name, runs, prices.rates) for name, runs in found.items()]
    total = _row(None, [each for runs in found.values() for each in runs], prices.rates)
    ordered = sorted(rows, key=lambda row: (-row.cost, row.name or ""))
    return Costs(ordered, total, len(newest) > jobs_max, len(uncharged))


def cost_estimate(session: Session, blobs: Blobs, prices: Prices, kind: str, program: str | None) -> Estimate | None:
    """What the newest jobs of this kind cost that succeeded; of commands, those of the same program. None if there are
    none. Jobs that have no price are left out.
    """
    looked_at = HISTORY_MAX if program is None else JOBS_MAX
    ended = session.jobs(JobFilter((Stage.DONE,), Outcome.SUCCEEDED, kind), looked_at)
    alike = (entry.job for entry in ended if program is None or _program(session, entry.job) == program)
    rows = (row_of_job(session, blobs, job, prices) for job in islice(alike, HISTORY_MAX))
    return estimate([row.cost for row in rows if not row.unpriced])


def _program(session: Session, job: Job) -> str | None:
    row = session.op(job.schedule_op)
    if row is None:
        return None
    payload = msgspec.json.decode(schedule_payload(row.body) or b"null")
    command = payload.get("command") if isinstance(payload, dict) else None
    return str(command[0]) if isinstance(command, list) and command else None


def account_of(job: Job) -> str | None:
    return None if job.policy.budget is None else job.policy.budget.charge_to


def submitted(session: Session, job: Job) -> tuple[int, int]:
    """Which node has submitted the job, and when; for a tick, which has set its schedule."""
    set_by = job.policy.set_by()
    row = None if set_by is None else session.op(set_by)
    at = job.scheduled if row is None else unpack(row.hlc)
    return at.node, at.wall


def _row(name: str | None, runs: Sequence[tuple[Job, MeteredRun]], rates: RateCard) -> CostRow:
    used = sum((run.usage for _, run in runs), ResourceUse())
    priced = [(job, run) for job, run in runs if not unpriced_devices(run.usage, rates)]
    cost = math.fsum(charge(run.usage, rates, job.kind).total for job, run in priced)
    doubtful = sum(run.is_doubtful for _, run in runs)
    jobs, unpriced = len({job.id for job, _ in runs}), len(runs) - len(priced)
    devices = unpriced_devices(used, rates)
    skipped = skipped_rates(used, rates)
    return CostRow(name, jobs, len(runs), used, cost, rates.currency, unpriced, devices, doubtful, skipped)


def rates_of(home: Home, path: Path | str | None = None) -> RateCard | None:
    """The card at `path`, or the node's own; None if it has none. Raises Usage with what is wrong in the file."""
    named = path or given(RATES)
    file = Path(named).expanduser() if named else home.path / FILE
    try:
        with file.open("rb") as opened:
            return read_rate_card(opened.read(TEXT_BYTES_MAX + 1))
    except FileNotFoundError:
        if named is None:
            return None
        raise Usage(f"no rate card at {file}") from None
    except OSError as error:
        raise Usage(f"cannot read the rate card {file}: {error.strerror}") from None
    except BadRateCard as error:
        raise Usage(f"bad rate card {file}: {error}") from None


def prices_of(home: Home, card: RateCard, now: Hlc) -> Prices:
    """A run that does not say its beat is charged by that of the home's tempo, if it has one."""
    policy = tempo_policy(home)
    return Prices(card, card.beat_ms if policy is None else policy.initial_tempo.beat_ms, now.wall)


def need_rates(home: Home, path: Path | str | None = None) -> RateCard:
    found = rates_of(home, path)
    if found is None:
        raise Usage(f"this node has no rate card; write {home.path / FILE}, or name one with ${RATES}")
    return found


def job_cost(runtime: Runtime, job: str, rates: Path | None = None, fetch: Fetch | None = None) -> CostRow:
    """What a job cost; `job` is an id, or the beginning of one."""
    prices = prices_of(runtime.home, need_rates(runtime.home, rates), runtime.log.reading())
    with runtime.read() as session:
        return row_of_job(session, runtime.blobs, view.find(session, job).job, prices, fetch)


def costs(
    runtime: Runtime, by: CostsBy | str, since_ms: int = 0, rates: Path | None = None, jobs_max: int = JOBS_MAX
) -> Costs:
    """The costs of the runs that ended since that time. A proof whose content is not here counts by its time alone."""
    try:
        chosen = CostsBy(by)
    except ValueError:
        raise Usage(f"costs go by {', '.join(CostsBy)}, not by {by!r}") from None
    prices = prices_of(runtime.home, need_rates(runtime.home, rates), runtime.log.reading())
    with runtime.read() as session:
        may_charge = runtime.log.permissions(session).may_charge
        return costs_by(session, runtime.blobs, chosen, prices, may_charge, since_ms, jobs_max=jobs_max)


def estimate_of(runtime: Runtime, kind: str, program: str | None = None) -> Estimate | None:
    """What a job of this kind, or a command of this program, is expected to cost; None without a history."""
    prices = prices_of(runtime.home, need_rates(runtime.home), runtime.log.reading())
    with runtime.read() as session:
        return cost_estimate(session, runtime.blobs, prices, kind, program)


def check_budgets(runtime: Runtime, drafts: Iterable[Draft]) -> None:
    """Raises OverBudget if the median of a job's history is over its cap. Nothing is known without a rate card here, or
    without a history; then the cap is kept by the worker. Raises NotAuthorised if a job names an account that this node
    may not charge.
    """
    drafts = list(drafts)
    _check_accounts(runtime, {each.policy.budget.charge_to for each in drafts if each.policy.budget is not None})
    capped = [each for each in drafts if each.policy.budget is not None and each.policy.budget.max_cost is not None]
    rates = rates_of(runtime.home) if capped else None
    if rates is None:
        return
    for draft in capped:
        expected = estimate_of(runtime, draft.kind, program_of(draft))
        cap = draft.policy.budget.max_cost if draft.policy.budget is not None else None
        if expected is not None and cap is not None and expected.median > cap:
            raise OverBudget(
                f"a job of {draft.kind} is expected to cost {expected.median:.6g} {rates.currency} (the median of"
                f" {expected.jobs}; the 90th percentile is {expected.p90:.6g}), and may cost {cap:g}; nothing was"
                " submitted"
            )


def _check_accounts(runtime: Runtime, accounts: set[str | None]) -> None:
    named = sorted(each for each in accounts if each is not None)
    if not named:
        return
    log = runtime.log
    permissions = log.permissions()
    for account in named:
        if not permissions.may_charge(log.node, log.physical(), account):
            raise NotAuthorised(
                f"this node may not charge the account {account!r}, so nothing was submitted; the owner grants it with"
                f" --may account:charge:{account}, and the account {node_text(log.node)} needs no grant"
            )


def program_of(draft: Draft) -> str | None:
    """The program of a command; None for any other job."""
    return str(msgspec.json.decode(draft.payload)["command"][0]) if draft.kind == COMMAND else None
