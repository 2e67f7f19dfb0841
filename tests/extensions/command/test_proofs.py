"""Proofs on the log: the right one is found, and it is held against everything that the log knows of the job."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hocket.errors import Failed
from hocket.extensions.command.execution import Output, Stream
from hocket.extensions.command.proof import check, encode_proof, prove
from hocket.extensions.command.proofs import OUTPUT_TYPE, examine, find_proof, need_proof
from hocket.families import artifacts
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.node.runtime import Runtime
from tests.work.proven import FILES, MANIFEST, Change, asked, ran, saying

pytestmark = pytest.mark.touches("GT-12")

OTHER = SigningKey(b"o" * 32)
LARGE = content_hash(FILES["dist/large.bin"])


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.init(tmp_path / "home") as opened:
        yield opened


def problems(runtime: Runtime, job: Job) -> list[str]:
    with runtime.read() as session:
        return examine(session, runtime.blobs, job, need_proof(session, runtime.blobs, job)).problems


def blob(runtime: Runtime) -> Path:
    return next(path for path in runtime.home.blobs.rglob("*") if path.is_file() and path.stat().st_size == 100_000)


@pytest.mark.req("GT-12")
def test_a_good_proof_has_no_problems(runtime: Runtime) -> None:
    job = ran(runtime)
    with runtime.read() as session:
        proof = find_proof(session, runtime.blobs, job)
        assert proof is not None and proof == need_proof(session, runtime.blobs, job)
        assert check(proof, worker=runtime.home.node_key().public).job == ulid_text(job.id)
        assert examine(session, runtime.blobs, job, proof) == ([], [])


@pytest.mark.req("GT-12")
def test_a_command_that_failed_is_proven_as_well(runtime: Runtime) -> None:
    job = ran(runtime, exit_code=3)
    assert job.outcome is Outcome.FAILED and problems(runtime, job) == []


def test_of_several_runs_the_last_is_found(runtime: Runtime) -> None:
    first = ran(runtime, exit_code=3, retry=True)
    assert first.outcome is None and problems(runtime, first) == []
    with runtime.read() as session:
        earlier = need_proof(session, runtime.blobs, first)
    runtime.log.run(lambda tx: jobs.cancel(tx, first.id, "enough"))
    runtime.log.run(lambda tx: jobs.retry(tx, first.id, "once more"))
    second = ran(runtime)
    assert second.id == first.id and problems(runtime, second) == []
    with runtime.read() as session:
        assert need_proof(session, runtime.blobs, second) != earlier
        wrong = examine(session, runtime.blobs, second, earlier).problems
    assert "made under fence 1, the job's last claim has fence 2" in wrong[0]


def test_what_another_node_calls_a_proof_is_not_found_but_can_be_verified(runtime: Runtime) -> None:
    job = ran(runtime)
    elsewhere = replace(job, claimer=(job.claimer or 0) ^ 1)
    with runtime.read() as session:
        assert find_proof(session, runtime.blobs, elsewhere) is None
        proof = need_proof(session, runtime.blobs, elsewhere)
        [problem] = examine(session, runtime.blobs, elsewhere, proof).problems
    assert "held the job" in problem


def test_a_job_without_a_proof_says_so(runtime: Runtime) -> None:
    job_id = asked(runtime)
    with runtime.read() as session:
        entry = session.job(job_id)
        assert entry is not None
        assert find_proof(session, runtime.blobs, entry.job) is None
        with pytest.raises(Failed, match="has no proof"):
            need_proof(session, runtime.blobs, entry.job)


def test_what_is_no_proof_is_not_taken_for_one(runtime: Runtime) -> None:
    job = ran(runtime, proof=lambda proof: encode_proof(proof)[:-1])
    with runtime.read() as session:
        assert find_proof(session, runtime.blobs, job) is None
        with pytest.raises(Failed, match="is not a proof"):
            need_proof(session, runtime.blobs, job)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (saying(content_id=bytes(32)), "the job asks for blake3:"),
        (saying(argv=("sh", "-c", "make dist ")), "another command line"),
        (saying(inputs=(bytes(32),)), "other inputs"),
        (saying(job="01J9ZC0000000000000000000A"), "the proof is of job 01J9ZC0000000000000000000A"),
        (saying(fence=2), "made under fence 2, the job's last claim has fence 1"),
        (saying(exit_code=1), "the job succeeded, but"),
        (saying(timed_out=True), "the job succeeded, but"),
        (saying(outputs=(Output("dist/small.txt", content_hash(b"small"), 5),)), "is not in the proof"),
        (saying(stdout=Stream(bytes(32), 6, 6)), "stdout is blake3:00"),
        (saying(stderr=Stream(content_hash(b"stdout"), 6, 6)), "stderr is blake3:"),
        (saying(stdout=Stream(content_hash(b"stdout"), 7, 7)), "stdout has 7 bytes in the proof and 6 on the log"),
    ],
)
def test_a_proof_that_says_something_else_than_the_log_is_found(runtime: Runtime, change: Change, problem: str) -> None:
    job = ran(runtime, change=change)
    assert [each for each in problems(runtime, job) if problem in each] and len(problems(runtime, job)) == 1


def test_an_output_that_the_log_does_not_know_is_found(runtime: Runtime) -> None:
    known = tuple(Output(path, content_hash(data), len(data)) for path, data in FILES.items())
    job = ran(runtime, change=saying(outputs=(*known, Output("dist/more", bytes(32), 1))))
    assert problems(runtime, job) == [
        f"the output 'dist/more' is blake3:{bytes(32).hex()}, but no artifact of the job has that hash"
    ]


def test_a_proof_by_another_key_is_found(runtime: Runtime) -> None:
    [problem] = problems(runtime, ran(runtime, key=OTHER))
    assert "the proof is by node" in problem and "held the job" in problem


def test_a_proof_of_another_job_is_found(runtime: Runtime) -> None:
    first, second = ran(runtime), ran(runtime, MANIFEST | {"timeout": 61})
    with runtime.read() as session:
        proof = need_proof(session, runtime.blobs, first)
        wrong = examine(session, runtime.blobs, second, proof).problems
    assert "the job asks for" in wrong[0] and "not of" in wrong[1] and len(wrong) == 2


@pytest.mark.req("GT-12")
def test_a_tampered_proof_is_found(runtime: Runtime) -> None:
    job = ran(runtime)
    with runtime.read() as session:
        proof = need_proof(session, runtime.blobs, job)
        forged = prove(check(proof), OTHER)
        for name in ("signature", "statement_signature"):
            mixed = replace(proof, **{name: forged.signature})
            [problem] = examine(session, runtime.blobs, job, mixed).problems
            assert "is not signed by" in problem


def test_a_job_that_is_no_command_is_found(runtime: Runtime) -> None:
    asked(runtime, payload=b'{"command": "make", "timeout": 60}')
    assert any("is not a command: command: it must be a list" in each for each in problems(runtime, ran(runtime)))


def test_a_damaged_file_is_found(runtime: Runtime) -> None:
    job = ran(runtime)
    path = blob(runtime)
    path.chmod(0o600)
    path.write_bytes(b"y" + FILES["dist/large.bin"][1:])
    [problem] = problems(runtime, job)
    assert "the output 'dist/large.bin'" in problem


def test_a_file_that_is_not_here_is_no_problem_and_is_said(runtime: Runtime) -> None:
    job = ran(runtime)
    blob(runtime).unlink()
    with runtime.read() as session:
        proof = need_proof(session, runtime.blobs, job)
        wrong, notes = examine(session, runtime.blobs, job, proof)
        assert wrong == [] and len(notes) == 1 and "'dist/large.bin' was not checked" in notes[0]
        # Another node has something else under that name, and then the right thing.
        wrong, notes = examine(session, runtime.blobs, job, proof, lambda hash, size: b"z" * size)
        assert wrong == [] and "the content received" in notes[0]
        asked_for = []

        def fetch(hash: bytes, size: int) -> bytes:
            asked_for.append((hash, size))
            return FILES["dist/large.bin"]

        assert examine(session, runtime.blobs, job, proof, fetch) == ([], [])
        assert asked_for == [(LARGE, 100_000)] and runtime.blobs.has(LARGE)


def test_an_evicted_file_is_no_problem_and_is_said(runtime: Runtime) -> None:
    job = ran(runtime)
    with runtime.read() as session:
        kept = [each for each in session.artifacts_of_job(job.id) if each.type == OUTPUT_TYPE and each.hash == LARGE]
    runtime.log.run(lambda tx: artifacts.evict(tx, kept[0]))
    with runtime.read() as session:
        wrong, notes = examine(session, runtime.blobs, job, need_proof(session, runtime.blobs, job))
    assert wrong == [] and notes == ["the output 'dist/large.bin' was evicted; its bytes were not checked"]
