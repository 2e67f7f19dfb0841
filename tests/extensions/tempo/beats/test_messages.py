"""The messages of tempo: the addendum's fields, and schemas that agree with the decoder about damage."""

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo import messages
from hocket.extensions.tempo.beats import BPM_MAX, BPM_MIN, make_tempo
from hocket.extensions.tempo.messages import (
    MESSAGES,
    BarReport,
    BeatFrame,
    ClaimState,
    HelpPromise,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    PulseMessage,
    StatusClaim,
    from_json,
    make_frame,
    to_json,
)
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.postcard import Malformed
from tests.extensions.tempo.beats.schemas import message_schema

SCHEMAS = files("hocket.extensions.tempo") / "schemas"
AT = Hlc(1_756_865_547_183, 17, 0)
PHASES = {"plan": 2, "work": 4, "review": 2}
HASH = "sha256:" + "ab" * 32
TIMES = st.integers(0, 2**43).map(wall_text)
HLCS = st.builds(
    lambda wall, logical: hlc_text(Hlc(wall, logical, 0)), st.integers(0, 2**43), st.integers(0, 2**32 - 1)
)
NAMES = st.text(min_size=1, max_size=20)
COUNTS = st.integers(0, 2**53 - 1)
SHARES = st.floats(0, 1)
BPMS = st.integers(BPM_MIN, BPM_MAX)
FRAMES = st.builds(
    lambda cluster, bpm, bar_len, anchor, wall, logical: make_frame(
        cluster, make_tempo(bpm, bar_len, anchor), {"work": bar_len}, HASH, wall, Hlc(wall, logical, 0)
    ),
    *(NAMES, BPMS, st.integers(1, 256), st.integers(0, 2**43), st.integers(2**30, 2**43), st.integers(0, 2**32 - 1)),
)
CLAIMS = st.builds(
    StatusClaim,
    *(NAMES, NAMES, st.integers(1, 256), st.sampled_from(ClaimState), st.integers(-(10**6), 10**6), SHARES),
    *(st.text(max_size=30), HLCS),
)
PROMISES = st.builds(
    lambda thread, beats, more, confidence, on_fail: HelpPromise(thread, beats, confidence, beats + more, on_fail),
    *(NAMES, st.integers(0, 500_000), st.integers(0, 500_000), SHARES, NAMES),
)
REPORTS = st.builds(
    BarReport,
    *(NAMES, TIMES, BPMS, st.integers(1, 256), COUNTS, COUNTS, st.dictionaries(st.sampled_from(ClaimState), COUNTS)),
    *(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, SHARES, BPMS, st.booleans(), HLCS),
)
LOADS = st.builds(
    lambda node, depth, busy, idle, hlc: NodeLoad(node, depth, busy, busy + idle, hlc),
    *(NAMES, COUNTS, st.integers(0, 1000), st.integers(0, 1000), HLCS),
)
RESULTS = st.builds(PromiseResult, NAMES, NAMES, st.sampled_from(PromiseOutcome), HLCS)
PULSES = st.builds(PulseMessage, FRAMES, COUNTS, st.booleans())
GENERATED = st.one_of(FRAMES, CLAIMS, PROMISES, REPORTS, LOADS, RESULTS, PULSES)


def validator(kind: type) -> Any:
    return jsonschema_rs.validator_for(json.loads((SCHEMAS / f"{kind.__name__}.json").read_text()))


VALIDATORS = {kind: validator(kind) for kind in MESSAGES}


@pytest.mark.req("BB-02")
def test_the_fields_are_the_addendums() -> None:
    assert BeatFrame.__struct_fields__ == (
        *("cluster_id", "tempo_bpm", "beat_ms", "bar_len_beats", "beat_index", "beat_epoch", "downbeat", "phase"),
        *("hlc", "policy_hash", "deadline_at"),
    )
    assert StatusClaim.__struct_fields__ == (
        *("agent_id", "task_id", "beat_index", "state", "beats_left", "progress", "notes", "hlc", "wait_for"),
    )
    assert b"wait_for" not in to_json(StatusClaim("a", "t", 1, ClaimState.DONE, 0, 1.0, "", hlc_text(AT))), (
        "if it does not wait"
    )
    assert [*ClaimState] == ["planning", "executing", "waiting", "review", "done", "failed"]
    assert HelpPromise.__struct_fields__ == (
        *("thread_id", "promise_beats", "confidence", "fail_after_beats", "on_fail"),
    )


