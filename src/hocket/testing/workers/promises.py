"""The promises of a worker. Each is a function of a `Trial` that returns what it saw, or raises BrokenPromise."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import NamedTuple

from hocket.testing.workers.lossy_proxy import BUSY_S, Exchange, NetworkFault
from hocket.testing.workers.trial import BrokenPromise, Trial

LONG_S = 600.0
# A worker that cannot reach the server tries this often at most in a second.
TRIES_MAX = 20
# A worker that was told to wait a second may come a little early, because two clocks are read.
EARLY_S = 0.1


class Promise(NamedTuple):
    """`own_server` is set if the trial kills the server."""

    name: str
    text: str
    trial: Callable[[Trial], Awaitable[str]]
    own_server: bool = False


PROMISES: list[Promise] = []

Tried = Callable[[Trial], Awaitable[str]]


def promise(name: str, text: str, *, own_server: bool = False) -> Callable[[Tried], Tried]:
    def add(trial: Tried) -> Tried:
        PROMISES.append(Promise(name, text, trial, own_server))
        return trial

    return add


@promise("works", "claims jobs, completes each with its result, and fails one with its error")
async def _works(trial: Trial) -> str:
    jobs = [await trial.submit(0.05, echo=number) for number in range(5)]
    bad = await trial.submit(fail="no such file")
    await trial.start_worker()
    for number, job_id in enumerate(jobs):
        await trial.succeeds_once(job_id, number)
    job = await trial.ended(bad)
    if job.outcome != "failed" or "no such file" not in (job.error or ""):
        raise BrokenPromise(
            f"a job that should fail with 'no such file' {job.outcome} with {job.error or job.result!r}"
        )
    return f"5 jobs completed and 1 failed, by {len(trial.proxy.of('claim'))} claims"


@promise("renews", "keeps jobs that take longer than a lease, also those that it has not begun")
async def _renews(trial: Trial) -> str:
    seconds = 1.5 * trial.lease_s
    jobs = [await trial.submit(seconds, echo=number) for number in range(3)]
    await trial.start_worker()
    for number, job_id in enumerate(jobs):
        await trial.succeeds_once(job_id, number, longer_s=3 * seconds)
    counts = [len(trial.proxy.renewals(job_id)) for job_id in jobs]
    return f"3 jobs of {seconds:.1f} s under leases of {trial.lease_s:.1f} s, renewed {_listed(counts)} times"


@promise("repeats-claim", "repeats a claim whose answer was lost with the same claim_id, and gets the same jobs")
async def _repeats_claim(trial: Trial) -> str:
    job_id = await trial.submit(echo=1)
    trial.proxy.next_faults["claim"] = [NetworkFault.LOSE, NetworkFault.CUT]
    await trial.start_worker()
    await trial.until(lambda: len(_after_fault(trial)) >= 2, "the worker claims again after a lost answer")
    first, second = _after_fault(trial)[:2]
    for other in (second, *trial.proxy.claims(job_id)):
        if other.body.get("claim_id") != first.body.get("claim_id"):
            raise BrokenPromise(
                "after a lost answer it claimed with a new claim_id; the lost jobs wait until their lease ends"
            )
        if other.body.get("worker") != first.body.get("worker"):
            raise BrokenPromise("after a lost answer it claimed under another worker's name")
    await trial.succeeds_once(job_id, 1)
    return "one answer lost, one cut in half: the same claim_id three times, and the job was claimed once"


def _after_fault(trial: Trial) -> list[Exchange]:
    claims = trial.proxy.of("claim")
    first = next((number for number, each in enumerate(claims) if each.fault is not None), len(claims))
    return claims[first:]


@promise("repeats-end", "repeats an end whose request or answer was lost, with the same fence and content")
async def _repeats_end(trial: Trial) -> str:
    job_id = await trial.submit(echo={"n": 1})
    for step in ("complete", "end"):
        trial.proxy.next_faults[step] = [NetworkFault.REFUSE, NetworkFault.LOSE, NetworkFault.CUT]
    await trial.start_worker()
    await trial.succeeds_once(job_id, {"n": 1})
    # A worker whose answer was lost may also hear from a renewal that the hold is over.
    await trial.until(
        lambda: len(trial.proxy.ends(job_id)) >= 4 or "lost" in [state for _, state in trial.proxy.renewals(job_id)],
        "the worker completes again until it has an answer",
    )
    ends = trial.proxy.ends(job_id)
    if any((end.fence, end.content) != (ends[0].fence, ends[0].content) for end in ends):
        raise BrokenPromise("it repeated a completion with another fence or another content")
    if len(trial.proxy.claims(job_id)) > 1:
        raise BrokenPromise("it claimed the job again instead of repeating the completion")
    await trial.works_on()
    return f"a request and the answers were lost: completed with {len(ends)} requests, claimed once"


@promise("late-claim", "does not work on a job whose lease ended before the answer to the claim came")
async def _late_claim(trial: Trial) -> str:
    job_id = await trial.submit(0.05)
    gate = trial.proxy.gates["claim"] = asyncio.Event()
    await trial.start_worker()
    await trial.until(lambda: trial.proxy.claims(job_id), "the worker claims the job")
    _, fence = trial.hold(job_id)
    rival = await trial.rival_claims(job_id)
    del trial.proxy.gates["claim"]
    gate.set()
    await asyncio.sleep(trial.lease_s / 2)
    if ends := trial.ends(job_id, fence):
        raise BrokenPromise(
            f"it worked on the job after its lease, and sent fence {fence} ({ends[0].error or ends[0].status})"
        )
    await trial.rival_completes(job_id, rival)
    await trial.works_on()
    return f"another worker had the job by then (fence {fence}, then {rival}); it dropped it and worked on"


@promise("lease-end", "stops its work by its own clock when the lease ends, even if the server cannot be reached")
async def _lease_end(trial: Trial) -> str:
    job_id = await trial.submit(1.5 * trial.lease_s)
    await trial.start_worker()
    await trial.given(job_id)
    _, fence = trial.hold(job_id)
    trial.proxy.faults["*"] = NetworkFault.REFUSE
    begun = time.monotonic()
    rival = await trial.rival_claims(job_id)
    await asyncio.sleep(max(0.0, begun + 2.5 * trial.lease_s - time.monotonic()))
    trial.proxy.faults.clear()
    await asyncio.sleep(trial.lease_s / 2)
    if ends := trial.ends(job_id, fence):
        raise BrokenPromise(
            f"{ends[0].at - begun:.1f} s after it was cut off it sent fence {fence}, of a lease that was over"
        )
    await trial.rival_completes(job_id, rival)
    await trial.works_on()
    return f"cut off for {2.5 * trial.lease_s:.1f} s: it sent nothing for the job (fence {fence}) and worked on"


@promise("stale-fence", "drops a job when its fence is refused as stale, and does not try again")
async def _stale_fence(trial: Trial) -> str:
    job_id = await trial.submit(trial.lease_s / 4, echo="stale")
    trial.proxy.faults["renew"] = NetworkFault.REFUSE
    await trial.start_worker()
    await trial.given(job_id)
    _, fence = trial.hold(job_id)
    rival = await trial.take_away(job_id)
    await trial.until(lambda: trial.ends(job_id, fence), "the worker sends its result")
    trial.proxy.faults.clear()
    await trial.rival_completes(job_id, rival)
    await asyncio.sleep(trial.lease_s / 2)
    ends = trial.proxy.ends(job_id)
    if any(end.fence != fence for end in ends):
        raise BrokenPromise(f"it sent fence {ends[-1].fence}, which it had not been given")
    if len(ends) > 1:
        raise BrokenPromise(f"it sent the stale fence {fence} {len(ends)} times; the first refusal was final")
    if (job := await trial.ended(job_id)).result != "rival":
        raise BrokenPromise(f"the job has the result {job.result!r} of a worker that had lost it")
    await trial.works_on()
    return f"fence {fence} was refused once ({ends[0].error}), because the job had fence {rival}; it worked on"


@promise("lost", "stops its work when a renewal says that the job is lost")
async def _lost(trial: Trial) -> str:
    job_id = await trial.submit(LONG_S)
    await trial.start_worker()
    await trial.given(job_id)
    _, fence = trial.hold(job_id)
    rival = await trial.take_away(job_id)
    renewals = await _stops(trial, job_id, "lost")
    if trial.ends(job_id, fence):
        raise BrokenPromise(f"it sent fence {fence} after it had heard that the job was lost")
    await trial.rival_completes(job_id, rival)
    await trial.works_on()
    return f"told by renewal {renewals}; neither renewed nor ended after that"


@promise("cancel", "stops its work when a renewal says that the job is cancelled")
async def _cancel(trial: Trial) -> str:
    job_id = await trial.submit(LONG_S)
    await trial.start_worker()
    await trial.given(job_id)
    await trial.server.admin.cancel(job_id, reason="no longer needed")
    renewals = await _stops(trial, job_id, "cancel")
    if any(end.do == "complete" for end in trial.proxy.ends(job_id)):
        raise BrokenPromise("it completed a job that was cancelled")
    await trial.works_on()
    return f"told by renewal {renewals}; neither renewed nor completed after that"


async def _stops(trial: Trial, job_id: str, state: str) -> int:
    """Waits until a renewal of the job has this answer, and sees that none follows. Gives its number."""

    def told() -> int:
        states = [each for _, each in trial.proxy.renewals(job_id)]
        return states.index(state) + 1 if state in states else 0

    number = await trial.until(told, f"a renewal is answered with {state!r}", longer_s=trial.lease_s)
    await asyncio.sleep(trial.lease_s)
    if later := len(trial.proxy.renewals(job_id)) - number:
        raise BrokenPromise(f"it renewed {later} times after it had heard {state!r}")
    return number


@promise("frozen", "does no harm after it was frozen for longer than its lease")
async def _frozen(trial: Trial) -> str:
    job_id = await trial.submit(trial.lease_s / 3, echo="frozen")
    worker = await trial.start_worker()
    await trial.given(job_id)
    worker.freeze()
    _, fence = trial.hold(job_id)
    try:
        rival = await trial.rival_claims(job_id)
        await trial.rival_completes(job_id, rival)
    finally:
        worker.thaw()
    await trial.works_on()
    await asyncio.sleep(trial.lease_s / 3)
    if len(ends := trial.ends(job_id, fence)) > 1:
        raise BrokenPromise(f"it sent the stale fence {fence} {len(ends)} times; the first refusal was final")
    if (job := await trial.ended(job_id)).result != "rival":
        raise BrokenPromise(f"the job has the result {job.result!r} of a worker that had lost it")
    return f"the job went on with fence {rival}; fence {fence} was sent {len(ends)} times, and it worked on"


@promise("killed", "leaves nothing that stops its successor: each process has its own name and claim_ids")
async def _killed(trial: Trial) -> str:
    job_id = await trial.submit(trial.lease_s / 3, echo=1)
    worker = await trial.start_worker()
    first = await trial.given(job_id)
    await worker.kill()
    await trial.start_worker()
    job = await trial.ended(job_id, longer_s=trial.lease_s)
    second = trial.proxy.claims(job_id)[-1]
    for name in ("worker", "claim_id"):
        if first.body.get(name) == second.body.get(name):
            raise BrokenPromise(f"two processes claimed with the same {name}, {first.body.get(name)!r}")
    if job.result != 1 or job.fence != 2:
        raise BrokenPromise(f"the job has the result {job.result!r} under fence {job.fence}; 1 under fence 2 is right")
    return f"killed under fence {job.fence - 1}; another process completed the job under fence {job.fence}"


@promise("drain", "finishes what it holds and ends with exit code 0 when an answer says drain")
async def _drain(trial: Trial) -> str:
    job_id = await trial.submit(trial.lease_s, echo=1)
    worker = await trial.start_worker()
    await trial.given(job_id)
    trial.proxy.drains = True
    await _leaves(trial, worker.ended(), "an answer with drain")
    await trial.succeeds_once(job_id, 1)
    return "the job in hand was completed, then it ended"


@promise("sigterm", "finishes what it holds, says goodbye and ends with exit code 0 on SIGTERM")
async def _sigterm(trial: Trial) -> str:
    job_id = await trial.submit(trial.lease_s, echo=1)
    worker = await trial.start_worker()
    # An answer that the worker has not read yet gives it no job.
    await trial.until(lambda: trial.proxy.renewals(job_id), "the worker renews its job", longer_s=trial.lease_s)
    worker.terminate()
    signalled = time.monotonic()
    await _leaves(trial, worker.ended(), "SIGTERM")
    await trial.succeeds_once(job_id, 1)
    if late := [each for each in trial.proxy.of("claim") if each.at > signalled + trial.lease_s / 4]:
        raise BrokenPromise(f"it claimed {late[0].at - signalled:.1f} s after SIGTERM")
    idle = await trial.start_worker()
    claims = len(trial.proxy.of("claim"))
    await trial.until(lambda: len(trial.proxy.of("claim")) > claims, "the second worker claims")
    idle.terminate()
    await _leaves(trial, idle.ended(), "SIGTERM")
    if len({each.body.get("worker") for each in trial.proxy.of("goodbye")}) < 2:
        raise BrokenPromise("it ended without goodbye")
    return "one worker with a job in hand and one that waited for jobs ended, each with a goodbye"


async def _leaves(trial: Trial, ending: Awaitable[int], cause: str) -> None:
    patience_s = trial.patience_s + trial.lease_s
    try:
        code = await asyncio.wait_for(ending, patience_s)
    except TimeoutError:
        raise BrokenPromise(f"it was still there {patience_s:.0f} s after {cause}") from None
    if code != 0:
        raise BrokenPromise(f"it ended with exit code {code} after {cause}")


@promise("restart", "goes on when the server is killed and comes back, and does not ask too often", own_server=True)
async def _restart(trial: Trial) -> str:
    trial.lease_s *= 5
    job_id = await trial.submit(1.0, echo=1)
    await trial.start_worker()
    await trial.given(job_id)
    before = len(trial.proxy.exchanges)
    await trial.server.kill()
    killed = time.monotonic()
    await trial.until(lambda: trial.proxy.ends(job_id), "the worker tries to complete")
    await trial.server.start()
    away_s = time.monotonic() - killed
    tries = len(trial.proxy.exchanges) - before
    await trial.succeeds_once(job_id, 1)
    await trial.works_on()
    if tries > TRIES_MAX * max(1.0, away_s):
        raise BrokenPromise(f"it sent {tries} requests in the {away_s:.1f} s without a server; pause longer each time")
    return f"without a server for {away_s:.1f} s: {tries} requests meanwhile, and the job was completed once"


@promise("busy", "comes again after an answer 503, and not before its Retry-After")
async def _busy(trial: Trial) -> str:
    trial.proxy.next_faults = {step: [NetworkFault.BUSY] * 2 for step in ("claim", "complete", "end")}
    job_id = await trial.submit(echo=1)
    await trial.start_worker()
    await trial.succeeds_once(job_id, 1)
    for step in ("claim", "complete", "end"):
        for earlier, later in pairwise(trial.proxy.of(step)):
            after_s = later.at - earlier.at
            if earlier.fault is NetworkFault.BUSY and after_s < BUSY_S - EARLY_S:
                raise BrokenPromise(
                    f"it repeated {step} after {after_s:.2f} s, and the answer had Retry-After: {BUSY_S}"
                )
    await trial.works_on()
    return f"two claims and two ends refused with Retry-After: {BUSY_S}; each came again in time"


def _listed(counts: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, counts[:-1])), str(counts[-1])]))
