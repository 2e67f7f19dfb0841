"""Model calls of a handler are recorded, whatever comes of them, and what is made of their answers names the record."""

import asyncio
import errno
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
import hocket.testing
from hocket.errors import NotAuthorised
from hocket.families.jobs import requests as jobs
from hocket.kernel.ids import content_hash, parse_ulid, ulid_text
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, decode_snapshot
from hocket.kernel.vocabulary import (
    ClaimStatus,
    ClaimType,
    CreateClaim,
    CreateSuggestedAction,
    FailWork,
    Provenance,
    TextObject,
    YieldWork,
)
from hocket.node.handles import SyncHandle
from hocket.testing import MemorySyncNode
from hocket.work import inference
from hocket.work.handlers import JobType
from hocket.work.inference import Answer
from tests.work.artifacts.handlers import completion, content, creation, of_job, ops, run, succeeded

pytestmark = pytest.mark.touches("LW-35")

ONE, TWO, THREE = (f"01J0000000000000000000000{n}" for n in (1, 2, 3))


def ask(ctx: hocket.Context, prompt: str = "hello", **arguments: Any) -> Any:
    return ctx.infer(**{"model": "echo", "version": "v7", "prompt": prompt, "call": str.upper} | arguments)


def records(node: MemorySyncNode, handle: SyncHandle) -> list[Snapshot]:
    return [decode_snapshot(content(node, each)) for each in of_job(node, handle, SNAPSHOT_TYPE)]


@pytest.mark.req("LW-35")
def test_a_call_leaves_a_record_that_the_completion_names():
    def handler(ctx: hocket.Context) -> str:
        return ask(ctx, context=[ONE, f"evidence:{TWO}", f"claim:{THREE}", f"entity:{ONE}", ONE], backend="unit")

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert handle.result() == "HELLO"
        [artifact] = of_job(node, handle, SNAPSHOT_TYPE)
        [record] = records(node, handle)
        assert (record.model_id, record.model_version, record.backend) == ("echo", "v7", "unit")
        assert (record.prompt, record.output) == ("hello", "HELLO")
        assert record.evidence == (parse_ulid(ONE), parse_ulid(TWO))
        assert record.claims == (parse_ulid(THREE),) and record.entities == (parse_ulid(ONE),)
        op, payload = creation(node, artifact)
        assert payload.inputs_used == record.evidence and payload.source_job == parse_ulid(handle.job_id)
        assert (payload.model_id, payload.model_version) == ("echo", "v7")
        assert record.started_at <= record.completed_at <= op.timestamp
        assert record.started_at.node == node.runtime.log.node
        ended, completed = completion(node, handle)
        assert artifact.id in completed.output_artifacts and op.id in ended.cited
        [result] = of_job(node, handle, "hocket.result")
        assert creation(node, result)[0].cited == (op.id,)
        assert node.runtime.verify().findings == [] and node.runtime.rebuild().unchanged


