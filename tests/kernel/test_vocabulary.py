"""The vocabulary: the table of payloads is the table in docs/wire-format.md, and each of them goes there and back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel import vocabulary as v
from hocket.kernel.policy import Policy, of_kind
from hocket.kernel.postcard import Malformed, UnknownVariant, decode, encode
from hocket.kernel.vocabulary import Subject, subject_of
from tests.kernel import second

pytestmark = pytest.mark.touches("LW-03", "LW-04", "LW-20")

JOB = bytes(range(16))


@pytest.mark.req("LW-03", "LW-04", "LW-20")
def test_numbers_and_fields_are_those_of_the_page() -> None:
    ours = {codec.cls.__name__: (number, list(codec.cls.__struct_fields__)) for number, codec in v.VARIANTS.items()}
    page = {name: (number, [field for field, _ in fields]) for name, (number, fields) in second.VARIANTS.items()}
    assert ours == page
    assert {number: name for name, (number, _) in page.items()} == v.NAMES
    assert sorted(v.NAMES) == [*range(27), *range(1024, 1060)]
    assert frozenset(range(1024, 1060)) == v.EXTENSIONS


def test_the_members_of_a_policy_are_those_of_the_page() -> None:
    section = second.PAGE.partition("## The policy envelope")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, flags=re.MULTILINE)
    members = [found for cell in cells for found in re.findall(r"`(\w+)`( ¹)?", cell)]
    assert sorted(name for name, _ in members) == sorted(Policy.__struct_fields__)
    whole = Policy(**{name: object() for name in Policy.__struct_fields__})  # type: ignore[arg-type]
    of_a_kind = {name for name in Policy.__struct_fields__ if getattr(of_kind(whole), name) is getattr(whole, name)}
    assert {name for name, mark in members if not mark} == of_a_kind


@pytest.mark.parametrize("name", sorted(second.CHOICES))
def test_choices_are_those_of_the_page(name: str) -> None:
    ours = {int(member): member.name for member in second.named(name)}
    page = {number: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).upper() for number, word in second.CHOICES[name].items()}
    assert ours == page


@pytest.mark.req("LW-20")
@given(second.PAYLOADS)
def test_two_encoders_give_the_same_bytes_and_they_come_back(payload: v.Payload) -> None:
    data = encode(v.PAYLOAD, payload)
    assert data == second.put_payload(second.plain(payload))
    assert decode(v.PAYLOAD, data) == payload
    assert v.NAMES[v.discriminant(payload)] == type(payload).__name__


@pytest.mark.parametrize("name", sorted(second.VARIANTS))
@given(st.data())
def test_every_variant_by_name(name: str, data: st.DataObject) -> None:
    payload = data.draw(second.build(name, second.VARIANTS[name][1]))
    encoded = encode(v.PAYLOAD, payload)
    assert encoded == second.put_payload(second.plain(payload))
    assert decode(v.PAYLOAD, encoded) == payload
    with pytest.raises(Malformed):
        decode(v.PAYLOAD, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.req("LW-20")
@given(st.sampled_from(sorted(v.NAMES)), st.binary(max_size=120))
def test_random_bodies_are_refused_or_are_the_only_spelling(number: int, body: bytes) -> None:
    data = second.varint(number) + body
    try:
        payload = decode(v.PAYLOAD, data)
    except Malformed:
        return
    assert encode(v.PAYLOAD, payload) == data


@pytest.mark.req("LW-34")
@pytest.mark.parametrize("number", [27, 127, 1023, 1100, 2**64 - 1])
def test_a_number_outside_the_table_is_an_unknown_variant(number: int) -> None:
    with pytest.raises(UnknownVariant) as caught:
        decode(v.PAYLOAD, second.varint(number) + bytes(40))
    assert caught.value.discriminant == number


def test_the_job_that_an_op_touches() -> None:
    touching = {
        "ScheduleJob", "ClaimWork", "CompleteJob", "YieldWork", "ExpireWork",
        "FailWork", "CancelJob", "RetryJob", "ReportProgress", "AcceptWork", "PostponeWork", "SaveCheckpoint",
        "PostponeJob", "ApproveJob", "RefuseJob",
    }  # fmt: skip
    assert touching == {codec.cls.__name__ for codec in v.VARIANTS.values() if "job_id" in codec.cls.__struct_fields__}
    assert subject_of(v.ClaimWork(JOB, 1, 2)) == subject_of(v.CancelJob(JOB, "")) == Subject("job", JOB)
    assert subject_of(v.CreateArtifact(JOB, "t", JOB, (), bytes(32), None, None, None, 0, None)) is None
    assert subject_of(v.RouteKind("k", None)) is None
    assert subject_of(v.AcceptOffer("lock", b"printer", JOB)) == Subject("lock", b"printer")


def test_what_is_sanitised_is_wrapped_once() -> None:
    inner = v.Sanitised(("StripGeo",), v.CancelJob(JOB, ""))
    with pytest.raises(Malformed):
        encode(v.PAYLOAD, v.Sanitised(("StripGeo",), inner))


def test_payloads_cannot_be_changed() -> None:
    claim = v.ClaimWork(JOB, 1, 2)
    with pytest.raises(AttributeError):
        claim.claimer = 3  # type: ignore[misc]
    assert hash(claim) == hash(v.ClaimWork(JOB, 1, 2))


@pytest.mark.parametrize(
    "payload",
    [
        v.ClaimWork(JOB[:15], 1, 2),
        v.ClaimWork(JOB, -1, 2),
        v.ClaimWork(JOB, 1, 2**64),
        v.RevokeUcan(JOB),
        v.UpdateClaimConfidence(JOB, (("x", 0.0),) * 257),
        v.MergeEntities(JOB, (JOB,) * 65_537, ""),
    ],
)
def test_a_payload_that_does_not_fit_is_not_written(payload: v.Payload) -> None:
    with pytest.raises(Malformed):
        encode(v.PAYLOAD, payload)
