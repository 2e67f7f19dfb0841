"""The tempo policy: section 11.1 of the document, what is wrong in one, and what its hash covers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.extensions.tempo.beats import beat_at, changed, make_tempo
from hocket.extensions.tempo.policy import (
    BadField,
    TempoPolicy,
    make_policy,
    policy_hash,
    policy_json,
    read_policy,
)

# Section 11.1 of the document.
POLICY = b"""\
cluster_id: chorus-aus-01
initial_bpm: 12
bar_len_beats: 8
phases: [plan, work, review]
limits:
  max_bpm: 24
  min_bpm: 6
adaptation:
  enable: true
  hysteresis_pct: 10
  change_per_minute: 1_beat
observability:
  emit_bar_reports: true
"""
DOCUMENTS = read_policy(POLICY)


@pytest.mark.req("BB-05")
def test_the_documents_policy() -> None:
    phases = {"plan": 2, "work": 4, "review": 2}
    assert TempoPolicy("chorus-aus-01", 12, 8, phases, 6, 24, True, 10, True) == DOCUMENTS
    assert read_policy(json.dumps(policy_json(DOCUMENTS)).encode()) == DOCUMENTS
    assert read_policy(b"cluster_id: x") == make_policy("x") and not make_policy("x").is_adaptive


@pytest.mark.req("BB-05")
def test_the_hash_covers_every_field_and_the_tempo_in_force() -> None:
    tempo = DOCUMENTS.initial_tempo
    others = [
        *(replace(DOCUMENTS, cluster_id="b"), replace(DOCUMENTS, initial_bpm=13), replace(DOCUMENTS, anchor_ms=1)),
        *(replace(DOCUMENTS, bar_len_beats=9), replace(DOCUMENTS, phases={"work": 8})),
        *(replace(DOCUMENTS, min_bpm=7), replace(DOCUMENTS, max_bpm=25), replace(DOCUMENTS, is_adaptive=False)),
        *(replace(DOCUMENTS, hysteresis_pct=11), replace(DOCUMENTS, emit_bar_reports=False)),
    ]
    assert len(others) == len(TempoPolicy.__struct_fields__)
    hashes = {policy_hash(each, tempo) for each in (DOCUMENTS, *others)}
    hashes |= {policy_hash(DOCUMENTS, make_tempo(12, 8, 1)), policy_hash(DOCUMENTS, make_tempo(13, 8))}
    assert len(hashes) == len(others) + 3
    assert policy_hash(DOCUMENTS, tempo) == ("sha256:f4925d9a6ee10ff3c2090b3617b2fe4fbcdb0efd2850d8b5bc8687284acb5b09")


@pytest.mark.req("BB-05")
@given(st.integers(6, 24), st.integers(0, 2**43), st.integers(0, 10**6))
def test_one_beat_of_a_new_tempo_gives_its_hash(bpm: int, now_ms: int, later_ms: int) -> None:
    change = changed(DOCUMENTS.initial_tempo, bpm, now_ms)
    beat = beat_at(change.tempo, change.since_ms + later_ms)
    told = make_tempo(bpm, 8, beat.epoch_ms - (beat.index - 1) * change.tempo.beat_ms)
    assert policy_hash(DOCUMENTS, told) == policy_hash(DOCUMENTS, change.tempo)


@pytest.mark.parametrize(
    ("old", "new", "field", "line", "told"),
    [
        (b"initial_bpm: 12", b"initial_bpm: 0", "initial_bpm", 2, "from 6 to 24"),
        (b"initial_bpm: 12", b"initial_bpm: 1000000", "initial_bpm", 2, "from 6 to 24"),
        (b"max_bpm: 24", b"max_bpm: 5", "limits.max_bpm", 6, "from 6 to 1200"),
        (b"min_bpm: 6", b"min_bpm: 0", "limits.min_bpm", 7, "from 1 to 1200"),
        (b"1_beat", b"2_beats", "adaptation.change_per_minute", 11, "write 1_beat"),
        (b"hysteresis_pct: 10", b"hysteresis_pct: 0", "adaptation.hysteresis_pct", 10, "from 1 to 100"),
        (b"enable: true", b"enable: 1", "adaptation.enable", 9, "write true or false"),
        (b"review]", b"rest]", "phases.2", 4, "write plan, work, review"),
        (b"review]", b"plan]", "phases", 4, "one twice"),
        (b"[plan, work, review]", b"[]", "phases", 4, "there is no phase"),
        (b"[plan, work, review]", b"{plan: 4, work: 5}", "phases", 4, "they have 9 beats"),
        (b"bar_len_beats: 8", b"bar_len_beats: 0", "bar_len_beats", 3, "from 1 to 256"),
        (b"cluster_id: chorus-aus-01", b'cluster_id: ""', "cluster_id", 1, "printable"),
        (b"cluster_id: chorus-aus-01", b"cluster: x", "cluster", 1, "unknown field"),
        (b"cluster_id: chorus-aus-01\n", b"", "cluster_id", 1, "the field is missing"),
    ],
)
def test_a_wrong_policy_is_refused_with_field_line_and_remedy(
    old: bytes, new: bytes, field: str, line: int, told: str
) -> None:
    with pytest.raises(BadField) as raised:
        read_policy(POLICY.replace(old, new))
    assert (raised.value.field, raised.value.line) == (field, line) and told in str(raised.value)