@pytest.mark.req("LW-35")
def test_the_brackets_are_the_logs_clock_and_enclose_the_call():
    with hocket.testing.node() as node:

        def slow(prompt: str) -> str:
            node.clock.advance(2.5)
            return prompt

        handle = run(node, lambda ctx: ask(ctx, call=slow))
        [record] = records(node, handle)
        claimed = next(op for op in handle.status()["ops"] if op["type"] == "ClaimWork")
        assert record.completed_at.wall - record.started_at.wall == 2500 == record.telemetry.duration_ms
        assert str(record.started_at.wall // 1000 % 60).zfill(2) in claimed["hlc"]


@pytest.mark.req("LW-35")
def test_later_outputs_cite_the_records_and_earlier_ones_do_not():
    def handler(ctx: hocket.Context) -> None:
        ctx.artifact(b"before", type="t.before")
        ask(ctx, "one")
        ctx.artifact(b"between", type="t.between")
        ask(ctx, "two")
        ctx.artifact(b"after", type="t.after")

    with hocket.testing.node() as node:
        handle = run(node, handler)
        first, second = of_job(node, handle, SNAPSHOT_TYPE)
        cited = [
            creation(node, of_job(node, handle, f"t.{name}")[0])[0].cited for name in ("before", "between", "after")
        ]
        assert cited == [(), (first.op_id,), (first.op_id, second.op_id)]
        assert {first.id, second.id} <= set(completion(node, handle)[1].output_artifacts)


@pytest.mark.req("LW-35")
def test_claims_and_actions_name_the_records():
    def handler(ctx: hocket.Context) -> None:
        ask(ctx)
        new = ctx.new_id
        object, source = TextObject("tea"), Provenance(evidence=(new(),))
        ctx.emit(CreateClaim(new(), ClaimType.DERIVED, new(), "likes", object, ClaimStatus.HINT, (), source))
        ctx.emit(CreateSuggestedAction(new(), "t", "d", "buy", new(), (), (), None, 0.5))

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert succeeded(node, handle)
        job_id = parse_ulid(handle.job_id)
        [snapshot] = of_job(node, handle, SNAPSHOT_TYPE)
        claim, action = (op for op in ops(node) if isinstance(op.payload, CreateClaim | CreateSuggestedAction))
        assert claim.payload.provenance.snapshots == (snapshot.id,) and claim.payload.provenance.jobs == (job_id,)
        assert len(claim.payload.provenance.evidence) == 1
        assert action.payload.derivation_job == job_id and action.cited == (snapshot.op_id,)
        assert completion(node, handle)[1].output_claims == (claim.payload.claim_id,)


def test_async_handlers_and_calls():
    async def answer(prompt: str, times: int = 1) -> str:
        await asyncio.sleep(0)
        return prompt * times

    async def handler(ctx: hocket.Context) -> list[str]:
        both = await asyncio.gather(ask(ctx, "a", call=answer), ask(ctx, "b", call=lambda p: answer(p, 2)))
        return [*both, ask(ctx, "plain"), await ask(ctx, "c", call=answer, times=3)]

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert handle.result() == ["a", "bb", "PLAIN", "ccc"]
        assert sorted((each.prompt, each.output) for each in records(node, handle)) == [
            ("a", "a"),
            ("b", "bb"),
            ("c", "ccc"),
            ("plain", "PLAIN"),
        ]


# Calls and runs that end badly.


@pytest.mark.req("LW-35")
def test_a_call_that_raises_is_recorded_and_the_run_fails():
    def broken(prompt: str) -> str:
        raise ConnectionError("the model is gone")

    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: ask(ctx, call=broken))
        assert handle.status()["error"] == "ConnectionError: the model is gone"
        [record] = records(node, handle)
        assert record.output == "[no answer: ConnectionError: the model is gone]"


def test_an_async_call_that_raises_is_recorded():
    async def broken(prompt: str) -> str:
        raise ConnectionError("the model is gone")

    async def handler(ctx: hocket.Context) -> str:
        try:
            return await ask(ctx, call=broken)
        except ConnectionError:
            return "made do"

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert handle.result() == "made do"
        assert [each.output for each in records(node, handle)] == ["[no answer: ConnectionError: the model is gone]"]


@pytest.mark.req("LW-35")
def test_the_calls_of_a_failed_run_are_on_the_log_with_its_end_and_its_artifacts_are_not():
    def handler(ctx: hocket.Context) -> None:
        ask(ctx)
        ctx.artifact(b"void", type="t.void")
        raise ValueError("no good")

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert [each.type for each in of_job(node, handle)] == [SNAPSHOT_TYPE]
        kinds = [type(op.payload).__name__ for op in ops(node)]
        assert kinds[-2:] == ["CreateArtifact", FailWork.__name__]


