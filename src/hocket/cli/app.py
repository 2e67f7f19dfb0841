"""The list of commands and where each one lives. A command's file is loaded only when that command is run or asked for
help, so that the common ones start fast; the list below is what `hocket --help` shows.
"""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from hocket.cli.settings import HomeOption, JsonOption

COMMANDS = {
    "init": ("init:app", "Create a home: keys, database, and the node's first op."),
    "submit": ("submit:app", "Submit a job, or many from a file."),
    "work": ("work:app", "Run a worker for the handlers in some modules."),
    "run": ("run:app", "Run a command as a job, with a proof of what ran."),
    "logs": ("logs:app", "What a command printed, or prints just now."),
    "jobs": ("jobs:app", "List jobs, the newest first."),
    "show": ("job:show_app", "Show everything about one job."),
    "cancel": ("job:cancel_app", "Call a job off, pending or running."),
    "retry": ("job:retry_app", "Try a failed or cancelled job anew."),
    "artifacts": ("artifacts:app", "What jobs made and people put: list, read, evict."),
    "why": ("why:app", "How an output came about: model, prompt, context, evidence."),
    "git": ("git:app", "A git repository as a queue of commands: submit, work, verify."),
    "proof": ("proof:app", "Proofs of what commands did: show, verify, export."),
    "manifest": ("manifest:app", "Manifests of commands: content id, canonical form, check."),
    "invite": ("invite:app", "Let another machine into the mesh: prints a token for it."),
    "join": ("join:app", "Join a mesh by an invitation."),
    "nodes": ("nodes:app", "Which nodes are in the mesh, and what each may do."),
    "whoami": ("whoami:app", "Which node this is, whose, and what it may do."),
    "may": ("may:app", "Whether a node may do something, and by which delegations."),
    "revoke": ("revoke:app", "Take from a node all that it may do."),
    "route": ("route:app", "Send all jobs of a kind to one node."),
    "coordinator": ("coordinator:app", "Who decides claims; designate another node."),
    "rules": ("rules:app", "The mesh rules, which every node must share."),
    "keys": ("keys:app", "The user's key: show, back up, restore, lock; a new root delegation."),
    "serve": ("serve:app", "Answer other nodes, and keep in touch with the peers."),
    "peers": ("peers:app", "Other nodes that this one exchanges with."),
    "sync": ("sync:app", "Exchange with the peers once, now."),
    "cron": ("cron:app", "Jobs that are made at set times."),
    "log": ("log:app", "Read, verify, rebuild, export and import the log."),
    "status": ("status:app", "How this node stands."),
    "sim": ("sim:app", "Simulate a mesh with faults, from a seed, and check that nothing was lost or held twice."),
    "doctor": ("doctor:app", "Look for whatever could be wrong, and say what to do."),
}

EPILOG = """\
First steps:

\b
  hocket init
  hocket submit acme.render '{"frame": 7}' --wait
  hocket work tasks.py          (in another shell: runs the handlers in tasks.py)

Exit codes: 0 done, 1 the job or the check failed, 2 usage, 3 conflict, 4 not authorised, 5 unreachable.
"""


def new_app(**options: Any) -> typer.Typer:
    """A typer application in our manner: plain help, no boxes, and errors that go to the door."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        **options,
    )


class CommandGroup(TyperGroup):
    """Finds commands by name without loading the others."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        return get_command(getattr(import_module(f"hocket.cli.{module}"), name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would end the process here; the door has its own way to take a reader that has gone away.
            raise _PipeClosed from None


class _PipeClosed(Exception):
    pass


app = new_app(cls=CommandGroup, epilog=EPILOG)


def _show_version(value: bool) -> None:
    if value:
        print(f"hocket {import_module('hocket').__version__}")
        raise typer.Exit()


@app.callback()
def hocket(
    home: HomeOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A work mesh: jobs shared by many machines, each held by exactly one, every step signed.

    --home and --json may stand before or after the command.
    """


def run(arguments: list[str]) -> int:
    """Runs one command; gives its exit code. Errors are raised."""
    try:
        code = get_command(app).main(arguments or ["--help"], prog_name="hocket", standalone_mode=False)
    except _PipeClosed:
        raise BrokenPipeError from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    if not arguments:
        return 2
    return code if isinstance(code, int) else 0
