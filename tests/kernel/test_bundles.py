"""Bundles: what they carry, and that a fact's id binds its author, its place and its content."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel import bundles
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import digest, make_ulid
from hocket.kernel.ops import NO_ID, Op, deadline_at, decode, encode, is_bound, link_to
from hocket.kernel.postcard import Malformed
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.vocabulary import (
    PAYLOAD,
    AcceptWork,
    Bundle,
    ClaimWork,
    CreateArtifact,
    FailWork,
    Payload,
    RouteKind,
    ScheduleJob,
    number_of,
)
from tests.bundled import bundled

NODE = 77
LINK = link_to(NO_ID)
ids = st.binary(min_size=16, max_size=16).map(lambda data: b"\x01" + data[1:])
cited = st.lists(ids, max_size=3).map(tuple)
TYPES = (
    st.builds(ScheduleJob, st.just(NO_ID) | ids, st.text(max_size=9), st.binary(max_size=40), st.binary(max_size=9)),
    # Many are like the one before but for their job, or begin as it does.
    st.builds(ClaimWork, ids, *(st.sampled_from((1, 128)) | st.integers(0, 2**64 - 1),) * 2),
    st.builds(AcceptWork, ids, ids),
    st.builds(FailWork, ids, st.just(NODE), st.text(max_size=9), st.text(max_size=9), st.booleans()),
    st.builds(
        CreateArtifact,
        *(st.just(NO_ID) | ids, st.text(max_size=5), st.none() | ids, cited, st.binary(min_size=32, max_size=32)),
        *(st.none() | st.binary(max_size=40), st.none(), st.none(), st.integers(0, 9), st.none()),
    ),
)
Drawn = list[tuple[tuple[bytes, ...], Payload]]
drawn = st.one_of(*(st.lists(st.tuples(cited, each), min_size=1, max_size=9) for each in TYPES))
stamps = st.builds(Hlc, st.integers(0, 2**47), st.integers(0, U32_MAX - 20), st.just(NODE))
said = st.just(()) | st.integers(0, 2**40).map(lambda wall: (deadline_at(wall),))


def made(stamp: Hlc, deps: tuple[bytes, ...], facts: Drawn) -> Op:
    return bundled(stamp, (*deps, LINK), facts)[0]


@pytest.mark.req("LW-51", "LW-20")
@given(stamps, said, drawn)
def test_a_bundle_gives_back_its_facts(stamp: Hlc, deps: tuple[bytes, ...], facts: Drawn) -> None:
    op, body = bundled(stamp, (*deps, LINK), facts)
    assert decode(encode(op)) == op and is_bound(body + b"\0", op)
    found = list(bundles.facts_of(op))
    assert [each.op.timestamp for each in found] == [
        Hlc(stamp.wall, stamp.logical + n, NODE) for n in range(1, len(facts) + 1)
    ]
    for (deps_of_fact, payload), each in zip(facts, found, strict=True):
        own = each.op
        assert own.cited == deps_of_fact and own.link is None and own.deadline == op.deadline
        assert decode(each.body) == own and encode(own) == each.body
        assert own == bundles.fact(own.timestamp, own.causal_deps, payload, encode_value(PAYLOAD, payload)).op, (
            "known before the bundle is complete"
        )
        # By hand, as docs/wire-format.md says.
        names_itself = isinstance(payload, ScheduleJob | CreateArtifact) and own.id in each.body[16:]
        rest = each.body[16:-1].replace(own.id, NO_ID) if names_itself else each.body[16:-1]
        assert own.id == make_ulid(stamp.wall, digest(b"hocket fact\0" + rest, 10))
    assert bundles.read_facts(encode(op)) == tuple(found)
    assert len({each.op.id for each in found}) == len(found), "equal facts in two places are two facts"


@pytest.mark.req("LW-51")
def test_only_so_many_facts_are_kept() -> None:
    facts: Drawn = [((), ClaimWork(bytes([1]) * 16, NODE, 1))] * 100
    for wall in range(2 * bundles.FACTS_KEPT // len(facts)):
        read = bundles.read_facts(encode(made(Hlc(wall, 0, NODE), (), facts)))
        assert len(read) == len(facts) and bundles.kept.count <= bundles.FACTS_KEPT
    assert bundles.kept.count > bundles.FACTS_KEPT - len(facts)
    again = encode(made(Hlc(wall, 0, NODE), (), facts))
    assert bundles.read_facts(again) is read, "the facts that were read last are kept"


@pytest.mark.touches("LW-51")
def test_a_process_keeps_few_bytes_of_bundles_with_large_facts() -> None:
    """A member may sign bundles of two megabytes with a single fact each."""
    size = bundles.BYTES_KEPT // 5
    for wall in range(10):
        large = ScheduleJob(NO_ID, "k", bytes(size), b"")
        (fact,) = bundles.read_facts(encode(made(Hlc(wall, 0, NODE), (), [((), large)])))
        assert len(fact.body) > size and 0 < bundles.kept.bytes <= bundles.BYTES_KEPT
    assert bundles.kept.count == 4 and bundles.kept.bytes > 4 * size


@pytest.mark.req("LW-51")
@given(stamps, said, drawn)
def test_a_draft_names_facts_as_they_are_read(stamp: Hlc, deps: tuple[bytes, ...], facts: Drawn) -> None:
    draft = bundles.BundleDraft(type(facts[0][1]), stamp, deps, 64 * 1024)
    named: list[bytes | None] = []
    for cites, payload in facts:
        draft.name((), payload, draft.at)  # one that is not kept
        named.append(draft.name(cites, payload, draft.at))
        assert draft.fact(cites, payload, draft.at).op.id == named[-1]
        draft.keep()
    op, body = draft.closed(LINK)
    assert (op, body) == bundled(stamp, (*deps, LINK), facts)
    assert [each.op.id for each in bundles.facts_of(op)] == named and draft.count == len(facts)


@pytest.mark.req("LW-51")
@given(stamps, said, st.lists(st.tuples(cited, TYPES[0]), min_size=1, max_size=9))
def test_a_schedule_is_read_without_its_bundle(stamp: Hlc, deps: tuple[bytes, ...], facts: Drawn) -> None:
    op = made(stamp, deps, facts)
    for place, each in enumerate(bundles.facts_of(op)):
        assert bundles.schedule_body(encode(op), place, each.op.id) == each.body
    with pytest.raises(IndexError):
        bundles.schedule_body(encode(op), len(facts), NO_ID)


@pytest.mark.req("LW-51")
def test_only_schedules_are_read_as_schedules() -> None:
    stamp = Hlc(1, 2, NODE)
    for op in (
        made(stamp, (), [((), ClaimWork(b"\x01" * 16, NODE, 1))]),
        Op(NO_ID, stamp, NODE, (), RouteKind("k", 1)),
    ):
        with pytest.raises(Malformed):
            bundles.schedule_body(encode(op), 0, NO_ID)


@pytest.mark.req("LW-51")
@given(stamps, drawn, st.data())
def test_a_fact_in_another_place_is_another_fact(stamp: Hlc, facts: Drawn, data: st.DataObject) -> None:
    before = {each.op.id for each in bundles.facts_of(made(stamp, (), facts))}
    moved = Hlc(stamp.wall, stamp.logical + len(facts), NODE)
    other = stamp._replace(node=NODE + 1)
    late = (deadline_at(data.draw(st.integers(0, 2**40))),)
    for op in (made(moved, (), facts), made(other, (), facts), made(stamp, late, facts)):
        assert before.isdisjoint(each.op.id for each in bundles.facts_of(op))


def is_refused(op: Op) -> bool:
    with pytest.raises(Malformed):
        list(bundles.facts_of(op))
    return True


@pytest.mark.req("LW-51")
def test_what_is_no_bundle() -> None:
    stamp, claim = Hlc(5, 1, NODE), ((), ClaimWork(b"\x01" * 16, NODE, 5))
    good = made(stamp, (), [claim] * bundles.FACTS_MAX)
    assert len(list(bundles.facts_of(good))) == bundles.FACTS_MAX
    assert is_refused(made(stamp, (), [claim] * (bundles.FACTS_MAX + 1))), "too many facts"
    assert is_refused(made(stamp, (), [((), RouteKind("k", None))])), "a payload that is always alone"
    assert is_refused(bundled(stamp, (), [claim])[0]), "no link"
    assert is_refused(made(stamp, (b"\x01" * 16,), [claim])), "a dependency of the bundle's own"
    assert is_refused(made(Hlc(5, U32_MAX, NODE), (), [claim])), "no time is left for the fact"
    payload = good.payload
    assert isinstance(payload, Bundle)
    for wrong in (
        Bundle(number_of(ClaimWork), b""),
        Bundle(number_of(ClaimWork), payload.facts[:-1]),
        Bundle(9_999, payload.facts),
    ):
        assert is_refused(msgspec.structs.replace(good, payload=wrong))
