"""`hocket lock`: what it prints, its exit codes, and what it does with bad input."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hocket.families.locks.rules import KEY_CHARS_MAX
from tests.cli.conftest import PATIENCE_S, PROGRAM, Program, until
from tests.cli.fork_server import fork_server, forked_program

# Reads a number from a file, waits a moment, and writes the next: two at a time lose an update.
EDIT = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1])
count = int(path.read_text())
time.sleep(0.01)
path.write_text(str(count + 1))
"""
# One shell: edits the file under a lock, again and again, and survives a lost lock.
SHELL = """
import subprocess, sys
path, edit, count, *program = sys.argv[1:]
done = 0
while done < int(count):
    command = [*program, "lock", "run", f"file:{path}", "--wait", "1m", "--", sys.executable, "-c", edit, path]
    done += subprocess.run(command, check=True).returncode == 0
    print(done, flush=True)
"""


@pytest.mark.req("VX-03", "VX-04")
def test_the_life_of_a_lock(hocket: Program) -> None:
    held = hocket("lock", "acquire", "file:src/lib.rs", "--agent", "editor", "--lease", "1m", "--json", code=0).json
    assert {"key": "file:src/lib.rs", "agent": "editor", "fence": 1, "mode": "exclusive"}.items() <= held.items()
    assert held["expires"] - held["since_ms"] == 60_000 and held["holder"] and held["node"]
    refused = hocket("lock", "acquire", "file:src/**", "--agent", "other", code=3)
    for text in ("file:src/lib.rs is held by editor on", "since 20", "until 20", "fence 1"):
        assert text in refused.err
    shown = hocket("lock", "show", "file:src/*", "--json", code=0).json
    assert [each["fence"] for each in shown["holders"]] == [1] and shown["waiting"] == []
    renewed = hocket("lock", "renew", "file:src/lib.rs", "--fence", "1", "--agent", "editor", "--json", code=0).json
    assert renewed["fence"] == 1 and renewed["expires"] - renewed["since_ms"] < 60_000
    assert [line.split("\t")[0] for line in hocket("lock", "list", code=0).out.splitlines()] == ["file:src/lib.rs"]
    for fence, agent in (("2", "editor"), ("1", "other")):
        refused = hocket("lock", "release", "file:src/lib.rs", "--fence", fence, "--agent", agent, code=3)
        assert f"{agent} does not hold file:src/lib.rs under fence {fence}" in refused.err
    refused = hocket("lock", "release", "file:docs", "--fence", "1", "--agent", "editor", code=3)
    assert "is for file:src/lib.rs" in refused.err
    hocket("lock", "release", "file:src/lib.rs", "--fence", "1", "--agent", "editor", code=0)
    refused = hocket("lock", "renew", "file:src/lib.rs", "--fence", "1", "--agent", "editor", code=3)
    assert "does not hold" in refused.err
    assert hocket("lock", "acquire", "file:src/lib.rs", "--agent", "editor", code=0).out == "2\n"
    broken = hocket("lock", "break", "file:src/lib.rs", "--reason", "it hangs", code=0)
    assert "taken from editor" in broken.out
    assert "no agent holds" in hocket("lock", "break", "file:src/lib.rs", "--reason", "it hangs", code=3).err
    assert hocket("lock", "list", "--json", code=0).json == []


@pytest.mark.req("VX-03")
def test_a_lock_says_everything_about_itself_and_belongs_to_one_repository(hocket: Program) -> None:
    words = ("lock", "acquire", "file:src/lib.rs", "--lease", "1m", "--json")
    held = hocket(*words, "--agent", "editor", "--scope", "acme", code=0).json
    other = hocket(*words, "--agent", "tester", "--scope", "other", code=0).json
    hocket(*words, "--agent", "tester", "--scope", "acme", code=3)
    me = hocket("whoami", "--json", code=0).json["node"]
    assert (held["key"], held["scope"], held["node"], held["agent"]) == ("file:src/lib.rs", "acme", me, "editor")
    assert held["fence"] == other["fence"] == 1 and held["expires_ms"] - held["since_ms"] == 60_000
    shown = {each["scope"]: each for each in hocket("lock", "list", "--json", code=0).json}
    assert shown == {"acme": held, "other": other}


