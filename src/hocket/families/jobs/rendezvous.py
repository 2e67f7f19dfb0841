"""Which worker should try to claim a job. Every worker computes the same ranking of the same candidates, so none has to
ask. The ranking decides who tries, and when; the arbiter, or for `open` jobs the order of the log, decides who holds
the job. `candidates` decides who is ranked.

A worker's score for a job is SHA-256 over the job's id, the seed and the worker's id; the lowest score wins. The seed
is the first half of the signature of the op that submits the job: nobody knows it before the submitter signs. Jobs that
come as facts of one bundle share its signature, so the seed of each is SHA-256 over that half and the fact's id.

With weights w the highest −w / ln h wins, where h is the score as a fraction between 0 and 1, counted from the highest
score down. So equal weights give the order of the scores, and a worker of weight 2 gets twice the jobs of one of weight
1. `expectations` says how many of the claims each worker should have got: its weight's part of those that were made
while it was ranked. Only the claims of the known workers count: if one of several wins, each has its weight's part of
the chance, whatever others were ranked.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from itertools import compress
from math import ceil, expm1, log, log1p, sqrt
from operator import truediv
from struct import Struct
from typing import NamedTuple

from hocket.kernel.bundles import BUNDLE_SIGNED
from hocket.kernel.clock import Hlc
from hocket.kernel.jws import SIGNATURE_CHARS, SIGNATURE_END_CHARS, from_base64url, open_detached
from hocket.kernel.keys import SIGNATURE_BYTES
from hocket.kernel.ops import Op
from hocket.kernel.policy import CLAIM_TIMEOUT_MS
from hocket.kernel.signing import is_mark

SEED_BYTES = SIGNATURE_BYTES // 2
WEIGHT_MIN = 0.001
WEIGHT_MAX = 1_000.0
# A sticky job passes over a worker that has this many times the mean load.
LOAD_FACTOR = Fraction(5, 4)
# A count that is this many standard deviations off happens by chance once in about a thousand times.
DEVIATIONS_MAX = 3.29
# Below this many expected claims, counts are too small to tell.
EXPECTED_MIN = 5.0

_SCORES = 2**256
_HALF = 2**255
_UNIT = 2.0**-256
# The first 64 bits of a score give h − 1. Between these it gives ln h within one part in 2⁴⁴, in less time than all 256
# bits do.
_leading_64_bits = Struct(">Q24x").iter_unpack
_LOW, _HIGH = -(2.0**-19), 2.0**-8 - 1
# Weighted scores whose ratio is nearer to 1 than this are compared exactly.
_NEAR = 1 - 2.0**-40
# By how much a limit that floats have given may be off; more than enough.
_UNSURE = 2.0**-32
# Enough digits: 2²⁵⁶ has 78, and weighted scores can differ by the square of its inverse.
_EXACT = Context(prec=300)


class NotSigned(ValueError):
    """The op has no signature yet, so its job has no seed."""


def seed_of(op: Op) -> bytes:
    """The seed of the job that this op submits. A fact must have its bundle's signature. Raises NotSigned for an op
    that its node has yet to sign.
    """
    if op.signature is None or is_mark(op.signature):
        raise NotSigned("the op that submits the job is not signed yet")
    if op.signature.startswith(BUNDLE_SIGNED[-1:]):
        return _fact_seed(op.id, op.signature[1:])
    return open_detached(op.signature, op.node_id)[:SEED_BYTES]


def seed_in(op: bytes) -> bytes:
    """The seed from the bytes of an op that this node has stored. Only their end is read: an op ends with its
    signature, and a fact with that of its bundle.
    """
    if op[-len(BUNDLE_SIGNED) - SIGNATURE_CHARS : -SIGNATURE_CHARS] == BUNDLE_SIGNED:
        return _fact_seed(op[:16], op[-SIGNATURE_CHARS:])
    if op[-SIGNATURE_END_CHARS:-SIGNATURE_CHARS] != b"..":
        raise NotSigned("the op that submits the job is not signed yet")
    return from_base64url(op[-SIGNATURE_CHARS:])[:SEED_BYTES]


def _fact_seed(fact_id: bytes, signature: bytes) -> bytes:
    return sha256(from_base64url(signature)[:SEED_BYTES] + fact_id).digest()


def score(job: str, seed: bytes, worker: str) -> bytes:
    """The lowest wins. `job` is the text of the job's id."""
    return _scorer(job, seed)(worker)


def _scorer(job: str, seed: bytes) -> Callable[[str], bytes]:
    begin = sha256(job.encode() + seed).copy

    def score_of(worker: str) -> bytes:
        hasher = begin()
        hasher.update(worker.encode())
        return hasher.digest()

    return score_of


