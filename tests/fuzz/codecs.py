"""The targets that read postcard and the policy envelope. What they accept must be the one spelling of what it says,
so that encoding it again gives the very same bytes, and an op that verifies must be one that the key really signed.
"""

import io
import json
from random import Random

import msgspec

from hocket.bus.hints import ANYTHING, NOTHING, Changes, decode_changes, decode_or_anything, encode_changes
from hocket.kernel import ops, policy
from hocket.kernel import vocabulary as v
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, decode_frontier, encode_frontier, frontier_text, parse_frontier
from hocket.kernel.mesh_rules import HOCKET, STRICT, Extensions, Rules, decode_rules, encode_rules, rules_hash
from hocket.kernel.ops import Op
from hocket.kernel.postcard import STR, U64, Malformed, Reader
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.retrying import backoff_ms
from hocket.kernel.sanitise import sanitised
from hocket.kernel.snapshot import Snapshot, decode_snapshot, encode_snapshot
from hocket.kernel.vocabulary import subject_of
from hocket.log import copies
from tests.fuzz.mutate import JSON_WORDS, Damage, JsonDamage, Sample, Stream, by_fields, by_punctuation
from tests.fuzz.target import Target
from tests.vectors import make_ops

KEY, NODE = make_ops.KEY, make_ops.NODE
VECTORS = [bytes.fromhex(entry["hex"]) for entry in json.loads(make_ops.PATH.read_text(encoding="utf-8"))["ops"]]
STRANGE = '{"lat":48.2,"a":{"lon":[1,2]},"a":"geo: 7"}'
A, B, HASH = make_ops.A, make_ops.B, make_ops.HASH
EVIDENCE = v.IngestEvidence(
    A, HASH, "photo", f"bob/{STRANGE}",
    v.Metadata(5, v.Location(1.0, 2.0), ("bob", "bo", "bob", ""), (("gps_lat", "1"), ("note", STRANGE))),
)  # fmt: skip
FRESH = (
    EVIDENCE,
    v.Sanitised(("StripGeo", "RedactParticipants"), EVIDENCE),
    v.Sanitised((), v.AcceptWork(A, B)),
    v.CreateArtifact(A, "t", None, (), HASH, STRANGE.encode(), None, None, 9),
    v.CreateClaim(
        A, v.ClaimType.SPATIAL, B, "p", v.StructuredObject(STRANGE.encode()), v.ClaimStatus.HINT, (), v.Provenance()
    ),
    v.CreateClaim(A, v.ClaimType.ATTRIBUTE, B, "p", v.TextObject(STRANGE), v.ClaimStatus.HINT, (), v.Provenance()),
    v.FailWork(A, NODE, "E", "é" * 40, False),
)  # fmt: skip


def _op(n: int, payload: v.Payload, deps: tuple[bytes, ...] = ()) -> Op:
    return Op(make_ops.ulid(900 + n), Hlc(1_756_865_547_183 + n, n, NODE), NODE, deps, payload)


FRESH_OPS = [ops.encode(ops.sign(_op(n, payload, (A, B)[: n % 3]), KEY)) for n, payload in enumerate(FRESH)]
UNSIGNED = [ops.encode(_op(50 + n, payload)) for n, payload in enumerate(FRESH)]
SIGNED = frozenset(VECTORS + FRESH_OPS)
OPS = [by_fields(data, ops.read_op) for data in (*VECTORS, *FRESH_OPS, *UNSIGNED)]


# Ops, alone and many together.

_TAGS = tuple(encode_value(U64, number) for number in (*v.VARIANTS, 27, 1023, 1032))


def _hold_op(data: bytes, op: Op) -> bool:
    assert ops.encode(op) == data, "not the spelling of what it says"
    assert not ops.verify_op(data, op, KEY.public) or data in SIGNED, "verifies, and was never signed"
    subject_of(op.payload)
    return True


def _read_sequence(data: bytes) -> list[tuple[bytes, Op | Malformed]]:
    return list(ops.read_sequence(data))


def _hold_sequence(data: bytes, read: list[tuple[bytes, Op | Malformed]]) -> bool:
    raws = [raw for raw, _ in read]
    good = [(raw, op) for raw, op in read if isinstance(op, Op)]
    assert data.endswith(b"".join(raws)), "bytes were lost or moved"
    assert all(ops.encode(op) == raw for raw, op in good), "not the spelling of what it says"
    if len(good) < len(read):
        return False
    assert ops.encode_sequence(raws) == data, "not the spelling of what it says"
    return True


