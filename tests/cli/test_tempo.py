"""Tempo as options of other commands: `work --tempo`, `work --weigh-promises`, and `lock --lease` in beats."""

import json
from pathlib import Path

import pytest

from hocket.extensions.tempo.beats import beat_at
from hocket.extensions.tempo.messages import PromiseOutcome, PromiseResult
from hocket.extensions.tempo.policy import read_policy
from hocket.node.runtime import Runtime
from hocket.work.presence import read_serving
from tests.cli.conftest import Program, until
from tests.cli.test_reverb import say

POLICY = "cluster_id: acme\ninitial_bpm: 60\nbar_len_beats: 5\n"
HANDLER = """
import hocket


@hocket.job("test.beat")
def beat(ctx):
    return None if ctx.beat is None else {"index": ctx.beat.index, "window_ms": ctx.beat.window_ms}
"""


@pytest.mark.req("BB-06")
def test_work_takes_its_tempo_from_an_option_or_from_the_home(hocket: Program, tmp_path: Path) -> None:
    (tmp_path / "beats.py").write_text(HANDLER)
    other = tmp_path / "other.yaml"
    other.write_text(POLICY)

    def beat(*options: object) -> dict[str, int] | None:
        job_id = hocket.submit("test.beat")
        hocket("work", "beats.py", "--until-idle", *options, code=0)
        found: dict[str, int] | None = hocket.show(job_id)["result"]
        return found

    def is_of(policy: str, found: dict[str, int] | None) -> bool:
        assert found is not None
        tempo = read_policy(policy.encode()).initial_tempo
        at = beat_at(tempo, found["window_ms"] + (found["index"] - 1) * tempo.beat_ms)
        return (at.index, at.window_ms) == (found["index"], found["window_ms"])

    assert beat() is None
    assert is_of(POLICY, beat("--tempo", other))
    home = POLICY.replace("bar_len_beats: 5", "anchor_ms: 500")
    (hocket.home / "tempo.yaml").write_text(home)
    found = beat()
    assert is_of(home, found) and not is_of(POLICY, found)
    assert is_of(POLICY, beat("--tempo", other)), "the option goes first"
    refused = hocket("work", "beats.py", "--tempo", "nowhere.yaml", code=2)
    assert refused.sentence == "there is no tempo policy at nowhere.yaml"
    other.write_text("cluster_id: acme\ninitial_bpm: 0\n")
    assert "line 2: initial_bpm: 0 is not allowed" in hocket("work", "--tempo", other, code=2).sentence


@pytest.mark.slow
@pytest.mark.req("BB-08")
def test_a_worker_weighs_promises_only_if_it_is_told_to(hocket: Program, tmp_path: Path) -> None:
    (hocket.home / "tempo.yaml").write_text(POLICY)
    weighing = hocket.start("work", "tasks.py", "--weight", "2", "--weigh-promises")
    other = hocket.start("work", "tasks.py", "--weight", "2")

    def weights() -> dict[int, float]:
        with Runtime.open(hocket.home) as runtime, runtime.store.read() as session:
            return {each.pid: read_serving(each.serves)[0].weight for each in session.workers() if each.serves}

    until(lambda: weights().keys() >= {weighing.pid, other.pid}, "both workers")

    def is_lower() -> bool:
        say(hocket.home, lambda node, now: [PromiseResult("t", f"helper@{node}", PromiseOutcome.BROKEN, now)])
        return weights()[weighing.pid] < 2

    until(is_lower, "a lower weight")
    assert weights()[weighing.pid] == 1.0, "a half, and each result counts once"
    assert weights()[other.pid] == 2.0


def lasts_ms(shown: dict[str, int]) -> int:
    return shown["expires_ms"] - shown["since_ms"]


@pytest.mark.req("BB-09")
def test_a_lock_in_beats_ends_on_a_beat_of_the_home(hocket: Program) -> None:
    refused = hocket("lock", "acquire", "k", "--agent", "a", "--ttl", "4b", code=2)
    assert "4b is a length in beats, and this node has no tempo" in refused.err
    assert refused.err == hocket("lock", "run", "k", "--ttl", "4b", "--", "true", code=2).err
    # One phase, and the longest bars. A hold does not go on past the end of a bar.
    long = {"cluster_id": "acme", "initial_bpm": 1, "bar_len_beats": 256, "phases": {"work": 256}}
    (hocket.home / "tempo.yaml").write_text(json.dumps(long))
    shown = hocket("lock", "acquire", "k", "--agent", "a", "--ttl", "4b", "--json", code=0).json
    assert shown["expires_ms"] % 60_000 == 0 and 0 < lasts_ms(shown) <= 5 * 60_000
    renew = ("lock", "renew", "k", "--agent", "a", "--fence", shown["fence"], "--json")
    renewed_ms = hocket(*renew, "--ttl", "1b", code=0).json["expires_ms"]
    assert renewed_ms <= shown["expires_ms"] + 60_000 and renewed_ms % 60_000 == 0
    for bad in ("0b", "b", "100001b"):
        assert "bad lease: " in hocket("lock", "acquire", "other", "--agent", "a", "--lease", bad, code=2).sentence
        assert "bad lease: " in hocket("lock", "run", "other", "--lease", bad, "--", "true", code=2).sentence


@pytest.mark.req("BB-09")
def test_lock_run_renews_a_lock_in_beats_from_boundary_to_boundary(hocket: Program, tmp_path: Path) -> None:
    (hocket.home / "tempo.yaml").write_text(POLICY.replace("60", "30"))
    done = tmp_path / "done"
    wait = f"while [ ! -e {done} ]; do sleep 0.05; done"
    process = hocket.start("lock", "run", "k", "--ttl", "2b", "--", "sh", "-c", wait)
    seen: set[int] = set()

    def is_renewed() -> bool:
        seen.update(each["expires_ms"] for each in hocket("lock", "list", "--json", code=0).json)
        return len(seen) >= 3

    until(is_renewed, "two renewals")
    assert all(expires_ms % 2_000 == 0 for expires_ms in seen), "each ends at a beat"
    (held,) = hocket("lock", "list", "--json", code=0).json
    assert held["fence"] == 1, "it was never lost"
    done.touch()
    hocket.finished(process, 0)
    assert hocket("lock", "list", "--json", code=0).json == []
