"""Scores, ranks, weights, takeovers and conflicts, against a few lines of hashlib that know nothing of ours."""

import hashlib
import itertools
import random
from decimal import Decimal, localcontext
from fractions import Fraction
from math import ceil, isfinite

import nacl.bindings as sodium
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.families.jobs import rendezvous
from hocket.families.jobs.rendezvous import (
    WEIGHT_MAX,
    WEIGHT_MIN,
    AnnouncedClaim,
    NotSigned,
    by_weighted_score,
    in_turns,
    is_weight,
    may_try_at,
    rank,
    rank_sticky,
    rank_weighted,
    score,
    seed_in,
    seed_of,
    should_claim,
    turn_of,
    weighted_scores,
    winning_claim,
)
from hocket.kernel.bundles import facts_of, with_bundle_signature
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id, ulid_text
from hocket.kernel.jws import detached, open_detached
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, bound, decode, encode, link_to, sign, unsigned, verify_op, with_signature
from hocket.kernel.policy import CLAIM_TIMEOUT_MS
from hocket.kernel.signing import OpSigner
from hocket.kernel.vocabulary import ScheduleJob
from tests.bundled import bundled

KEY, OTHER = SigningKey(bytes(32)), SigningKey(b"\x01" * 32)
NODE = node_id(KEY.public)

jobs = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
seeds = st.binary(min_size=32, max_size=32)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
fleets = st.lists(names, min_size=1, max_size=12, unique=True)
weights_ = st.floats(WEIGHT_MIN, WEIGHT_MAX)
weighted_fleets = st.dictionaries(names, st.sampled_from([WEIGHT_MIN, 0.5, 1.0, 2.0, 3.7, WEIGHT_MAX]), min_size=1)
digests = st.one_of(
    st.integers(0, 2**256 - 1), st.integers(0, 300), st.integers(2**256 - 300, 2**256 - 1), st.integers(0, 2**190)
)


def plain(job: str, seed: bytes, worker: str) -> bytes:
    """The published algorithm."""
    return hashlib.sha256(job.encode() + seed + worker.encode()).digest()


def published_should_claim(job: str, seed: bytes, me: str, known: list[str]) -> bool:
    if not known:
        return True
    return not any(plain(job, seed, other) < plain(job, seed, me) for other in known if other != me)


# Computed with sha256sum: printf abc123, then 32 bytes from 7f3a2b1c…, then the worker's id.
SEED = bytes.fromhex("7f3a2b1c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8")
VECTORS = {
    "QmWorker1": "035ac30d9fc10a8513585d9d01697aa98355405e3547d084ad4781949295dc16",
    "QmWorker2": "a1829bf899c19fc0b7f98d60d72c4171b1cabd8540b87ac47efd5f67818b6419",
    "QmWorker3": "e4a8c42756fedcbd3f1ad80a94bfe913df28c9e3b02399bc9f4f040baaa123b6",
}


@pytest.mark.req("GR-01")
def test_the_scores_are_those_of_the_published_algorithm():
    assert {worker: score("abc123", SEED, worker).hex() for worker in VECTORS} == VECTORS
    assert rank("abc123", SEED, VECTORS) == sorted(VECTORS, key=VECTORS.__getitem__)


@pytest.mark.req("GR-01")
@given(jobs, seeds, fleets)
def test_the_lowest_hash_wins(job: str, seed: bytes, workers: list[str]):
    order = sorted(workers, key=lambda worker: plain(job, seed, worker))
    assert rank(job, seed, workers) == rank(job, seed, [*workers, *reversed(workers)]) == order
    assert [score(job, seed, worker) for worker in order] == sorted(plain(job, seed, each) for each in workers)
    for place, worker in enumerate(order):
        others = [each for each in workers if each != worker]
        assert should_claim(job, seed, worker, workers) == should_claim(job, seed, worker, others) == (place == 0)
        assert published_should_claim(job, seed, worker, workers) == (place == 0)
        assert turn_of(job, seed, worker, dict.fromkeys(workers, 2.5)) == place


