"""The workdirs that commands run in: what is put there, what is found there, and that nothing stays."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Failed
from hocket.extensions.command import outputs
from hocket.extensions.command.manifest import Manifest, parse_manifest
from hocket.extensions.command.outputs import Patterns
from hocket.extensions.command.workdir import Workdir, Workdirs, remove_tree
from hocket.kernel.ids import content_hash, hash_text
from tests.extensions.command.bench import PATIENCE_S, descriptors

SOURCE = str(Path(__file__).resolve().parents[3] / "src")


@pytest.fixture
def workdirs(tmp_path: Path) -> Iterator[Workdirs]:
    made = Workdirs(tmp_path / "runs")
    yield made
    made.close()


@pytest.fixture
def workdir(workdirs: Workdirs) -> Iterator[Workdir]:
    with workdirs.workdir("job") as made:
        yield made


def manifest(*contents: bytes, sizes: bool = True, **more: object) -> Manifest:
    inputs = [
        {"kind": "blobptr", "algo": "blake3", "hash": hash_text(content_hash(each))}
        | ({"size": len(each)} if sizes else {})
        for each in contents
    ]
    return parse_manifest({"command": ["true"], "timeout": 1, **({"inputs": inputs} if inputs else {}), **more})


# Rooms.


def test_a_room_is_there_for_as_long_as_it_is_needed(tmp_path: Path) -> None:
    before = descriptors()
    workdirs = Workdirs(tmp_path / "runs")
    assert not (tmp_path / "runs").exists(), "it is made when it is needed"
    with workdirs.workdir("job") as workdir, workdirs.workdir("job") as other:
        assert workdir.path != other.path
        for each in (workdir.path, workdir.work, workdir.home, workdir.temporary, workdir.streams):
            assert each.stat().st_mode & 0o777 == 0o700
        (workdir.work / "file").touch()
        workdirs.tidy()
        assert workdir.path.exists() and other.path.exists()
    workdirs.tidy()
    assert not workdir.path.exists() and not other.path.exists()
    with pytest.raises(ZeroDivisionError), workdirs.workdir("job") as workdir:
        raise ZeroDivisionError
    workdirs.tidy()
    assert not workdir.path.exists()
    with workdirs.workdir("job") as workdir:
        pass
    assert workdir.path.exists()
    workdirs.close()
    workdirs.close()
    assert [*(tmp_path / "runs").iterdir()] == []
    assert descriptors() <= before


def test_rooms_of_dead_processes_are_cleared_and_those_of_the_living_stay(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hocket.extensions.command.workdir import Workdirs\n"
        "with Workdirs(Path(sys.argv[1])).workdir('job') as workdir:\n"
        "    (workdir.work / 'deep' / 'er').mkdir(parents=True)\n"
        "    print(workdir.path, flush=True); time.sleep(3600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": SOURCE}
    )
    assert other.stdout is not None
    left = Path(other.stdout.readline().decode().strip())
    workdirs = Workdirs(tmp_path)
    with workdirs.workdir("job") as workdir:
        assert workdirs.clear() == 0
        assert left.exists() and workdir.path.exists()
        other.send_signal(signal.SIGKILL)
        other.communicate(timeout=PATIENCE_S)
        assert left.exists()
        assert workdirs.clear() == 1
        assert workdir.path.exists()
        assert not left.parent.exists()
        assert workdirs.clear() == 0
    workdirs.close()
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "1-of-the-dead" / "job").mkdir(parents=True)
    later = Workdirs(tmp_path)
    with later.workdir("job") as workdir:
        assert [*tmp_path.glob("*/")] == [workdir.path.parent], "the first workdir is a reason to clear, too"
    later.close()


# Inputs.


def test_inputs_are_put_where_the_manifest_says(workdir: Workdir) -> None:
    contents = {content_hash(each): each for each in (b"one", b"", b"three" * 1000)}
    asked = manifest(*contents.values(), env={"HOCKET_INPUTS": "a:deep/er/b:c d"}, cwd="deep/x")
    workdir.furnish(asked, lambda hash: contents[hash])
    assert [(workdir.work / name).read_bytes() for name in ("a", "deep/er/b", "c d")] == [*contents.values()]
    assert workdir.begin_in(asked) == workdir.work / "deep" / "x"
    assert workdir.begin_in(asked).is_dir()


def test_inputs_without_names_are_put_under_their_hashes(workdir: Workdir) -> None:
    workdir.furnish(manifest(b"one", sizes=False), lambda hash: iter([b"o", b"", b"ne"]))
    assert (workdir.work / "inputs" / content_hash(b"one").hex()).read_bytes() == b"one"


def test_an_input_may_be_a_program(workdir: Workdir) -> None:
    script = b"#!/bin/sh\necho ran\n"
    workdir.furnish(manifest(script, env={"HOCKET_INPUTS": "tool"}), lambda hash: script)
    assert subprocess.run([workdir.work / "tool"], capture_output=True).stdout == b"ran\n"


def test_an_input_that_is_not_what_was_asked_for_is_refused(workdir: Workdir) -> None:
    with pytest.raises(Failed, match=f"has the hash {hash_text(content_hash(b'two'))}, not"):
        workdir.furnish(manifest(b"one"), lambda hash: b"two")
    longer = manifest(b"x").inputs
    assert longer is not None
    wrong = parse_manifest(
        {
            "command": ["true"],
            "timeout": 1,
            "inputs": [{"kind": "blobptr", "algo": "blake3", "hash": longer[0].written, "size": 2}],
            "env": {"HOCKET_INPUTS": "other"},
        }
    )
    with pytest.raises(Failed, match="the input 'other' has 1 bytes, not 2"):
        workdir.furnish(wrong, lambda hash: b"x")


def test_what_is_raised_while_an_input_is_fetched_is_told(workdir: Workdir) -> None:
    def content(hash: bytes) -> bytes:
        raise Failed("nobody has it")

    with pytest.raises(Failed, match="nobody has it"):
        workdir.furnish(manifest(b"one"), content)


def test_a_directory_to_begin_in_that_is_an_input_is_refused(workdir: Workdir) -> None:
    with pytest.raises(Failed, match="cannot make the directory 'a/b'"):
        workdir.furnish(manifest(b"one", env={"HOCKET_INPUTS": "a"}, cwd="a/b"), lambda hash: b"one")


# Outputs.


def made(workdir: Workdir, *paths: str) -> None:
    for path in paths:
        (workdir.work / path).parent.mkdir(parents=True, exist_ok=True)
        (workdir.work / path).write_text(path)


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["outputs/**"], ["outputs/a", "outputs/deep/er/b"]),
        (["*.log"], ["x.log"]),
        (["**/*.log"], ["logs/y.log", "logs/z/w.log", "x.log"]),
        (["logs/*"], ["logs/y.log"]),
        (["**"], ["logs/y.log", "logs/z/w.log", "outputs", "outputs/a", "outputs/deep/er/b", "x.log"]),
        (["**/z/**"], ["logs/z/w.log"]),
        (["x.log", "./x.log", "x.*"], ["x.log"]),
        (["x.log/**", "x.log/x"], []),
        (["nothing"], []),
        (["outputs/**/b", "logs/**/**/y.log"], ["logs/y.log", "outputs/deep/er/b"]),
        (["?.lo[g]"], ["x.log"]),
        ([], []),
    ],
)
def test_outputs_are_found_by_their_patterns(workdir: Workdir, patterns: list[str], found: list[str]) -> None:
    made(workdir, "x.log", "logs/y.log", "logs/z/w.log", "outputs/a", "outputs/deep/er/b")
    collected = workdir.collect(patterns)
    assert [*collected] == [path for path in found if path != "outputs"]
    assert all(file.read_text() == path for path, file in collected.items())


def test_only_regular_files_are_outputs_and_links_lead_nowhere(workdir: Workdir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("secret")
    made(workdir, "outputs/real")
    where = workdir.work / "outputs"
    (where / "link").symlink_to(tmp_path / "secret")
    (where / "directory").symlink_to(tmp_path / "elsewhere")
    (where / "round").symlink_to(where)
    (where / "dangling").symlink_to("nowhere")
    os.mkfifo(where / "pipe")
    assert [*workdir.collect(["outputs/**", "outputs/link", "outputs/directory/secret"])] == ["outputs/real"]
    where.rename(workdir.work / "moved")
    where.symlink_to(tmp_path)
    assert workdir.collect(["outputs/**"]) == {}


def test_too_many_outputs_are_refused(workdir: Workdir, monkeypatch: pytest.MonkeyPatch) -> None:
    made(workdir, *(f"outputs/{number}" for number in range(6)))
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 5)
    with pytest.raises(Failed, match="the command made more than 5 outputs; put them into one archive"):
        workdir.collect(["outputs/**"])
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 6)
    assert len(workdir.collect(["outputs/**"])) == 6
    monkeypatch.setattr(outputs, "OUTPUTS_BYTES_MAX", 6 * len("outputs/0") - 1)
    with pytest.raises(Failed, match="the outputs have more than 53 bytes"):
        workdir.collect(["outputs/**"])
    monkeypatch.setattr(outputs, "LOOKED_AT_MAX", 6)
    with pytest.raises(Failed, match="cover more than 6 files"):
        workdir.collect(["outputs/**"])
    assert workdir.collect(["elsewhere/**"]) == {}, "where no output can be, nothing is looked at"


def test_an_output_whose_name_cannot_be_written_down_is_refused(workdir: Workdir) -> None:
    made(workdir, "outputs/fine")
    with open(os.fsencode(workdir.work) + b"/outputs/\xff", "w"):
        pass
    with pytest.raises(Failed, match=r"the output b'outputs/\\xff' has a name that is not UTF-8; rename it"):
        workdir.collect(["outputs/**"])
    assert [*workdir.collect(["outputs/f*"])] == ["outputs/fine"]


NAMES = st.sampled_from(["a", "b", "ab", "x.log"])


@given(
    st.lists(NAMES, min_size=1, max_size=5),
    st.lists(st.sampled_from(["a", "*", "**", "?", "*.log"]), min_size=1, max_size=4),
)
def test_patterns_match_as_a_plain_reading_of_them_does(path: list[str], pattern: list[str]) -> None:
    def plain(path: list[str], pattern: list[str]) -> bool:
        if not pattern:
            return not path
        if pattern[0] != "**":
            return bool(path) and fnmatchcase(path[0], pattern[0]) and plain(path[1:], pattern[1:])
        least = 0 if len(pattern) > 1 else 1
        return any(plain(path[skipped:], pattern[1:]) for skipped in range(least, len(path) + 1))

    patterns = Patterns(["/".join(pattern)])
    states = patterns.start
    for name in path:
        states = patterns.step(states, name)
    assert patterns.is_match(states) == plain(path, pattern)


# Removal.


def spoil(top: Path) -> None:
    """What commands leave: what nobody may read, odd names, links, and depths that no path can name."""
    (top / "locked" / "deep").mkdir(parents=True)
    (top / "locked" / "deep" / "file").touch()
    (top / "locked" / "deep").chmod(0o000)
    (top / "locked").chmod(0o500)
    for name in (b"\xff\xfe", b"line\nbreak", b"0", b"1", b"-rf", b"*"):
        os.mkdir(os.fsencode(top) + b"/" + name)
        os.mkdir(os.fsencode(top) + b"/" + name + b"/" + name)
        with open(os.fsencode(top) + b"/" + name + b"/file", "wb"):
            pass
    (top / "link").symlink_to("/")
    os.mkfifo(top / "pipe")
    here = os.open(top, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.fixture
def scrap() -> Iterator[Path]:
    """A directory that goes whatever happens: pytest itself cannot remove what is so deep, nor let others enter."""
    directory = tempfile.mkdtemp()
    yield Path(directory)
    subprocess.run(["rm", "-rf", directory], check=True)


def test_whatever_a_command_leaves_is_removed(scrap: Path) -> None:
    (scrap / "precious").mkdir()
    (scrap / "precious" / "file").touch()
    top = scrap / "top"
    top.mkdir()
    (top / "to-precious").symlink_to(scrap / "precious")
    before = descriptors()
    spoil(top)
    assert remove_tree(top)
    assert [path.name for path in scrap.iterdir()] == ["precious"]
    assert (scrap / "precious" / "file").exists()
    assert remove_tree(top), "what is not there is removed"
    assert descriptors() <= before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not do everything")
def test_what_nobody_may_read_is_removed_by_its_owner(scrap: Path) -> None:
    workdir = scrap / "workdir"
    workdir.mkdir()
    for each in (scrap, workdir):
        os.chown(each, 65534, 65534)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            spoil(workdir)
            try:
                os.listdir(workdir / "locked" / "deep")
            except PermissionError:
                code = 0 if remove_tree(workdir) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [*scrap.iterdir()] == []


def test_what_cannot_be_removed_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not remove_tree(tmp_path / "file")
    assert not remove_tree(tmp_path / "file" / "below")
    (tmp_path / "link").symlink_to(tmp_path)
    assert not remove_tree(tmp_path / "link"), "a link is not followed"
    assert (tmp_path / "file").exists()
