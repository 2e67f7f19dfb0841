"""What a command in a real sandbox can reach: each test tries it from inside."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hocket.extensions.command import sandbox, sandbox_probe
from hocket.extensions.command.command_runs import ResourceLimits
from hocket.extensions.command.execute import CommandResult, RunTerms, order_for
from hocket.extensions.command.job import BOUNDS
from hocket.extensions.command.manifest import parse_manifest
from hocket.extensions.command.sandbox_probe import look_inside
from hocket.extensions.command.workdir import Workdir
from tests.extensions.command.bench import MIB, Bench, never, now_ms, wait_for

pytestmark = pytest.mark.usefixtures("bubblewrap")

OTHERS = RunTerms(is_own=False, sandbox="on")
# The interpreter of the tests may be anywhere.
PYTHON, LIBRARY = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)


class Inside:
    """Runs commands as those of another node."""

    def __init__(self, bench: Bench, workdir: Workdir) -> None:
        self._bench, self._workdir = bench, workdir

    def run(self, argv: list[str], terms: RunTerms = OTHERS, **env: str) -> CommandResult:
        asked = parse_manifest({"command": argv[:1], "args": argv[1:], "timeout": 60, "env": env})
        self._workdir.furnish(asked, lambda hash: b"")
        for heard in self._bench.heard.values():
            heard.clear()
        order = order_for(asked, self._workdir, {}, BOUNDS._replace(free_bytes_min=0), terms)
        return self._bench.runner.run(order, self._bench.hear, never, now_ms)

    def shell(self, script: str, **fields: Any) -> str:
        """What it prints on both streams."""
        self.run(["sh", "-c", f"exec 2>&1; {script}"], OTHERS._replace(**fields))
        return self._bench.heard["stdout"].decode()

    def python(self, script: str, *arguments: str, **fields: Any) -> Any:
        """The value that the script prints as JSON."""
        paths = (LIBRARY, *fields.pop("paths", ()))
        ended = self.run([PYTHON, "-I", "-S", "-c", script, *arguments], OTHERS._replace(paths=paths, **fields))
        assert ended.exit_code == 0, (ended.detail, bytes(self._bench.heard["stderr"]))
        return msgspec.json.decode(bytes(self._bench.heard["stdout"]))


@pytest.fixture
def inside(bench: Bench, workdir: Workdir) -> Inside:
    return Inside(bench, workdir)


def test_of_etc_a_command_sees_a_few_named_files(inside: Inside) -> None:
    names = inside.shell("ls -A /etc").split()
    known = {pattern.partition("/")[0] for pattern in sandbox.ETC}
    known |= {"passwd", "group", "hosts", "nsswitch.conf"}
    assert {*names} <= known | {name for name in names if name.startswith(("java-", "ld-musl-"))}
    assert inside.shell("cut -d: -f1 /etc/passwd").split() == ["hocket", "nobody"], "the machine's users stay unknown"
    assert "No such file" in inside.shell("ls /etc/shadow") and "No such file" in inside.shell("ls /etc/ssl/private")
    assert inside.shell("id -un") == "hocket\n"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A directory with a tool to be shown, a home and a key."""
    root = tmp_path / "shown"
    (root / "home" / "blobs").mkdir(parents=True)
    for name in ("tool", "key.pem", "home/node.key", "home/blobs/x"):
        (root / name).write_text(f"content of {name}")
    return root


@pytest.mark.parametrize("by", ["path", "link", "part"])
def test_secrets_below_the_owners_paths_are_covered(inside: Inside, secrets: Path, tmp_path: Path, by: str) -> None:
    hidden = (str(secrets / "home"), str(secrets / "key.pem"))
    shown = {"path": secrets, "link": tmp_path / "link", "part": secrets / "home" / "blobs"}[by]
    if by == "link":
        shown.symlink_to(secrets)
    seen = inside.shell(
        f"grep -rs 'content of' {shown} {secrets}; ls -A {shown}/home", paths=(str(shown),), hidden=hidden
    )
    assert "node.key" not in seen and "blobs" not in seen.replace(str(shown), ""), seen
    assert "content of key" not in seen
    assert ("content of tool" in seen) is (by != "part"), seen
    if by != "part":
        written = inside.shell(f"touch {shown}/home/x {shown}/tool", paths=(str(shown),), hidden=hidden)
        assert written.count("Read-only file system") == 2, written


