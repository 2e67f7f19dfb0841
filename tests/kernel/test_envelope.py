"""The envelope around a message on the bus: what is sealed comes back, and everything else is dropped with a reason."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.bus.envelope import (
    DATA_BYTES_MAX,
    KEPT_MS,
    LIFE_MS,
    PROCESS_BYTES,
    SEALED_BYTES_MAX,
    Drop,
    Envelope,
    Seen,
    open_envelope,
    seal,
)
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SIGNATURE_BYTES, SigningKey
from hocket.kernel.postcard import Malformed

KEY, OTHER = SigningKey(bytes(31) + b"k"), SigningKey(bytes(31) + b"o")
NODE = node_id(KEY.public)
NOW = 1_756_865_547_183
PROCESS = bytes(PROCESS_BYTES)
ENVELOPE = Envelope("did:key:zMesh", Hlc(NOW, 3, NODE), PROCESS, "hocket.c.t.k", b"data", "hocket.c.reply.1")
KEYS = {NODE: KEY.public, node_id(OTHER.public): OTHER.public}


def opened(
    data: bytes,
    *,
    cluster: str = ENVELOPE.cluster,
    subject: str = ENVELOPE.subject,
    keys: Mapping[int, bytes] = KEYS,
    now_ms: int = NOW,
    seen: Seen | None = None,
    life_ms: int = LIFE_MS,
) -> Envelope | Drop:
    return open_envelope(data, cluster, subject, keys.get, now_ms, Seen() if seen is None else seen, life_ms)


def at(wall: int, logical: int = 0, *, is_kept: bool = False, process: bytes = PROCESS) -> Envelope:
    return replace(ENVELOPE, at=Hlc(wall, logical, NODE), is_kept=is_kept, process=process)


@pytest.mark.touches("GR-08")
@given(
    st.text(max_size=60).filter(lambda text: text.isprintable()),
    st.binary(max_size=500),
    st.text(max_size=60).filter(lambda text: text.isprintable()),
    st.integers(0, U32_MAX),
    st.binary(min_size=PROCESS_BYTES, max_size=PROCESS_BYTES),
    st.booleans(),
)
def test_what_is_sealed_comes_back(
    subject: str, data: bytes, reply_to: str, logical: int, process: bytes, is_kept: bool
) -> None:
    envelope = Envelope(ENVELOPE.cluster, Hlc(NOW, logical, NODE), process, subject, data, reply_to, is_kept)
    assert opened(seal(envelope, KEY), subject=subject) == envelope


@pytest.mark.touches("GR-08")
@given(st.integers(0, len(seal(ENVELOPE, KEY)) * 8 - 1))
def test_no_bit_of_it_can_be_changed(bit: int) -> None:
    sealed = bytearray(seal(ENVELOPE, KEY))
    sealed[bit // 8] ^= 1 << bit % 8
    assert isinstance(opened(bytes(sealed)), Drop)


@pytest.mark.touches("GR-08")
def test_each_bad_message_is_dropped_with_its_reason() -> None:
    sealed = seal(ENVELOPE, KEY)
    assert opened(sealed[:-SIGNATURE_BYTES]) is Drop.UNSIGNED
    assert opened(sealed[:-SIGNATURE_BYTES] + bytes(SIGNATURE_BYTES)) is Drop.UNSIGNED
    assert opened(sealed, keys={NODE: OTHER.public}) is Drop.UNSIGNED
    assert opened(sealed, cluster="did:key:zOther") is Drop.FOREIGN
    assert opened(sealed, subject="hocket.c.t.other") is Drop.FOREIGN
    assert opened(sealed, keys={}) is Drop.UNKNOWN
    assert opened(b"") is opened(sealed + b"x") is opened(sealed[:-1]) is opened(b"\2" + sealed[1:]) is Drop.MALFORMED
    assert opened(sealed + bytes(SEALED_BYTES_MAX)) is Drop.TOO_LONG


def test_a_signature_for_another_purpose_is_none_here() -> None:
    body = seal(ENVELOPE, KEY)[:-SIGNATURE_BYTES]
    assert opened(body + KEY.sign(body)) is Drop.UNSIGNED


@pytest.mark.parametrize("life_ms", [LIFE_MS, 300_000])
def test_a_message_lives_as_long_as_clocks_may_differ_and_an_announcement_longer(life_ms: int) -> None:
    for is_kept, extra in ((False, 0), (True, KEPT_MS)):
        sealed = seal(at(NOW, is_kept=is_kept), KEY)
        for now_ms in (NOW - life_ms, NOW, NOW + life_ms + extra):
            assert isinstance(opened(sealed, now_ms=now_ms, life_ms=life_ms), Envelope)
        for now_ms in (NOW - life_ms - 1, NOW + life_ms + extra + 1, 0, 2**64):
            assert opened(sealed, now_ms=now_ms, life_ms=life_ms) is Drop.STALE


@pytest.mark.touches("GR-08")
def test_a_message_counts_once() -> None:
    seen, sealed = Seen(), seal(ENVELOPE, KEY)
    assert isinstance(opened(sealed, seen=seen), Envelope)
    assert opened(sealed, seen=seen) is Drop.REPLAYED
    assert isinstance(opened(seal(at(NOW, 4), KEY), seen=seen), Envelope)
    another_process = at(NOW, 3, process=b"\1" * PROCESS_BYTES)
    assert isinstance(opened(seal(another_process, KEY), seen=seen), Envelope)


def test_a_forgery_is_not_remembered() -> None:
    """Or anyone could have a message refused by sending a bad copy first."""
    seen, sealed = Seen(), seal(ENVELOPE, KEY)
    assert opened(sealed[:-SIGNATURE_BYTES] + bytes(SIGNATURE_BYTES), seen=seen) is Drop.UNSIGNED
    assert isinstance(opened(sealed, seen=seen), Envelope)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=80))
def test_no_message_counts_twice_whatever_the_order_and_the_memory(
    sent: list[tuple[int, bool]],
) -> None:
    seen, counted = Seen(limit=4), []
    for logical, is_kept in sent:
        envelope = at(NOW, logical, is_kept=is_kept)
        if seen.is_new(envelope):
            seen.note(envelope)
            counted.append((logical, is_kept))
    assert len(counted) == len(set(counted))
    assert all(len(author.seen) == len(author.by_time) <= 4 for author in seen._authors.values())


def test_messages_out_of_order_count_and_an_author_that_sends_too_much_loses_only_its_own() -> None:
    seen = Seen(limit=10)
    for logical in (5, 3, 9, 1, 7):
        assert isinstance(opened(seal(at(NOW, logical), KEY), seen=seen), Envelope)
    for logical in range(10, 40):
        assert isinstance(opened(seal(at(NOW, logical), KEY), seen=seen), Envelope)
    assert opened(seal(at(NOW, 2), KEY), seen=seen) is Drop.REPLAYED
    kept = at(NOW - 1, 0, is_kept=True)
    assert isinstance(opened(seal(kept, KEY), seen=seen), Envelope), "announcements are old when they come"
    other = replace(ENVELOPE, at=Hlc(NOW - 1, 0, node_id(OTHER.public)))
    assert isinstance(opened(seal(other, OTHER), seen=seen), Envelope)


def test_what_is_too_long_is_not_sealed() -> None:
    seal(replace(ENVELOPE, data=bytes(DATA_BYTES_MAX)), KEY)
    for bad in (
        replace(ENVELOPE, data=bytes(DATA_BYTES_MAX + 1)),
        replace(ENVELOPE, subject="x" * SEALED_BYTES_MAX),
        replace(ENVELOPE, process=b"short"),
        replace(ENVELOPE, at=Hlc(NOW, 0, 1)),
    ):
        with pytest.raises(Malformed):
            seal(bad, KEY)
