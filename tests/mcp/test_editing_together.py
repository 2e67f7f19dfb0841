"""Agents in processes of their own edit the files of one repository, under locks and with the hook before each edit,
and some are killed in the middle of one. No edit is lost, the locks of the dead are free at once, and the log says for
each line which agent wrote it, under which fence, and which op asked for the lock.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from hocket.families.locks.facts import AcquireLocks, ReleaseLocks
from hocket.node.runtime import Runtime
from tests.cli.fork_server import fork_server, forked_program, run_command
from tests.histories.lock_log import Grant, lock_grants
from tests.mcp.agents import MCP, new_home
from tests.mcp.editing_agent import PLACES, lines_of
from tests.server.served import PATIENCE_S, ROOT, environment


class Size(NamedTuple):
    """`patience_s` is for the whole run, ten times what it takes."""

    agents: int
    files: int
    edits: int
    kills: int
    patience_s: int


SMALL = Size(agents=3, files=6, edits=30, kills=2, patience_s=270)
WHOLE = Size(agents=8, files=40, edits=500, kills=24, patience_s=6000)


class Killed(NamedTuple):
    agent: str
    fence: int
    at_ms: float


class Editing:
    """The edits that are left to do, and what came of the others."""

    def __init__(self, home: Path, repository: Path, size: Size) -> None:
        self.home, self.repository = home, repository
        chance = random.Random()
        self.files = [f"src/part{number}.txt" for number in range(size.files)]
        for file in self.files:
            (repository / file).parent.mkdir(exist_ok=True, parents=True)
            (repository / file).touch()
        self.left: list[tuple[int, str]] = [(number, chance.choice(self.files)) for number in range(size.edits)]
        # Where an edit is told to stop: every place comes as often as any other.
        stopped = chance.sample(range(size.edits), size.kills)
        self.stops = {number: PLACES[turn % len(PLACES)] for turn, number in enumerate(stopped)}
        self.acknowledged: dict[int, tuple[str, str, int]] = {}
        self.killed: list[Killed] = []
        self._names = (f"agent-{number}" for number in count(1))

    async def run(self, agents: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(agents):
                group.create_task(self._edit_until_none_is_left())

    async def _edit_until_none_is_left(self) -> None:
        """One agent after another: each works until it is killed."""
        while self.left:
            name = next(self._names)
            async with editing_agent(self.home, self.repository, name) as process:
                assert await heard(process) == {"ready": name}
                while self.left and process.returncode is None:
                    await self._edit(name, process, *self.left.pop())

    async def _edit(self, name: str, process: asyncio.subprocess.Process, number: int, file: str) -> None:
        place = self.stops.pop(number, None)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode({"number": number, "file": file, "stop_at": place}) + b"\n")
        await process.stdin.drain()
        said = await heard(process)
        if place is None:
            assert said["edited"] == number
            self.acknowledged[number] = file, name, said["fence"]
            return
        assert said["stopped"] == place
        await asyncio.to_thread(self._check_refusal, name, said["fence"], file)
        os.kill(said["server"], signal.SIGKILL)
        process.kill()
        self.killed.append(Killed(name, said["fence"], time.time() * 1000))
        await process.wait()
        # Another agent does it, or finds it done.
        self.left.append((number, file))

    def _check_refusal(self, name: str, fence: int, file: str) -> None:
        """The hook refuses the edit to others while the agent lives."""
        edit = msgspec.json.encode({"cwd": str(self.repository), "tool_input": {"file_path": file}})
        words = ["--home", str(self.home), "agent", "hook", "before-edit", "--agent", "other"]
        refused = run_command(words, edit, environment({}), ROOT, PATIENCE_S)
        said = refused.stderr.decode()
        assert refused.returncode == 2, said
        assert f"{file} is locked by {name} on " in said and f"(fence {fence})" in said


@asynccontextmanager
async def editing_agent(home: Path, repository: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """It ends with its stdin."""
    words = [sys.executable, "-m", "tests.mcp.editing_agent", str(home), str(repository), name]
    words += forked_program(fork_server(MCP))
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment({})
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() in (0, -signal.SIGKILL)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def heard(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the agent has ended"
    return msgspec.json.decode(line, type=dict[str, Any])


@pytest.mark.slow
@pytest.mark.req("VX-01", "VX-03", "VX-04")
@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(WHOLE, marks=[pytest.mark.soak, pytest.mark.timeout(7000)])], ids=["small", "whole"]
)
def test_agents_that_are_killed_lose_no_edit(tmp_path: Path, size: Size) -> None:
    home, repository = new_home(tmp_path), tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    editing = Editing(home, repository, size)
    began = time.monotonic()

    async def work() -> None:
        async with asyncio.timeout(size.patience_s):
            await editing.run(size.agents)

    asyncio.run(work())
    took_s = time.monotonic() - began
    with Runtime.open(home) as runtime, runtime.read() as session:
        grants = lock_grants(session)
    check_files(editing, grants, size)
    freed_ms = check_locks(editing, grants, size)
    print(f"{size}: {took_s:.0f} s, {len(editing.killed)} killed, their locks free after {sorted(freed_ms)} ms")


def check_files(editing: Editing, grants: dict[int, Grant], size: Size) -> None:
    """Every edit is there once, in the file and under the fence that its agent has named, in the order of fences."""
    found: Counter[int] = Counter()
    for file in editing.files:
        lines = [line.split() for line in lines_of(editing.repository / file)]
        fences = [int(fence) for _, _, fence in lines]
        assert fences == sorted(set(fences)), (file, lines)
        for number, agent, fence in lines:
            found[int(number)] += 1
            grant = grants[int(fence)]
            assert (grant.hold.agent, grant.hold.keys) == (agent, (f"file:{file}",))
            assert isinstance(grant.asked.payload, AcquireLocks) and grant.asked.payload.agent == agent
    assert found == Counter(range(size.edits))
    assert editing.acknowledged.keys() == found.keys()
    for number, (file, agent, fence) in editing.acknowledged.items():
        written = [line for line in lines_of(editing.repository / file) if line.split()[0] == str(number)]
        by_another = [f"{number} {killed.agent} {killed.fence}" for killed in editing.killed]
        assert len(written) == 1 and (written == [f"{number} {agent} {fence}"] or written[0] in by_another)


def check_locks(editing: Editing, grants: dict[int, Grant], size: Size) -> list[int]:
    """What the dead held was released, and not taken over when their leases ended. Returns how long they held it, in
    milliseconds."""
    assert len(editing.killed) == size.kills
    freed = []
    for killed in editing.killed:
        grant = grants[killed.fence]
        assert grant.hold.agent == killed.agent
        assert grant.end is not None and isinstance(grant.end.payload, ReleaseLocks), grant
        freed.append(round(grant.end.timestamp.wall - killed.at_ms))
    assert all(grant.end is not None for grant in grants.values())
    return freed