def should_claim(job: str, seed: bytes, worker: str, known: Iterable[str]) -> bool:
    """Whether this worker beats all the known ones, itself among them or not. A worker that is alone does."""
    score_of = _scorer(job, seed)
    own = score_of(worker)
    return all(score_of(other) >= own for other in known)


def rank(job: str, seed: bytes, workers: Iterable[str]) -> list[str]:
    """The workers, the winner first. A worker that is named twice counts once."""
    return sorted(dict.fromkeys(workers), key=_scorer(job, seed))


def is_weight(weight: float) -> bool:
    return WEIGHT_MIN <= weight <= WEIGHT_MAX


def weighted_scores(scores: Mapping[str, bytes], weights: Mapping[str, float]) -> dict[str, float]:
    """−w / ln h of each worker; the highest wins. h is (2²⁵⁶ − score) / (2²⁵⁶ + 1), and so never 0 or 1."""
    leading = _leading_64_bits(b"".join(scores.values()))
    return {
        worker: weights[worker] / -(log1p(part) if _LOW > (part := top * -(2.0**-64)) > _HIGH else _ln(scores[worker]))
        for worker, (top,) in zip(scores, leading, strict=True)
    }


def _ln(score: bytes) -> float:
    """ln h. A winner's h is nearly 1: a float has no digits left for that, but all for 1 − h."""
    number = int.from_bytes(score, "big")
    return log1p((number + 1) * -_UNIT) if number < _HALF else log((_SCORES - number) * _UNIT)


def _exact_order(score: bytes, weight: float) -> Decimal:
    """−ln h / w to 300 digits; the lowest wins."""
    part = _EXACT.divide(_SCORES - int.from_bytes(score, "big"), _SCORES + 1)
    return _EXACT.divide(_EXACT.minus(_EXACT.ln(part)), Decimal(weight))


def by_weighted_score(scores: Mapping[str, bytes], weights: Mapping[str, float]) -> list[str]:
    """The workers by weighted score, the winner first. Where floats cannot tell, decimals do, so the order is the same
    on every machine.
    """
    weighted = weighted_scores(scores, weights)
    ranking = sorted(weighted, key=weighted.__getitem__, reverse=True)
    values = sorted(weighted.values(), reverse=True)
    ratios = list(map(truediv, values[1:], values))
    if max(ratios, default=0.0) <= _NEAR:
        return ranking

    def exact(worker: str) -> tuple[Decimal, str]:
        return _exact_order(scores[worker], weights[worker]), worker

    for near in [place for place, ratio in enumerate(ratios) if ratio > _NEAR]:
        place = near
        while place >= 0 and exact(ranking[place + 1]) < exact(ranking[place]):
            ranking[place : place + 2] = ranking[place + 1], ranking[place]
            place -= 1
    return ranking


def rank_weighted(job: str, seed: bytes, weights: Mapping[str, float]) -> list[str]:
    """The workers with their weights, the winner first."""
    if len(set(weights.values())) <= 1:
        return rank(job, seed, weights)
    score_of = _scorer(job, seed)
    return by_weighted_score({worker: score_of(worker) for worker in weights}, weights)


def in_turns(ranking: Iterable[str]) -> list[str]:
    """The workers of a ranking in the order in which they try. A worker that does not claim the job in its turn loses
    the places of its node's other workers, too: each node has one turn, by its best worker, before any has a second.
    So however many workers a node says that it has, it delays the others by one turn.
    """
    rounds: Counter[str] = Counter()
    found: list[tuple[int, str]] = []
    for worker in ranking:
        found.append((rounds[node := _node(worker)], worker))
        rounds[node] += 1
    return [worker for _, worker in sorted(found, key=lambda each: each[0])]


def turn_of(job: str, seed: bytes, worker: str, weights: Mapping[str, float]) -> int:
    """When the worker tries: its place in the ranking `in_turns`, 0 for the winner."""
    if worker not in weights:
        return turn_outside(worker, weights)
    ahead = _ahead(job, seed, worker, weights)
    sizes = _sizes(tuple(weights))
    if not ahead or len(sizes) in (1, len(weights)):
        return len(ahead)  # all workers are of one node, or each is of another
    before = Counter(map(_node, ahead))
    rounds = before.pop(_node(worker), 0)
    return sum(min(size, rounds) for size in sizes.values()) + sum(count > rounds for count in before.values())


def turn_outside(worker: str, ranking: Iterable[str]) -> int:
    """When a worker tries that is not in the ranking: it comes after the last worker of its own node, and in that
    round after those of all other nodes.
    """
    sizes = _sizes(tuple(ranking))
    rounds = sizes.get(_node(worker), 0) + 1
    return sum(min(size, rounds) for size in sizes.values())


