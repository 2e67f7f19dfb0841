"""Commands that end by themselves: what they are given, and what is told about them."""

import os
import resource
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hocket.extensions.command.execute import CommandRunner
from tests.extensions.command.bench import Bench, children, descriptors, never, now_ms, wait_for


def test_the_end_of_a_command_is_told(bench: Bench) -> None:
    before = now_ms()
    ended = bench.shell("echo hello; echo oh >&2; exit 3")
    assert (ended.exit_code, ended.signal, ended.why) == (3, None, "exited")
    assert ended.detail == "its exit code is 3"
    assert before <= ended.started_ms <= ended.finished_ms <= now_ms()
    assert ended.stdout.path.read_bytes() == b"hello\n"
    assert (ended.stderr.path.read_bytes(), ended.stderr.size, ended.stderr.total) == (b"oh\n", 3, 3)
    assert bench.heard == {"stdout": b"hello\n", "stderr": b"oh\n"}


def test_a_signal_is_told_by_its_name(bench: Bench) -> None:
    ended = bench.shell("kill -USR1 $$")
    assert (ended.exit_code, ended.signal, ended.why) == (None, signal.SIGUSR1, "exited")
    assert ended.detail == "it was killed by SIGUSR1"
    assert bench.shell("kill -40 $$").detail == "it was killed by signal 40"


@pytest.mark.req("GT-01")
def test_a_command_has_the_environment_that_it_is_given_and_no_other(bench: Bench) -> None:
    ended = bench.run("env", env={"GREETING": "grüß\nGott", "EMPTY": ""})
    assert ended.exit_code == 0
    expected = {f"PATH={os.environ['PATH']}", f"HOCKET_TEST_MARK={bench.mark}", "GREETING=grüß\nGott", "EMPTY="}
    assert sorted(bench.heard["stdout"].decode().splitlines()) == sorted("\n".join(expected).splitlines())


@pytest.mark.req("GT-01")
def test_a_command_runs_where_it_is_told(bench: Bench) -> None:
    (bench.work / "deep").mkdir()
    assert bench.run("pwd", directory=bench.work / "deep").exit_code == 0
    assert Path(bench.heard["stdout"].decode().strip()).resolve() == (bench.work / "deep").resolve()


def test_a_command_inherits_no_descriptor_and_reads_nothing(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        ended = bench.python("import os; print(sorted(os.listdir('/proc/self/fd')), os.read(0, 10))")
    assert ended.exit_code == 0
    # The fourth is the one that lists them.
    assert bench.heard["stdout"] == b"['0', '1', '2', '3'] b''\n"


def test_a_command_has_a_session_and_a_group_of_its_own(bench: Bench) -> None:
    bench.python("import os; print(os.getsid(0) == os.getpid() == os.getpgrp(), os.getppid())")
    own, parent = bench.heard["stdout"].split()
    assert own == b"True"
    assert int(parent) not in (os.getpid(), bench.runner.process)


def test_signals_that_the_worker_ignores_are_not_ignored_by_a_command(bench: Bench) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with_ignored = CommandRunner()
        ended = with_ignored.run(bench.order("sh", "-c", "kill -INT $$; sleep 60"), bench.hear, never, now_ms)
        with_ignored.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.signal == signal.SIGINT
    assert bench.python("import signal; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)").exit_code == 0
    assert bench.shell("yes | head -n 1").stderr.total == 0, "yes ends by SIGPIPE and does not complain"


def test_long_arguments_and_environments_arrive_whole(bench: Bench) -> None:
    script = "import os, sys; print(len(sys.argv), sum(map(len, sys.argv[1:])), len(os.environ['LONG']))"
    ended = bench.python(script, *(["x" * 100_000] * 10), env={"LONG": "y" * 100_000})
    assert (ended.exit_code, bytes(bench.heard["stdout"])) == (0, b"11 1000000 100000\n")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("no-such-program", "there is no program 'no-such-program' on the PATH"),
        ("./missing", "cannot run './missing': it, or the interpreter that it names, does not exist"),
        ("./orphan", "cannot run './orphan': it, or the interpreter that it names, does not exist"),
        ("/etc", "cannot run '/etc': it is a directory, or not executable"),
        ("./plain", "cannot run './plain': it is a directory, or not executable"),
        ("./nonsense", "neither a program for this machine nor a script that begins with #!"),
        ("./with\0nul", "cannot start a process"),
    ],
)
def test_what_cannot_be_started_says_why(bench: Bench, program: str, told: str) -> None:
    for name, content, mode in (("orphan", "#!/no/such\n", 0o700), ("plain", "", 0o600), ("nonsense", "?", 0o700)):
        (bench.work / name).write_text(content)
        (bench.work / name).chmod(mode)
    ended = bench.run(program)
    assert (ended.why, ended.exit_code, ended.signal) == ("not started", None, None)
    assert told in ended.detail
    assert (ended.stdout.total, ended.stderr.total) == (0, 0)
    assert bench.survivors() == []


