"""The example worker in shell renews in one process and claims in another."""

import asyncio
import os
from pathlib import Path

import pytest

from hocket.testing.workers.lossy_proxy import Exchange
from hocket.testing.workers.temporary_server import TemporaryServer
from hocket.testing.workers.trial import Trial
from tests.testing.worker_examples import command
from tests.waiting import PATIENCE_S

LEASE_S = 600
LONG_S = 600.0


def with_a_clock(directory: Path, clock: Path) -> str:
    """A PATH whose `date` reads a file, and whose `sleep` does not wait for the time of a renewal."""
    for name, line in (("date", f"cat {clock}"), ("sleep", f'[ "$1" = {LEASE_S // 3} ] && set 0.2')):
        program = directory / name
        program.write_text(f'#!/bin/sh\n{line}\n[ {name} = date ] || exec /bin/sleep "$@"\n', "utf-8")
        program.chmod(0o755)
    return os.pathsep.join([str(directory), os.environ["PATH"]])


def test_a_renewal_under_way_does_not_drop_a_job_that_came_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock, tools = tmp_path / "clock", tmp_path / "tools"
    clock.write_text("1000\n", "utf-8")
    tools.mkdir()
    monkeypatch.setenv("PATH", with_a_clock(tools, clock))

    async def history(trial: Trial) -> None:
        def renewals(jobs: set[str]) -> list[Exchange]:
            return [each for each in trial.proxy.of("renew") if {h["job_id"] for h in each.body["holds"]} == jobs]

        first_renewal, later_renewals, claim = asyncio.Event(), asyncio.Event(), asyncio.Event()
        trial.proxy.gates["renew"] = first_renewal
        early = await trial.submit(LONG_S)
        await trial.start_worker()
        await trial.until(lambda: renewals({early}) and renewals({early})[0].status, "an answer to the first renewal")
        trial.proxy.gates.update(renew=later_renewals, claim=claim)
        late = await trial.submit(echo="late")
        await trial.until(lambda: trial.proxy.claims(late), "the server gives the second job")
        (tmp_path / "later").write_text(f"{1000 + 2 * LEASE_S}\n", "utf-8")
        (tmp_path / "later").replace(clock)
        claim.set()
        await trial.until(lambda: renewals({early, late}), "the worker renews what came late")
        first_renewal.set()
        await trial.until(lambda: renewals({late}), "it has stopped the first job, and keeps the second")
        later_renewals.set()
        await trial.succeeds_once(late, "late")

    async def whole() -> None:
        async with TemporaryServer(tmp_path / "home") as server:
            trial = Trial("late", server, command("shell", tmp_path), tmp_path, LEASE_S, PATIENCE_S)
            try:
                await history(trial)
            finally:
                await trial.end()

    asyncio.run(whole())