def _read_archive(data: bytes) -> tuple[copies.OpReader, list[tuple[bytes, Op | Malformed]]]:
    reading = copies.OpReader(io.BytesIO(data))
    return reading, list(reading)


def _hold_archive(data: bytes, read: tuple[copies.OpReader, list[tuple[bytes, Op | Malformed]]]) -> bool:
    """The file's reader finds what the batch's reader finds, up to the first op that is none."""
    reading, found = read
    expected = _read_sequence(data)
    good = next((n for n, (_, op) in enumerate(expected) if isinstance(op, Malformed)), len(expected))
    assert [raw for raw, _ in found[:good]] == [raw for raw, _ in expected[:good]], "two readers, two readings"
    assert all(isinstance(op, Op) for _, op in found[:good])
    is_whole = good == len(expected)
    assert len(found) == good + (not is_whole) and (is_whole or isinstance(found[-1][1], Malformed))
    assert reading.unread >= 0 and not (is_whole and reading.unread)
    if all(len(raw) <= _SMALL for raw, _ in expected[:good]):
        assert [raw for raw, _ in _in_small_chunks(data)[:good]] == [raw for raw, _ in found[:good]], "chunks show"
    return is_whole


_SMALL = 512


def _in_small_chunks(data: bytes) -> list[tuple[bytes, Op | Malformed]]:
    """Reads an archive with a buffer so small that it must be filled again in mid-op."""
    before = copies.MAX_OP_BYTES, copies.CHUNK
    copies.MAX_OP_BYTES, copies.CHUNK = _SMALL, 2 * _SMALL
    try:
        return _read_archive(data)[1]
    finally:
        copies.MAX_OP_BYTES, copies.CHUNK = before


def _sequences() -> list[Sample]:
    rng = Random(1)
    every = [sample.data for sample in OPS]
    batches = [rng.sample(every, rng.randrange(1, 6)) for _ in range(20)]

    def read(r: Reader) -> None:
        for _ in range(r.varint()):
            ops.read_op(r)

    return [by_fields(ops.encode_sequence(batch), read) for batch in [*batches, []]]


SEQUENCES = _sequences()

_RULES = (
    ["StripGeo"],
    ["RedactParticipants"],
    ["TruncateContent(5)"],
    ["StripCustomMetadata"],
    ["TruncateContent(20)", "RedactParticipants", "StripGeo", "StripCustomMetadata"],
)


def _hold_sanitised(data: bytes, op: Op) -> bool:
    for rules in _RULES:
        once = sanitised(op.payload, rules)
        assert sanitised(once, rules) is once, "sanitising again changes something"
        inner = once.payload if isinstance(once, v.Sanitised) else once
        sent = msgspec.structs.replace(op, payload=v.Sanitised(tuple(rules), inner), signature=None)
        if isinstance(inner, v.Unknown):
            _hold_unsent(sent)
            continue
        encoded = ops.encode(sent)
        assert ops.encode(ops.decode(encoded)) == encoded
    return True


def _hold_unsent(op: Op) -> None:
    """What this program does not know it cannot sanitise, so it must not go out in the place of a sanitised op."""
    try:
        ops.encode(op)
    except Malformed:
        return
    raise AssertionError("an unknown payload is sent as if it were sanitised")


SANITISED = [by_fields(data, ops.read_op) for data in (*FRESH_OPS, *UNSIGNED, VECTORS[0], VECTORS[7])]


# Documents.


def _frontiers() -> list[Sample]:
    rng = Random(2)
    made: list[Frontier] = [{}, {0: Hlc(0, 0, 0)}, {2**64 - 1: Hlc(2**64 - 1, 2**32 - 1, 2**64 - 1)}]
    for _ in range(12):
        nodes = [rng.getrandbits(64) for _ in range(rng.randrange(1, 9))]
        made.append({node: Hlc(rng.getrandbits(42), rng.getrandbits(8), node) for node in nodes})
    return [Sample(data := encode_frontier(each), tuple(range(len(data) + 1))) for each in made]


FRONTIERS = _frontiers()


def _hold_frontier(data: bytes, frontier: Frontier) -> bool:
    assert encode_frontier(frontier) == data, "not the spelling of what it says"
    assert list(frontier) == sorted(frontier) and all(stamp.node == node for node, stamp in frontier.items())
    assert parse_frontier(frontier_text(frontier)) == frontier
    return True


RULES = [
    Sample(data := encode_rules(rules), tuple(range(len(data) + 1)))
    for rules in (
        STRICT,
        HOCKET,
        msgspec.structs.replace(HOCKET, ranked_open=True),
        msgspec.structs.replace(HOCKET, ranked_open=True, bundles=True),
        Rules("", (), (), Extensions((), False, 2**64 - 1, ("ClaimWork",), ("acme.", ""))),
    )
]


