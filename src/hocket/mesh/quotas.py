"""Enforces quotas on members that push their own ops, and reports members that exceed them. Ops are counted before they
are verified, so that a member's input never costs more than its quota allows. A used-up quota cuts a batch: the rest is
refused for now, and the answer says when to push it again. Owners and the coordinator have no quota. Ops that others
pass on were counted where they came in; `log.limits` caps them.

A quota counts work, too: the time that an author's ops took in write transactions, whoever brought them. An author that
has used up its share waits like one that has used up its ops.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from hocket.events import Emit, ignore
from hocket.events.nodes import NodeOverQuota
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import payers, quota_of, sharing
from hocket.kernel.bundles import count_of
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import Bounds
from hocket.kernel.ops import Op
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import Quota
from hocket.log import Admission, Log
from hocket.log.author_check import CURABLE
from hocket.log.limits import stored_totals
from hocket.log.permissions import Permissions
from hocket.store import IntakeSession, OverQuota, WrittenTotals

# A node that was idle may push at once what it could have pushed in this time.
BURST_S = 10.0
# An author that has used up its total asks again after this long, in case its quota was raised.
FULL_RETRY_S = 300.0
# The event about the same node repeats after this long.
TELL_AGAIN_S = 60.0

# The share of the store's time that the ops of one member may take in the long run, in milliseconds of each second.
WORK_MS_PER_S = 800
# The ops of an author that has used this much of late are admitted apart from those of others.
COSTLY_MS = 1_000.0
# Less work than this, of an author whose ops another node passes on, is not worth a look-up.
WORK_MS_MIN = 1.0

_UNBOUNDED = 2**63
# Reasons that can refuse an honest node's ops, or ops that were counted before decoding.
_NOT_CHARGED = CURABLE | {Reason.MALFORMED, Reason.UNKNOWN_VARIANT}


# Rate limits: a bucket of tokens that fills at a steady rate. A request takes one token, or more if it is large; a
# peer that finds too few learns from the answer when to come back.

BUCKETS_MAX = 10_000


class Buckets:
    """One bucket for each caller. If there are too many, the least recently used one is dropped."""

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate, self._burst, self._monotonic = rate, burst, monotonic
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, asker: Hashable, cost: float = 1.0) -> float:
        """0 if there were enough tokens; else the seconds until there are. Nothing costs more than a full bucket."""
        cost = min(cost, self._burst)
        now = self._monotonic()
        level, at = self._levels.pop(asker, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        wait = 0.0
        if level >= cost:
            level -= cost
        else:
            wait = (cost - level) / self._rate
        self._levels[asker] = level, now
        if len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)
        return wait

    def level(self, asker: Hashable) -> float:
        """How many tokens the bucket of a caller has now."""
        level, at = self._levels.get(asker, (self._burst, 0.0))
        return min(self._burst, level + (self._monotonic() - at) * self._rate)


class Draw(NamedTuple):
    """A number of tokens from one bucket, which fills at this rate."""

    bucket: Hashable
    rate: float
    cost: float


class DebtBuckets:
    """Buckets with their own rates, each of which holds what flows in within `burst_s` seconds. A draw larger than a
    full bucket is granted when the bucket is full, and leaves it in debt, so that in the long run no more is drawn than
    flows in. Safe to use from several threads.
    """

    def __init__(self, burst_s: float, monotonic: Callable[[], float]) -> None:
        self._burst_s, self._monotonic = burst_s, monotonic
        # How much is missing from a full bucket, and since when.
        self._missing: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, draws: Sequence[Draw]) -> bool:
        """Takes from all these buckets, or from none."""
        with self._lock:
            now = self._monotonic()
            missing = [self._missing_of(draw, now) for draw in draws]
            if any(self._short(draw, each) > 0 for draw, each in zip(draws, missing, strict=True)):
                return False
            for draw, each in zip(draws, missing, strict=True):
                self._put(draw.bucket, each + draw.cost, now)
            return True

    def charge(self, draw: Draw) -> None:
        """Takes even if there is not enough: for what has already cost something."""
        with self._lock:
            now = self._monotonic()
            self._put(draw.bucket, self._missing_of(draw, now) + draw.cost, now)

    def wait(self, draw: Draw) -> float:
        """The seconds until such a draw would be granted; 0 for now."""
        with self._lock:
            short = self._short(draw, self._missing_of(draw, self._monotonic()))
        if short <= 0:
            return 0.0
        return short / draw.rate if draw.rate > 0 else self._burst_s

    def missing(self, draw: Draw) -> float:
        """How much is missing from a full bucket."""
        with self._lock:
            return self._missing_of(draw, self._monotonic())

    def _short(self, draw: Draw, missing: float) -> float:
        """How many tokens are missing. A bucket with no inflow grants nothing."""
        full = draw.rate * self._burst_s
        return missing + min(draw.cost, full) - full if full > 0 else draw.cost

    def _missing_of(self, draw: Draw, now: float) -> float:
        missing, at = self._missing.get(draw.bucket, (0.0, now))
        return max(0.0, missing - (now - at) * draw.rate)

    def _put(self, bucket: Hashable, missing: float, now: float) -> None:
        self._missing[bucket] = missing, now
        self._missing.move_to_end(bucket)
        if len(self._missing) > BUCKETS_MAX:
            self._missing.popitem(last=False)


class Payer(NamedTuple):
    """A node whose quota is charged, and how much of its total is left."""

    node: int
    quota: Quota
    left: WrittenTotals

    def draws(self, ops: float, size: float) -> list[Draw]:
        """What this many ops, of this size together, take from its buckets."""
        found = [self.work(0.0)]
        if self.quota.ops_per_s is not None:
            found.append(Draw((self.node, "ops"), self.quota.ops_per_s, ops))
        if self.quota.bytes_per_s is not None:
            found.append(Draw((self.node, "bytes"), self.quota.bytes_per_s, size))
        return found

    def work(self, ms: float) -> Draw:
        return Draw((self.node, "work"), WORK_MS_PER_S, ms)


class QuotaMeter:
    """Counts what one author pushes in one batch."""

    def __init__(self, flows: DebtBuckets, node: int, payers: Sequence[Payer]) -> None:
        self.node = node
        self._flows, self._payers = flows, payers
        self._left_ops = min((each.left.ops for each in payers), default=0)
        self._left_bytes = min((each.left.bytes for each in payers), default=0)
        self._cut_bytes = 0
        self.cut = 0
        # How many ops of the batch were not looked at, because admission stopped.
        self.stopped = 0
        self.is_full = False

    def admits(self, raw: bytes, op: Op | Malformed) -> bool:
        """Whether one more op is admitted. After the first refusal, no later op is: its predecessor would
        be missing. The facts of a bundle count, not the bundle.
        """
        count, size = count_of(raw, op) if isinstance(op, Op) else 1, len(raw)
        if not self.cut:
            self.is_full = self._left_ops < count or self._left_bytes < size
            if not self.is_full and self._flows.take(self._draws(count, size)):
                self._left_ops -= count
                self._left_bytes -= size
                return True
        self.cut += count
        self._cut_bytes += size
        return False

    def leave(self, ops: int, size: int) -> None:
        """Counts the rest of the batch, which is not even read."""
        self.cut += ops
        self._cut_bytes += size

    @property
    def spent_s(self) -> float:
        """The seconds until the author has a share of the store's time again; 0 if it has not used it up."""
        return max((self._flows.wait(each.work(0.0)) for each in self._payers), default=0.0)

    @property
    def retry_s(self) -> float:
        """The seconds until the author may push the rest, or as much as it may push at once; 0 if all was admitted."""
        if not self.cut and not self.stopped:
            return 0.0
        if self.is_full:
            return FULL_RETRY_S
        return max([1.0, *map(self._flows.wait, self._draws(self.cut, self._cut_bytes))])

    def finish(self, admission: Admission) -> float:
        """Charges what turned out to be bad: an honest node passes on only what it can verify. Returns the seconds
        until the node may push more; 0 if nothing was refused for its quota.
        """
        bad = sum(number for reason, number in admission.refused.items() if reason not in _NOT_CHARGED)
        # A node that has used up its total must not make this node read bodies in vain, again and again.
        for draw in self._draws(bad, self._cut_bytes if self.is_full else 0):
            self._flows.charge(draw)
        return max(self.retry_s, FULL_RETRY_S if self.node in admission.limited else 0.0)

    def _draws(self, ops: int, size: int) -> list[Draw]:
        return [draw for each in self._payers for draw in each.draws(ops, size)]


