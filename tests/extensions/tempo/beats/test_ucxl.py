"""UCXL addresses: parsed, printed, and resolved to a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import (
    PHASE_NAMES,
    BadAddress,
    ResolvedAddress,
    UcxlAddress,
    beat_at,
    delta_beats,
    make_tempo,
    parse_ucxl,
    resolve_ucxl,
    ucxl_text,
)

EXAMPLE = "ucxl://proj:any/*/task/ingest;beats=^^4;phase=work"
PHASES = {"plan": 2, "work": 4, "review": 2}
TEXTS = st.text(st.characters(exclude_characters="; /", categories=["L", "N", "P", "S"]), min_size=1, max_size=10)
ADDRESSES = st.builds(
    UcxlAddress,
    TEXTS,
    st.lists(TEXTS, max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts)),
    st.none() | st.integers(-(10**6), 10**6),
    st.sampled_from(("", *PHASE_NAMES)),
)


@pytest.mark.req("BB-13")
def test_the_addendums_example() -> None:
    assert parse_ucxl(EXAMPLE) == UcxlAddress("proj:any", "/*/task/ingest", 4, "work")
    assert parse_ucxl("ucxl://acct").path == "" and parse_ucxl("ucxl://acct/").path == "/"
    assert parse_ucxl("ucxl://a/b;phase=plan;beats=~~12") == UcxlAddress("a", "/b", -12, "plan")
    assert parse_ucxl("ucxl://a/b;bar=1287#beat=8") == UcxlAddress("a", "/b")


@pytest.mark.req("BB-13")
@given(ADDRESSES)
def test_addresses_come_back(address: UcxlAddress) -> None:
    assert parse_ucxl(ucxl_text(address)) == address
    assert ucxl_text(parse_ucxl(EXAMPLE)) == EXAMPLE


@pytest.mark.req("BB-13")
@pytest.mark.parametrize(
    "text",
    [
        *("", "ucxl:", "ucxl://", "ucxl:///task", "http://a/b", "ucxl://a b", "ucxl://a/\n", "ucxl://a;"),
        *(
            "ucxl://a;beats=4",
            "ucxl://a;beats=^4",
            "ucxl://a;beats=^^-4",
            "ucxl://a;beats=^^",
            "ucxl://a;beats=^^1000001",
        ),
        *(
            "ucxl://a;phase=rest",
            "ucxl://a;phase=",
            "ucxl://a;beats=^^1;beats=^^1",
            "ucxl://a;tempo=3",
            "ucxl://a;bar=x",
        ),
        "ucxl://" + "a" * 2048,
    ],
)
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_ucxl(text)


@pytest.mark.req("BB-13")
def test_an_address_means_a_time() -> None:
    tempo = make_tempo(60, 8)
    at = 80_000 + 2_500  # the third beat of a bar
    assert resolve_ucxl(parse_ucxl("ucxl://a"), tempo, PHASES, at) == ResolvedAddress(82_000, 83_000, 3, 80_000, "work")
    assert resolve_ucxl(parse_ucxl("ucxl://a;beats=^^6"), tempo, PHASES, at) == (88_000, 89_000, 1, 88_000, "plan")
    assert resolve_ucxl(parse_ucxl("ucxl://a;beats=~~3"), tempo, PHASES, at) == (79_000, 80_000, 8, 72_000, "review")
    assert resolve_ucxl(parse_ucxl("ucxl://a;beats=^^6;phase=work"), tempo, PHASES, at) == (
        *(90_000, 94_000, 3, 88_000, "work"),
    )
    for text, phases in (("ucxl://a;phase=review", {"plan": 8}), ("ucxl://a;beats=~~1000", PHASES)):
        with pytest.raises(BadAddress):
            resolve_ucxl(parse_ucxl(text), tempo, phases, at)


@pytest.mark.req("BB-13")
@given(st.integers(-1000, 1000), st.integers(1, 1200), st.integers(1, 64), st.integers(2**40, 2**43))
def test_beats_are_counted_from_now(beats: int, bpm: int, bar_len: int, now_ms: int) -> None:
    tempo = make_tempo(bpm, bar_len, now_ms // 3)
    found = resolve_ucxl(UcxlAddress("a", "", beats), tempo, {"work": bar_len}, now_ms)
    assert delta_beats(found.from_ms, beat_at(tempo, now_ms).epoch_ms, tempo.beat_ms) == beats
    assert beat_at(tempo, found.from_ms).epoch_ms == found.from_ms