@pytest.mark.req("LW-35")
def test_each_try_leaves_its_own_records():
    def handler(ctx: hocket.Context) -> str:
        ask(ctx, f"try {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError("again")
        return "done"

    with hocket.testing.node() as node:
        job_type = JobType("t.tried", function=handler, retries=5)
        handle = node.submit(job_type)
        node.drain([job_type])
        assert [each.prompt for each in records(node, handle)] == ["try 1", "try 2", "try 3"]
        named = completion(node, handle)[1].output_artifacts
        assert [each.id in named for each in of_job(node, handle, SNAPSHOT_TYPE)] == [False, False, True]


@pytest.mark.req("LW-35")
def test_a_run_that_lost_its_claim_still_records_its_calls():
    with hocket.testing.node() as node:

        def handler(ctx: hocket.Context) -> str:
            said = ask(ctx)
            job_id = node.runtime.find(ctx.job_id)
            node.runtime.log.run(lambda tx: jobs.cancel(tx, job_id, "called off meanwhile"))
            return said

        handle = run(node, handler)
        assert handle.status()["outcome"] == "cancelled"
        assert len(records(node, handle)) == 1


@pytest.mark.req("LW-35")
def test_a_call_under_way_when_the_run_is_stopped_is_recorded_without_its_answer():
    from hocket.work.batch import settle

    with hocket.testing.node() as node:
        bench = node._bench
        job_type = JobType("t.stopped", function=lambda ctx: None)
        handle = node.submit(job_type)
        for claimed in bench.runs([job_type], 1, []):
            asked = inference.question("echo", "v7", "unit", "are you there?", [])
            record = inference._Record(claimed.products, asked)
            node.clock.advance(3)
            claimed.ended_at = node.clock.now
            claimed.stopped = True
            node.runtime.log.run(lambda tx, claimed=claimed: settle(tx, [claimed]))
            record.answered("too late to be heard")
            break
        [each] = records(node, handle)
        assert each.output == "[no answer: the run was over before one came]" and each.prompt == "are you there?"
        assert each.completed_at.wall - each.started_at.wall == 3000
        assert [type(op.payload) for op in ops(node)][-1] is YieldWork


# What cannot be recorded is not asked.


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"model": ""}, "its model"),
        ({"model": None}, "its model"),
        ({"model": "x" * 256}, "its model"),
        ({"version": ""}, "its version"),
        ({"version": None}, "its version"),
        ({"backend": ""}, "its backend"),
        ({"prompt": b"bytes"}, "the prompt must be text"),
        ({"prompt": {"messages": []}}, "the prompt must be text"),
        ({"prompt": "x" * (inference.PROMPT_BYTES_MAX + 1)}, "the prompt has 8388609 bytes"),
        ({"prompt": "é" * (inference.PROMPT_BYTES_MAX // 2 + 1)}, "the prompt has 8388610 bytes"),
        ({"context": ["nonsense"]}, "not an id"),
        ({"context": [f"recipe:{ONE}"]}, "its prefix must be one of"),
        ({"context": [f"claim:{ONE[:5]}"]}, "not an id"),
        ({"context": [b"short"]}, "not an id"),
        ({"context": [7]}, "not an id"),
        ({"context": [bytes([n % 256, n // 256]) * 8 for n in range(inference.CONTEXT_MAX + 1)]}, "more than 1000"),
    ],
)
def test_what_cannot_be_recorded_is_not_asked(arguments: dict, why: str):
    asked: list[str] = []

    def handler(ctx: hocket.Context) -> None:
        with pytest.raises(hocket.Usage, match=why):
            ask(ctx, **({"call": asked.append} | arguments))

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert succeeded(node, handle) and asked == [] and records(node, handle) == []


def test_the_version_is_required():
    def handler(ctx: hocket.Context) -> None:
        with pytest.raises(TypeError, match="version"):
            ctx.infer(model="echo", prompt="x", call=str.upper)

    with hocket.testing.node() as node:
        assert succeeded(node, run(node, handler))


@pytest.mark.req("LW-35")
def test_an_unrecorded_call_is_an_error_on_an_audited_node():
    asked: list[str] = []

    def handler(ctx: hocket.Context) -> None:
        assert ctx.audited
        with pytest.raises(NotAuthorised, match="must be recorded"):
            ask(ctx, call=asked.append, audit=False)

    with hocket.testing.node() as node:
        assert succeeded(node, run(node, handler)) and asked == []


def test_a_node_that_is_not_audited_may_leave_it_out(monkeypatch: pytest.MonkeyPatch):
    def handler(ctx: hocket.Context) -> list[str]:
        monkeypatch.setattr(ctx._run.products, "kit", ctx._run.products.kit._replace(audited=lambda: False))
        return [ask(ctx, "left out", audit=False), ask(ctx, "kept")]

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert handle.result() == ["LEFT OUT", "KEPT"]
        assert [each.prompt for each in records(node, handle)] == ["kept"]


# What a call can give.


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("text", "text"),
        ("", ""),
        (b"bytes", "bytes"),
        (b"\xff\xfe no utf-8 \x80", "\\xff\\xfe no utf-8 \\x80"),
        ("half \ud800 a character", "half \\ud800 a character"),
        ({"choices": [1]}, '{"choices":[1]}'),
        (None, "null"),
        (object, repr(object)),
    ],
)
def test_whatever_comes_is_written_down_and_handed_on_as_it_is(given: Any, written: str):
    got: list[Any] = []
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: got.append(ask(ctx, call=lambda _: given)))
        assert got[0] is given
        assert [each.output for each in records(node, handle)] == [written]


@given(prompt=st.text(), output=st.text() | st.binary())
def test_any_text_can_be_recorded(prompt: str, output: str | bytes):
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: ask(ctx, prompt, call=lambda _: output) and None)
        [record] = records(node, handle)
        assert record.prompt == prompt
        assert isinstance(output, bytes) or record.output == output


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 6}, (5, 6)),
        ({"input_tokens": 5, "output_tokens": 6}, (5, 6)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (None, None)),
        ({"prompt_tokens": "many", "completion_tokens": 2**70}, (None, None)),
        ("none", (None, None)),
    ],
)
def test_token_counts_are_taken_where_they_are_told(usage: Any, tokens: tuple):
    class Said:
        def __init__(self) -> None:
            self.usage = usage

    for value in ({"usage": usage}, Said()):
        with hocket.testing.node() as node:
            handle = run(node, lambda ctx, value=value: ask(ctx, call=lambda _: value) and None)
            [record] = records(node, handle)
            assert (record.telemetry.prompt_tokens, record.telemetry.completion_tokens) == tokens