def _hold_rules(data: bytes, rules: Rules) -> bool:
    assert encode_rules(rules) == data, "not the spelling of what it says"
    rules_hash(rules)
    return True


SNAPSHOT = Snapshot(
    *("model", "1.2", "http", (A,), (), (B, A), "why? é", "because"),
    *(v.Telemetry(300, 1, None, 2), Hlc(1, 0, 7), Hlc(128, 3, 7)),
)
SNAPSHOTS = [
    Sample(data := encode_snapshot(each), tuple(range(len(data) + 1)))
    for each in (SNAPSHOT, msgspec.structs.replace(SNAPSHOT, rest=b"later", evidence=(), prompt=""))
]


def _hold_snapshot(data: bytes, snapshot: Snapshot) -> bool:
    assert encode_snapshot(snapshot) == data, "not the spelling of what it says"
    return True


POLICIES = [
    policy.Policy(priority=5, not_before=2**53, lease_ms=100, retries=0, backoff_ms=0, unique="u", unique_for_ms=1),
    policy.Policy(
        after=("01K46NHJXF0000000000000001", "01k46nhjxf0000000000000002"), rate=policy.Rate(1, 1), open=True
    ),
    policy.Policy(concurrency=3, schedule="nightly", backoff_max_ms=policy.DELAY_MS_MAX),
]
ENVELOPES = [by_punctuation(policy.encode_policy(each)) for each in POLICIES]


def _hold_policy(data: bytes, read: policy.Policy) -> bool:
    spelled = policy.encode_policy(read)
    assert policy.decode_policy(spelled) == read and policy.encode_policy(policy.decode_policy(spelled)) == spelled
    assert policy.dependencies(data) == read.dependencies() and len(read.after) <= policy.AFTER_MAX
    policy.check_policy(read)
    assert 0 <= backoff_ms(1000, read.backoff_ms, read.backoff_max_ms, 65535) <= policy.DELAY_MS_MAX
    return True


def _policies(rng: Random) -> Stream:
    words = ("priority", "after", "rate", "open", "lease_ms", "x")
    fields = tuple(b'"%s":1,' % word.encode() for word in words)
    text = Damage(rng, ENVELOPES, JSON_WORDS + fields)
    values = JsonDamage(rng, [msgspec.to_builtins(each) for each in POLICIES], msgspec.json.encode, words)
    return lambda: text() if rng.random() < 0.6 else values()


_MALFORMED = (Malformed,)
_NAMES = tuple(encode_value(STR, name) for name in ("StripGeo", "TruncateContent(0)", "lat", '{"lat":1}', "\0", "bob"))

# Hints.

CHANGES = [
    Sample(data := encode_changes(each), tuple(range(len(data) + 1)))
    for each in (
        NOTHING,
        ANYTHING,
        Changes(frozenset(("acme.render", "acme.", "é")), frozenset((("job", A), ("job", B), ("log", b"")))),
    )
]


def _hold_changes(data: bytes, changes: Changes) -> bool:
    assert encode_changes(changes) == data, "not the one form of what it says"
    assert decode_or_anything(data) == changes
    return True


TARGETS = (
    Target("changes", decode_changes, _MALFORMED, _hold_changes, CHANGES, lambda rng: Damage(rng, CHANGES)),
    Target("op", ops.decode, _MALFORMED, _hold_op, OPS, lambda rng: Damage(rng, OPS, _TAGS)),
    Target("sequence", _read_sequence, (), _hold_sequence, SEQUENCES, lambda rng: Damage(rng, SEQUENCES, _TAGS)),
    Target("archive", _read_archive, (), _hold_archive, SEQUENCES, lambda rng: Damage(rng, SEQUENCES, _TAGS)),
    Target("sanitise", ops.decode, _MALFORMED, _hold_sanitised, SANITISED, lambda rng: Damage(rng, SANITISED, _NAMES)),
    Target("frontier", decode_frontier, _MALFORMED, _hold_frontier, FRONTIERS, lambda rng: Damage(rng, FRONTIERS)),
    Target("rules", decode_rules, _MALFORMED, _hold_rules, RULES, lambda rng: Damage(rng, RULES, _NAMES)),
    Target("snapshot", decode_snapshot, _MALFORMED, _hold_snapshot, SNAPSHOTS, lambda rng: Damage(rng, SNAPSHOTS)),
    Target("policy", policy.decode_policy, (ValueError,), _hold_policy, ENVELOPES, _policies),
)
