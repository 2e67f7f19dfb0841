"""What holds for every command: where --home and --json may stand, how the program speaks to pipes and terminals, and
how it ends when something is wrong.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hocket.cli.commands import COMMANDS, EVERYDAY, NOUN_OF, NOUNS

from .conftest import PATIENCE_S, PROGRAM, Program, until


def test_help_teaches(hocket: Program):
    result = hocket("--help", code=0)
    listed = re.findall(r"^  (\w+)  ", result.out, re.M)
    assert listed[: len(EVERYDAY)] == list(EVERYDAY)
    assert set(listed) == {*COMMANDS, *NOUNS} - {*NOUN_OF}
    assert "hocket init" in result.out and "Exit codes" in result.out


@pytest.mark.parametrize(
    "command",
    [
        *(*COMMANDS, "cron add", "cron list", "cron remove", "log verify", "log rebuild", "log export", "log import"),
        *(f"git {each}" for each in ("submit", "work", "jobs", "show", "verify", "abort", "gc")),
    ],
)
def test_every_command_has_a_sentence_and_an_example(hocket: Program, command: str):
    command = f"{NOUN_OF[command]} {command}" if command in NOUN_OF else command
    out = hocket(*command.split(), "--help", code=0).out
    assert "\\b" not in out, "a mark of the help's layout that was escaped"
    assert f"  hocket {command}" in out or f"hocket --home /srv/render {command}" in out
    assert ("--home" in out or command == "sim") and "--json" in out


def test_without_a_command_it_shows_the_help_and_fails(hocket: Program):
    result = hocket()
    assert result.code == 2
    assert "Commands:" in result.out


def test_version(hocket: Program):
    import hocket as package

    assert hocket("--version", code=0).out.strip() == f"hocket {package.__version__}"


def test_home_and_json_stand_on_either_side(hocket: Program, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    before = hocket("--home", hocket.home, "--json", "status", home=elsewhere, code=0)
    after = hocket("status", "--home", hocket.home, "--json", home=elsewhere, code=0)
    between = hocket("log", "--home", hocket.home, "verify", "--json", home=elsewhere, code=0)
    assert before.json["home"] == after.json["home"] == str(hocket.home)
    assert between.json["ops"] == 2
    assert hocket("--home", elsewhere, "status", "--home", hocket.home, "--json", code=0).json["home"] == str(
        hocket.home
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submitt"], "no such command 'submitt'. Did you mean 'submit'"),
        (["submit", "--nope"], "no such option: --nope"),
        (["jobs", "--limit", "many"], "--limit"),
        (["jobs", "--limit", "0"], "--limit"),
        (["jobs", "--state", "asleep"], "asleep"),
        (["show"], "missing argument 'JOB'"),
        (["show", "1", "2"], "unexpected extra argument"),
        (["cron"], "missing command"),
        (["submit"], "name a kind"),
        (["submit", "a.b", "--timeout", "soon"], "bad timeout 'soon'"),
        (["submit", "a.b", "--wait-for", "soon"], "bad --wait-for"),
        (["log", "verify", "--head", "nonsense"], "bad --head 'nonsense'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(hocket: Program, arguments: list[str], says: str):
    result = hocket(*arguments, code=2)
    assert says in result.sentence
    assert result.out == ""


def test_a_sentence_about_a_huge_word_is_short(hocket: Program):
    refused = hocket("resume", "x" * 100_000, code=2)
    assert refused.err.startswith("hocket: no node 'xxx") and refused.err.endswith("lists them, by name and id\n")
    assert len(refused.err) < 3_000 and " … " in refused.err


def test_errors_leave_stdout_empty_with_json(hocket: Program):
    assert hocket("show", "7ZZZ", "--json", code=2).out == ""


def test_an_unexpected_error_is_a_sentence_and_a_crash_log(hocket: Program):
    subprocess.run(
        [
            PROGRAM[0],
            "-c",
            f"import apsw; apsw.Connection({str(hocket.home / 'log.db')!r}).execute('DROP TABLE jobs')",
        ],
        check=True,
    )
    result = hocket("jobs", code=1)
    assert result.sentence.startswith("internal error: ") and str(hocket.home / "crash.log") in result.sentence
    assert "Traceback" in (hocket.home / "crash.log").read_text()
    assert "crash log" in hocket("doctor").out


def test_a_reader_that_goes_away_is_taken_quietly(used: Program):
    process = used.start("log", "--limit", "1000")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) in (0, 141)
    assert process.stderr.read() == ""


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_said(hocket: Program):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, "jobs", "--json"], stdout=full, stderr=-1, text=True, env=hocket.environment())
    assert done.returncode == 5
    assert json.loads(done.stderr) == {"error": "No space left on device", "exit_code": 5}
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.touches("LW-41")
@pytest.mark.parametrize(
    "arguments", [["jobs", "--watch"], ["log", "--follow"], ["submit", "test.echo", "--wait"]], ids=lambda each: each[0]
)
def test_ctrl_c_ends_a_wait_and_leaves_nothing_behind(hocket: Program, arguments: list[str]):
    processes = hocket.home / "processes"
    process = hocket.start(*arguments)
    until(lambda: list(processes.glob("*.any")), "the wait")
    process.send_signal(signal.SIGINT)
    result = hocket.finished(process, 130)
    assert result.err == ""
    assert list(processes.iterdir()) == []


def on_a_terminal(program: Program, *arguments: str, columns: int = 120, **variables: str) -> str:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(program.home.parent)
        screen = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
        os.execvpe(PROGRAM[0], [*PROGRAM, *arguments], program.environment() | screen | variables)
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return shown.decode()


def test_people_get_tables_and_colours_and_pipes_get_plain_lines(used: Program):
    drawn = on_a_terminal(used, "jobs", "--limit", "30")
    assert "─" in drawn and "\x1b[31mfailed" in drawn
    plain = used("jobs", "--limit", "30", code=0).out
    assert "─" not in plain
    assert all(line.count("\t") == 7 for line in plain.splitlines())


def test_a_worker_counts_on_a_terminal(hocket: Program):
    hocket.submit("test.echo")
    shown = on_a_terminal(hocket, "work", "tasks.py", "--until-idle")
    assert "1 succeeded" in shown and "done: 1 succeeded, 0 failed, 0 handed back" in shown


def test_a_pipe_gets_long_lines_whole(hocket: Program):
    kind = "test." + "x" * 240
    hocket.submit(kind)
    assert kind in hocket("jobs", environment={"COLUMNS": "20"}, code=0).out


def test_no_payload_can_drive_a_terminal(hocket: Program):
    job_id = hocket.submit("test.echo", '{"text": "\\u001b[2Jgone"}')
    assert "\\\\u001b" in hocket("show", job_id, code=0).out or "u001b[2J" in hocket("show", job_id, code=0).out
    hocket("cancel", job_id, "--reason", "\x1b[2Jgone", code=0)
    assert "\\x1b[2Jgone" in hocket("show", job_id, code=0).out
