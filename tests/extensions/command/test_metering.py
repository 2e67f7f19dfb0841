"""What a command used, held against what it says itself. Times are compared as ratios; the machine may be busy."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hocket.extensions.command.command_process import UsageMeter
from hocket.extensions.command.command_runs import GpuMeter, Gpus
from hocket.extensions.command.execute import CommandRunner
from hocket.work.child_processes.process_tree import Process, Tree
from tests.extensions.command.bench import MIB, Bench, bench_in, children, never, now_ms, wait_for

BURN = """
import os, sys, time
def burn(seconds):
    while sum(os.times()[:2]) < seconds:
        pass
burn(0.4)
if os.fork() == 0:
    burn(0.4)
    os._exit(0)
os.wait()
# Nobody waits for this one but the supervisor.
if os.fork() == 0:
    if os.fork() == 0:
        burn(0.4)
        with open("done", "w"):
            pass
    os._exit(0)
os.wait()
while not os.path.exists("done"):
    time.sleep(0.01)
times = os.times()
print(sum(times[:4]) + 0.4)
"""


def test_processor_time_is_that_of_all_processes(bench: Bench) -> None:
    ended = bench.python(BURN)
    assert ended.exit_code == 0
    assert ended.resources.cpu_s == pytest.approx(float(bench.heard["stdout"]), rel=0.15)
    assert ended.resources.cpu_s >= 1.2
    assert ended.resources.wall_s > 0.9


def test_processor_time_of_children_that_nobody_waits_for_is_looked_at(bench: Bench) -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while sum(os.times()[:2]) < 1:
        pass
    os._exit(0)
time.sleep(0.1)
try:
    os.wait()
except ChildProcessError:
    pass
"""
    assert bench.python(script).resources.cpu_s > 0.5


def test_memory_is_that_of_all_processes_together(bench: Bench) -> None:
    script = f"""
import os, time
kept = bytearray(os.urandom(1)) * (64 * {MIB})
if os.fork() == 0:
    more = bytearray(os.urandom(1)) * (64 * {MIB})
    time.sleep(0.6)
    os._exit(0)
os.wait()
"""
    resources = bench.python(script).resources
    # The copy has the pages of the first, and as many of its own.
    assert 150 * MIB < resources.memory_peak_bytes < 300 * MIB
    # All of it was held for more than half a second, and never for longer than the command ran.
    assert 0.05 < resources.memory_gb_s < resources.memory_peak_bytes * resources.wall_s / 1e9


def test_a_short_peak_is_seen_and_a_small_command_is_small(bench: Bench) -> None:
    assert bench.python(f"bytearray({200 * MIB}).count(1)").resources.memory_peak_bytes > 200 * MIB
    assert 0 < bench.run("sleep", "0.05").resources.memory_peak_bytes < 6 * MIB


def test_what_is_written_to_a_disk_is_counted() -> None:
    script = (
        f"import os; f = open('big', 'wb'); [f.write(bytes({MIB})) for _ in range(20)]; f.flush(); os.fsync(f.fileno())"
    )
    with tempfile.TemporaryDirectory() as directory, bench_in(Path(directory)) as bench:  # `tmp_path` may be in memory
        device = os.statvfs(bench.work)
        resources = bench.python(script).resources
    if resources.disk_written_bytes == 0 and device.f_fsid == 0:
        pytest.skip("the temporary directory is in memory, and memory is no disk")
    assert 20 * MIB <= resources.disk_written_bytes < 25 * MIB


def test_the_network_is_known_only_where_there_is_none(bench: Bench) -> None:
    assert bench.run("true").resources.network_bytes is None
    assert bench.run("true", network=False).resources.network_bytes == 0


def test_looking_costs_little(bench: Bench) -> None:
    """What the supervisor itself takes while a command with some processes runs, as a part of the time."""
    ended = bench.shell("for i in 1 2 3 4 5 6 7 8; do sleep 2 & done; wait")
    runner = bench.runner.process
    assert ended.exit_code == 0 and runner is not None
    wait_for(lambda: children(runner) == {}, "the runner to wait for the supervisor")
    fields = Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()
    # The runner's children are the supervisor and what the supervisor waited for, which is the command.
    both_s = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    assert both_s - ended.resources.cpu_s < 0.05 * ended.resources.wall_s