@pytest.mark.req("GR-01")
@given(jobs, seeds, names)
def test_a_worker_that_is_alone_wins(job: str, seed: bytes, worker: str):
    assert should_claim(job, seed, worker, []) and should_claim(job, seed, worker, [worker])
    assert rank(job, seed, [worker]) == [worker] and turn_of(job, seed, worker, {worker: 1.0}) == 0
    assert rank(job, seed, []) == rank_weighted(job, seed, {}) == rank_sticky("key", {}, {}) == []
    assert turn_of(job, seed, worker, {}) == 0


def submitted(kind: str = "acme.render", payload: bytes = b"{}", wall: int = 7, key: SigningKey = KEY):
    """A job as its submitter signs it."""
    return sign(bound(Hlc(wall, 0, node_id(key.public)), (), ScheduleJob(bytes(16), kind, payload, b""))[0], key)


@pytest.mark.req("GR-08")
@given(st.text(max_size=20), st.binary(max_size=50), st.integers(0, 2**40))
def test_the_seed_is_the_first_half_of_the_real_signature_over_the_job(kind: str, payload: bytes, wall: int):
    op = submitted(kind, payload, wall)
    data = encode(op)
    assert verify_op(data, decode(data), KEY.public)
    signature = KEY.sign(unsigned(op) + b"\x00")
    assert seed_of(op) == bytes.fromhex(signature.hex()[:64]) == seed_of(decode(data)) == seed_in(data)


@pytest.mark.req("GR-08")
def test_the_seed_is_bound_to_the_job_and_its_submitter():
    ops = [
        submitted(),
        submitted(kind="acme.rende"),
        submitted(payload=b"{} "),
        submitted(wall=8),
        submitted(key=OTHER),
    ]
    assert len({seed_of(op) for op in ops}) == len({op.id for op in ops}) == len(ops)
    moved = detached(open_detached(ops[1].signature or b"", NODE), NODE)
    forged = encode(ops[0]).replace(ops[0].signature or b"", moved)
    assert seed_of(decode(forged)) == seed_of(ops[1]) and not verify_op(forged, decode(forged), KEY.public)


@pytest.mark.req("GR-08")
def test_a_mark_is_no_seed():
    op = submitted()
    marked = OpSigner(KEY, NODE).for_log(unsigned(op))
    with pytest.raises(NotSigned):
        seed_of(decode(marked))
    with pytest.raises(NotSigned):
        seed_in(marked)
    nothing_yet = bound(Hlc(7, 0, NODE), (), op.payload)[0]
    with pytest.raises(NotSigned):
        seed_of(nothing_yet)
    with pytest.raises(NotSigned):
        seed_in(encode(nothing_yet))
    assert seed_of(decode(OpSigner(KEY, NODE).signed(marked))) == seed_of(op)


def signed_with_nonce(message: bytes, key: SigningKey, nonce: int) -> bytes:
    """A signature by a signer that chooses the nonce instead of deriving it."""
    clamped = bytearray(hashlib.sha512(key.seed).digest()[:32])
    clamped[0] &= 248
    clamped[31] = clamped[31] & 127 | 64
    chosen = nonce.to_bytes(32, "little")
    point = sodium.crypto_scalarmult_ed25519_base_noclamp(chosen)
    challenge = sodium.crypto_core_ed25519_scalar_reduce(hashlib.sha512(point + key.public + message).digest())
    product = sodium.crypto_core_ed25519_scalar_mul(challenge, bytes(clamped))
    return point + sodium.crypto_core_ed25519_scalar_add(chosen, product)


def seeds_of(body: bytes, signature: bytes) -> dict[bytes, bytes]:
    """The seed of each fact of a bundle with this signature, read in both ways."""
    bundle = with_signature(body, detached(signature, NODE))
    found = {}
    for each in facts_of(decode(bundle)):
        fact = with_bundle_signature(each.body, bundle)
        assert decode(fact).payload == each.op.payload and not verify_op(fact, decode(fact), KEY.public)
        found[each.op.id] = seed_in(fact)
        assert seed_of(decode(fact)) == found[each.op.id]
    return found