@pytest.mark.req("BB-01", "BB-02")
def test_the_addendums_frame() -> None:
    frame = make_frame("chorus-aus-01", make_tempo(15, 8), PHASES, HASH, AT.wall, AT)
    assert msgspec.to_builtins(frame) == {
        "cluster_id": "chorus-aus-01",
        "tempo_bpm": 15,
        "beat_ms": 4000,
        "bar_len_beats": 8,
        "beat_index": 3,
        # The example has 27.000Z, which is no multiple of four seconds; the formula gives this.
        "beat_epoch": "2025-09-03T02:12:24.000Z",
        "downbeat": False,
        "phase": "work",
        "hlc": "2025-09-03T02:12:27.183Z+17",
        "policy_hash": HASH,
        "deadline_at": "2025-09-03T02:12:31.183Z",
    }


@given(FRAMES)
def test_a_frame_tells_its_tempo(frame: BeatFrame) -> None:
    tempo = frame.tempo
    again = make_frame(frame.cluster_id, tempo, {"work": tempo.bar_len}, HASH, frame.epoch_ms, AT)
    assert (again.beat_index, again.beat_epoch, again.beat_ms) == (frame.beat_index, frame.beat_epoch, frame.beat_ms)


@pytest.mark.req("BB-02")
@given(GENERATED)
def test_messages_come_back_and_are_valid_by_their_schemas(message: Any) -> None:
    data = to_json(message)
    assert from_json(data, type(message)) == message
    VALIDATORS[type(message)].validate(json.loads(data))


@pytest.mark.req("BB-02")
@given(st.one_of(FRAMES, CLAIMS), st.integers(), st.integers())
def test_bar_and_beat_of_older_programs_are_ignored(message: Any, bar: int, beat: int) -> None:
    found = json.loads(to_json(message)) | {"bar": bar, "beat": beat, "more": ["anything"]}
    VALIDATORS[type(message)].validate(found)
    assert from_json(json.dumps(found).encode(), type(message)) == message


BAD = st.sampled_from((None, -(10**7), 2**60, -0.5, 1.5, "", "planned", "2025-09-03", [], {}, "x" * 2000, True))
OPTIONAL = ("degraded", "nodes", "task_beats", "wait_beats", "lost_beats", "wait_for", "roles", "cpu", "gpu")
OPTIONAL += ("queue_by_role", "cpu_utilisation", "gpu_utilisation", "overruns_by_phase", "phases")


@pytest.mark.req("BB-02")
@given(GENERATED, st.data())
def test_damaged_messages_are_refused_by_schema_and_decoder(message: Any, data: Any) -> None:
    """The decoder refuses everything that the schema refuses."""
    found = json.loads(to_json(message))
    field = data.draw(st.sampled_from(sorted(found)))
    if data.draw(st.booleans()) and field not in OPTIONAL:
        del found[field]
        assert not VALIDATORS[type(message)].is_valid(found)
    else:
        found[field] = data.draw(BAD)
    if not VALIDATORS[type(message)].is_valid(found):
        with pytest.raises(Malformed):
            from_json(json.dumps(found).encode(), type(message))


FRAME = msgspec.to_builtins(make_frame("c", make_tempo(15, 8), PHASES, HASH, AT.wall, AT))
CLAIM = {"agent_id": "a", "task_id": "t", "beat_index": 3, "state": "executing", "beats_left": 2, "progress": 0.4}
CLAIM |= {"notes": "", "hlc": "2025-09-03T02:12:27.183Z+17"}
PROMISE = {"thread_id": "t", "promise_beats": 2, "confidence": 0.7, "fail_after_beats": 3, "on_fail": "plan-a"}


