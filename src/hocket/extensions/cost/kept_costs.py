"""What all runs have used, by account, as a figure that a server keeps: it meters each run once, when the end of the
run comes on the log, and prices the sums with the rate card of the moment. A file in the home has the sums, so a
restart goes on where the last server was; without the file, or with another beat, the server counts the log again.

Two things are not in these sums: what jobs store, which costs more with each hour, and what an op that comes late
changes about runs that were counted. `hocket cost` meters every run anew.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from hocket.errors import HocketError
from hocket.extensions.cost.costs import (
    ENDS,
    CostRow,
    Costs,
    MayCharge,
    MeteredRun,
    Prices,
    account_of,
    metered_runs,
    prices_of,
    rates_of,
    submitted,
)
from hocket.extensions.cost.rate_card import RateCard, ResourceUse, charge, skipped_rates, unpriced_devices
from hocket.families.blobs import Blobs
from hocket.families.jobs.rules import Job
from hocket.kernel.decoding import decode_json
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import JOB, AcceptWork, number_of
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import OpRow, Session

FILE = "costs.json"
# So many ops of the log are read at once, and counting takes this share of a processor.
OPS = 400
SHARE = 0.03
# How often the server looks for more, and how often it writes the file while it counts.
LOOK_S = 5.0
SAVE_S = 30.0
# Sums beyond these are not kept, and the runs that would belong to them are counted as left out.
GROUPS_MAX = 2_000
_ENDS = frozenset(number_of(each) for each in ENDS)
_ACCEPT = number_of(AcceptWork)


class Group(NamedTuple):
    """Runs that a rate card prices alike: those of one kind that used the same classes of devices."""

    account: str | None
    kind: str
    devices: tuple[str, ...]


class GroupSum(msgspec.Struct):
    """`jobs` are those whose first run is in the group."""

    usage: ResourceUse = ResourceUse()
    jobs: int = 0
    runs: int = 0
    doubtful: int = 0


class Book(msgspec.Struct):
    """All ops up to number `place` are counted; `op` is the one there. `uncharged` jobs name an account that their
    submitter may not charge. `left_out` runs are in no sum.
    """

    beat_ms: int
    place: int = 0
    op: bytes = b""
    sums: list[tuple[Group, GroupSum]] = []
    uncharged: int = 0
    left_out: int = 0


class KeptCosts:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._book = Book(0)
        self._sums: dict[Group, GroupSum] = {}
        with suppress(OSError, msgspec.MsgspecError):
            self._book = decode_json(file.read_bytes(), Book)
            self._sums = dict(self._book.sums)

    @property
    def place(self) -> int:
        return self._book.place

    @property
    def left_out(self) -> int:
        return self._book.left_out

    def advance(self, session: Session, blobs: Blobs, prices: Prices, may_charge: MayCharge) -> bool:
        """Counts the runs that the next ops of the log end. Returns whether there may be more."""
        rows = session.ops_after(max(0, self._book.place - 1), OPS)
        if self._book.beat_ms != prices.beat_ms or not self._goes_on(rows):
            self._book, self._sums = Book(prices.beat_ms), {}
            rows = session.ops_after(0, OPS)
        ends: dict[bytes, set[bytes]] = {}
        for row in rows:
            if row.seq > self._book.place and row.key is not None and (end := _end_in(row)) is not None:
                ends.setdefault(row.key, set()).add(end)
        for job_id, ended in ends.items():
            if (entry := session.job(job_id)) is not None:
                self._count_job(session, blobs, entry.job, ended, prices.beat_ms, may_charge)
        if rows:
            self._book.place, self._book.op = rows[-1].seq, rows[-1].id
        return len(rows) == OPS

    def _goes_on(self, rows: list[OpRow]) -> bool:
        """Whether this is the log that was counted."""
        if not self._book.place:
            return True
        return bool(rows) and (rows[0].seq > self._book.place or rows[0].id == self._book.op)

    def _count_job(
        self, session: Session, blobs: Blobs, job: Job, ended: set[bytes], beat_ms: int, may_charge: MayCharge
    ) -> None:
        # At the time 0 nothing has been stored for long.
        runs = list(metered_runs(session, blobs, job, beat_ms, 0))
        fresh = [run for run in runs if run.end in ended]
        account = account_of(job)
        is_first = bool(runs) and runs[0].end in ended
        if fresh and account is not None and not may_charge(*submitted(session, job), account):
            self._book.uncharged += is_first
            account = None
        for run in fresh:
            self._count(account, job.kind, run, is_first=is_first and run is runs[0])

    def _count(self, account: str | None, kind: str, run: MeteredRun, *, is_first: bool) -> None:
        used = run.usage
        group = Group(account, kind, tuple(sorted(used.gpu_sec.keys() | used.accel_sec.keys())))
        if group not in self._sums and len(self._sums) == GROUPS_MAX:
            self._book.left_out += 1
            return
        kept = self._sums.setdefault(group, GroupSum())
        kept.usage += used
        kept.jobs += is_first
        kept.runs += 1
        kept.doubtful += run.is_doubtful

    def costs(self, rates: RateCard) -> Costs:
        """The sums by account, priced; those that cost most first."""
        sums = dict(self._sums)  # the counting goes on
        accounts = {group.account for group in sums}
        rows = [
            _row(each, {group: kept for group, kept in sums.items() if group.account == each}, rates)
            for each in accounts
        ]
        ordered = sorted(rows, key=lambda row: (-row.cost, row.name or ""))
        return Costs(ordered, _row(None, sums, rates), uncharged=self._book.uncharged)

    def save(self) -> None:
        """Writes the sums into the home."""
        self._book.sums = list(self._sums.items())
        with suppress(OSError):  # the disk may be full; then a restart counts some ops again
            unfinished = self._file.with_suffix(".new")
            unfinished.write_bytes(msgspec.json.encode(self._book))
            unfinished.replace(self._file)


def _end_in(row: OpRow) -> bytes | None:
    """The op that has ended a run, by this row: itself, or the one that it accepts."""
    if row.reason or row.family != JOB:
        return None
    if row.variant in _ENDS:
        return row.id
    if row.variant != _ACCEPT:
        return None
    payload = decode(row.body).payload
    return payload.offer if isinstance(payload, AcceptWork) else None


def _row(name: str | None, sums: Mapping[Group, GroupSum], rates: RateCard) -> CostRow:
    used = sum((each.usage for each in sums.values()), ResourceUse())
    priced = {group: each for group, each in sums.items() if not unpriced_devices(each.usage, rates)}
    runs = sum(each.runs for each in sums.values())
    return CostRow(
        *(name, sum(each.jobs for each in sums.values()), runs, used),
        *(math.fsum(charge(each.usage, rates, group.kind).total for group, each in priced.items()), rates.currency),
        *(runs - sum(each.runs for each in priced.values()), unpriced_devices(used, rates)),
        *(sum(each.doubtful for each in sums.values()), skipped_rates(used, rates)),
    )


@cache
def kept_costs(home: Path) -> KeptCosts:
    """Those of a home. A server and its views share them."""
    return KeptCosts(home / FILE)


async def keep_costs(node: Node) -> None:
    """Counts what comes on the log, for as long as the server runs, where the home has a rate card."""
    runtime, kept, saved_at = node.runtime, kept_costs(node.runtime.home.path), -math.inf
    while True:
        began = kept.place
        used_s, has_more = await node.call(lambda: _advanced(runtime, kept))
        is_late = time.monotonic() - saved_at > SAVE_S
        if kept.place != began and (is_late or not has_more):
            saved_at = time.monotonic()
            await node.call(kept.save)
        await asyncio.sleep(used_s / SHARE if has_more else LOOK_S)


def _advanced(runtime: Runtime, kept: KeptCosts) -> tuple[float, bool]:
    """The time of the processor that it took, and whether there may be more."""
    began = time.thread_time()
    try:
        rates = rates_of(runtime.home)
    except HocketError:
        rates = None  # the view says what is wrong with it
    if rates is None:
        return 0.0, False
    prices = prices_of(runtime.home, rates, runtime.log.reading())
    with runtime.read() as session:
        has_more = kept.advance(session, runtime.blobs, prices, runtime.log.permissions(session).may_charge)
    return time.thread_time() - began, has_more
