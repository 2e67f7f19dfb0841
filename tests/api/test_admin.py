"""What programs ask of a node through the service: jobs, artifacts, schedules, nodes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing


@hocket.job("admin.paint")
def paint(ctx: hocket.Context, colour: str) -> None:
    if colour == "none":
        raise ValueError("no colour")
    ctx.artifact(colour.encode(), type="admin.canvas")


def fill(node: Any) -> None:
    for colour in ("red", "green", "none"):
        node.submit(paint, colour=colour)
    node.drain([paint])
    node.submit(paint, colour="blue")
    node.submit("admin.other", n=1)


def test_jobs_are_listed_and_counted() -> None:
    with hocket.testing.node() as node:
        fill(node)
        admin = hocket.admin(node)
        assert {job.kind for job in admin.jobs(state="pending").items} == {"admin.other", "admin.paint"}
        first = admin.jobs(kind="admin.paint", limit=3)
        assert len(first.items) == 3 and first.next is not None
        assert len(admin.jobs(kind="admin.paint", limit=3, before=first.next).items) == 1
        counts = {
            "all": admin.count(),
            "paint": admin.count(kind="admin.paint"),
            "below": admin.count(kind="admin."),
            "failed": admin.count(outcome="failed"),
            "failed paint": admin.count(kind="admin.paint", outcome="failed"),
            "pending": admin.count(state="pending"),
            "pending paint": admin.count(kind="admin.paint", state="pending"),
            "failed and pending": admin.count(state="pending", outcome="failed"),
        }
        assert counts == {
            "all": 5,
            "paint": 4,
            "below": 5,
            "failed": 1,
            "failed paint": 1,
            "pending": 2,
            "pending paint": 1,
            "failed and pending": 0,
        }
        assert admin.status().jobs["succeeded"] == 2
        with pytest.raises(hocket.Usage, match="state"):
            admin.jobs(state="sleeping")


def test_artifacts_are_listed_read_and_stored(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a file")
    with hocket.testing.node() as node:
        fill(node)
        admin = hocket.admin(node)
        canvases = [each for each in admin.artifacts().items if each.type == "admin.canvas"]
        assert {admin.content(each.artifact_id) for each in canvases} == {b"red", b"green"}
        assert canvases[0].job_id is not None
        assert admin.artifacts(job=canvases[0].job_id).items == [canvases[0]]
        assert admin.content(admin.put(b"some bytes", "admin.note", ttl="1h").artifact_id) == b"some bytes"
        assert admin.content(admin.put(tmp_path / "file", "admin.note").artifact_id) == b"a file"


def test_schedules_are_set_listed_and_removed() -> None:
    with hocket.testing.node() as node:
        admin = hocket.admin(node)
        admin.schedule("nightly", "0 3 * * *", paint.using(priority=3), {"colour": "red"}, timezone="Europe/Vienna")
        (shown,) = admin.schedules()
        assert (shown.name, shown.kind, shown.payload) == ("nightly", "admin.paint", {"colour": "red"})
        assert (shown.timezone, shown.options["priority"]) == ("Europe/Vienna", 3)
        with pytest.raises(hocket.Usage, match="missing required field `colour`"):
            admin.schedule("bad", "0 3 * * *", paint)
        admin.unschedule("nightly")
        assert admin.schedules() == []


def test_the_same_for_async_programs(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")

    async def main() -> None:
        async with hocket.open(tmp_path / "home") as node:
            admin = hocket.admin(node)
            handle = await node.submit(paint, colour="red")
            await node.work([paint], until_idle=True)
            await node.submit(paint, colour="blue")
            assert [job.job_id for job in (await admin.jobs(outcome="succeeded")).items] == [handle.job_id]
            assert await admin.count() == 2 and (await admin.status()).jobs["ready"] == 1
            (canvas,) = (await admin.artifacts(job=handle.job_id)).items
            assert await admin.content(canvas.artifact_id) == b"red"
            kept = await admin.put(b"x", "admin.note")
            assert await admin.content(kept.artifact_id) == b"x"
            await admin.schedule("nightly", "0 3 * * *", paint, {"colour": "red"})
            assert [each.name for each in await admin.schedules()] == ["nightly"]
            await admin.unschedule("nightly")
            assert await admin.schedules() == []
            (here,) = await admin.nodes()
            assert here.here

    asyncio.run(main())


def test_the_nodes_of_a_mesh_are_listed(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        (here,) = hocket.admin(node).nodes()
        assert here.here and here.standing == "active" and "coordinator" in here.roles


def test_checkpoints_are_signed_and_listed() -> None:
    with hocket.testing.node() as node:
        admin = hocket.admin(node)
        node.submit("admin.other", n=1)
        made = admin.checkpoint()
        assert admin.checkpoints() == [made] and made.standing == "signed" and made.size > 1
        node.submit("admin.other", n=2)
        assert admin.checkpoint().size == made.size + 1