def test_a_look_finds_exactly_the_processes_below() -> None:
    tree = Tree()
    tree.look()
    # The shell has a child in a session of its own, and another process has come that is none of ours.
    shell = subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    alone = subprocess.Popen(["setsid", "-f", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE)
    assert shell.stdout is not None and alone.stdout is not None
    below, stranger = int(shell.stdout.readline()), int(alone.stdout.readline())
    try:
        alone.wait()
        # Other tests' servers may start processes below this one at any moment.
        ours = {shell.pid, below, stranger}
        expected = {shell.pid, below}
        assert tree.look().keys() & ours == expected
        assert tree.look_anew().keys() & ours == expected
        assert tree.look_anew({shell.pid}).keys() & ours == set()
        assert tree.look_anew().keys() & ours == expected, "what was left apart is no stranger for ever"
        os.kill(below, signal.SIGKILL)
        shell.wait()
        assert tree.look().keys() & ours == set()
    finally:
        os.kill(stranger, signal.SIGKILL)
        shell.kill()
        for process in (shell, alone):
            process.communicate()


def test_a_process_whose_parent_is_not_known_yet_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of processes is read first, and each of them later; a parent may have come in between."""
    root = os.getpid()
    table = {1: 0, root: 1}
    listed = [1, root]

    def process(number: int) -> Process | None:
        if number not in table:
            return None
        return Process(b"%d (x) S %d 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 1000 1 1" % (number, table[number]))

    monkeypatch.setattr("hocket.work.child_processes.process_tree._numbers", lambda: listed)
    monkeypatch.setattr("hocket.work.child_processes.process_tree._read", process)
    tree = Tree()
    table |= {root + 2: root + 1, root + 3: 1, root + 4: root + 3}
    listed = [1, root, root + 2, root + 3, root + 4]
    assert tree.look() == {}
    table |= {root + 1: root}
    listed = sorted(table)
    assert tree.look().keys() == {root + 1, root + 2}
    # A number that a stranger had is used again, by one of ours.
    table[root + 3] = root
    assert tree.look().keys() == {root + 1, root + 2}
    assert tree.look_anew().keys() == {root + 1, root + 2, root + 3, root + 4}
    assert tree.look().keys() == {root + 1, root + 2, root + 3, root + 4}


def test_names_of_programs_may_contain_anything() -> None:
    stat = b"7 (a) b) S 3 4 5 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 100 1000 25 1844"
    process = Process(stat)
    assert (process.parent, process.group, process.cpu_s) == (3, 4, 2.0)
    assert process.memory_bytes == 25 * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_summed_up_over_time() -> None:
    meter = UsageMeter(100.0)
    page = os.sysconf("SC_PAGE_SIZE")

    def holding(pages: int) -> Process:
        return Process(b"7 (x) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 1000 %d 1" % pages)

    meter.look({7: holding(1000), 8: holding(1000)}, 100.0)
    meter.look({7: holding(500)}, 102.0)
    total = meter.total(106.0)
    assert total["memory_peak_bytes"] == 2000 * page
    assert total["memory_gb_s"] == pytest.approx((2000 * 2 + 500 * 4) * page / 1e9)
    assert total["wall_s"] == 6.0


def test_what_is_over_before_a_look_is_known_by_its_peak(bench: Bench) -> None:
    meter = UsageMeter(100.0)
    process = subprocess.Popen(["true"])
    meter.ended(os.wait4(process.pid, 0)[2])
    process.returncode = 0
    total = meter.total(100.5)
    assert total["memory_peak_bytes"] > 0
    assert total["memory_gb_s"] == pytest.approx(total["memory_peak_bytes"] * 0.5 / 1e9)
    assert bench.run("true").resources.memory_peak_bytes > 0


# No machine of ours has a graphics processor to ask for; this plays two of one class and one of another.


class Trouble(Exception):
    pass


def library(holders: dict[int, list[int]], graphics: dict[int, list[int]]) -> ModuleType:
    made = ModuleType("pynvml")

    def of(table: dict[int, list[int]], handle: str) -> list[SimpleNamespace]:
        number = int(handle.removeprefix("device "))
        if number not in table:
            raise Trouble("not supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in table[number]]

    made.NVMLError = Trouble  # type: ignore[attr-defined]
    made.nvmlInit = lambda: None  # type: ignore[attr-defined]
    made.nvmlDeviceGetCount = lambda: 3  # type: ignore[attr-defined]
    made.nvmlDeviceGetHandleByIndex = lambda number: f"device {number}"  # type: ignore[attr-defined]
    made.nvmlDeviceGetName = lambda handle: {"device 2": b"Small"}.get(handle, "Big")  # type: ignore[attr-defined]
    made.nvmlDeviceGetComputeRunningProcesses = lambda handle: of(holders, handle)  # type: ignore[attr-defined]
    made.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: of(graphics, handle)  # type: ignore[attr-defined]
    return made


def test_seconds_on_graphics_processors_are_counted_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    holders: dict[int, list[int]] = {0: [11, 99], 1: [12], 2: []}
    graphics: dict[int, list[int]] = {0: [], 2: [99]}
    monkeypatch.setitem(sys.modules, "pynvml", library(holders, graphics))
    gpus = Gpus.find()
    assert gpus is not None
    meter = GpuMeter(gpus)
    meter.look([11, 12, 13], 100.0)
    graphics[2] = [13]
    meter.look([11, 12, 13], 102.0)
    holders[1] = []
    meter.look([11, 13], 103.0)
    assert meter.finish(107.0) == {"Big": 2 * 2 + 2 * 1 + 1 * 4, "Small": 1 + 4}
    assert meter.finish(200.0) == meter.seconds == {"Big": 10, "Small": 5}


def test_graphics_processors_are_metered_for_the_processes_of_the_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.extensions.command.command_runs.ASK_S", 0.05)
    holders: dict[int, list[int]] = {0: [], 1: [], 2: [os.getpid()]}
    monkeypatch.setitem(sys.modules, "pynvml", library(holders, {}))
    runner = CommandRunner(Gpus.find())

    def hear(stream: str, chunk: bytes) -> None:
        holders[0] = holders[1] = [int(chunk)]

    script = "import os, time; print(os.getpid(), flush=True); time.sleep(1)"
    try:
        ended = runner.run(bench.order(sys.executable, "-I", "-S", "-c", script), hear, never, now_ms)
    finally:
        runner.close()
    assert ended.resources.gpu_s.keys() == {"Big"}, "the small one is in use by somebody else"
    assert 1.0 < ended.resources.gpu_s["Big"] <= 2.2 * ended.resources.wall_s


def test_without_the_library_or_a_driver_there_is_nothing_to_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus.find() is None
    broken = library({}, {})

    def fail() -> None:
        raise Trouble("no driver")

    broken.nvmlInit = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert Gpus.find() is None
    none = library({}, {})
    none.nvmlDeviceGetCount = lambda: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", none)
    assert Gpus.find() is None