def test_an_answer_can_say_more():
    given = Answer({"value": 1}, "literal", "v8", 5, 6)
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: ask(ctx, call=lambda _: given))
        assert handle.result() == {"value": 1}
        [record] = records(node, handle)
        assert (record.output, record.model_version, record.telemetry.prompt_tokens) == ("literal", "v8", 5)
        assert creation(node, of_job(node, handle, SNAPSHOT_TYPE)[0])[1].model_version == "v8"


def test_large_records_are_blobs_and_too_large_outputs_are_cut_and_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inference, "OUTPUT_BYTES_MAX", 300_000)

    def handler(ctx: hocket.Context) -> str:
        assert len(ask(ctx, "p" * 100_000, call=lambda _: "o" * 300_000)) == 300_000
        with pytest.raises(hocket.Usage, match="300001 bytes, at most 300000"):
            ask(ctx, call=lambda _: "o" * 300_001)
        return "done"

    with hocket.testing.node() as node:
        handle = run(node, handler)
        large, cut = of_job(node, handle, SNAPSHOT_TYPE)
        assert creation(node, large)[1].content_inline is None
        assert node.runtime.blobs.read(large.hash) == content(node, large)
        assert content_hash(content(node, large)) == large.hash
        first, second = records(node, handle)
        assert len(first.prompt) == 100_000 and len(first.output) == 300_000
        assert second.output.endswith("o\n[cut: 300001 bytes in all]")
        assert ulid_text(large.id) in str(handle.status()["artifacts"]) and cut.size > 64 * 1024


def test_an_answer_that_cannot_be_kept_is_not_handed_on(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def handler(ctx: hocket.Context) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            return ask(ctx, call=lambda _: "o" * 100_000)

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert "No space left" in handle.status()["error"]
        assert [each.output for each in records(node, handle)] == ["[no answer: the run was over before one came]"]
