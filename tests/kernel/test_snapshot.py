"""Records of model calls: one form, and what a later version adds is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.clock import Hlc
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, decode_snapshot, encode_snapshot
from hocket.kernel.vocabulary import Telemetry

pytestmark = pytest.mark.touches("LW-35")

IDS = st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple)
NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.builds(Hlc, NUMBERS, st.integers(0, 2**32 - 1), NUMBERS)
SNAPSHOTS = st.builds(
    Snapshot,
    *(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), IDS, IDS, IDS, st.text(), st.text()),
    st.builds(Telemetry, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS),
    *(TIMES, TIMES, st.binary(max_size=8)),
)
SNAPSHOT = Snapshot(
    model_id="m",
    model_version="v",
    backend="b",
    evidence=(b"e" * 16,),
    claims=(),
    entities=(b"n" * 16, b"o" * 16),
    prompt="why?",
    output="ä",
    telemetry=Telemetry(300, 1, None, 2),
    started_at=Hlc(1, 0, 7),
    completed_at=Hlc(128, 3, 7),
)
BYTES = (
    b"\x01m\x01v\x01b"
    + (b"\x01" + b"e" * 16)
    + b"\x00"
    + (b"\x02" + b"n" * 16 + b"o" * 16)
    + b"\x04why?"
    + b"\x02\xc3\xa4"
    + b"\xac\x02\x01\x01\x00\x01\x02"
    + b"\x01\x00\x07"
    + b"\x80\x01\x03\x07"
)


@pytest.mark.req("LW-35")
def test_the_form_by_exact_bytes() -> None:
    assert SNAPSHOT_TYPE == "likewise.inference.snapshot"
    assert encode_snapshot(SNAPSHOT) == BYTES
    assert decode_snapshot(BYTES) == SNAPSHOT


@given(SNAPSHOTS)
def test_a_snapshot_comes_back(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@pytest.mark.req("LW-35")
@given(st.binary(min_size=1, max_size=30))
def test_what_a_later_version_adds_is_kept(more: bytes) -> None:
    read = decode_snapshot(BYTES + more)
    assert read.rest == more
    assert read.completed_at == SNAPSHOT.completed_at
    assert encode_snapshot(read) == BYTES + more


@pytest.mark.parametrize("size", range(len(BYTES)))
def test_a_record_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(Malformed):
        decode_snapshot(BYTES[:size])


@given(st.binary(max_size=80))
def test_what_is_read_has_no_second_spelling(data: bytes) -> None:
    try:
        snapshot = decode_snapshot(data)
    except Malformed:
        return
    assert encode_snapshot(snapshot) == data
