"""`hocket agent`: sets up programs of agents, and answers their hooks."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.options import Agent, checked_agent
from hocket.cli.printing import confirmed, emit, notice, on_terminal, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Failed, Usage

app = App()
hooks = App()
app.add_group(hooks, "hook")

Scope = Annotated[str, Option("--scope", "REPO", "What the locks belong to, such as a repository.", show_default=False)]


@app.callback()
def agent_group() -> None:
    """Set up a program of an agent, such as Claude Code, so that it shares files, jobs and mail with other agents.

    \b
      hocket agent setup claude
      hocket agent setup claude --remove
    """


@app.command()
def setup(
    program: Annotated[str, Argument("PROGRAM", "claude, codex, cursor or generic.")],
    agent: Annotated[
        str | None,
        Option("--agent", "NAME", "The agent's name in locks and mail. Default: PROGRAM.", callback=checked_agent),
    ] = None,
    scope: Scope = "",
    project: Annotated[Path | None, Option("--project", "DIR", "The project. Default: this git checkout.")] = None,
    remove: Annotated[bool, Option("--remove", help="Take back what an earlier set-up wrote.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be written.")] = False,
    yes: Annotated[bool, Option("--yes", help="Write without a question.")] = False,
) -> None:
    """Set up a program in a project: the MCP server, hooks, a skill, and lines in AGENTS.md. It shows what it will
    write, then asks. The hooks refuse an edit of a file that another agent has locked, and release the agent's locks
    when it stops. Agents that work at the same time need different names: give each checkout its own --agent.

    For other programs, generic writes AGENTS.md and prints what to put into their configuration.

    \b
      hocket agent setup claude --agent reviewer
      hocket agent setup cursor --dry-run
      hocket agent setup codex --remove --yes
    """
    from hocket.extensions.agent_programs.edit_hook import project_root
    from hocket.extensions.agent_programs.programs import SetUp, changes, program_names, server_entry
    from hocket.families.locks.requests import checked_scope

    names = program_names()
    if program not in names:
        raise Usage(f"no such program: {program!r}; give one of {', '.join(names)}")
    root = project_root(Path.cwd()) if project is None else project
    if not root.is_dir():
        raise Usage(f"{root} is no folder; give the folder of the project")
    set_up = SetUp(root.resolve(), _command(), agent or program, checked_scope(scope), remove)
    needed = [each for each in changes(program, set_up) if each.is_needed]
    for each in needed:
        for line in each.shown(set_up.project):
            say(line)
    if program == "generic" and not remove:
        say(json.dumps({"mcpServers": {"hocket": server_entry(set_up)}}, indent=2))
        say(f"before an edit:  {set_up.hook_line('PreToolUse')}")
        say(f"after a stop:    {set_up.hook_line('Stop')}")
    answer = {"program": program, "agent": set_up.agent, "files": [str(each.path) for each in needed]}
    if not needed:
        notice("nothing to write")
    elif not dry_run:
        if not yes and not on_terminal(sys.stdin):
            raise Usage("nothing was written; give --yes to write without a question")
        if not yes and not confirmed("write this?", err=True):
            raise Usage("nothing was written")
        for each in needed:
            each.make(set_up.project)
        notice(f"{'removed' if remove else 'written'}; start the program anew to make it read this")
    emit(answer | {"written": bool(needed) and not dry_run})


def _command() -> tuple[str, ...]:
    """What starts hocket: by name if the shell finds this program by it."""
    own = Path(sys.argv[0])
    found = shutil.which("hocket")
    is_found = found is not None and own.exists() and os.path.samefile(found, own)
    words = ("hocket",) if is_found else (sys.executable, "-m", "hocket")
    return words if settings.home is None else (*words, "--home", str(settings.home.resolve()))


@hooks.callback()
def hook_group() -> None:
    """What the hooks of a program run. `hocket agent setup` writes these lines.

    \b
      hocket agent hook before-edit --agent claude
      hocket agent hook stop --agent claude
    """


@hooks.command("before-edit")
def before_edit(agent: Agent = None, scope: Scope = "") -> None:
    """Refuse an edit of a file that another agent has locked: reads from stdin what the program is about to do, as JSON
    with `cwd` and `tool_input`. Exit code 2 refuses it, and stderr says who has the file and until when. If the locks
    cannot be read, the exit code is another one, and the program goes on.
    """
    import typer

    from hocket.extensions.agent_programs.edit_hook import INPUT_BYTES_MAX, locked_by_others, read_edit
    from hocket.families.inbox.requests import default_agent

    try:
        text = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        if len(text) > INPUT_BYTES_MAX:
            raise Usage(f"stdin has more than {INPUT_BYTES_MAX} bytes")
        edit = read_edit(text)
        if not edit.files:
            return
        with open_service() as service:
            locked = locked_by_others(service, edit, agent or default_agent(), scope)
    except Usage as error:  # its exit code would refuse the edit
        raise Failed(str(error)) from None
    emit([{"file": each.file, "agent": each.hold.agent, "fence": each.hold.fence} for each in locked])
    for each in locked:
        notice(each.sentence)
    if locked:
        raise typer.Exit(2)


@hooks.command()
def stop(agent: Agent = None, scope: Scope = "") -> None:
    """Release all locks of the agent on this node: of every scope, or of --scope."""
    from hocket.api.locks import release_all
    from hocket.families.inbox.requests import default_agent

    with open_service() as service:
        released = release_all(service, agent or default_agent(), scope=scope or None)
    emit([{"keys": each.keys, "fence": each.fence} for each in released])
