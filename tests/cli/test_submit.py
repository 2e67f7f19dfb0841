"""One job from the command line: its options, its payload, the wait for it, and every way to ask for it wrongly."""

import time
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Program, until


@pytest.mark.touches("LW-03", "LW-02")
def test_the_job_id_is_the_last_word(hocket: Program):
    result = hocket("submit", "test.echo", '{"n": 1}', code=0)
    assert result.out == f"submitted test.echo {result.job_id}\n"
    shown = hocket.show(result.job_id)
    assert (shown["kind"], shown["payload"], shown["state"]) == ("test.echo", {"n": 1}, "pending")
    assert (shown["outcome"], shown["claimer"], shown["fence"], shown["deadline_ms"]) == (None, None, 0, None)
    assert (shown["attempts"], shown["priority"], shown["result"], shown["error"]) == (0, 0, None, None)
    assert [set(op) >= {"id", "type", "hlc", "author"} for op in shown["ops"]] == [True]
    assert shown["ops"][0]["type"] == "ScheduleJob"


def test_json(hocket: Program):
    answer = hocket("submit", "test.echo", "--json", code=0).json
    assert answer["kind"] == "test.echo" and answer["created"] is True
    assert hocket.show(answer["job_id"])["payload"] == {}


def test_a_payload_from_a_file_and_from_standard_input(hocket: Program, tmp_path: Path):
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    from_file = hocket.submit("test.echo", f"@{tmp_path / 'payload.json'}")
    from_input = hocket("submit", "test.echo", "-", input='{"from": "input"}', code=0).job_id
    assert hocket.show(from_file)["payload"] == {"from": "file"}
    assert hocket.show(from_input)["payload"] == {"from": "input"}


@pytest.mark.req("LW-41")
def test_options_travel_with_the_job(hocket: Program):
    first = hocket.submit("test.echo")
    options = "--priority 7 --retries 2 --lease 1m30s --concurrency 3 --rate 10/s --backoff 2s --backoff-max 1h --open"
    job_id = hocket.submit("test.echo", *options.split(), "--unique", "key", "--unique-for", "1d", "--after", first)
    shown = hocket.show(job_id)
    assert shown["priority"] == 7 and shown["after"] == [first] and shown["stage"] == "blocked"
    expected = {"retries": 2, "lease_ms": 90_000, "concurrency": 3, "backoff_ms": 2_000, "backoff_max_ms": 3_600_000}
    expected |= {"unique": "key", "unique_for_ms": 86_400_000, "rate": {"count": 10, "per_ms": 1_000}, "open": True}
    assert shown["options"].items() >= expected.items()


@pytest.mark.req("LW-41")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("+1h", lambda: (time.time() + 3600) * 1000),
        ("2040-01-01T00:00:00Z", lambda: 2_208_988_800_000),
        ("2040-01-01T01:00:00+01:00", lambda: 2_208_988_800_000),
        ("2208988800000", lambda: 2_208_988_800_000),
    ],
)
def test_not_before(hocket: Program, written: str, expected):
    shown = hocket.show(hocket.submit("test.echo", "--not-before", written))
    assert abs(shown["ready_at_ms"] - expected()) < PATIENCE_S * 1000
    assert shown["stage"] == "delayed"


@pytest.mark.req("LW-41")
def test_after_takes_a_unique_beginning_and_refuses_others(hocket: Program):
    first = hocket.submit("test.echo")
    assert hocket.show(hocket.submit("test.echo", "--after", first[:-1]))["after"] == [first]
    second = hocket("submit", "test.echo", "--after", first[:4])
    assert second.code == 2 and "beginning of several job ids" in second.sentence
    assert "no job '7ZZ'" in hocket("submit", "test.echo", "--after", "7ZZ", code=2).sentence
    assert len(hocket("jobs", "--json").json) == 2


@pytest.mark.req("LW-41")
def test_after_a_cancelled_job_is_a_conflict(hocket: Program):
    first = hocket.submit("test.echo")
    hocket("cancel", first, code=0)
    assert "been cancelled" in hocket("submit", "test.echo", "--after", first, code=3).sentence