def _ahead(job: str, seed: bytes, worker: str, weights: Mapping[str, float]) -> list[str]:
    """The workers that rank before this one, in any order."""
    score_of = _scorer(job, seed)
    own = score_of(worker)
    kinds = set(weights.values())
    if len(kinds) == 1:
        return list(compress(weights, map(own.__gt__, map(score_of, weights))))
    limits = _limits(own, weights[worker], kinds)
    ahead = []
    for other, weight in weights.items():
        found, (sure, possible) = score_of(other), limits[weight]
        if found < sure:
            ahead.append(other)
        elif found <= possible and other != worker:
            ranking = rank_weighted(job, seed, weights)
            return ranking[: ranking.index(worker)]
    return ahead


@lru_cache(64)
def _sizes(workers: tuple[str, ...]) -> Mapping[str, int]:
    """How many of these workers each node has."""
    return dict(Counter(map(_node, workers)))


def _node(worker: str) -> str:
    """A worker's id begins with its node. A name without a node stands alone."""
    return worker.partition("/")[0]


def _limits(own: bytes, weight: float, weights: Iterable[float]) -> dict[float, tuple[bytes, bytes]]:
    """For each weight, below which score a worker surely beats one of this score and weight, and up to which it may."""
    weighted = weighted_scores({"": own}, {"": weight})[""]
    limits = {each: -expm1(-each / weighted) for each in weights}
    return {each: (_score_at(part * (1 - _UNSURE)), _score_at(part * (1 + _UNSURE))) for each, part in limits.items()}


def _score_at(part: float) -> bytes:
    return min(int(part * 2.0**256), _SCORES - 1).to_bytes(32, "big")


def rank_sticky(key: str, weights: Mapping[str, float], loads: Mapping[str, int]) -> list[str]:
    """The workers for a job with a key: the same first worker for the same key, unless that worker has too much to do.
    `loads` are the jobs that each has. Those at or above their limit come last: ⌈1.25 × mean⌉, where the mean counts
    this job too and a weight is that many workers. At least one is below its limit.
    """
    ranking = rank_weighted("", sha256(key.encode()).digest(), weights)
    jobs = 1 + sum(loads.get(worker, 0) for worker in weights)
    counts = Counter(weights.values())
    total = sum(Fraction(weight) * count for weight, count in counts.items())
    limits = {weight: ceil(LOAD_FACTOR * jobs * Fraction(weight) / total) for weight in counts}
    return sorted(ranking, key=lambda worker: loads.get(worker, 0) >= limits[weights[worker]])


def may_try_at(rank: int, announced_ms: int, timeout_ms: int = CLAIM_TIMEOUT_MS) -> int:
    """When the worker of this rank may claim a job that nobody has claimed since it was announced."""
    return announced_ms + rank * timeout_ms


class AnnouncedClaim(NamedTuple):
    """What a worker tells the others when it claims a job."""

    job: str
    worker: str
    timestamp: Hlc


def winning_claim(claims: Iterable[AnnouncedClaim]) -> AnnouncedClaim:
    """Of several claims for a job the earliest, and of those at the same time the one of the lowest worker id."""
    return min(claims, key=lambda claim: (claim.timestamp.wall, claim.timestamp.logical, claim.worker))


class RankedSpell(NamedTuple):
    """Since when a worker is ranked, with its weight. Several spells of one name add up."""

    name: str
    weight: float
    since_ms: int


class ClaimPeriod(NamedTuple):
    """The claims in a time. `end_ms` is later than `begin_ms`."""

    begin_ms: int
    end_ms: int
    claims: int


class Expectation(NamedTuple):
    claims: float = 0.0
    variance: float = 0.0

    def is_beyond_chance(self, claims: int) -> bool:
        if self.claims < EXPECTED_MIN:
            return False
        # A count is a whole number: half a claim is no deviation.
        return abs(claims - self.claims) - 0.5 > DEVIATIONS_MAX * sqrt(self.variance)


def expectations(spells: Sequence[RankedSpell], periods: Iterable[ClaimPeriod]) -> dict[str, Expectation]:
    found = {spell.name: Expectation() for spell in spells}
    for begin_ms, end_ms, claims in periods:
        parts: dict[str, float] = {}
        for name, weight, since_ms in spells:
            ranked_ms = end_ms - max(begin_ms, since_ms)
            if ranked_ms > 0:
                parts[name] = parts.get(name, 0.0) + weight * ranked_ms / (end_ms - begin_ms)
        total = sum(parts.values())
        for name, part in parts.items():
            chance, before = part / total, found[name]
            found[name] = Expectation(before.claims + claims * chance, before.variance + claims * chance * (1 - chance))
    return found
