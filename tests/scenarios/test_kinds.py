"""Scenario: the options of a handler on one machine hold for jobs from another, if its owner lets it define the kind.
The same mesh shows a job that is postponed on another machine, where the coordinator decides.
"""

from pathlib import Path

import pytest

from tests.scenarios.machines import Machine, agree, machines, until, verify

HANDLERS = """
import hocket


@hocket.job("acme.import", retries=3, priority=2)
def import_file(ctx):
    if ctx.fence == 1:
        raise hocket.Later("200ms", "not there yet")
    raise hocket.Fatal("not a picture")
"""


@pytest.mark.req("LW-24", "LW-41")
def test_an_invited_worker_defines_the_kinds_that_it_was_granted(tmp_path: Path) -> None:
    with machines(tmp_path, "owner", "gpu") as [owner, gpu]:
        (tmp_path / "imports.py").write_text(HANDLERS)
        owner("init")
        address = owner.serve()
        worker = ("job:claim:acme.", "job:complete:acme.")
        gpu("join", owner.invite("gpu", *worker, address=address))
        first = gpu.work(module=str(tmp_path / "imports.py"))
        first.says("this node may not define acme.import")
        job = owner.submit("acme.import")
        assert owner.show(job)["options"] == {} and owner("kinds", "--json").json == []
        until(lambda: owner.show(job)["outcome"] == "failed", "the job to end there")
        assert ended(owner, job) == (1, 0, "not a picture")
        first.stop()
        renewed = owner("invite", "gpu", "--worker", "acme.", "--address", address, "--json").json["token"]
        gpu("join", renewed)
        assert "set the options of jobs of kind acme.*" in owner("nodes").out
        second = gpu.work(module=str(tmp_path / "imports.py"))
        (defined,) = until(lambda: owner("kinds", "--json").json, "the definition to arrive")
        assert (defined["options"], defined["author_name"]) == ({"retries": 3, "priority": 2}, "gpu")
        job = owner.submit("acme.import")
        assert owner.show(job)["options"] == {"retries": 3, "priority": 2}
        until(lambda: owner.show(job)["outcome"] == "failed", "the second job to end")
        assert ended(owner, job) == (1, 0, "not a picture")
        assert not any("may not define" in line for line in second.notices)
        second.stop()
        agree(owner, gpu)
        owner.stop()
        verify(owner, gpu)


def ended(machine: Machine, job: str) -> tuple[int, int, str]:
    shown = machine.show(job)
    assert [op["type"] for op in shown["ops"]].count("PostponeWork") == 1
    return shown["failures"], shown["returns"], shown["error"]