@pytest.mark.req("LW-41")
def test_a_unique_job_is_there_already(hocket: Program):
    first = hocket.submit("test.echo", "--unique", "one")
    again = hocket("submit", "test.echo", "--unique", "one", code=0)
    assert again.out == f"already there {first}\n"
    assert hocket("submit", "test.echo", "--unique", "one", "--json").json == {
        "job_id": first,
        "kind": "test.echo",
        "created": False,
        "waits_here": None,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bad kind"], "illegal kind 'bad kind'"),
        (["a..b"], "illegal kind 'a..b'"),
        (["a.b!"], "illegal kind"),
        (["k" * 256], "at most 255 characters"),
        ([""], "illegal kind ''"),
        (["a.b", "{"], "the payload is not JSON"),
        (["a.b", "{'n': 1}"], "the payload is not JSON"),
        (["a.b", "[1]"], "must be a JSON object, not list"),
        (["a.b", "NaN"], "not JSON"),
        (["a.b", "[" * 100_000], "not JSON"),
        (["a.b", "@/no/such/file"], "cannot read the payload from /no/such/file"),
        (["a.b", "--lease", "-5s"], "bad lease '-5s'"),
        (["a.b", "--lease", "1ms"], "bad lease '1ms'"),
        (["a.b", "--lease", "31d"], "bad lease '31d'"),
        (["a.b", "--retries", "-1"], "retries"),
        (["a.b", "--priority", "99999999"], "priority"),
        (["a.b", "--concurrency", "0"], "concurrency"),
        (["a.b", "--rate", "10"], "bad rate '10'"),
        (["a.b", "--rate", "0/s"], "rate"),
        (["a.b", "--backoff", "soon"], "bad backoff 'soon'"),
        (["a.b", "--unique", ""], "unique"),
        (["a.b", "--not-before", "tomorrow"], "bad not_before 'tomorrow'"),
        (["a.b", "--not-before", "2040-13-01"], "bad not_before"),
        (["a.b", "--not-before", "+soon"], "bad not_before"),
        (["a.b", "--not-before", "9" * 30], "not_before"),
        (["a.b", "--after", "nothing!"], "is not a job id"),
        (["a.b", "--batch", "x.jsonl"], "give --batch alone"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_input_is_one_sentence_and_submits_nothing(hocket: Program, arguments: list[str], says: str):
    assert says in hocket("submit", *arguments, code=2).sentence


def test_input_that_is_no_text(hocket: Program):
    assert "standard input is not JSON" in hocket("submit", "a.b", "-", input=b"\xff\xfe{}", code=2).sentence
    assert "not JSON" in hocket("submit", "a.b", "-", input=b"", code=2).sentence


def test_a_number_that_the_log_cannot_carry(hocket: Program):
    result = hocket("submit", "a.b", '{"n": ' + "9" * 400 + "}")
    assert result.code in (0, 2) and (result.code == 0 or result.sentence)


def test_a_payload_that_is_too_large(hocket: Program):
    result = hocket("submit", "a.b", "-", input='{"text": "' + "x" * 1_100_000 + '"}', code=2)
    assert "at most 1048576" in result.sentence


@pytest.mark.touches("LW-02")
def test_wait_prints_the_result(hocket: Program):
    hocket.start("work", "tasks.py")
    result = hocket("submit", "test.echo", '{"n": [1, null]}', "--wait-for", "30s", code=0)
    assert result.out == f'submitted test.echo {result.job_id}\n{{"n":[1,null]}}\n'
    answer = hocket("submit", "test.echo", '{"n": 2}', "--wait", "--json", code=0).json
    assert answer["result"] == {"n": 2} and answer["outcome"] == "succeeded"

    failed = hocket("submit", "test.fail", "--wait", code=1)
    assert failed.sentence == f"job {failed.job_id} failed: ValueError: it broke"
    answer = hocket("submit", "test.fail", "--wait", "--json", code=1).json
    assert (answer["outcome"], answer["error"]) == ("failed", "ValueError: it broke")


@pytest.mark.touches("LW-41")
def test_wait_for_a_job_that_is_cancelled(hocket: Program):
    waiting = hocket.start("submit", "test.echo", "--wait")
    job_id = until(lambda: [job["job_id"] for job in hocket("jobs", "--json").json])[0]
    hocket("cancel", job_id, "--reason", "not today", code=0)
    assert hocket.finished(waiting, 1).sentence == f"job {job_id} was cancelled: not today"


def test_wait_ends_with_its_timeout_and_the_job_goes_on(hocket: Program):
    result = hocket("submit", "test.echo", "--wait-for", "200ms", code=5)
    assert result.sentence.startswith(f"job {result.job_id} has not ended within 0.2 seconds")
    assert hocket.show(result.job_id)["state"] == "pending"


def test_a_job_with_a_ttl_and_no_worker_for_it_is_cancelled(hocket: Program):
    hocket.start("work", "tasks.py", "--kinds", "test.echo")
    said = hocket("submit", "other.kind", "--ttl", "300ms", "--wait", code=1)
    assert "was cancelled: no worker began it within 0.3 seconds" in said.err
    assert hocket("submit", "test.echo", '{"n": 1}', "--ttl", "1m", "--wait", code=0).out.endswith('{"n":1}\n')