def test_the_owners_programs_are_not_shown_beside_a_home(
    workdir: Workdir, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "OPTIONAL", str(secrets))
    sandbox._system.cache_clear()
    view = sandbox.View(workdir, workdir.work, has_network=False)
    try:
        assert str(secrets) in sandbox.mounts(view)
        for secret in (secrets, secrets / "home", secrets / "home" / "later"):
            assert str(secrets) not in sandbox.mounts(view._replace(hidden=(str(secret),)))
    finally:
        sandbox._system.cache_clear()


def test_the_settings_of_the_kernel_are_read_only(inside: Inside) -> None:
    """Nothing is written: the settings are the machine's."""
    found = inside.shell("find /proc/sys /proc/irq /proc/sysrq-trigger -type f -writable; cat /proc/sys/kernel/ostype")
    assert [line for line in found.splitlines() if "No such file" not in line] == ["Linux"]


COVERED = """
mount --make-rprivate / && mount -t tmpfs none /proc/driver || exit 77
exec "$0" -c 'from hocket.extensions.command import sandbox; print(sandbox.problem() or sandbox.check().namespaces)'
"""


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root can cover a part of /proc")
def test_root_makes_a_sandbox_where_a_part_of_proc_is_covered() -> None:
    """The kernel refuses a new /proc in a namespace of users there."""
    words = ["unshare", "-m", "sh", "-c", COVERED, sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip(f"this machine does not let root mount a tmpfs: {done.stderr.strip()}")
    assert "'--unshare-pid'" in done.stdout and "'--unshare-net'" in done.stdout, done
    assert "--unshare-user" not in done.stdout, done


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs the program unshare")
def test_a_command_makes_no_namespaces(inside: Inside) -> None:
    for option in ("U", "Ur", "m", "n"):
        assert "unshare failed" in inside.shell(f"unshare -{option} echo made one"), option


CALLS = """
import ctypes, errno, json, os, platform, socket, struct, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def fault(*arguments):
    ctypes.set_errno(0)
    code = libc.syscall(*arguments)
    return errno.errorcode.get(ctypes.get_errno(), "fine") if code == -1 else "fine"
def opened(*arguments):
    try:
        socket.socket(*arguments).close()
        return "fine"
    except OSError as error:
        return errno.errorcode[error.errno]
found = {
    "mount": fault(165 if x86 else 40, 0, b"/", 0, 0, 0),
    "ptrace": fault(101 if x86 else 117, 0, 0, 0, 0),
    "keyctl": fault(250 if x86 else 219, 0, -3, 0),
    "bpf": fault(321 if x86 else 280, 0, 0, 0),
    "userfaultfd": fault(323 if x86 else 282, 1),
    "clone3": fault(435, 0, 0),
    "io_uring": fault(425, 1, 0),
    "clone": fault(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0),
    "TIOCSTI": fault(16 if x86 else 29, 0, 0x5412, b"x"),
    "vsock": opened(40, socket.SOCK_STREAM),
    "crypto": opened(38, socket.SOCK_SEQPACKET),
    "audit": opened(socket.AF_NETLINK, socket.SOCK_RAW, 9),
    "tcp": opened(socket.AF_INET, socket.SOCK_STREAM),
    "unix": opened(socket.AF_UNIX, socket.SOCK_STREAM),
    "routes": opened(socket.AF_NETLINK, socket.SOCK_RAW, 0),
}
thread = threading.Thread(target=lambda: found.update(thread="fine"))
thread.start()
thread.join()
found["program"] = subprocess.run(["echo", "fine"], capture_output=True, text=True).stdout.strip()
print(json.dumps(found))
"""


def test_dangerous_system_calls_are_refused_and_others_work(inside: Inside) -> None:
    found = inside.python(CALLS)
    for name in ("mount", "ptrace", "keyctl", "bpf", "userfaultfd", "clone", "TIOCSTI"):
        assert found.pop(name) == "EPERM", name
    assert {found.pop(name) for name in ("clone3", "io_uring")} == {"ENOSYS"}
    assert {found.pop(name) for name in ("vsock", "crypto", "audit")} == {"EAFNOSUPPORT"}
    assert {*found.values()} == {"fine"}, found


CONNECT = """
import json, socket, sys
def reaches(family, address):
    with socket.socket(family) as line:
        line.settimeout(10)
        try:
            line.connect(address)
            return True
        except OSError:
            return False
port, name = sys.argv[1:]
print(json.dumps([reaches(socket.AF_INET, ("127.0.0.1", int(port))), reaches(socket.AF_UNIX, chr(0) + name)]))
"""


def has_scopes() -> bool:
    """Whether the kernel can keep a process from abstract sockets."""
    import ctypes

    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 6)