def test_arguments_that_are_too_long_say_so(bench: Bench) -> None:
    ended = bench.run("true", *["x" * 100_000] * 50)
    assert ended.why == "not started"
    assert "are too long" in ended.detail


def test_a_directory_that_is_not_there_says_so(bench: Bench) -> None:
    ended = bench.run("true", directory=bench.work / "nowhere")
    assert (ended.why, ended.detail) == (
        "not started",
        f"cannot run in {bench.work}/nowhere: No such file or directory",
    )


def test_a_place_for_what_it_prints_that_is_not_there_says_so(bench: Bench) -> None:
    ended = bench.run("true", streams=bench.work / "nowhere")
    assert ended.why == "not started"
    assert "cannot write the command's output to" in ended.detail


def test_no_file_grows_beyond_its_bound(bench: Bench) -> None:
    ended = bench.shell("exec head -c 100000 /dev/zero > big", file_bytes_max=4096)
    assert ended.signal == signal.SIGXFSZ
    assert (bench.work / "big").stat().st_size == 4096


def test_a_command_cannot_gain_rights_unless_it_makes_a_sandbox(bench: Bench) -> None:
    line = "grep NoNewPrivs /proc/self/status"
    bench.shell(line)
    bench.shell(line, sandboxed=True)
    assert bench.heard["stdout"].split() == [b"NoNewPrivs:", b"1", b"NoNewPrivs:", b"0"]


def test_nothing_is_left_of_many_commands_at_once(bench: Bench) -> None:
    assert bench.run("true").exit_code == 0
    before, runner = descriptors(), bench.runner.process
    threads = threading.active_count()

    def one(number: int) -> int | None:
        streams = bench.streams / str(number)
        streams.mkdir()
        return bench.shell(f"exit {number}", streams=streams).exit_code

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(one, range(60))] == [*range(60)]
    assert bench.runner.process == runner
    assert descriptors() <= before and threading.active_count() <= threads
    assert bench.survivors() == []
    assert runner is not None
    wait_for(lambda: children(runner) == {}, "the runner to wait for its supervisors")
    bench.runner.close()
    assert "Z" not in children(os.getpid()).values()


def test_descriptors_and_processes_of_a_keeper_are_gone_when_it_is_closed(bench: Bench) -> None:
    before = descriptors()
    runner = CommandRunner()
    assert runner.process is None, "it is started when it is needed"
    assert runner.run(bench.order("true"), bench.hear, never, now_ms).exit_code == 0
    process = runner.process
    assert process in children(os.getpid())
    runner.close()
    runner.close()
    assert process not in children(os.getpid())
    assert descriptors() <= before
    ended = runner.run(bench.order("true"), bench.hear, never, now_ms)
    assert (ended.why, ended.detail) == ("not started", "the worker is stopping")
    assert descriptors() <= before


def test_a_worker_without_descriptors_to_spare_says_so_and_goes_on(bench: Bench) -> None:
    bench.run("true")
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(1, 10):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
        try:
            ended = bench.run("true")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ended.exit_code == 0 or (ended.why == "not started" and "Too many open files" in ended.detail)
        assert descriptors() <= before
    assert ended.exit_code == 0


def test_the_keeper_imports_nothing_of_hocket_but_its_own_modules(bench: Bench) -> None:
    bench.run("true")
    maps = Path(f"/proc/{bench.runner.process}/maps").read_text()
    assert "site-packages" not in maps
    assert Path(f"/proc/{bench.runner.process}/environ").read_bytes() in (b"", b"\0") or "LD_LIBRARY_PATH" in os.environ
    assert Path(f"/proc/{bench.runner.process}/cmdline").read_text().split("\0")[0] == sys.executable
