"""How typer reads `hocket lock run`."""

from typing import Any

from typer.core import TyperCommand

COMMAND = "hocket.command"


class RunCommand(TyperCommand):
    """Takes what stands after `--` as the command, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])