BAD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("acquire", "k", "--agent", "a", "--lease", "0"), "bad lease: 0 ms"),
    (("acquire", "k", "--agent", "a", "--lease", "365d"), "bad lease: 31536000000 ms"),
    (("acquire", "k", "--agent", "a", "--lease", "abc"), "bad lease: not a duration: 'abc'"),
    (("acquire", "k", "--agent", "a", "--wait", "abc"), "bad wait: not a duration"),
    (("acquire", "k", "--agent", "a", "--wait", "2d"), "bad wait: 172800000 ms"),
    (("acquire", "x" * 10_240, "--agent", "a"), f"10240 characters; use 1 to {KEY_CHARS_MAX}"),
    (("acquire", "a\nb", "--agent", "a"), r"bad key 'a\nb': it has characters that cannot be printed"),
    (("acquire", "a\u202eb", "--agent", "a"), r"bad key 'a\u202eb'"),
    (("acquire", os.fsdecode(b"\xff"), "--agent", "a"), "bad key"),
    (("acquire", "", "--agent", "a"), "bad key: it has 0 characters"),
    (("acquire", " ", "--agent", "a"), "bad key ' ': it has characters that cannot be printed, or nothing but spaces"),
    (("acquire", "k", "--agent", " "), "' ' is not the name of an agent"),
    (("renew", "k", "--agent", "a", "--fence", "1", "--lease", "0"), "bad lease: 0 ms"),
    (("renew", "k", "--agent", "a", "--fence", "-1"), "-1 is not in the range"),
    (("run", "k", "--lease", "365d", "--", "true"), "bad lease"),
    (("acquire", "k", "--agent", ""), "'' is not the name of an agent"),
    (("run", "k", "--agent", "a b", "--", "true"), "'a b' is not the name of an agent"),
    (("release", "--agent", "a"), "give a key and its --fence, or --all"),
    (("release", "k", "--all"), "give either a key and its fence, or --all"),
    (("release", "k", "--agent", "a", "--fence", "-1"), "bad fence: -1"),
    (("release", "k", "--agent", "a", "--fence", "0"), "bad fence: 0"),
    (("release", "k", "--agent", "a", "--fence", str(2**70)), "bad fence: 1180591620717411303424"),
    (("release", "k", "--agent", "a"), "give a key and its --fence"),
    (("renew", "k", "--agent", "a", "--fence", "seven"), "seven"),
    (("break", "k", "--reason", " "), "bad reason"),
    (("run", "k"), "no command; write it after --"),
    (("run", "k", "--", "/no/such/program"), "cannot run /no/such/program"),
)


def test_bad_input_is_one_sentence_and_changes_nothing(hocket: Program) -> None:
    for arguments, sentence in BAD:
        assert sentence.lower() in hocket("lock", *arguments, code=2).sentence.lower()
    assert hocket("lock", "list", "--json", code=0).json == []


def test_a_key_of_odd_unicode_is_one_key_in_every_form(hocket: Program) -> None:
    composed, decomposed = "file:Zo\u00eb \U0001f512", "file:Zoe\u0308 \U0001f512"
    assert hocket("lock", "acquire", composed, "--agent", "a", code=0).out == "1\n"
    hocket("lock", "acquire", decomposed, "--agent", "b", code=3)
    hocket("lock", "release", decomposed, "--agent", "a", "--fence", "1", code=0)
    assert hocket("lock", "acquire", "**", "--agent", "b", code=0).out == "2\n", "a pattern that matches everything"
    hocket("lock", "acquire", composed, "--agent", "a", code=3)
    hocket("lock", "release", "**", "--agent", "b", "--fence", "2", code=0)
    for key in ("one", "two"):
        hocket("lock", "acquire", key, "--agent", "c", code=0)
    broken = hocket("lock", "break", "**", "--reason", "all of them", code=0).out
    assert "one taken from c on" in broken and "two taken from c on" in broken and broken.count("\n") == 2


