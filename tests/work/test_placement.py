"""A worker has labels, and a job may need some: a worker without them does not claim it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket.errors import Usage
from hocket.families.jobs.drafts import policy
from hocket.families.jobs.why import explain
from hocket.kernel.policy import DEFAULT, check_labels, lacking
from hocket.node.handles import SyncHandle
from hocket.node.node import SyncNode
from hocket.store import Session
from hocket.work.handlers import JobType
from hocket.work.presence import Serving, read_serving

pytestmark = pytest.mark.touches("LW-41")

KIND = "acme.render"


def render(ctx: hocket.Context) -> int:
    return ctx.fence


def job_type(**options: object) -> JobType:
    return JobType(KIND, policy(DEFAULT, **options), render)


@pytest.mark.parametrize(
    ("needs", "labels", "left"),
    [
        ((), (), []),
        (("gpu",), (), ["gpu"]),
        (("gpu",), ("gpu",), []),
        (("gpu",), ("gpu=a100",), []),
        (("gpu=a100",), ("gpu",), ["gpu=a100"]),
        (("gpu=a100",), ("gpu=h100", "gpu=a100"), []),
        (("gpu", "ssd", "arch=arm"), ("gpu", "arch=x86"), ["ssd", "arch=arm"]),
    ],
)
def test_what_labels_meet(needs: tuple[str, ...], labels: tuple[str, ...], left: list[str]) -> None:
    assert lacking(needs, labels) == left


@pytest.mark.parametrize("bad", ["", "=a", "gpu=", "a b", "gpu=a\n", "x" * 129, "ü"])
def test_a_bad_label_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(ValueError, match="write it like gpu or gpu=a100"):
        check_labels([bad])
    with pytest.raises(Usage, match="bad needs"):
        job_type(needs=bad)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SyncNode]:
    hocket.init(tmp_path)
    with hocket.open(tmp_path) as node:
        yield node


def states(*handles: SyncHandle) -> list[str]:
    return [each.status()["state"] for each in handles]


def test_a_worker_takes_only_the_jobs_whose_needs_it_meets(node: SyncNode) -> None:
    plain = node.submit(job_type())
    gpu = node.submit(job_type(needs="gpu", priority=9))
    a100 = node.submit(job_type(needs=["gpu=a100"], priority=8))
    node.work([job_type()], until_idle=True)
    assert states(plain, gpu, a100) == ["succeeded", "pending", "pending"], "it ends although jobs are left"
    with node.runtime.read() as session:
        assert explain(session, node.runtime.blobs, gpu.job_id)["needs"] == ["gpu"]
    node.work([job_type()], until_idle=True, labels=["gpu=h100"])
    assert states(gpu, a100) == ["succeeded", "pending"]
    node.work([job_type()], until_idle=True, labels=["gpu=h100", "gpu=a100"])
    assert states(a100) == ["succeeded"]


def test_a_handler_that_needs_a_label_takes_no_job_without_it(node: SyncNode) -> None:
    """Also no job that was submitted before anybody said so."""
    before = node.submit(KIND)
    node.work([job_type(needs="gpu")], until_idle=True)
    assert states(before) == ["pending"]
    after = node.submit(KIND)
    assert after.status()["options"] == {"needs": ("gpu",)}
    node.work([job_type(needs="gpu")], until_idle=True, labels=["gpu"])
    assert states(before, after) == ["succeeded", "succeeded"]


def test_a_bad_label_of_a_worker_is_refused(node: SyncNode) -> None:
    with pytest.raises(Usage, match="bad label 'a b'"):
        node.work([job_type()], labels=["a b"])


def test_a_worker_tells_others_its_labels(node: SyncNode) -> None:
    def look(session: Session) -> tuple[bool, list[Serving]]:
        told = [each for row in session.workers() for each in read_serving(row.serves)]
        return bool(told), told

    with node.working([job_type()], labels=["gpu=a100"]):
        (told,) = node.until(look, 30.0)
        assert told == Serving(("acme.render",), labels=("gpu=a100",), id=told.id, since_ms=told.since_ms)
