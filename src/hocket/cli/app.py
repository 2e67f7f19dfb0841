"""Runs a command line: a plain one as it stands, and every other through typer."""

import os
from collections.abc import Callable
from typing import Any

from hocket.cli.commands import COMMANDS, app_of, begin
from hocket.cli.plain_lines import NotPlain, call, chosen, read

# Set by a shell that asks for completions.
COMPLETION = "_HOCKET_COMPLETE"


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Raises errors."""
    try:
        steps = _plain_steps(arguments)
    except NotPlain:
        from hocket.cli.typer_program import run_typer

        return run_typer(arguments)
    try:
        for function, values in steps:
            call(function, values)
    except EOFError:  # the answer to a question
        raise KeyboardInterrupt from None
    return 0


def _plain_steps(arguments: list[str]) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """What a plain command line runs, in this order. Raises NotPlain for every other line."""
    words, own = list(arguments), []
    while words and words[0].startswith("-"):
        own.append(words.pop(0))
        if own[-1] == "--home" and words:
            own.append(words.pop(0))
    if COMPLETION in os.environ or not words or words[0] not in COMMANDS:
        raise NotPlain
    return [(begin, read(begin, own)), *chosen(app_of(words[0]), words[1:])]