def test_a_lock_is_taken_over_after_its_time_and_waited_for_till_then(hocket: Program) -> None:
    hocket("lock", "acquire", "k", "--agent", "a", "--lease", "100ms", code=0)
    assert hocket("lock", "acquire", "k", "--agent", "b", "--lease", "1m", "--wait", "1m", code=0).out == "2\n"
    (shown,) = hocket("lock", "list", "--json", code=0).json
    assert shown["expires"] - shown["since_ms"] >= 60_000, "a lock from the queue lasts its whole time"


def test_run_passes_the_fence_and_the_exit_code(hocket: Program, tmp_path: Path) -> None:
    show = "import os; print(os.environ['HOCKET_FENCE']); raise SystemExit(7)"
    hocket("lock", "acquire", "other", "--agent", "a", code=0)
    done = hocket("lock", "run", "a", "b", "--", sys.executable, "-c", show, code=7)
    assert done.out == "2\n"
    assert [each["key"] for each in hocket("lock", "list", "--json", code=0).json] == ["other"]
    assert "is held by a on" in hocket("lock", "run", "other", "--", "true", code=3).err


def test_run_stops_the_command_when_its_lock_is_lost(hocket: Program) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = hocket.start("lock", "run", "k", "--lease", "10m", "--", sys.executable, "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    hocket("lock", "break", "k", "--reason", "enough", code=0)
    assert "the lock was lost, so the command was stopped" in hocket.finished(process, 3).err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_passes_a_signal_on_and_releases(hocket: Program, number: int) -> None:
    script = "import time; print('up', flush=True); time.sleep(600)"
    process = hocket.start("lock", "run", "k", "--", sys.executable, "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert hocket.finished(process, 128 + signal.SIGTERM)
    assert hocket("lock", "list", "--json", code=0).json == []


def edit_in_two_shells(hocket: Program, tmp_path: Path, rounds: int) -> None:
    """Two shells edit one file, and each edit counts. Then one is killed in the middle of an edit, and the other goes
    on at once, although the lock would last ten minutes.
    """
    path = tmp_path / "counted"
    path.write_text("0")
    shells = [
        subprocess.Popen(
            [sys.executable, "-c", SHELL, str(path), EDIT, str(rounds), *forked_program(fork_server())],
            env=hocket.environment(),
            stdout=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    assert [shell.wait(rounds * 30) for shell in shells] == [0, 0]
    assert int(path.read_text()) == 2 * rounds

    pid_file = tmp_path / "pid"
    stuck = f"import os, time, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    victim = hocket.start("lock", "run", f"file:{path}", "--lease", "10m", "--", sys.executable, "-c", stuck)
    until(lambda: pid_file.exists() and pid_file.read_text(), "the edit")
    editor = int(pid_file.read_text())
    other = hocket.start("lock", "run", f"file:{path}", "--wait", "20m", "--", sys.executable, "-c", EDIT, str(path))
    until(lambda: hocket("lock", "show", f"file:{path}", "--json", code=0).json["waiting"], "the other to wait")
    (held,) = hocket("lock", "list", "--json", code=0).json
    victim.kill()
    hocket.finished(other, 0)
    assert time.time() * 1000 < held["expires"], "it did not wait for the end of the lock's time"
    assert int(path.read_text()) == 2 * rounds + 1
    assert not is_alive(editor)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# The editor is below the command, in a session of its own, ignores signals, and closes every descriptor.
STRAY = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(3, 100)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
# Says whether that editor is alive, by the state of its process.
CHECK = "cut -d ' ' -f 3 /proc/$0/stat 2> /dev/null | grep -v Z && exit 1; exit 0"


@pytest.mark.req("VX-04")
@pytest.mark.parametrize("how", ["killed", "broken"])
def test_no_process_of_the_command_is_left_when_another_agent_gets_the_lock(
    hocket: Program, tmp_path: Path, how: str
) -> None:
    """It would go on writing without a lock."""
    pid_file = tmp_path / "pid"
    words = ("lock", "run", "file:a", "--lease", "10m", "--wait", "10m", "--")
    victim = hocket.start(*words, sys.executable, "-c", STRAY, str(pid_file))
    until(pid_file.exists, "the editor")
    editor = pid_file.read_text()
    other = hocket.start(*words, "sh", "-c", CHECK, editor)
    until(lambda: hocket("lock", "show", "file:a", "--json", code=0).json["waiting"], "the other to wait")
    (held,) = hocket("lock", "list", "--json", code=0).json
    if how == "killed":
        victim.kill()
        hocket.finished(other, 0)
        assert time.time() * 1000 < held["expires"]
    else:
        hocket("lock", "break", "file:a", "--reason", "enough", code=0)
        hocket.finished(victim, 3)
    assert not is_alive(int(editor))


def test_on_a_terminal_the_command_can_read_and_is_stopped_alone(hocket: Program) -> None:
    """It shares the process group of `lock run`, which lives on to say why."""
    ours, theirs = pty.openpty()
    command = [
        *PROGRAM,
        "lock",
        "run",
        "k",
        "--lease",
        "10m",
        "--",
        "sh",
        "-c",
        "read line; echo $line; sleep 600 & wait",
    ]
    process = subprocess.Popen(
        command, env=hocket.environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        os.write(ours, b"hello\n")
        assert process.stdout is not None and process.stdout.readline() == "hello\n"
        hocket("lock", "break", "k", "--reason", "enough", code=0)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 3 and "the lock was lost, so the command was stopped" in err
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.req("VX-04")
def test_what_is_left_of_a_command_keeps_the_lock_if_everything_above_it_is_killed(
    hocket: Program, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    stay = f"sleep 600 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait"
    victim = hocket.start("lock", "run", "file:a", "--lease", "10m", "--", "sh", "-c", stay)
    until(pid_file.exists, "the command")
    left = int(pid_file.read_text())
    try:
        victim.send_signal(signal.SIGSTOP)
        for child in Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        victim.kill()
        victim.wait()
        assert is_alive(left)
        assert "is held by" in hocket("lock", "acquire", "file:a", "--agent", "other", "--wait", "2s", code=3).err
    finally:
        os.kill(left, signal.SIGKILL)
    assert hocket("lock", "acquire", "file:a", "--agent", "other", "--wait", "10m", code=0).out == "2\n"


@pytest.mark.req("VX-01")
def test_two_shells_that_edit_one_file_lose_no_update(hocket: Program, tmp_path: Path) -> None:
    edit_in_two_shells(hocket, tmp_path, 8)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_shells_that_edit_one_file_a_thousand_times_lose_no_update(hocket: Program, tmp_path: Path) -> None:
    edit_in_two_shells(hocket, tmp_path, 500)


def test_a_lock_is_held_for_the_agent_for_which_a_message_is_sent(hocket: Program):
    assert hocket("lock", "acquire", "a", "--lease", "10m", code=0).out == "1\n"
    sent = hocket("send", "editor", "hello", "--json", code=0).json
    (held,) = hocket("lock", "list", "--json", code=0).json
    assert held["agent"] == sent["from"].partition("@")[0]
    hocket("lock", "release", "a", "--fence", "1", code=0)
    named = {"HOCKET_AGENT": "writer"}
    hocket("lock", "acquire", "b", "--ttl", "10m", environment=named, code=0)
    assert (
        "--ttl" not in hocket("lock", "acquire", "--help").out and "--lease" in hocket("lock", "acquire", "--help").out
    )
    assert [each["agent"] for each in hocket("lock", "list", "--json", code=0).json] == ["writer"]


def test_all_locks_of_an_agent_are_released_at_once(hocket: Program):
    for words in (("a", "b"), ("c", "--scope", "repo")):
        hocket("lock", "acquire", *words, "--agent", "editor", "--lease", "10m", code=0)
    hocket("lock", "acquire", "d", "--agent", "other", "--lease", "10m", code=0)
    assert hocket("lock", "release", "--all", "--agent", "editor", code=0).out == "a, b released\nc released\n"
    assert [each["agent"] for each in hocket("lock", "list", "--json", code=0).json] == ["other"]
    assert hocket("lock", "release", "--all", "--agent", "editor", code=0).out == "editor holds no locks here\n"
