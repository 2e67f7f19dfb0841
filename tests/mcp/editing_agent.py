"""An agent that edits the files of one repository, with the official client and a server of its own. It reads edits
from stdin, one JSON object a line, and answers each with a line. At a place where it is told to stop, it says so and
goes no further, so that it can be killed there.

    python -m tests.mcp.editing_agent HOME REPOSITORY NAME HOCKET…

The last words start `hocket` for the hooks and for the server.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mcp.agents import Agent, agent, text_of
from tests.server.served import environment

LOCK_WAIT_S = 45
# The places where an agent can be told to stop, in their order. It holds the lock at each.
PLACES = ("locked", "read", "half written", "written")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


class Editor:
    def __init__(self, me: Agent, home: Path, repository: Path, name: str, program: list[str]) -> None:
        self._me, self._repository, self._name = me, repository, name
        self._hook = [*program, "--home", str(home), "agent", "hook", "before-edit", "--agent", name]

    async def edit(self, number: int, file: str, stop_at: str | None) -> dict[str, Any]:
        """Adds a line for this edit, unless an agent that did not say so has done it already."""
        key, path = f"file:{file}", self._repository / file
        fence = await self._lock(key)
        await self._stop_at("locked", stop_at, key, fence)
        lines = lines_of(path)
        await self._stop_at("read", stop_at, key, fence)
        await self._ask_before_edit(path)
        if all(line.split()[0] != str(number) for line in lines):
            await self._write(path, [*lines, f"{number} {self._name} {fence}"], stop_at, key, fence)
        await self._stop_at("written", stop_at, key, fence)
        await self._me.call("lock", keys=[key], do="release")
        return {"edited": number, "file": file, "fence": fence}

    async def _lock(self, key: str) -> int:
        while True:
            answer = await self._me.client.call_tool("lock", {"keys": [key], "wait_s": LOCK_WAIT_S})
            if not answer.is_error:
                assert isinstance(answer.structured_content, dict)
                return int(answer.structured_content["fence"])
            assert "is held by" in text_of(answer), text_of(answer)

    async def _ask_before_edit(self, path: Path) -> None:
        """The hook, as a program of an agent runs it. It refuses by its exit code."""
        told = json.dumps({"cwd": str(self._repository), "tool_input": {"file_path": str(path)}}).encode()
        hook = await asyncio.create_subprocess_exec(
            *self._hook, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({})
        )
        _, said = await hook.communicate(told)
        assert hook.returncode == 0, said.decode()

    async def _write(self, path: Path, lines: list[str], stop_at: str | None, key: str, fence: int) -> None:
        text = "".join(f"{line}\n" for line in lines)
        draft = path.with_name(f".{path.name}.{self._name}")
        with draft.open("w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            await self._stop_at("half written", stop_at, key, fence)
            file.write(text[len(text) // 2 :])
        draft.replace(path)

    async def _stop_at(self, place: str, stop_at: str | None, key: str, fence: int) -> None:
        if place != stop_at:
            return
        renewed = await self._me.call("lock", keys=[key], do="renew")
        answer({"stopped": place, "fence": fence, "lease_s": renewed["lease_s"], "server": self._me.pid})
        sys.stdin.readline()
        raise AssertionError("it was to be killed here")


def answer(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)


async def main(home: Path, repository: Path, name: str, *program: str) -> None:
    async with agent(home, name, program=program) as me:
        editor = Editor(me, home, repository, name, [*program])
        answer({"ready": name})
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer(await editor.edit(**json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