@pytest.mark.req("BB-02")
@pytest.mark.parametrize(
    ("kind", "good", "damage"),
    [
        (BeatFrame, FRAME, {"tempo_bpm": 0}),
        (BeatFrame, FRAME, {"tempo_bpm": 10**6}),
        (BeatFrame, FRAME, {"beat_index": 0}),
        (BeatFrame, FRAME, {"downbeat": "no"}),
        (BeatFrame, FRAME, {"hlc": "2025-09-03T02:12:27.183Z+1287:3+17"}),
        (BeatFrame, FRAME, {"beat_epoch": "2025-09-03 02:12:24"}),
        (BeatFrame, FRAME, {"policy_hash": "sha256:..."}),
        (BeatFrame, FRAME, {"cluster_id": ""}),
        (StatusClaim, CLAIM, {"progress": 1.01}),
        (StatusClaim, CLAIM, {"progress": -0.1}),
        (StatusClaim, CLAIM, {"state": "sleeping"}),
        (StatusClaim, CLAIM, {"beats_left": 10**7}),
        (StatusClaim, CLAIM, {"notes": "x" * 2000}),
        (HelpPromise, PROMISE, {"confidence": 2}),
        (HelpPromise, PROMISE, {"promise_beats": -1}),
        (HelpPromise, PROMISE, {"on_fail": None}),
    ],
)
def test_a_damaged_field_is_refused_by_both(kind: type, good: dict[str, Any], damage: dict[str, Any]) -> None:
    from_json(json.dumps(good).encode(), kind)
    VALIDATORS[kind].validate(good)
    assert not VALIDATORS[kind].is_valid(good | damage)
    with pytest.raises(Malformed):
        from_json(json.dumps(good | damage).encode(), kind)


@pytest.mark.parametrize(
    ("kind", "good", "damage"),
    [
        (BeatFrame, FRAME, {"downbeat": True}),
        (BeatFrame, FRAME, {"beat_index": 9}),
        (BeatFrame, FRAME, {"beat_epoch": "2025-02-30T02:12:24.000Z"}),
        (BeatFrame, FRAME, {"policy_hash": HASH + "\n"}),
        (StatusClaim, CLAIM, {"hlc": "2025-09-03T02:12:27.183Z+9999999999"}),
        (StatusClaim, CLAIM, {"hlc": "2025-09-03T02:12:27.183Z+17\n"}),
        (HelpPromise, PROMISE, {"promise_beats": 4}),
        (NodeLoad, {"node_id": "n", "queue_depth": 0, "busy": 1, "slots": 1, "hlc": CLAIM["hlc"]}, {"slots": 0}),
    ],
)
def test_the_decoder_knows_what_a_schema_cannot_say(kind: type, good: dict[str, Any], damage: dict[str, Any]) -> None:
    from_json(json.dumps(good).encode(), kind)
    with pytest.raises(Malformed):
        from_json(json.dumps(good | damage).encode(), kind)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"frame":' * 5000])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    for kind in MESSAGES:
        with pytest.raises(Malformed):
            from_json(data, kind)


@pytest.mark.req("BB-02")
@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_the_shipped_schema_is_that_of_the_type(kind: type) -> None:
    assert json.loads((SCHEMAS / f"{kind.__name__}.json").read_text()) == message_schema(kind), (
        "run: python -m tests.extensions.tempo.beats.schemas"
    )


@pytest.mark.req("BB-02")
def test_the_schemas_are_in_the_package() -> None:
    assert {each.name for each in SCHEMAS.iterdir()} == {f"{kind.__name__}.json" for kind in MESSAGES}
    project = tomllib.loads((Path(messages.__file__).parents[4] / "pyproject.toml").read_text())
    assert "schemas/*.json" in project["tool"]["setuptools"]["package-data"]["hocket.extensions.tempo"]
