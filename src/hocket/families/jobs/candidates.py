"""Which workers are candidates for a job: those of its kind that are alive, and whose node may claim it. What workers
say about themselves comes in as facts; `KnownWorkers` folds them, and `rendezvous` ranks the candidates. All times are
of the node that heard the facts, by a clock that never goes back; no other clock is trusted.

Leaving counts at once, joining does not: a worker, its kinds, labels and weight count from the epoch after the one in
which they were heard, and a job is ranked by the epoch in which it was announced. So no worker can choose a name or a
weight after it has seen a job. A worker that falls silent is no candidate after its expiry, whatever its name wins.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from hocket.families.jobs.rendezvous import is_weight
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text, parse_node
from hocket.kernel.policy import covers, lacking

# As often as workers say that they are there.
EPOCH_MS = 10_000
EXPIRY_MS = 30_000
EXPIRY_MS_MAX = 60_000
WORKER_NAME_CHARS_MAX = 128
# Of a node that tells of more, those that were heard last.
WORKERS_PER_NODE_MAX = 64
# What a worker has offered in so many epochs is remembered, for jobs that were announced in them.
OFFERS_KEPT = 4
# Answers that are kept until something changes.
ASKED_MAX = 1_024

MayClaim = Callable[[int, str], bool]
"""Whether a node may claim the jobs of a kind."""


def epoch_at(time_ms: int) -> int:
    return time_ms // EPOCH_MS


def worker_id(node: int, name: str) -> str:
    """`name` is one that no other process of the node has, or ever had: a restarted worker is another one."""
    return f"{node_text(node)}/{name}"


def node_of(worker: str) -> int:
    return parse_node(worker.partition("/")[0])


class WorkerHeard(NamedTuple):
    """What a worker says about itself: what it serves, and for how long to believe that. `node` signed it, and `said`
    is when, by that node's clock. A kind that ends with a dot stands for every kind below it. Expiry 0 means that the
    worker leaves.
    """

    node: int
    name: str
    said: Hlc
    heard_ms: int
    kinds: tuple[str, ...]
    labels: tuple[str, ...] = ()
    weight: float = 1.0
    expiry_ms: int = EXPIRY_MS


class Unheard(StrEnum):
    """Why a fact does not count."""

    BAD_NAME = "bad-name"
    BAD_WEIGHT = "bad-weight"
    OLD = "old"


class Candidates(NamedTuple):
    """The candidates for the jobs of a kind that were announced in an epoch, with their weights."""

    kind: str
    epoch: int
    weights: Mapping[str, float]

    @property
    def digest(self) -> str:
        """Two nodes that know the same candidates with the same weights have the same digest."""
        lines = sorted(f"{worker} {float(weight).hex()}\n" for worker, weight in self.weights.items())
        return sha256("".join(lines).encode()).hexdigest()[:16]


class _Offer(NamedTuple):
    """What a worker serves from an epoch on."""

    epoch: int
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    weight: float

    def fits(self, kind: str, needs: tuple[str, ...]) -> bool:
        return any(covers(each, kind) for each in self.kinds) and not lacking(needs, self.labels)


class _KnownWorker(NamedTuple):
    said: Hlc
    heard_ms: int
    expires_ms: int
    offers: tuple[_Offer, ...]

    def offer(self, epoch: int) -> _Offer | None:
        return next((offer for offer in reversed(self.offers) if offer.epoch <= epoch), None)


class KnownWorkers:
    """The workers of which one node has heard since `started_ms`. Those that it hears in its first epoch length count
    at once, for earlier jobs too: it cannot know how long they have been there. Workers of a node that may not claim a
    kind are no candidates for it, whatever they say; `may_claim` is asked again in each epoch.
    """

    def __init__(self, started_ms: int, may_claim: MayClaim = lambda node, kind: True) -> None:
        self._started_ms, self._may_claim = started_ms, may_claim
        self._nodes: dict[int, dict[str, _KnownWorker]] = {}
        self._epoch = epoch_at(started_ms)
        # What was asked since the last change, and until when it stays so.
        self._asked: dict[tuple[str, int, tuple[str, ...]], tuple[Candidates, int]] = {}

    def ask_again(self) -> None:
        """Call this when `may_claim` answers otherwise than before."""
        self._asked.clear()

    def hear(self, fact: WorkerHeard) -> Unheard | None:
        """Takes a fact in, or says why it does not count."""
        if not 0 < len(fact.name) <= WORKER_NAME_CHARS_MAX or not fact.name.isprintable() or "/" in fact.name:
            return Unheard.BAD_NAME
        if not is_weight(fact.weight):
            return Unheard.BAD_WEIGHT
        self._forget(fact.heard_ms)
        workers = self._nodes.setdefault(fact.node, {})
        before = workers.get(fact.name)
        if before is not None and fact.said <= before.said:
            return Unheard.OLD
        is_there = before is not None and fact.heard_ms < before.expires_ms
        offers = self._offers(before.offers if before is not None and is_there else (), fact)
        expires_ms = fact.heard_ms + min(max(fact.expiry_ms, 0), EXPIRY_MS_MAX)
        if before is None or not is_there or offers != before.offers or expires_ms < before.expires_ms:
            self._asked.clear()
        workers.pop(fact.name, None)  # so that the dictionary has them in the order in which they were heard
        workers[fact.name] = _KnownWorker(fact.said, fact.heard_ms, expires_ms, offers)
        if len(workers) > WORKERS_PER_NODE_MAX:
            del workers[next(iter(workers))]
        return None

    def _offers(self, before: tuple[_Offer, ...], fact: WorkerHeard) -> tuple[_Offer, ...]:
        is_first = fact.heard_ms < self._started_ms + EPOCH_MS and not before
        epoch = 0 if is_first else epoch_at(fact.heard_ms) + 1
        offer = _Offer(epoch, fact.kinds, fact.labels, fact.weight)
        if before and before[-1][1:] == offer[1:]:
            return before
        earlier = tuple(each for each in before if each.epoch < epoch)
        return (*earlier, offer)[-OFFERS_KEPT:]

    def _forget(self, now_ms: int) -> None:
        """Once in an epoch: the workers that have been silent for so long that no old fact of theirs can still come."""
        if epoch_at(now_ms) == self._epoch:
            return
        self._epoch = epoch_at(now_ms)
        self._asked.clear()
        kept = {
            node: {name: each for name, each in workers.items() if now_ms < each.heard_ms + EXPIRY_MS_MAX}
            for node, workers in self._nodes.items()
        }
        self._nodes = {node: workers for node, workers in kept.items() if workers}

    def candidates(self, kind: str, announced_ms: int, now_ms: int, needs: tuple[str, ...] = ()) -> Candidates:
        """The candidates, at this moment, for a job that was announced then. `needs` are the labels that it needs."""
        self._forget(now_ms)
        key = kind, epoch_at(announced_ms), needs
        found = self._asked.get(key)
        if found is None or found[1] <= now_ms:
            if len(self._asked) >= ASKED_MAX:
                self._asked.clear()
            found = self._asked[key] = self._find(*key, now_ms)
        return found[0]

    def _find(self, kind: str, epoch: int, needs: tuple[str, ...], now_ms: int) -> tuple[Candidates, int]:
        weights: dict[str, float] = {}
        until_ms = now_ms + EPOCH_MS
        for node, workers in self._nodes.items():
            if not self._may_claim(node, kind):
                continue
            for name, worker in workers.items():
                offer = worker.offer(epoch)
                # What a worker no longer serves, it leaves at once.
                if offer is None or now_ms >= worker.expires_ms or not worker.offers[-1].fits(kind, needs):
                    continue
                if offer is worker.offers[-1] or offer.fits(kind, needs):
                    weights[worker_id(node, name)] = offer.weight
                    until_ms = min(until_ms, worker.expires_ms)
        return Candidates(kind, epoch, weights), until_ms
