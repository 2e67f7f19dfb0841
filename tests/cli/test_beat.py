"""`hocket tempo beat`, `hocket tempo score` and `hocket tempo ucxl`, which need no home."""

from pathlib import Path

import pytest

from .conftest import Program

AT = 1_756_865_547_183
SCORE = """\
score:
  phases: {plan: 2, work: 4, review: 2}
  wait_budget: {help: 2, io: 1}
  retry: {max_phrases: 2}
"""
POLICY = "cluster_id: chorus-aus-01\ninitial_bpm: 30\nbar_len_beats: 4\n"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program where no home is."""
    (tmp_path / "score.yaml").write_text(SCORE)
    (tmp_path / "tempo.yaml").write_text(POLICY)
    return Program(tmp_path / "nowhere" / "home")


@pytest.mark.req("BB-01", "BB-02")
def test_the_frame_has_the_addendums_fields(program: Program) -> None:
    told = program("beat", "--at", str(AT), "--bpm", "15", "--bar", "8", "--json", code=0).json
    hash_ = told.pop("policy_hash")
    assert told == {
        "cluster_id": "local",
        "tempo_bpm": 15,
        "beat_ms": 4000,
        "bar_len_beats": 8,
        "beat_index": 3,
        "beat_epoch": "2025-09-03T02:12:24.000Z",
        "downbeat": False,
        "phase": "work",
        "hlc": "2025-09-03T02:12:27.183Z+0",
        "deadline_at": "2025-09-03T02:12:31.183Z",
    }
    assert hash_.startswith("sha256:")
    assert program("beat", "--at", str(AT), "--json", code=0).json == told | {"policy_hash": hash_}
    assert "beat index\t3\n" in program("beat", "--at", str(AT), code=0).out
    assert not program.home.exists()


@pytest.mark.req("BB-01")
def test_the_beat_is_the_policys_and_without_a_time_it_is_now(program: Program) -> None:
    told = program("beat", "--policy", "tempo.yaml", "--json", code=0).json
    assert (told["cluster_id"], told["tempo_bpm"], told["bar_len_beats"]) == ("chorus-aus-01", 30, 4)
    assert told["hlc"] > "2026"
    other = program("beat", "--policy", "-", "--json", input=POLICY + "anchor_ms: 1\n", code=0).json
    assert other["policy_hash"] != told["policy_hash"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--bpm", "0"), "bad --bpm: 0 is not allowed; write a whole number from 1 to 1200"),
        (("--bpm", "1000000"), "bad --bpm: 1000000 is not allowed"),
        (("--bar", "257"), "bad --bar: 257 is not allowed; write a whole number from 1 to 256"),
        (("--at", "-1"), "invalid value for '--at'"),
        (("--policy", "tempo.yaml", "--bpm", "3"), "leave out --bpm and --bar"),
        (("--policy", "missing.yaml"), "cannot read missing.yaml"),
        (("--policy", "score.yaml"), "score.yaml: line 1: score: unknown field"),
        (("--policy", "late.yaml", "--at", "5"), "begins before 1970"),
    ],
)
def test_a_wrong_tempo_is_refused_in_one_sentence(
    program: Program, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    (tmp_path / "late.yaml").write_text(POLICY + "anchor_ms: 3000\n")
    assert why in program("beat", *words, code=2).sentence


@pytest.mark.req("BB-13")
def test_an_address_is_parsed_and_resolved(program: Program) -> None:
    address = "ucxl://proj:any/*/task/ingest;phase=review;beats=^^6"
    told = program("ucxl", address, "--at", str(AT), "--json", code=0).json
    assert told == {
        "address": "ucxl://proj:any/*/task/ingest;beats=^^6;phase=review",
        "authority": "proj:any",
        "path": "/*/task/ingest",
        "beats": 6,
        "from": "2025-09-03T02:13:12.000Z",
        "until": "2025-09-03T02:13:20.000Z",
        "beat_index": 7,
        "window": "2025-09-03T02:12:48.000Z",
        "phase": "review",
    }
    assert "phase\twork\n" in program("ucxl", "ucxl://acct", "--at", str(AT), code=0).out
    for bad in ("ucxl://a;beats=4", "http://a", "ucxl://a;phase=lunch", "ucxl://a;beats=~~1000000 "):
        assert "write ucxl://NAME/PATH" in program("ucxl", bad, code=2).sentence


@pytest.mark.touches("BB-07")
def test_a_good_score_is_called_good_with_its_phrases(program: Program) -> None:
    assert program("score", "check", "score.yaml", code=0).out == (
        "phrase 1: plan 2, work 4, review 2 of 8 beats\nphrase 2: plan 1, work 2, review 1 of 8 beats\n"
        "good: waits of at most help 2, io 1 beats\n"
    )
    told = program("score", "check", "-", "--json", input=SCORE, code=0).json
    assert told["good"] and told["score"]["retry"] == {"max_phrases": 2, "backoff": "geometric"}


@pytest.mark.touches("BB-07")
def test_a_bad_score_is_refused_with_field_line_and_remedy(program: Program) -> None:
    bad = SCORE.replace("help: 2", "help: -2")
    refused = program("score", "check", "-", input=bad, code=1)
    assert refused.sentence == (
        "standard input: line 3: score.wait_budget.help: -2 is not allowed; write a whole number from 0 to 10000"
    )
    assert program("score", "check", "-", "--json", input=bad, code=1).json == {
        "good": False,
        "field": "score.wait_budget.help",
        "line": 3,
        "problem": "-2 is not allowed",
        "allowed": "write a whole number from 0 to 10000",
    }
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\n"
    assert "anchors and aliases" in program("score", "check", "-", input=bomb, code=1).sentence
