"""One of the two agents: an MCP client that takes jobs, each of which asks for a line in a file of the repository. A
coding agent does the same by the calls of its model; `run.py` starts both.

    python agent.py NAME HOME REPOSITORY JOBS
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

WAIT_S = 45


class Agent:
    def __init__(self, client: Client, name: str, home: Path, repository: Path) -> None:
        self._client, self._name, self._repository = client, name, repository
        self._hook = [*hocket(home), "agent", "hook", "before-edit", "--agent", name]

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self._client.call_tool(tool, arguments)
        if answer.is_error or answer.structured_content is None:
            raise RuntimeError(f"{tool}: {answer.content}")
        return answer.structured_content

    def say(self, text: str) -> None:
        print(f"{self._name} {text}", flush=True)

    async def work(self, kind: str) -> None:
        """Does one job of this kind."""
        job = await self.call("take", kinds=[kind], wait_s=WAIT_S)
        file, line = job["data"]["payload"]["file"], job["data"]["payload"]["line"]
        self.say(f"takes the job to change {file} (fence {job['fence']})")
        if refusal := self.refusal(file):
            self.say(f"must not edit: {refusal}")
            await self.call("mail", do="send", to="all", text=f"{self._name} waits for {file}")
            self.say(f"waits for {file}")
        lock = await self.call("lock", keys=[f"file:{file}"], wait_s=WAIT_S)
        if refusal := self.refusal(file):
            raise RuntimeError(refusal)
        self.write(file, f"{line} ({self._name}, fence {lock['fence']})")
        await self.call("lock", keys=[f"file:{file}"], do="release")
        await self.call("finish", job=job["job"], fence=job["fence"], result={"fence": lock["fence"]})
        await self.call("mail", do="send", to="all", text=f"{self._name} has changed {file}")

    def refusal(self, file: str) -> str | None:
        """Asks the hook, as the program of an agent does before each edit."""
        edit = {"cwd": str(self._repository), "tool_input": {"file_path": str(self._repository / file)}}
        hook = subprocess.run(self._hook, input=json.dumps(edit), capture_output=True, text=True)
        if hook.returncode not in (0, 2):
            raise RuntimeError(hook.stderr)
        return hook.stderr.strip() if hook.returncode == 2 else None

    def write(self, file: str, line: str) -> None:
        """The file is changed whole or not at all, so an agent that is killed leaves no half of an edit behind."""
        path = self._repository / file
        draft = path.with_suffix(f".{self._name}")
        draft.write_text(path.read_text() + line + "\n")
        if os.environ.get("STOP_AT") == file:
            self.say(f"stops in the middle of its edit of {file}")
            sys.stdin.readline()
        draft.replace(path)

    async def read_mail(self) -> None:
        while messages := (await self.call("mail", count=10)).get("data"):
            for each in messages:
                self.say(f"reads: {each['text']}")
                await self.call("mail", do="done", id=each["id"])


def hocket(home: Path) -> list[str]:
    return [sys.executable, "-m", "hocket.cli", "--home", str(home)]


async def main(name: str, home: Path, repository: Path, kinds: list[str]) -> None:
    command, *arguments = hocket(home)
    server = StdioServerParameters(command=command, args=[*arguments, "mcp", "--agent", name], env=dict(os.environ))
    async with Client(server) as client:
        agent = Agent(client, name, home, repository)
        for kind in kinds:
            await agent.work(kind)
        await agent.read_mail()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
