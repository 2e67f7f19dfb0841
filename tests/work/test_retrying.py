"""What a handler's exception means for its job: another try, none, or a later run that spends no try."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import hocket
import hocket.testing
from hocket.errors import Usage
from hocket.events import Event
from hocket.events.jobs import JobPostponed
from hocket.families.jobs import view
from hocket.testing import MemorySyncNode, Ran
from hocket.work.handlers import REGISTRY, JobType

pytestmark = pytest.mark.touches("LW-41")


@pytest.fixture
def node() -> Iterator[MemorySyncNode]:
    with hocket.testing.node() as made:
        yield made


def handler(raising: Callable[[hocket.Context], object], **options: object) -> JobType:
    """A job type that is not registered for other tests."""

    def function(ctx: hocket.Context) -> object:
        return raising(ctx)

    made = hocket.job(f"retrying.{len(REGISTRY)}", **options)(function)  # type: ignore[arg-type]
    del REGISTRY[made.kind]
    return made


def raiser(error: BaseException) -> Callable[[hocket.Context], object]:
    def fail(ctx: hocket.Context) -> object:
        raise error

    return fail


def tries(node: MemorySyncNode, job: JobType) -> list[Ran]:
    node.submit(job)
    return node.drain([job])


def test_a_fatal_error_is_not_retried(node: MemorySyncNode) -> None:
    job = handler(raiser(hocket.Fatal("no such customer")), retries=5)
    handle = node.submit(job)
    assert len(node.drain([job])) == 1
    with pytest.raises(hocket.JobFailed, match="no such customer"):
        handle.result()
    assert "raise error" in str(handle.status()["traceback"])


@pytest.mark.parametrize(
    ("error", "runs"),
    [
        (TimeoutError("slow"), 3),
        (ConnectionResetError("a kind of ConnectionError"), 3),
        (ValueError("bad"), 1),
        (ExceptionGroup("some", [ValueError("bad"), TimeoutError("slow")]), 3),
        (ExceptionGroup("some", [TimeoutError("slow"), hocket.Fatal("bad")]), 1),
    ],
)
def test_only_the_named_errors_are_retried(node: MemorySyncNode, error: BaseException, runs: int) -> None:
    assert len(tries(node, handler(raiser(error), retries=2, retry_on=(TimeoutError, ConnectionError)))) == runs


@pytest.mark.parametrize(("error", "runs"), [(TimeoutError("slow"), 3), (FileNotFoundError("gone"), 1)])
def test_the_named_errors_are_given_up(node: MemorySyncNode, error: BaseException, runs: int) -> None:
    assert len(tries(node, handler(raiser(error), retries=2, give_up_on=FileNotFoundError))) == runs


def test_giving_up_is_stronger_than_retrying(node: MemorySyncNode) -> None:
    job = handler(raiser(FileNotFoundError("gone")), retries=2, retry_on=OSError, give_up_on=(FileNotFoundError,))
    assert len(tries(node, job)) == 1


def test_the_submitters_retries_do_not_make_an_error_retryable(node: MemorySyncNode) -> None:
    job = handler(raiser(ValueError("bad")), give_up_on=ValueError)
    assert len(tries(node, job.using(retries=9))) == 1


@pytest.mark.parametrize("bad", ["TimeoutError", 3, (TimeoutError, "ValueError"), [int]])
def test_what_is_no_exception_class_is_refused(bad: object) -> None:
    with pytest.raises(Usage, match="give exception classes, like retry_on="):
        handler(lambda ctx: None, retry_on=bad)


def test_a_job_can_be_postponed_without_spending_a_try(node: MemorySyncNode) -> None:
    seen: list[tuple[int, float]] = []

    def wait(ctx: hocket.Context) -> str:
        seen.append((ctx.attempt, node.clock.now))
        if len(seen) < 40:
            raise hocket.Later("5m", "the upload is not there yet")
        return "there"

    job = handler(wait, retries=0)
    handle = node.submit(job)
    ran = node.drain([job])
    assert handle.result() == "there"
    assert [attempt for attempt, _ in seen] == [1] * 40, "more often than a job may be returned"
    assert all(later - earlier >= 300 for (_, earlier), (_, later) in pairwise(seen))
    assert [each.error for each in ran[:2]] == ["the upload is not there yet"] * 2
    shown = handle.status()
    assert (shown["failures"], shown["returns"]) == (0, 0)
    assert [op["detail"] for op in shown["ops"] if op["type"] == "PostponeWork"][:1] == ["the upload is not there yet"]


def test_a_failure_after_a_postponement_is_the_first_one(node: MemorySyncNode) -> None:
    left = [hocket.Later(1), ValueError("bad"), hocket.Later(1), ValueError("bad again")]
    job = handler(lambda ctx: (_ for _ in ()).throw(left.pop(0)), retries=1)
    handle = node.submit(job)
    node.drain([job])
    assert left == []
    with pytest.raises(hocket.JobFailed, match="bad again"):
        handle.result()


@pytest.mark.parametrize("bad", ["0s", "31d", "-5m", "soon", 0])
def test_a_bad_delay_fails_the_run_and_names_itself(node: MemorySyncNode, bad: str) -> None:
    def wait(ctx: hocket.Context) -> None:
        raise hocket.Later(bad)

    (ran,) = tries(node, handler(wait))
    assert ran.error is not None and str(bad) in ran.error


def test_what_a_postponed_run_has_kept_is_discarded(node: MemorySyncNode) -> None:
    def wait(ctx: hocket.Context) -> None:
        if ctx.fence < 3:
            ctx.artifact(b"half", type="acme.half")
            raise hocket.Later("1s")

    job = handler(wait)
    handle = node.submit(job)
    node.drain([job])
    assert handle.result() is None
    with node.runtime.read() as session:
        assert "CreateArtifact" not in [view.op_line(row)["type"] for row in session.ops_after(0, 100)]


def test_an_async_handler_can_be_postponed_too(tmp_path: Path) -> None:
    events: list[Event] = []

    async def wait(ctx: hocket.Context) -> int:
        await asyncio.sleep(0)
        if ctx.fence == 1:
            raise hocket.Later("200ms")
        return ctx.fence

    job = JobType("retrying.async", function=wait)
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        handle = node.submit(job)
        worker = node.work([job], until_idle=True, events=events.append)
        assert handle.result(1) == 2
    assert (worker.succeeded, worker.failed, worker.handed_back, worker.postponed) == (1, 0, 0, 1)
    (told,) = [each for each in events if isinstance(each, JobPostponed)]
    assert (told.delay_s, told.fence) == (0.2, 1)
