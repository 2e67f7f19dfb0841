"""Two agents change the files of one repository. Ben is killed in the middle of an edit; Ann gets his lock and his job.

pip install 'hocket[mcp]'
python examples/two_agents/run.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hocket

AGENT = Path(__file__).with_name("agent.py")
FILES = ("intro.txt", "story.txt")


def start(name: str, base: Path, *kinds: str, stop_at: str = "") -> "subprocess.Popen[str]":
    words = [sys.executable, str(AGENT), name, str(base / "home"), str(base / "repository"), *kinds]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"STOP_AT": stop_at}
    )


def follow(agent: "subprocess.Popen[str]", until: str | None = None) -> None:
    """Prints what the agent says, up to a line that begins so, or to its end."""
    assert agent.stdout is not None
    for line in agent.stdout:
        print(line, end="", flush=True)
        if until is not None and line.startswith(until):
            return
    if until is not None:
        raise SystemExit(f"the agent ended before {until!r}")


def play(base: Path) -> None:
    repository = base / "repository"
    repository.mkdir()
    for file in FILES:
        (repository / file).touch()
    hocket.init(base / "home")
    with hocket.open(base / "home") as node:
        jobs = [
            node.submit("edit.intro", file="intro.txt", line="Once there were two agents."),
            node.submit("edit.story", file="story.txt", line="One of them fell silent."),
            node.submit("edit.story", file="story.txt", line="The other one went on."),
        ]
        ben = start("ben", base, "edit.intro", "edit.story", stop_at="story.txt")
        try:
            follow(ben, "ben stops in the middle")
            ann = start("ann", base, "edit.story", "edit.story")
            try:
                follow(ann, "ann waits for story.txt")
                ben.kill()
                ben.wait()
                print("ben is killed")
                follow(ann)
                if ann.wait() != 0:
                    raise SystemExit("ann failed")
            finally:
                ann.kill()
        finally:
            ben.kill()
        fences = [job.result(timeout=0)["fence"] for job in jobs]
    for file in FILES:
        print(f"{file}:\n{(repository / file).read_text()}", end="")
    lines = [line for file in FILES for line in (repository / file).read_text().splitlines()]
    if sorted(fences) != sorted(int(line.split()[-1].rstrip(")")) for line in lines):
        raise SystemExit("an edit is lost")
    print("no edit is lost")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder))