@pytest.mark.req("GR-01", "LW-51")
@given(st.lists(st.binary(max_size=120), min_size=1, max_size=9), st.integers(1, 2**40), st.integers(1, 2**60))
def test_each_job_of_a_bundle_has_a_seed_of_its_own(payloads: list[bytes], wall: int, nonce: int):
    facts = [((), ScheduleJob(NO_ID, "acme.render", payload, b"")) for payload in payloads]
    _, body = bundled(Hlc(wall, 3, NODE), (link_to(NO_ID),), facts)
    # A signer has many signatures for the same bytes: see the next test but one.
    signatures = [KEY.sign(body + b"\x00"), signed_with_nonce(body + b"\x00", KEY, nonce)]
    found = [seeds_of(body, signature) for signature in signatures]
    for signature, known in zip(signatures, found, strict=True):
        assert known == {fact: hashlib.sha256(signature[:32] + fact).digest() for fact in known}
    _, later = bundled(Hlc(wall, 4 + len(facts), NODE), (link_to(NO_ID),), facts)
    moved = seeds_of(later, signatures[0])
    assert len({seed for known in (*found, moved) for seed in known.values()}) == 3 * len(facts)


@pytest.mark.req("GR-01", "LW-51")
def test_the_jobs_of_a_marked_bundle_have_no_seeds():
    payload = ScheduleJob(NO_ID, "acme.render", b".." + b"x" * 40, b"")
    _, body = bundled(Hlc(7, 0, NODE), (link_to(NO_ID),), [((), payload)])
    marked = OpSigner(KEY, NODE).for_log(body)
    (fact,) = facts_of(decode(marked))
    assert with_bundle_signature(fact.body, marked) == fact.body
    assert with_bundle_signature(b"", encode(submitted())) == b"", "what cannot be read is no fact"
    with pytest.raises(NotSigned):
        seed_in(fact.body)
    with pytest.raises(NotSigned):
        seed_of(decode(fact.body))


@pytest.mark.touches("GR-08")
def test_a_submitter_that_grinds_can_choose_the_winner():
    """docs/claims.md says so: verification cannot tell how a nonce was chosen, so one op has many good signatures."""
    workers, op = [f"w{n}" for n in range(5)], submitted()
    winners = set()
    for nonce in range(1, 100):
        signature = detached(signed_with_nonce(unsigned(op) + b"\x00", KEY, nonce), NODE)
        data = encode(sign(op, KEY)).replace(op.signature or b"", signature)
        assert verify_op(data, decode(data), KEY.public) and decode(data).id == op.id
        winners.add(rank(ulid_text(op.id), seed_of(decode(data)), workers)[0])
    assert winners == set(workers)


def in_decimals(scores: dict[str, int], weights: dict[str, float]) -> list[str]:
    """−w / ln h, the highest first, with more digits than ours."""
    with localcontext() as context:
        context.prec = 500
        parts = {worker: Decimal(2**256 - number) / Decimal(2**256 + 1) for worker, number in scores.items()}
        values = {worker: -Decimal(weights[worker]) / part.ln() for worker, part in parts.items()}
        return sorted(values, key=lambda worker: (-values[worker], worker))


def ordered(scores: dict[str, int], weights: dict[str, float]) -> list[str]:
    return by_weighted_score({worker: number.to_bytes(32, "big") for worker, number in scores.items()}, weights)


@pytest.mark.req("GR-09")
@given(jobs, seeds, fleets, weights_)
def test_equal_weights_give_the_order_of_the_scores(job: str, seed: bytes, workers: list[str], weight: float):
    assert rank_weighted(job, seed, dict.fromkeys(workers, weight)) == rank(job, seed, workers)
    scores = {worker: plain(job, seed, worker) for worker in workers}
    assert by_weighted_score(scores, dict.fromkeys(workers, weight)) == rank(job, seed, workers)


