"""From manifests to orders: the environment, the bounds, and the sandbox."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from blake3 import blake3

from hocket.errors import Usage
from hocket.extensions.command import sandbox
from hocket.extensions.command.execute import CommandLimits, RunTerms, environment, order_for
from hocket.extensions.command.manifest import BadManifest, Manifest, Sandbox, parse_manifest
from hocket.extensions.command.workdir import Workdir
from tests.extensions.command.bench import Bench, never, now_ms

pytestmark = pytest.mark.usefixtures("untried")

OWN = RunTerms(is_own=True, sandbox="off")
BOXED = OWN._replace(sandbox="on")
BOUNDS = CommandLimits(run_s_max=100, grace_s=5, output_bytes_max=1000, free_bytes_min=2000, file_bytes_max=3000)


def arguments(files: Mapping[int, bytes]) -> tuple[str, ...]:
    """What bubblewrap is told through its first descriptor."""
    return tuple(files[sandbox.DESCRIPTORS[0]].decode().split("\0")[:-1])


def manifest(**fields: object) -> Manifest:
    return parse_manifest({"command": ["sh", "-c"], "args": ["true"], "timeout": 10, **fields})


def test_the_environment_is_made_of_what_is_named(workdir: Workdir) -> None:
    own = {"PATH": "/bin", "LANG": "C", "LC_TIME": "de_AT", "LC": "no", "SECRET": "no", "TZ": "UTC", "HOME": "/root"}
    told = {"HOCKET_JOB": "01X", "HOCKET_FENCE": "3"}
    made = environment(manifest(env={"LANG": "fr", "HOCKET_JOB": "forged", "MINE": "1"}), workdir, told, own, OWN)
    assert made == {
        "PATH": "/bin",
        "LANG": "fr",
        "LC_TIME": "de_AT",
        "TZ": "UTC",
        "HOME": str(workdir.home),
        "TMPDIR": str(workdir.temporary),
        "MINE": "1",
        "HOCKET_JOB": "01X",
        "HOCKET_FENCE": "3",
    }
    assert environment(manifest(), workdir, {}, {}, OWN)["PATH"] == os.defpath
    assert "SECRET" in environment(manifest(), workdir, {}, own, OWN._replace(passed_on=("SEC*",)))


def test_the_home_and_the_temporary_files_of_others_commands_are_ours(workdir: Workdir) -> None:
    asked = manifest(env={"HOME": ".", "TMPDIR": "/var/tmp", "CI": "1"})
    made = environment(asked, workdir, {}, {}, OWN._replace(is_own=False, secrets={"HOME": "/root", "TOKEN": "t"}))
    assert (made["HOME"], made["TMPDIR"]) == (str(workdir.home), str(workdir.temporary))
    assert (made["CI"], made["TOKEN"]) == ("1", "t")
    assert environment(asked, workdir, {}, {}, OWN)["HOME"] == ".", "a node's own command may choose"


def test_an_input_never_lands_in_the_home(workdir: Workdir) -> None:
    pointer = {"kind": "blobptr", "algo": "blake3", "hash": blake3(b"[core]").hexdigest()}
    for name in ("../home/.gitconfig", str(workdir.home / ".gitconfig")):
        with pytest.raises(BadManifest, match="not inside"):
            manifest(inputs=[pointer], env={"HOCKET_INPUTS": name})
    workdir.furnish(manifest(inputs=[pointer], env={"HOCKET_INPUTS": "home/.gitconfig"}), lambda hash: b"[core]")
    assert [*workdir.home.iterdir()] == []


def test_what_the_linker_obeys_is_set_inside_the_sandbox_only(
    workdir: Workdir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path, monkeypatch, "exit 0")
    asked = manifest(env={"LD_PRELOAD": "./evil.so", "GLIBC_TUNABLES": "x=1", "CI": "1"})
    order = order_for(asked, workdir, {}, BOUNDS, BOXED)
    assert order.env == {}, "nothing acts on the program that makes the sandbox"
    given = arguments(order.files)
    for name, value in {"LD_PRELOAD": "./evil.so", "GLIBC_TUNABLES": "x=1", "CI": "1"}.items():
        at = given.index(name)
        assert given[at - 1 : at + 2] == ("--setenv", name, value) and given.index("--clearenv") < at
        assert not any(name in word or value == word for word in order.argv), "every user can read command lines"


def test_the_shorter_time_holds(workdir: Workdir) -> None:
    order = order_for(manifest(cwd="x"), workdir, {}, BOUNDS, OWN)
    assert (order.argv, order.directory, order.streams) == (("sh", "-c", "true"), workdir.work / "x", workdir.streams)
    assert (order.timeout_s, order.grace_s) == (10, 5)
    assert (order.output_bytes_max, order.free_bytes_min, order.file_bytes_max) == (1000, 2000, 3000)
    assert (order.sandboxed, order.network) == (False, True)
    assert order_for(manifest(timeout=0), workdir, {}, BOUNDS, OWN).timeout_s == 100
    assert order_for(manifest(timeout=1000), workdir, {}, BOUNDS, OWN).timeout_s == 100


def test_a_sandbox_has_the_system_to_read_and_the_room_to_write(workdir: Workdir) -> None:
    view = sandbox.View(workdir, workdir.work / "x", has_network=False)
    bubblewrap = sandbox.Bubblewrap("/bin/bwrap", "", ("--unshare-all", "--disable-userns"))
    boxed = sandbox.wrapped(bubblewrap, ("prog", "--flag"), view, {})
    assert boxed.argv == ("/bin/bwrap", "--args", str(sandbox.DESCRIPTORS[0]), "--", "prog", "--flag")
    line = arguments(boxed.files)
    assert line[-2:] == ("--chdir", str(workdir.work / "x"))
    assert {"--unshare-all", "--disable-userns", "--seccomp", "--die-with-parent", "--new-session"} <= {*line}
    assert "--share-net" not in line
    triples = [line[at : at + 3] for at in range(len(line))]
    for own in (workdir.work, workdir.home, workdir.temporary):
        assert ("--bind", str(own), str(own)) in triples
    assert ("--bind", str(workdir.temporary), "/tmp") in triples
    written = [triple[2] for triple in triples if triple[0].startswith("--bind")]
    own = [str(workdir.work), str(workdir.home), str(workdir.temporary)]
    assert written == ["/dev/shm", "/tmp", *own], "and nothing else"
    assert line.index("--remount-ro", line.index(own[-1])) < len(line), "not what was made for the mounts either"
    read = {triple[2] for triple in triples if triple[0].startswith("--ro-bind")}
    assert "/usr" in read and not read & {"/", "/home", "/root", "/var", "/run", "/etc"}
    assert str(workdir.streams) not in line, "what it printed is not for the command to change"
    # What is mounted later lies over what is mounted before.
    assert line.index("/tmp") < line.index(str(workdir.work))
    with_network = arguments(
        sandbox.wrapped(bubblewrap, ("prog",), view._replace(has_network=True), {}).files,
    )
    assert "--share-net" in with_network
    assert with_network.index("--unshare-all") < with_network.index("--share-net")


def test_without_bubblewrap_a_command_that_asks_for_a_sandbox_is_not_run(
    workdir: Workdir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not sandbox.available()
    wishes: list[Sandbox] = ["on", "network"]
    for asked in wishes:
        with pytest.raises(Usage, match="`bwrap` is not installed; install the package bubblewrap"):
            order_for(manifest(), workdir, {}, BOUNDS, OWN._replace(sandbox=asked))


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program in bubblewrap's place that answers as it would."""
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_where_the_kernel_refuses_that_is_said(
    workdir: Workdir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path, monkeypatch, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    assert not sandbox.available()
    with pytest.raises(Usage, match="cannot make one: bwrap: No permissions to create new namespace; allow"):
        order_for(manifest(), workdir, {}, BOUNDS, BOXED)


def test_a_sandbox_is_tried_once_and_then_used(
    workdir: Workdir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(tmp_path, monkeypatch, f"echo tried >> {tmp_path}/journal; exit 0")
    order = order_for(manifest(env={"PATH": "/elsewhere"}), workdir, {}, BOUNDS, BOXED)
    assert (order.argv[0], order.argv[-4:]) == (str(tmp_path / "bin" / "bwrap"), ("--", "sh", "-c", "true"))
    assert (order.sandboxed, order.network) == (True, False)
    order = order_for(manifest(), workdir, {}, BOUNDS, OWN._replace(sandbox="network"))
    assert (order.sandboxed, order.network) == (True, True)
    assert (tmp_path / "journal").read_text() == "tried\n"


@pytest.mark.usefixtures("bubblewrap")
def test_a_command_in_a_sandbox_sees_its_room_and_little_else(bench: Bench, workdir: Workdir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    script = f"""
    test -e {tmp_path}/secret && echo sees the secret
    touch /usr/mark 2>/dev/null && echo writes to the system
    ls /proc | grep -c '^[0-9]' | grep -qx '[1-9]' || echo sees other processes
    grep -q : /proc/net/dev && grep -v lo: /proc/net/dev | grep -q : && echo has a network
    mkdir -p outputs && echo made > outputs/file && echo tmp > "$TMPDIR/x" && echo home > "$HOME/x" || echo cannot write
    setsid -f sleep 3600
    """
    asked = manifest(args=[script], env={"HOCKET_TEST_MARK": bench.mark})
    workdir.furnish(asked, lambda hash: b"")
    order = order_for(asked, workdir, {}, BOUNDS._replace(free_bytes_min=0), BOXED)
    ended = bench.runner.run(order, bench.hear, never, now_ms)
    assert (ended.detail, bytes(bench.heard["stdout"]), bytes(bench.heard["stderr"])) == (
        "its exit code is 0",
        b"",
        b"",
    )
    assert [*workdir.collect(["outputs/**"])] == ["outputs/file"]
    assert ended.resources.network_bytes == 0
    assert bench.survivors() == []
