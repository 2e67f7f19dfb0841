"""`hocket claims rank`, which needs no home."""

from hashlib import sha256
from math import log
from pathlib import Path

import pytest

from .conftest import Program

JOB = "01J9ZC0000000000000000000A"
SEED = "7f3a2b1c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8"
WORKERS = ("QmWorker1", "QmWorker2", "Qm=Wörker3")
NAMED = tuple(part for worker in WORKERS for part in ("--worker", worker))
SCORES = {worker: sha256(JOB.encode() + bytes.fromhex(SEED) + worker.encode()).hexdigest() for worker in WORKERS}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program where no home is."""
    return Program(tmp_path / "nowhere" / "home")


@pytest.mark.req("GR-01")
def test_anyone_can_rank_the_workers_of_a_job(program: Program) -> None:
    order = sorted(SCORES.items(), key=lambda each: each[1])
    ranked = [{"worker": worker, "score": found, "rank": place} for place, (worker, found) in enumerate(order)]
    for seed in (SEED, SEED.upper(), SEED + "00" * 32):
        given = ("claims", "rank", "--job", JOB, "--seed", seed, *NAMED)
        assert program(*given, "--json", code=0).json == {"ranking": ranked}
        assert program(*given, code=0).out == "".join(
            f"{place}\t{worker}\t{found}\n" for place, (worker, found) in enumerate(order)
        )
    assert not program.home.exists()


@pytest.mark.req("GR-09")
def test_with_weights_the_highest_weighted_score_wins(program: Program) -> None:
    weights = dict(zip(WORKERS, (1.0, 0.5, 200.0), strict=True))
    weighted = {each: -weights[each] / log(1 - int(SCORES[each], 16) / 2**256) for each in WORKERS}
    given = ("--job", JOB, "--seed", SEED, *NAMED, "--weight", "QmWorker2=0.5", "--weight", "Qm=Wörker3=200")
    ranking = program("claims", "rank", *given, "--json", code=0).json["ranking"]
    assert [each["worker"] for each in ranking] == sorted(WORKERS, key=weighted.__getitem__, reverse=True)
    assert [each["rank"] for each in ranking] == [0, 1, 2]
    for each in ranking:
        assert each["score"] == SCORES[each["worker"]] and each["weight"] == weights[each["worker"]]
        assert each["weighted_score"] == pytest.approx(weighted[each["worker"]], rel=1e-12)
    assert "Qm=Wörker3" in program("claims", "rank", *given, code=0).out.splitlines()[0]


ONE = ("--worker", "w1")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--seed", SEED, *ONE), "missing option '--job'"),
        (("--job", JOB, *ONE), "missing option '--seed'"),
        (("--job", "", "--seed", SEED, *ONE), "bad --job ''"),
        (("--job", b"\xff", "--seed", SEED, *ONE), "bad --job"),
        (("--job", JOB, "--seed", SEED[:-1], *ONE), "--seed has 63 hex digits"),
        (("--job", JOB, "--seed", SEED[:-2], *ONE), "--seed has 62 hex digits"),
        (("--job", JOB, "--seed", SEED + "0", *ONE), "--seed has 65 hex digits"),
        (("--job", JOB, "--seed", "", *ONE), "--seed has 0 hex digits"),
        (("--job", JOB, "--seed", SEED[:-1] + "g", *ONE), "--seed is not hex"),
        (("--job", JOB, "--seed", f" {SEED[:-2]} ", *ONE), "--seed is not hex"),
        (("--job", JOB, "--seed", SEED), "no workers"),
        (("--job", JOB, "--seed", SEED, *ONE, "--worker", "w2", *ONE), "the worker 'w1' is named twice"),
        (("--job", JOB, "--seed", SEED, "--worker", ""), "bad --worker ''"),
        (("--job", JOB, "--seed", SEED, *ONE, "--weight", "w2=2"), "for a worker that no --worker names"),
        (("--job", JOB, "--seed", SEED, *ONE, "--weight", "w1"), "write it like WORKER=2"),
        (("--job", JOB, "--seed", SEED, *ONE, "--weight", "w1=2", "--weight", "w1=3"), "has two weights"),
        *(
            (("--job", JOB, "--seed", SEED, *ONE, "--weight", f"w1={bad}"), "a weight is between 0.001 and 1000")
            for bad in ("0", "-1", "nan", "inf", "-inf", "1e9", "1e-9")
        ),
        *(
            (("--job", JOB, "--seed", SEED, *ONE, "--weight", f"w1={bad}"), "is not a number")
            for bad in ("", "heavy", "0x2")
        ),
    ],
)
def test_bad_input_is_a_clear_error(program: Program, given: tuple[str | bytes, ...], told: str) -> None:
    decoded = [part.decode("utf-8", "surrogateescape") if isinstance(part, bytes) else part for part in given]
    result = program("claims", "rank", *decoded, "--json", code=2)
    assert told in result.sentence and result.out == ""


def test_explain_says_who_may_try_when_and_who_did(tmp_path: Path) -> None:
    program = Program(tmp_path / "home")
    program("init", code=0)
    made = program("submit", "acme.render", "{}", "--claim", "rendezvous", "--claim-timeout", "2s", "--json", code=0)
    job_id = made.json["job_id"]
    told = program("claims", "explain", job_id, "--json", code=0).json
    assert (told["claim"], told["claim_timeout_ms"], told["state"]) == ("rendezvous", 2_000, "pending")
    assert told["ranking"] == told["tried"] == []
    shown = program("claims", "explain", job_id, code=0).out
    assert "no worker is known, so any may try at once" in shown and "no node has tried it" in shown
    (tmp_path / "tasks.py").write_text("import hocket\n@hocket.job('acme.render')\ndef render():\n    return 1\n")
    program("work", str(tmp_path / "tasks.py"), "--until-idle", code=0)
    told = program("claims", "explain", job_id, "--json", code=0).json
    assert [each["result"] for each in told["tried"]] == ["counts"]
    assert told["holder"] == told["tried"][0]["node"]
    assert told["tried"][0]["after_ms"] >= 0
    plain = program("submit", "acme.render", "{}", "--json", code=0).json["job_id"]
    assert "whichever worker asks first" in program("claims", "explain", plain, code=0).out
    assert program("claims", "explain", "nothing", code=2).err


def test_grid_shows_the_shares_of_ranked_jobs(tmp_path: Path) -> None:
    program = Program(tmp_path / "home")
    program("init", "--name", "box", code=0)
    assert program("grid", "--json", code=0).json == []
    program("submit", "acme.render", "{}", "--claim", "rendezvous", code=0)
    (tmp_path / "tasks.py").write_text("import hocket\n@hocket.job('acme.render')\ndef render():\n    return 1\n")
    program("work", str(tmp_path / "tasks.py"), "--until-idle", code=0)
    (shown,) = program("grid", "--json", code=0).json
    assert (shown["kind"], shown["claims"], shown["nodes"][0]["share"]) == ("acme.render", 1, 1.0)
    out = program("grid", "--kind", "acme.", code=0).out
    assert "acme.render: epoch" in out and "box\t0\t1\t100.0 %\t-\t-" in out
    assert program("grid", "--window", "soon", code=2).err