@pytest.mark.req("GR-09")
@given(digests, st.sets(st.integers(-3, 3), min_size=2), weights_)
@example(0, {0, 1, 2, 3}, 1.0)
@example(2**256 - 1, {-3, -2, -1, 0}, 1000.0)
@example(2**255, {-2, -1, 0, 1}, 0.001)
def test_equal_weights_order_scores_that_no_float_can_tell_apart(number: int, offsets: set[int], weight: float):
    scores = {f"w{offset}": number + offset for offset in offsets if 0 <= number + offset < 2**256}
    assert ordered(scores, dict.fromkeys(scores, weight)) == sorted(scores, key=scores.__getitem__)


@pytest.mark.req("GR-09")
@given(digests, weights_, weights_, st.integers(-2, 2))
@example(0, 1.0, 2.0, 0)
def test_unequal_weights_that_tie_as_floats_are_ordered_exactly(number: int, one: float, other: float, offset: int):
    """The second score is chosen so that the weighted scores are as equal as they can be."""
    with localcontext() as context:
        context.prec = 500
        part = ((Decimal(2**256 - number) / Decimal(2**256 + 1)).ln() * Decimal(other) / Decimal(one)).exp()
        rival = 2**256 - int(part * (2**256 + 1)) + offset
    scores = {"a": number, "b": min(max(rival, 0), 2**256 - 1)}
    weights = {"a": one, "b": other}
    assert ordered(scores, weights) == in_decimals(scores, weights)
    third = scores | {"c": min(scores["b"] + 1, 2**256 - 1)}
    assert ordered(third, weights | {"c": other}) == in_decimals(third, weights | {"c": other})


@pytest.mark.req("GR-09")
@given(jobs, seeds, weighted_fleets)
def test_the_highest_weighted_score_wins(job: str, seed: bytes, weights: dict[str, float]):
    scores = {worker: int.from_bytes(plain(job, seed, worker), "big") for worker in weights}
    order = in_decimals(scores, weights)
    assert rank_weighted(job, seed, weights) == order
    assert [turn_of(job, seed, worker, weights) for worker in order] == list(range(len(order)))
    backwards = dict(reversed(weights.items()))
    assert rank_weighted(job, seed, backwards) == order, "whatever the order in which a node knows them"


@pytest.mark.req("GR-09")
@given(digests, weights_)
@example(0, WEIGHT_MAX)
@example(2**256 - 1, WEIGHT_MIN)
def test_every_score_has_a_weighted_score(number: int, weight: float):
    found = weighted_scores({"w": number.to_bytes(32, "big")}, {"w": weight})["w"]
    assert isfinite(found) and found > 0


@pytest.mark.req("GR-09")
@given(jobs, seeds, weighted_fleets, names)
def test_a_higher_weight_never_lowers_a_rank(job: str, seed: bytes, weights: dict[str, float], worker: str):
    ranks = [
        turn_of(job, seed, worker, weights | {worker: weight}) for weight in (WEIGHT_MIN, 0.3, 1.0, 9.0, WEIGHT_MAX)
    ]
    assert ranks == sorted(ranks, reverse=True)


@pytest.mark.req("GR-09")
def test_weights_are_bounded():
    assert is_weight(WEIGHT_MIN) and is_weight(1) and is_weight(WEIGHT_MAX)
    for bad in (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 0.000999, 1000.001):
        assert not is_weight(bad)


@given(jobs, seeds, fleets, names)
def test_a_worker_that_leaves_moves_only_those_behind_it(job: str, seed: bytes, workers: list[str], leaver: str):
    stay = [each for each in workers if each != leaver]
    assert [each for each in rank(job, seed, [*workers, leaver]) if each != leaver] == rank(job, seed, stay)


@pytest.mark.req("GR-07")
@given(jobs, seeds, weighted_fleets, st.data())
def test_a_dead_winner_costs_one_timeout_for_each_rank(job: str, seed: bytes, weights: dict[str, float], data):
    dead = data.draw(st.sets(st.sampled_from(sorted(weights))))
    order = rank_weighted(job, seed, weights)
    tries = {worker: may_try_at(turn_of(job, seed, worker, weights), 1_000) for worker in weights.keys() - dead}
    tries["a worker that nobody has heard of" * 2] = last = may_try_at(turn_of(job, seed, "?" * 99, weights), 1_000)
    assert last == 1_000 + len(weights) * CLAIM_TIMEOUT_MS, "after the last rank anybody may"
    before = list(itertools.takewhile(dead.__contains__, order))
    assert min(tries.values()) == 1_000 + len(before) * 5_000
    assert len(set(tries.values())) == len(tries), "never two at once"


