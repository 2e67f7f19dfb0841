"""`hocket retain` and `hocket log prune`: rules are set, listed and refused, and what goes is gone from every view."""

import asyncio
from pathlib import Path

import pytest

from hocket.api import Service
from hocket.api.retention import keeping, pruning
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.policy import Policy
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.work import maintenance
from tests.cli.conftest import Program
from tests.mesh.world import until

DAY = 86_400_000


@pytest.mark.req("LW-52")
def test_rules_are_set_listed_and_removed(hocket: Program) -> None:
    assert hocket("retain", "--json", code=0).json == []
    hocket("retain", "acme.*", "90d", "--keep", 1000, code=0)
    hocket("retain", "--messages", "14d", "--no-archive", code=0)
    hocket("retain", "30d", code=0)
    hocket("retain", "--windows", "2d", code=0)
    listed = hocket("retain", "--json", code=0).json
    assert [(each["what"], each["match"], each["keep_ms"], each["keep_count"]) for each in listed] == [
        ("jobs", "", 30 * DAY, None),
        ("jobs", "acme.", 90 * DAY, 1000),
        ("messages", "", 14 * DAY, None),
        ("windows", "", 2 * DAY, None),
    ]
    hocket("retain", "--windows", "--clear", code=0)
    hocket("retain", "acme.*", "--clear", code=0)
    assert "acme." not in hocket("retain", code=0).out
    assert "nothing would go now" in hocket("retain", "acme.render", "7d", "--dry-run", code=0).out
    assert len(hocket("retain", "--json", code=0).json) == 2
    assert "nothing would go now" in hocket("log", "prune", "--dry-run", code=0).out
    assert "there is no horizon" in hocket("log", "prune", code=0).out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("59m",), "it keeps for 3540 s, and 60 minutes to 100 years are allowed"),
        (("acme.*", "x"), "bad duration"),
        (("acme*", "7d"), "bad pattern 'acme*'"),
        (("a", "7d", "b"), "'b' is too much"),
        (("7d", "--clear"), "--clear removes a rule"),
        (("acme.", "7d", "--messages"), "only rules about jobs have a pattern"),
        (("7d", "--witnesses", "1"), "the mesh has 0 other nodes"),
        (("acme.", "7d", "--windows"), "only rules about jobs have a pattern"),
        (("7d", "--windows", "--keep", 5), "only jobs are kept by their number"),
        (("7d", "--windows", "--messages"), "a rule is about messages or about windows"),
    ],
)
def test_a_bad_rule_is_refused_in_a_sentence(hocket: Program, words: tuple[str, ...], why: str) -> None:
    assert why in hocket("retain", *words, code=2).sentence
    assert hocket("retain", "--json", code=0).json == []


@pytest.mark.req("LW-52")
def test_a_strict_mesh_keeps_everything(tmp_path: Path) -> None:
    strict = Program(tmp_path / "home")
    strict("init", "--strict", code=0)
    assert "keeps everything" in strict("retain", "7d", code=3).sentence
    assert "nothing is pruned here" in strict("log", "prune", code=3).sentence


def aged(runtime: Runtime) -> None:
    """Three days pass."""
    log = runtime.log
    physical, wall = log.physical, log.wall
    log.physical = lambda: physical() + 3 * DAY
    log.wall = lambda floor: max(wall(floor), physical() + 3 * DAY)


def ended(runtime: Runtime, count: int) -> None:
    for made in runtime.submit([Draft("acme.x", b"{}", Policy()) for _ in range(count)]):
        runtime.log.run(lambda tx, made=made: jobs.cancel(tx, made.job_id, ""))  # type: ignore[misc]


@pytest.mark.req("LW-52")
def test_what_would_go_goes_and_deleting_waits_for_an_archive(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "home") as runtime:
        service = Service(runtime)
        ended(runtime, 5)
        aged(runtime)
        keeping.retain(service, match="acme.", keep_ms=DAY)
        forecast = keeping.forecast(service)
        assert [(each.match, each.jobs) for each in forecast.jobs] == [("acme.", 5)]
        assert forecast.ops == 10 and forecast.bytes > 0
        done = pruning.prune(service)
        assert done.moved and done.ops == 10 and done.deleted_ops == 0
        assert done.horizon.hidden and not done.horizon.deleted and "archive" in (done.horizon.waits_for or "")
        with runtime.read() as session:
            assert list(session.each_job()) == []
        # The owner waives the archive; that counts from the next horizon on.
        keeping.retain(service, match="acme.", keep_ms=DAY, without_archive=True)
        ended(runtime, 1)
        aged(runtime)
        again = pruning.prune(service)
        assert again.moved and again.deleted_ops > 0 and again.horizon.deleted
        assert runtime.verify().findings == []
        assert runtime.rebuild().unchanged


@pytest.mark.req("LW-52")
def test_a_process_that_stays_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ROUND_S", 0.02)
    monkeypatch.setattr(maintenance, "PRUNE_S", 0.05)

    async def run() -> None:
        node = Node(Runtime.init(tmp_path / "home"))
        try:
            ended(node.runtime, 3)
            aged(node.runtime)
            keeping.retain(Service(node.runtime), keep_ms=DAY, without_archive=True)
            async with node.kept_up(lambda event: None):

                async def is_pruned() -> bool:
                    with node.runtime.read() as session:
                        row = session.horizon()
                        return row is not None and row.is_deleted and not list(session.each_job())

                await until(is_pruned)
        finally:
            await node.close()

    asyncio.run(run())
