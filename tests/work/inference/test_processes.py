"""Worker processes, a real endpoint, and ends of every kind: what was asked is on the log."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.families import artifacts
from hocket.families.jobs.why import explain
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, decode_snapshot
from hocket.node.handles import SyncHandle
from tests.work.artifacts.handlers import content, of_job
from tests.work.inference.endpoint import Endpoint, Handler, chat, endpoint
from tests.work.mesh import Mesh, mesh_in, wait_for

pytestmark = pytest.mark.touches("LW-35")

HANDLERS = str(Path(__file__).with_name("asking.py"))


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


@pytest.fixture
def mesh(tmp_path: Path, model: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mesh]:
    monkeypatch.setenv("HOCKET_TEST_MODEL", model.url)
    with mesh_in(tmp_path) as made:
        yield made


def records(mesh: Mesh, handle: SyncHandle) -> list[Snapshot]:
    return [decode_snapshot(content(mesh.node, each)) for each in of_job(mesh.node, handle, SNAPSHOT_TYPE)]


def hang(handler: Handler) -> None:
    handler.server.over.wait(60)


@pytest.mark.req("LW-35")
def test_many_jobs_of_both_kinds_leave_their_records(mesh: Mesh):
    handles = [mesh.node.submit(kind) for kind in ("ask.plain", "ask.async") for _ in range(10)]
    handles += [mesh.node.submit("ask.plain", size=100_000) for _ in range(5)]
    assert mesh.run(modules=[HANDLERS], concurrency=8) == (25, 0, 0)
    for handle in handles:
        assert handle.result() == "Paris."
        [record] = records(mesh, handle)
        assert record.output.encode() == chat("Paris.")
        with mesh.runtime.read() as session:
            told = explain(session, mesh.runtime.blobs, handle.job_id)
        assert told["missing"] == [] and told["snapshots"][0]["named"]
    assert len(list(mesh.runtime.blobs.all())) == 1
    assert artifacts.clear(mesh.runtime.store, mesh.runtime.blobs) == (0, 0)
    mesh.check_log()


@pytest.mark.req("LW-35")
@pytest.mark.parametrize("kind", ["ask.plain", "ask.async"])
def test_a_worker_that_stops_leaves_the_record_of_the_call_under_way(mesh: Mesh, model: Endpoint, kind: str):
    model.answering = hang
    handle = mesh.node.submit(kind)
    worker = mesh.worker(modules=[HANDLERS], grace=0.05).up()
    wait_for(lambda: model.asked, "the model to be asked")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == (0, 0, 1)
    assert mesh.runtime.show(handle.job_id)["state"] == "pending"
    [record] = records(mesh, handle)
    assert record.output.startswith("[no answer: ")
    model.answering = lambda handler: handler.say(chat("Paris."))
    mesh.run(modules=[HANDLERS])
    assert handle.result() == "Paris." and len(records(mesh, handle)) == 2
    mesh.check_log()


@pytest.mark.req("LW-35")
def test_a_cancelled_job_leaves_the_record_of_its_call(mesh: Mesh, model: Endpoint):
    model.answering = hang
    handle = mesh.node.submit("ask.async")
    worker = mesh.worker(modules=[HANDLERS]).up()
    wait_for(lambda: model.asked, "the model to be asked")
    handle.cancel()
    wait_for(lambda: records(mesh, handle), "the record of the call")
    assert records(mesh, handle)[0].output == "[no answer: CancelledError: ]"
    worker.stop()
    mesh.check_log()


def test_a_killed_worker_leaves_what_it_staged_and_that_is_cleared(mesh: Mesh, model: Endpoint, tmp_path: Path):
    shelves = mesh.runtime.home.blobs / "staged"
    code = tmp_path / "staging.py"
    code.write_text(
        "import os, hocket\n"
        "@hocket.job('stage.and.die', lease='20s', retries=0)\n"
        "def stage(ctx):\n"
        "    ctx.artifact(b'x' * 100_000, type='t.x')\n"
        "    if ctx.fence == 1:\n"
        "        os._exit(9)\n"
    )
    handle = mesh.node.submit("stage.and.die")
    mesh.worker(modules=[str(code)]).popen.wait(60)
    [shelf] = shelves.glob("*/")
    assert len(list(shelf.iterdir())) == 1 and of_job(mesh.node, handle) == []
    assert mesh.run(modules=[str(code)]) == (1, 0, 0)
    assert artifacts.clear(mesh.runtime.store, mesh.runtime.blobs) == (0, 100_000)
    assert list(shelves.glob("*/")) == []
    [artifact] = of_job(mesh.node, handle)
    assert content(mesh.node, artifact) == b"x" * 100_000
    shutil.rmtree(mesh.runtime.home.blobs)
    assert not mesh.runtime.blobs.has(artifact.hash)