class BatchWork:
    """Charges the work of one batch. The rest of a batch waits when its sender has used up its share, or when
    `is_awaited` says that another node waits for its turn.
    """

    def __init__(
        self, quotas: "Quotas", log: Log, meter: QuotaMeter | None, is_awaited: Callable[[], bool] = lambda: False
    ) -> None:
        self._quotas, self._log, self._meter, self._is_awaited = quotas, log, meter, is_awaited

    def is_costly(self, author: int) -> bool:
        return self._quotas.used_ms(author) > COSTLY_MS

    def charge(self, work: Mapping[int, float]) -> bool:
        self._quotas.charge(self._log, work)
        return self._meter is None or not (self._meter.spent_s > 0 or self._is_awaited())


class Quotas:
    """The buckets of one process, and what it has reported to the operator. Safe to use from several threads."""

    def __init__(self, monotonic: Callable[[], float], emit: Emit = ignore) -> None:
        self._monotonic, self._emit = monotonic, emit
        self._flows = DebtBuckets(BURST_S, monotonic)
        self._sharing: tuple[Permissions, dict[int, set[int]]] | None = None
        self._payers: OrderedDict[int, list[Payer]] = OrderedDict()
        self._told: dict[int, float] = {}
        self._refused: dict[int, int] = {}

    def meter(self, log: Log, node: int) -> QuotaMeter | None:
        """The meter for ops that a node pushes itself; None for a node without a quota."""
        now_ms = log.physical()
        with log.store.read() as session:
            permissions = log.permissions(session)
            found: list[Payer] = []
            if permissions.delegations and not permissions.is_trusted(node, now_ms):
                paying = payers(permissions.authority, node, now_ms)
                found = [self._payer(permissions, session, each, now_ms) for each in paying]
        self._payers[node] = found
        self._payers.move_to_end(node)
        if len(self._payers) > BUCKETS_MAX:
            self._payers.popitem(last=False)
        return QuotaMeter(self._flows, node, found) if found else None

    def used_ms(self, node: int) -> float:
        """How much of its share of the store's time a node has used of late, as far as is known."""
        return max((self._flows.missing(each.work(0.0)) for each in self._payers.get(node, ())), default=0.0)

    def charge(self, log: Log, work: Mapping[int, float]) -> None:
        """Charges authors with the seconds that their ops took."""
        for author, seconds in work.items():
            if author == log.node:
                continue
            if author not in self._payers and seconds * 1000 >= WORK_MS_MIN:
                self.meter(log, author)
            for each in self._payers.get(author, ()):
                self._flows.charge(each.work(seconds * 1000))

    def wait(self, node: int) -> float:
        """The seconds during which not even a request body of this node is read, as far as is known. A node that has
        used up its quota is admitted again when it may push as much as in one second, so that it cannot make this node
        read much and store little.
        """
        draws = [draw for each in self._payers.get(node, ()) for draw in each.draws(0, 0)]
        return max((self._flows.wait(draw._replace(cost=draw.rate)) for draw in draws), default=0.0)

    def _payer(self, permissions: Permissions, session: IntakeSession, node: int, now_ms: int) -> Payer:
        quota = quota_of(permissions.authority, node, now_ms, permissions.rules.bounds or Bounds())
        written = stored_totals(session, self._sharers(permissions, node)).values()
        ops = _UNBOUNDED if quota.ops is None else quota.ops - sum(each.ops for each in written)
        size = _UNBOUNDED if quota.bytes is None else quota.bytes - sum(each.bytes for each in written)
        return Payer(node, quota, WrittenTotals(ops, size))

    def _sharers(self, permissions: Permissions, node: int) -> set[int]:
        if self._sharing is None or self._sharing[0] is not permissions:
            self._sharing = permissions, sharing(permissions.authority, permissions.delegations)
        return self._sharing[1].get(node, {node})

    def note(self, log: Log, sender: int, meter: QuotaMeter | None, admission: Admission) -> int:
        """Reports every node whose ops were refused for its quota. Returns how many of the sender's were."""
        refused = dict(admission.limited)
        if meter is not None and meter.cut:
            refused[sender] = refused.get(sender, 0) + meter.cut
        for node, count in refused.items():
            self._note(log, node, count)
        if meter is not None and meter.stopped and meter.spent_s > 0:
            self._note(log, sender, meter.stopped, is_work=True)
            return refused.get(sender, 0) + meter.stopped
        return refused.get(sender, 0)

    def _note(self, log: Log, node: int, count: int, is_work: bool = False) -> None:
        """Tells the operator from time to time; `hocket mesh nodes` shows it too."""
        self._refused[node] = self._refused.get(node, 0) + count
        now = self._monotonic()
        if now - self._told.get(node, -TELL_AGAIN_S) < TELL_AGAIN_S:
            return
        self._told[node] = now
        refused = self._refused.pop(node)
        key = node.to_bytes(8, "big")
        with log.store.write() as session:
            before = session.over_quota().get(key)
            session.put_over_quota(OverQuota(key, log.physical(), refused + (0 if before is None else before.ops)))
        self._emit(NodeOverQuota(node_text(node), refused, is_work))