@pytest.mark.req("GR-07")
def test_each_rank_waits_for_one_timeout_more():
    assert [may_try_at(place, 100) for place in range(4)] == [100, 5_100, 10_100, 15_100]
    assert [may_try_at(place, 100, 250) for place in range(3)] == [100, 350, 600]


stamps = st.builds(Hlc, st.integers(0, 3), st.integers(0, 2), st.integers(0, 2))
claims = st.builds(AnnouncedClaim, st.just("job"), st.sampled_from(["w1", "w10", "w2", "é"]), stamps)


@pytest.mark.req("GR-03")
@given(st.lists(claims, min_size=1, max_size=6), st.randoms())
def test_everybody_agrees_on_the_winning_claim(found: list[AnnouncedClaim], chance):
    winner = winning_claim(found)
    shuffled = list(found)
    chance.shuffle(shuffled)
    again = winning_claim([*shuffled, *found])
    assert (again.worker, again.timestamp[:2]) == (winner.worker, winner.timestamp[:2])
    for other in found:
        assert winner.timestamp[:2] <= other.timestamp[:2]
        if winner.timestamp[:2] == other.timestamp[:2]:
            assert winner.worker.encode() <= other.worker.encode()


@pytest.mark.req("GR-03")
def test_the_earlier_claim_wins_and_on_a_tie_the_lower_worker_id():
    second = AnnouncedClaim("job", "w2", Hlc(1234, 0, 9))
    fourth = AnnouncedClaim("job", "w4", Hlc(1567, 0, 1))
    assert winning_claim([fourth, second]) == winning_claim([second, fourth]) == second
    tied = fourth._replace(timestamp=Hlc(1234, 0, 1))
    assert winning_claim([tied, second]) == second, "the worker's id decides, not the node in the timestamp"
    assert winning_claim([tied, second._replace(timestamp=Hlc(1234, 1, 9))]) == tied


def limit(jobs: int, weight: float, weights: dict[str, float]) -> int:
    return ceil(Fraction(5, 4) * jobs * Fraction(weight) / sum(map(Fraction, weights.values())))


@given(names, weighted_fleets, st.data())
def test_a_sticky_job_passes_over_those_with_too_much_to_do(key: str, weights: dict[str, float], data):
    loads = data.draw(st.dictionaries(st.sampled_from([*weights, "gone"]), st.integers(0, 9)))
    order = rank_sticky(key, weights, loads)
    jobs = 1 + sum(load for worker, load in loads.items() if worker in weights)
    has_room = [loads.get(each, 0) < limit(jobs, weights[each], weights) for each in order]
    assert has_room[0], "somebody always has room"
    assert has_room == sorted(has_room, reverse=True)
    idle = rank_sticky(key, weights, {})
    for group in (True, False):
        chosen = [each for each, room in zip(order, has_room, strict=True) if room is group]
        assert chosen == [each for each in idle if each in chosen], "by rank among themselves"
    assert sorted(order) == sorted(weights)
    assert order == rank_sticky(key, dict(reversed(weights.items())), loads)


def test_the_limit_of_a_sticky_job_counts_the_job_itself():
    workers = dict.fromkeys("abcd", 1.0)
    first, second, third, fourth = rank_sticky("key", workers, {})
    # With this job there are four jobs for four workers, and the limit is ⌈1.25⌉; without it, it would be ⌈0.94⌉.
    assert rank_sticky("key", workers, {first: 1, second: 1, third: 1})[0] == first
    assert rank_sticky("key", workers, {first: 2, second: 1, third: 1}) == [second, third, fourth, first]
    assert rank_sticky("key", workers, {first: 1, "a worker that left": 1_000})[0] == second
    assert rank_sticky("key", workers | {first: 4.0}, {first: 2, second: 1, third: 1})[0] == first


