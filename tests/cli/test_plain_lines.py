"""Plain command lines, which are read without typer: typer would give a command the same values."""

from collections.abc import Iterator
from typing import Any

import pytest

from hocket.cli.commands import app_of
from hocket.cli.declarations import COMMON, App, Command, CommandContext, NotPlain, chosen, declared, parameters_of
from hocket.cli.settings import settings
from hocket.errors import Usage

from .conftest import Program

PLAIN = (
    "jobs",
    "jobs --state failed --kind acme. --limit 10",
    "jobs --outcome=succeeded --json --home /tmp/x",
    "jobs --limit 1 --limit 2 --claimable",
    "jobs --kind= --watch",
    "submit acme.render",
    "submit acme.render {} --priority 5 --after A --after=B --max-cost 2.5 --json",
    "submit --open acme.render - --needs gpu",
    "submit --no-open acme.render",
    "submit --batch jobs.jsonl",
    "submit",
    "show 01J",
    "status --json",
    "send editor hello --attach a.txt --attach b.txt --ttl 1d",
    "send editor - --agent me",
    "inbox --agent editor --claim 5 --lease 2m",
    "ack 01J --agent editor",
    "lock acquire a b c --wait 10s --shared",
    "lock list --scope repo",
    "lock release --all",
    "lock renew a --fence 7",
    "cancel --kind acme. --older-than 1h --yes --reason why",
)
ODD = (
    "jobs --help",
    "jobs -h",
    "jobs --limit",
    "jobs --limit ten",
    "jobs --limit 0",
    "jobs --outcome lost",
    "jobs --lim 5",
    "jobs --watch=yes",
    "jobs surplus",
    "jobs -- surplus",
    "show",
    "show a b",
    "submit acme.render --priority -5",
    "submit acme.render --unique --open",
    "lock",
    "lock unknown",
    "lock --home /tmp/x list",
    "lock acquire",
    "lock run a -- true",
    "lock break a",
    "work tasks.py",
)


@pytest.fixture(autouse=True)
def unchanged_settings() -> Iterator[None]:
    before = settings.home, settings.as_json
    yield
    settings.home, settings.as_json = before


def parts(line: str) -> tuple[App, list[str]]:
    command, *words = line.split(" ")
    return app_of(command), words


def by_typer(app: App, words: list[str]) -> dict[str, Any]:
    """The values that typer calls the command with."""
    if app.group is not None:
        named = {each.name or each.function.__name__: each for each in app.commands}
        command, words = named[words[0]], words[1:]
    else:
        (command,) = app.commands
    calls: list[dict[str, Any]] = []

    def spy(**values: Any) -> None:
        calls.append(values)

    spy.declarations = parameters_of(command.function)  # type: ignore[attr-defined]
    alone = App()
    alone.commands.append(Command(None, spy, command.attributes))
    alone.typer()(words, standalone_mode=False)
    contexts = {name for name, annotation, _ in parameters_of(command.function) if annotation is CommandContext}
    return {name: value for name, value in calls[0].items() if name not in contexts}


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_typer_says(line: str):
    app, words = parts(line)
    function, values = chosen(app, words)[-1]
    noted = {each.name: each.noted(values[each.name]) for each in declared(function)}
    plain = settings.home, settings.as_json
    settings.home, settings.as_json = None, False
    read = by_typer(app, words)
    # The options of every command are noted in the settings.
    assert {name: noted.pop(name) for name, _, _ in COMMON} == {"home": settings.home, "as_json": settings.as_json}
    assert noted == read and plain == (settings.home, settings.as_json)
    assert {name: type(value) for name, value in noted.items()} == {name: type(value) for name, value in read.items()}


@pytest.mark.parametrize("line", ODD)
def test_every_other_line_is_left_to_typer(line: str):
    app, words = parts(line)
    with pytest.raises(NotPlain):
        chosen(app, words)


def test_a_callback_may_refuse_a_value():
    function, values = chosen(*parts("jobs --state lost"))[-1]
    with pytest.raises(Usage, match="no job is 'lost'"):
        [each.noted(values[each.name]) for each in declared(function)]


def test_options_of_the_program_stand_before_the_command(hocket: Program):
    hocket.submit("test.echo")
    shown = hocket("--json", "jobs", "--limit", "1", code=0)
    assert shown.json[0]["kind"] == "test.echo"
    assert hocket("--home", "/nowhere", "jobs", code=2).err.startswith("hocket: no home at /nowhere")
    assert "--limit" in hocket("jobs", "--limit", "ten", code=2).err
