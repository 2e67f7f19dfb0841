"""A reader who follows a page to the letter, in an empty home directory of their own.

A ```python block that begins with a comment like `# tasks.py` is saved under that name; the other ```python blocks
of the page are one program, run at the end. In a ```console block a line after `$ ` is typed into one shell, which
keeps its variables, and goes on in lines after `> `; a command must succeed. The lines below a command are what it
prints, where `…` stands for anything; a command with nothing below it may print what it likes. The shell's own notice
that a background process was killed comes at any moment, and does not count. Where a page writes the port 8477, the
reader takes a free one: two runs of the tests may share a machine.
"""

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.cli.fork_server import ForkServer, forked_program
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 240
WRITTEN_PORT = "8477"
TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1", "TZ": "UTC"}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.(?:py|jsonl?|txt))\n")
_KILLED_NOTICE = re.compile(r"^bash: line \d+: +\d+ Killed .*\n", re.MULTILINE)


@dataclass
class Block:
    line: int
    language: str
    text: str


@dataclass
class Command:
    line: int
    text: str
    shown: list[str] = field(default_factory=list)


def blocks(page: Path, port: str = WRITTEN_PORT) -> list[Block]:
    text = page.read_text(encoding="utf-8").replace(WRITTEN_PORT, port)
    return [Block(text.count("\n", 0, match.start(2)) + 1, match[1], match[2]) for match in _BLOCK.finditer(text)]


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            found.append(Command(number, line[2:]))
        elif line.startswith("> ") and not found[-1].shown:
            found[-1].text += "\n" + line[2:]
        else:
            found[-1].shown.append(line)
    return found


def environment(directory: Path) -> dict[str, str]:
    """A shell where `hocket` and `python` are this checkout's, and the home directory is empty."""
    tools = directory / "tools"
    tools.mkdir()
    forked = shlex.join(forked_program(_server()))
    for name, program in (("hocket", forked), ("python", f'"{sys.executable}"')):
        (tools / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (tools / name).chmod((tools / name).stat().st_mode | stat.S_IXUSR)
    home = directory / "me"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "PYTEST_"))}
    path = os.pathsep.join([str(tools), kept.get("PATH", os.defpath)])
    modules = os.pathsep.join(filter(None, [str(ROOT / "src"), kept.get("PYTHONPATH", "")]))
    kept["HOCKET_COMMANDS_AS_ROOT"] = "1"
    return kept | TERMINAL | {"PATH": path, "PYTHONPATH": modules, "HOME": str(home)}


def forking(env: dict[str, str], directory: Path) -> dict[str, str]:
    """This environment for a program that starts `python -m hocket.cli --home HOME …` itself: what Python says is its
    own path is that of a script, which asks the server for commands that do not stay.
    """
    python = directory / "tools" / "python-or-forked"
    python.write_text(
        '#!/bin/sh\ncase "$1 $2 $3 $5" in\n'
        '"-m hocket.cli --home serve"|"-m hocket.cli --home work"|"-m hocket.cli --home pulse") ;;\n'
        f'"-m hocket.cli --home "*) shift 2; exec {shlex.join(forked_program(_server()))} "$@";;\nesac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    customised = directory / "customised"
    customised.mkdir()
    (customised / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n")
    return env | {"PYTHONPATH": os.pathsep.join([str(customised), env["PYTHONPATH"]])}


@cache
def _server() -> ForkServer:
    return ForkServer(os.environ | TERMINAL)


def shell(page: Path, directory: Path, env: dict[str, str]) -> list[tuple[Command, int, str]]:
    """Saves the page's files and types its commands, in order. Gives each command with its exit code and output."""
    typed: list[Command] = []
    script = ["exec </dev/null"]
    outputs = directory / "outputs"
    outputs.mkdir()
    for block in blocks(page, str(free_port())):
        named = _FILE.match(block.text)
        if block.language == "python" and named:
            script.append(f"cat > {named[1]} <<'END-OF-FILE'\n{block.text}END-OF-FILE")
        elif block.language == "console":
            for command in commands(block):
                out = outputs / str(len(typed))
                script.append(
                    f"{{ {command.text}\n}} > {out} 2>&1; code=$?; echo $code > {out}.code; [ $code = 0 ] || exit 1"
                )
                typed.append(command)
    # If this process is killed, the shell would go on for ever: a page may wait for something in a loop.
    shell = ["timeout", "--signal=KILL", str(PATIENCE_S + 60), "bash", "-c", "\n".join(script)]
    typing = subprocess.Popen(shell, cwd=env["HOME"], env=env, start_new_session=True)
    try:
        typing.wait(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass  # the commands that did not end are missing from the answer
    finally:
        _end_group(typing)
    return [
        (command, int(path.with_suffix(".code").read_text()), _KILLED_NOTICE.sub("", path.read_text()))
        for command, path in ((command, outputs / str(i)) for i, command in enumerate(typed))
        if path.with_suffix(".code").exists()
    ]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Whatever a page left in the background ends with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def program(page: Path) -> str:
    """The page's unnamed python blocks as one program in which every line has its number on the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not _FILE.match(block.text):
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def matches(shown: list[str], output: str) -> bool:
    """Whether the output is what the page shows. White space at the ends of lines does not count."""
    pattern = r"\s*\n".join(".*".join(re.escape(part) for part in line.rstrip().split("…")) for line in shown)
    return re.fullmatch(r"\s*" + pattern + r"\s*", output, re.DOTALL) is not None
