"""The targets of tempo: scores and policies, which people write, addresses, and messages of other nodes."""

import json
from typing import Any

from hocket.extensions.tempo.beats import BadAddress, UcxlAddress, beat_at, parse_ucxl, timeline, ucxl_text
from hocket.extensions.tempo.messages import BeatFrame, StatusClaim, batch_decoder, from_json, make_frame, to_json
from hocket.extensions.tempo.policy import (
    BadField,
    TempoPolicy,
    make_policy,
    policy_hash,
    policy_json,
    read_policy,
)
from hocket.extensions.tempo.score import parse_score, phrase_phases, read_score, score_json
from hocket.extensions.tempo.windows import BarWindows, WindowContent, content_parts, decode_content
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.policy import Score
from hocket.kernel.postcard import Malformed
from tests.fuzz.mutate import JSON_WORDS, Damage, Sample, by_punctuation
from tests.fuzz.target import Target

AT = 1_756_865_547_183
POLICY = make_policy("one", 60, 4)

SCORES = [
    by_punctuation(
        b"ucxl: ucxl://proj:any/*/task/x\nscore:\n  tempo: 15\n  bar_len: 8\n  phases: {plan: 2, work: 4, review: 2}\n"
        b"  wait_budget:\n    help: 2\n    io: 1\n  retry: {max_phrases: 2, backoff: geometric}\n"
        b'  escalation: {on_wait_exhausted: ["emit:a", "fallback:b"], on_overrun: [checkpoint, "defer:next-phrase"]}\n'
    ),
    by_punctuation(b'{"score": {"phases": {"work": 1}}}'),
]
POLICIES = [
    by_punctuation(
        b"cluster_id: chorus-aus-01\ninitial_bpm: 12\nbar_len_beats: 8\nphases: [plan, work, review]\nlimits:\n"
        b"  max_bpm: 24\n  min_bpm: 6\nadaptation: {enable: true, hysteresis_pct: 10, change_per_minute: 1_beat}\n"
        b"observability:\n  emit_bar_reports: true\n"
    ),
    by_punctuation(json.dumps(policy_json(POLICY)).encode()),
]
ADDRESSES = [
    Sample(text, tuple(range(len(text) + 1)))
    for text in (b"ucxl://proj:any/*/task/ingest;beats=^^4;phase=work", b"ucxl://a;beats=~~12;bar=1287#beat=8")
]
_TEMPO = POLICY.initial_tempo
_FRAME = make_frame("one", _TEMPO, POLICY.phases, policy_hash(POLICY, _TEMPO), AT, Hlc(AT, 1, 0))
_CLAIM = {"agent_id": "a", "task_id": "t", "beat_index": 3, "state": "done", "beats_left": -2, "progress": 0.4}
_CLAIM |= {"notes": "", "hlc": hlc_text(Hlc(AT, 17, 0)), "bar": 1, "beat": 2}
FRAMES = [by_punctuation(to_json(_FRAME))]
CLAIMS = [by_punctuation(json.dumps(each).encode()) for each in (_CLAIM, [_CLAIM, _CLAIM | {"task_id": "u"}])]


def _windows() -> BarWindows:
    return BarWindows(POLICY, timeline(_TEMPO))


def _content() -> bytes:
    windows = _windows()
    windows.add(from_json(json.dumps(_CLAIM).encode(), StatusClaim), AT)
    return to_json(content_parts(windows.contents()[0])[0])


CONTENTS = [by_punctuation(_content())]


def _hold_score(data: bytes, score: Score) -> bool:
    assert parse_score(score_json(score)) == score
    assert sum(score.phases.values()) <= score.bar_len and all(phrase_phases(score, 15).values())
    return True


def _hold_policy(data: bytes, policy: TempoPolicy) -> bool:
    assert read_policy(json.dumps(policy_json(policy)).encode()) == policy
    assert policy.min_bpm <= policy.initial_bpm <= policy.max_bpm and beat_at(policy.initial_tempo, AT).index
    return True


def _hold_address(data: bytes, address: UcxlAddress) -> bool:
    assert parse_ucxl(ucxl_text(address)) == address
    return True


def _hold_frame(data: bytes, frame: BeatFrame) -> bool:
    assert from_json(to_json(frame), BeatFrame) == frame and frame.tempo.bar_len == frame.bar_len_beats
    return True


def _hold_claims(data: bytes, claims: list[StatusClaim]) -> bool:
    windows = _windows()
    counted = {(each.agent_id, each.task_id) for each in claims if windows.add(each, AT)}
    assert {*counted} == set() or sum(each.tasks for each in windows.reports()) >= len(counted)
    return True


def _hold_content(data: bytes, content: WindowContent) -> bool:
    windows = _windows()
    if windows.absorb(content, AT):
        assert [to_json(each) for each in windows.reports()]
    return True


def _yaml(samples: list[Sample]) -> Any:
    return lambda rng: Damage(rng, samples, (*JSON_WORDS, b"&a", b"*a", b"!!int", b"- ", b"9" * 30, b"-1", b"yes"))


def _json(samples: list[Sample]) -> Any:
    return lambda rng: Damage(rng, samples, JSON_WORDS)


TARGETS = (
    Target("score", read_score, (BadField,), _hold_score, SCORES, _yaml(SCORES)),
    Target("tempo-policy", read_policy, (BadField,), _hold_policy, POLICIES, _yaml(POLICIES)),
    Target(
        "ucxl",
        lambda data: parse_ucxl(data.decode()),
        (BadAddress, UnicodeDecodeError),
        _hold_address,
        ADDRESSES,
        lambda rng: Damage(rng, ADDRESSES, (b"^^", b"~~", b";", b"9" * 30, b"=", b"\xc2\xa0")),
    ),
    Target("beat-frame", lambda data: from_json(data, BeatFrame), (Malformed,), _hold_frame, FRAMES, _json(FRAMES)),
    Target("status-claim", batch_decoder(StatusClaim), (Malformed,), _hold_claims, CLAIMS, _json(CLAIMS)),
    Target("window-content", decode_content, (Malformed,), _hold_content, CONTENTS, _json(CONTENTS)),
)