def test_without_the_network_no_socket_of_the_machine_is_reached(inside: Inside) -> None:
    name = f"hocket-test-{os.urandom(8).hex()}"
    with closing(socket.create_server(("127.0.0.1", 0))) as port, closing(socket.socket(socket.AF_UNIX)) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        words = (CONNECT, str(port.getsockname()[1]), name)
        assert inside.python(*words) == [False, False]
        assert inside.python(*words, sandbox="network") == [True, not has_scopes()]


def test_no_secret_stands_on_a_command_line(bench: Bench, inside: Inside) -> None:
    """Every process of the machine is looked at while the command runs, as another user could."""
    value = f"swordfish-{os.urandom(8).hex()}"
    seen: list[str] = []

    def look(stream: str, chunk: bytes) -> None:
        bench.heard[stream] += chunk
        for number in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = Path(f"/proc/{number}/cmdline").read_bytes()
            except OSError:
                continue
            if value.encode() in line:
                seen.append(line.replace(b"\0", b" ").decode())

    bench.hear = look  # type: ignore[method-assign]
    terms = OTHERS._replace(secrets={"TOKEN": value})
    inside.run(["sh", "-c", 'echo "$LD_HINT $TOKEN"; sleep 0.2'], terms, LD_HINT=value, PYTHONSTARTUP=value)
    assert bytes(bench.heard["stdout"]).decode() == f"{value} {value}\n"
    assert seen == []


def test_variables_act_on_the_command_alone(inside: Inside, bench: Bench) -> None:
    """A library that cannot be loaded is complained about by each program that is told to load it."""
    inside.run(["sh", "-c", "exec true"], LD_PRELOAD="/nowhere/evil.so")
    complaints = bench.heard["stderr"].decode().splitlines()
    assert len(complaints) == 2 and all("evil.so" in each for each in complaints), "by sh and by true"


def test_a_command_writes_to_its_workdir_and_not_to_memory(inside: Inside, workdir: Workdir) -> None:
    found = inside.shell(
        "echo shared > /dev/shm/file; for at in / /dev /etc /proc /var /usr; do touch $at/x && echo writes to $at; done"
    )
    assert "writes to" not in found
    assert (workdir.shm / "file").read_text() == "shared\n"
    mounted = [line.split() for line in inside.shell("cat /proc/self/mounts").splitlines()]
    writable = {words[1] for words in mounted if "rw" in words[3].split(",")}
    devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "console")}
    own = {str(path) for path in (workdir.work, workdir.home, workdir.temporary)}
    assert writable - devices == {"/proc", "/dev/shm", "/tmp", *own}


def test_descriptors_of_the_runner_do_not_reach_the_command(inside: Inside) -> None:
    limits = ResourceLimits(processes_max=100)
    assert inside.shell("ls /proc/self/fd", limits=limits).split() == ["0", "1", "2", "3"]


ALLOCATE = "import json, os, sys\ntry:\n    x = bytearray(int(sys.argv[1]))\nexcept MemoryError:\n    x = None\n"


