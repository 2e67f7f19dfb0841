"""The whole program for typer, which reads every command line that is not plain, explains the wrong ones, shows help,
and completes words.
"""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hocket.cli.commands import COMMANDS, EVERYDAY, NOUN_OF, NOUNS, app_of, begin
from hocket.cli.declarations import TYPER_OPTIONS, App, HomeOption, JsonOption, Option, for_typer

EPILOG = """\
First steps:

\b
  hocket init
  hocket submit acme.render '{"frame": 7}' --wait
  hocket work tasks.py          (in another shell: runs the handlers in tasks.py)

Environment: HOCKET_HOME, HOCKET_PASSPHRASE, HOCKET_DEBUG, HOCKET_MESH_ENABLED, HOCKET_MESH_NODE_ID,
HOCKET_MESH_CONTROL_ADDR, HOCKET_MESH_SCOPE_ID, HOCKET_MESH_TOKEN, HOCKET_STORE, HOCKET_STORE_LISTEN,
HOCKET_STORE_READ, HOCKET_REPLICA, HOCKET_DB_PATH, HOCKET_DB_URL, HOCKET_DB_TOKEN, HOCKET_DB_CIRCUIT_BREAKER,
HOCKET_BUS, HOCKET_BUS_CREDENTIALS, HOCKET_BUS_CA,
HOCKET_RATES, HOCKET_TRACES; docs/environment.md explains them.

Exit codes: 0 done, 1 the job or the check failed, 2 usage, 3 conflict, 4 not authorised, 5 unreachable.
"""


class CommandGroup(TyperGroup):
    """Finds commands by name without loading the others."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        others = sorted({*COMMANDS, *NOUNS} - {*EVERYDAY, *NOUN_OF})
        self.commands = dict.fromkeys([*EVERYDAY, *others])  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in NOUNS:
            return get_command(_noun(cmd_name))
        return get_command(app_of(cmd_name).typer()) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        nouns = [each for each in self.commands if each not in EVERYDAY]
        for title, names in (("Commands", EVERYDAY), ("More, each with commands of its own", nouns)):
            with formatter.section(title):
                formatter.write_dl([(each, NOUNS[each][0] if each in NOUNS else COMMANDS[each][1]) for each in names])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would end the process here; `hocket.cli.main` handles a closed pipe itself.
            raise _PipeClosed from None


class _PipeClosed(Exception):
    pass


def _noun(noun: str) -> typer.Typer:
    """The group of a noun: the commands that its app has itself, and those that stand under it."""
    sentence, under = NOUNS[noun]

    class Noun(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *under]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return get_command(app_of(cmd_name).typer()) if cmd_name in under else super().get_command(ctx, cmd_name)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                own = {name: each.get_short_help_str(80) for name, each in self.commands.items()}
                formatter.write_dl([*own.items(), *((each, COMMANDS[each][1]) for each in under)])

    app = app_of(noun) if noun in COMMANDS else App()
    if app.group is None:
        app.callback(help=sentence)(_group)
    return app.typer(cls=Noun)


def _group() -> None:
    pass


def _show_version(value: bool) -> None:
    if value:
        print(f"hocket {import_module('hocket').__version__}")
        raise typer.Exit()


def hocket(
    home: HomeOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool, Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A work mesh: jobs shared by many machines, each held by exactly one, every step signed.

    --home and --json work before or after the command.
    """
    begin()


app = typer.Typer(cls=CommandGroup, epilog=EPILOG, add_completion=True, **TYPER_OPTIONS)
app.callback()(for_typer(hocket))


def run_typer(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Raises errors."""
    try:
        code = get_command(app).main(arguments or ["--help"], prog_name="hocket", standalone_mode=False)
    except _PipeClosed:
        raise BrokenPipeError from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    if not arguments:
        return 2
    return code if isinstance(code, int) else 0


COMMAND = "hocket.command"


class RunCommand(TyperCommand):
    """Takes what stands after `--` as the command, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])
