"""Commands under nouns, their earlier names, and what a shell completes."""

import os
import pty
import subprocess
from collections import Counter

import pytest

from hocket.cli.commands import COMMANDS, EVERYDAY, NOUN_OF, NOUNS, hint

from .conftest import PATIENCE_S, PROGRAM, Program


def test_every_command_has_one_place() -> None:
    assert len(EVERYDAY) == 10
    assert set(EVERYDAY) <= set(COMMANDS) and not set(EVERYDAY) & {*NOUNS, *NOUN_OF}
    placed = Counter(command for _, commands in NOUNS.values() for command in commands)
    assert set(placed) <= set(COMMANDS) and set(placed.values()) == {1}
    assert not set(placed) & set(NOUNS), "a noun stands under no other"


def test_a_command_is_the_same_with_and_without_its_noun(hocket: Program) -> None:
    sent = hocket("mail", "send", "editor", "hello", "--json", code=0).json
    assert hocket("inbox", "--agent", "editor", "--json", code=0).json[0]["id"] == sent["id"]
    assert hocket("mail", "inbox", "--agent", "editor", code=0) == hocket("inbox", "--agent", "editor", code=0)
    # A line that typer reads, and a group under a noun, and a group that has commands of its own.
    assert hocket("mail", "--json", "inbox", "--agent", "editor", code=0).json
    assert hocket("mesh", "peers", "list", code=0).out == hocket("peers", "list", code=0).out == ""
    assert hocket("rows", "conflicts", "list", code=0).out == hocket("conflicts", "list", code=0).out


def test_a_wrong_command_under_a_noun_names_the_help_to_read(hocket: Program) -> None:
    assert "`hocket mail --help`" in hocket("mail", "sned", code=2).sentence
    assert "`hocket mail --help`" in hocket("mail", code=2).sentence
    assert "no such command" in hocket("mail", "drain", "here", code=2).sentence


def test_a_help_under_a_noun_says_the_whole_command(hocket: Program) -> None:
    assert hocket("mesh", "invite", "--help", code=0).out.startswith("Usage: hocket mesh invite ")
    listed = hocket("log", "--help", code=0).out
    assert "  verify " in listed and "  derive " in listed


def on_terminal(hocket: Program, *words: str) -> tuple[bytes, str]:
    """What a command prints on stdout, and on a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    command = [*PROGRAM, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=hocket.environment(), timeout=PATIENCE_S)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # all is read
        pass
    os.close(ours)
    assert done.returncode == 0, said
    return done.stdout, said.decode()


def test_an_earlier_name_names_the_new_one_to_people_alone(hocket: Program) -> None:
    sentence = "`hocket inbox` is `hocket mail inbox` now; the short name will go in version 0.2"
    out, said = on_terminal(hocket, "inbox", "--agent", "editor")
    assert said.strip() == f"hocket: {sentence}" and sentence.encode() not in out
    assert on_terminal(hocket, "mail", "inbox", "--agent", "editor")[1] == ""
    assert on_terminal(hocket, "inbox", "--agent", "editor", "--json")[1] == ""
    assert hocket("inbox", "--agent", "editor", code=0).err == ""
    assert hint(["jobs"]) is None and hint([]) is None


def offered(hocket: Program, words: str) -> list[str]:
    environment = {
        "_HOCKET_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(PROGRAM, capture_output=True, text=True, env=hocket.environment() | environment)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shown", ["show ", "log --job ", "submit acme.render --after "])
def test_a_shell_is_offered_jobs(hocket: Program, shown: str) -> None:
    jobs = {hocket.submit("acme.render") for _ in range(2)}
    assert set(offered(hocket, f"hocket {shown}")) == jobs
    one = min(jobs)
    assert offered(hocket, f"hocket {shown}{one[:-1]}") == sorted(each for each in jobs if each.startswith(one[:-1]))


def test_a_shell_is_offered_kinds_and_nodes(hocket: Program) -> None:
    hocket.submit("acme.render")
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert "acme.render" in offered(hocket, "hocket jobs --kind ac")
    name = hocket("whoami", "--json", code=0).json["name"]
    assert offered(hocket, "hocket node drain ") == offered(hocket, "hocket drain ") == [name]


def test_a_shell_is_offered_commands_and_nouns(hocket: Program) -> None:
    assert set(offered(hocket, "hocket lo")) == {"lock", "log", "logs"}
    assert offered(hocket, "hocket send") == []
    assert set(offered(hocket, "hocket node ")) == set(NOUNS["node"][1])


def test_a_shell_without_a_home_is_offered_nothing(hocket: Program) -> None:
    assert offered(hocket, f"hocket --home {hocket.home}x show ") == []