def test_the_memory_of_a_command_is_bounded(inside: Inside, bench: Bench) -> None:
    limits = ResourceLimits(memory_bytes_max=400 * MIB, open_files_max=64)
    found = inside.python(f"{ALLOCATE}print(json.dumps(x is None))", str(800 * MIB), limits=limits)
    assert found is True, "one process"
    script = f"{ALLOCATE}[os.fork() for _ in range(2)]\nx = bytearray(int(sys.argv[1]))\nimport time\ntime.sleep(60)"
    argv = [PYTHON, "-I", "-S", "-c", script, str(150 * MIB)]
    ended = inside.run(argv, OTHERS._replace(paths=(LIBRARY,), limits=limits))
    assert ended.why == "out of memory" and f"more than {400 * MIB} bytes" in ended.detail, ended
    assert inside.shell("ulimit -n; cat /proc/self/oom_score_adj", limits=limits).split() == ["64", "1000"]
    assert wait_for(lambda: not bench.survivors(), "its end")


NOBODY = 65534
# Limits on processes do not hold for root, so the supervisor runs as another user here.
FORKS = """
import os, sys, marshal, socket
from pathlib import Path
from hocket.extensions.command.manifest import parse_manifest
from hocket.extensions.command import sandbox
from hocket.extensions.command.command_process import CommandProcess
from hocket.extensions.command.job import BOUNDS
from hocket.extensions.command.execute import RunTerms, order_for
from hocket.extensions.command.command_runs import ResourceLimits, _parts
from hocket.extensions.command.fork_server import CommandWatch
from hocket.extensions.command.workdir import Workdir
if os.getuid() == 0:
    os.setgroups([]); os.setgid(NOBODY); os.setuid(NOBODY)
workdir = Workdir(Path(sys.argv[1]))
for path in (*workdir.own, workdir.streams):
    path.mkdir()
if not sandbox.available():
    sys.exit(77)
asked = parse_manifest({"command": ["sh", "-c"], "args": [sys.argv[2]], "timeout": 30})
terms = RunTerms(False, "on", limits=ResourceLimits(processes_max=int(sys.argv[3])))
order = order_for(asked, workdir, {}, BOUNDS._replace(free_bytes_min=0), terms)
whole = b"".join([*_parts(order, False)][1:])
mine, theirs = socket.socketpair()
watch = CommandWatch(mine, marshal.loads(whole), None)
assert watch.start(whole, [1, 2])
watch.stay(())
watch.finish()
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory of the user whom limits bind."""
    path = Path(tempfile.mkdtemp(prefix="hocket-test-"))
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def test_the_processes_of_a_command_are_bounded(open_directory: Path) -> None:
    script = "i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); echo $i; done"
    words = [sys.executable, "-c", FORKS.replace("NOBODY", str(NOBODY)), str(open_directory), script, "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("no sandbox can be made here by a plain user")
    assert done.returncode == 0, done
    count = len(done.stdout.split())
    assert 10 <= count <= 20, done
    assert "fork" in done.stderr, done


def test_the_look_from_inside_finds_what_is_open(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_probe, "OPTIONAL", str(secrets / "none"))  # the machine's own may have keys in it
    hidden = (str(secrets / "home"), str(secrets / "key.pem"))
    sight = look_inside((), hidden, False)
    assert [*sight.warnings(False)] == []
    assert {"/usr", "/etc", "/proc"} <= {*sight.shown} and not {"/home", "/root", "/srv"} & {*sight.shown}
    (secrets / "server.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    shown = look_inside((str(secrets),), hidden, False)
    assert [*shown.warnings(False)] == [
        f"a command of another node can read what looks like a key: {secrets}/server.key"
    ]
    monkeypatch.setattr(sandbox, "_covered", lambda shown, hidden: ())
    monkeypatch.setattr(sandbox, "filter_program", lambda: None)
    found = sandbox.check()
    namespaces = tuple(word for word in found.namespaces if word != "--disable-userns")
    monkeypatch.setattr(sandbox, "_found", [found._replace(namespaces=namespaces)])
    opened = look_inside((str(secrets),), hidden, False)
    assert opened.readable == [*hidden] and opened.users, "planted back, they are found"