def test_a_key_stays_with_its_worker_and_no_worker_gets_more_than_its_limit():
    workers = dict.fromkeys((f"w{n}" for n in range(10)), 1.0)
    keys = [f"repo-{n}" for n in range(100)]
    homes = {key: rank_sticky(key, workers, {})[0] for key in keys}
    fewer = {name: weight for name, weight in workers.items() if name != "w3"}
    moved = [key for key in keys if rank_sticky(key, fewer, {})[0] != homes[key]]
    assert moved == [key for key in keys if homes[key] == "w3"], "only those of the worker that left"
    loads: dict[str, int] = {}
    for count in range(200):
        chosen = rank_sticky("the only key", workers, loads)[0]
        loads[chosen] = loads.get(chosen, 0) + 1
        assert max(loads.values()) <= ceil(Fraction(5, 4) * (count + 1) / 10)
    assert len(loads) > 1


def test_the_turn_of_one_worker_is_its_place_among_weighted_ones() -> None:
    chance = random.Random(11)
    for _ in range(400):
        weights = {f"w{n}": chance.choice((0.001, 1.0, 1.0, 2.5, 1000.0)) for n in range(chance.randint(1, 30))}
        seed, worker = chance.randbytes(32), f"w{chance.randrange(len(weights))}"
        assert turn_of("job", seed, worker, weights) == rank_weighted("job", seed, weights).index(worker)


@pytest.mark.req("GR-07")
def test_each_node_has_one_turn_before_any_has_a_second() -> None:
    ranking = ["h/1", "h/2", "a/1", "h/3", "b/1", "a/2", "alone"]
    assert in_turns(ranking) == ["h/1", "a/1", "b/1", "alone", "h/2", "a/2", "h/3"]
    chance = random.Random(12)
    for _ in range(400):
        names = [f"n{chance.randrange(4)}/w{n}" for n in range(chance.randint(1, 30))]
        weights = {name: chance.choice((0.001, 1.0, 1.0, 2.5, 1000.0)) for name in names}
        seed = chance.randbytes(32)
        order = in_turns(rank_weighted("job", seed, weights))
        assert [turn_of("job", seed, worker, weights) for worker in order] == list(range(len(order)))
        assert order[0] == rank_weighted("job", seed, weights)[0], "the winner is that of the ranking"


@pytest.mark.req("LW-49")
@pytest.mark.touches("GR-07")
def test_a_node_with_many_silent_workers_delays_the_others_by_one_turn() -> None:
    made_up = {f"hostile/w{number}": WEIGHT_MAX for number in range(64)}
    for number in range(50):
        seed = bytes([number]) * 32
        assert turn_of("job", seed, "honest/1", made_up | {"honest/1": 1.0}) <= 1
        weights = made_up | {"honest/1": 1.0, "honest/2": 1.0}
        assert sorted(turn_of("job", seed, f"honest/{each}", weights) for each in (1, 2))[1] <= 3
        assert turn_of("job", seed, "honest/new", made_up) == 1, "a newcomer waits for one turn of each node"
        assert turn_of("job", seed, "honest/new", weights) == 5, "and for its own node's others"


def test_where_floats_are_unsure_the_turn_of_one_worker_is_that_of_the_whole_ranking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next score below and above each limit, and the lowest and the highest of all."""
    least, most = bytes(32), b"\xff" * 32
    weights = {"own": 1.0, "same": 1.0, "other": 2.0}
    for own in (least, most, b"\x40" + bytes(31), b"\x80" * 32):
        sure, possible = rendezvous._limits(own, 1.0, {2.0})[2.0]
        for found in (least, most, sure, possible):
            for step in (-1, 0, 1):
                number = min(max(int.from_bytes(found, "big") + step, 0), 2**256 - 1)
                scores = {"own": own, "same": most, "other": number.to_bytes(32, "big")}
                monkeypatch.setattr(rendezvous, "_scorer", lambda job, seed, scores=scores: scores.__getitem__)
                assert turn_of("", b"", "own", weights) == rank_weighted("", b"", weights).index("own")
