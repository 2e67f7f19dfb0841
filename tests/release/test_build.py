"""The packages have the same bytes wherever they are built, and what they need is in them: installed into a clean
environment, the program works.
"""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from release.build import build

from .conftest import EPOCH


def test_two_builds_have_the_same_bytes(tree: Path, packages: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    files = [each.relative_to(tree) for each in tree.rglob("*") if each.is_file()]
    random.shuffle(files)
    for place in files:
        (other / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / place, other / place)
        (other / place).chmod(0o700 if place.parts[0] == "bin" else 0o600)
    packed = tmp_path / "source.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(other, ".")
    again = build(packed, tmp_path / "out", EPOCH)
    assert [each.name for each in again] == [each.name for each in packages]
    assert [each.read_bytes() for each in again] == [each.read_bytes() for each in packages]


def test_the_wheel_has_every_file_of_the_package(tree: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {str(each.relative_to(tree / "src")) for each in (tree / "src").rglob("*") if each.is_file()} <= names
    strays = {each.split("/")[0] for each in names} - {"hocket"}
    assert all(each.startswith("hocket-") for each in strays)


def test_the_wheel_names_what_users_may_ask_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert set(metadata.get_all("Provides-Extra", [])) == {
        *("server", "postgres", "nats", "mcp", "archive", "traces", "gpu", "all"),
    }
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(
        metadata.get_all("Classifier", [])
    )


def test_the_source_package_has_what_a_build_needs(packages: list[Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        members = archive.getmembers()
    names = {each.name.partition("/")[2] for each in members}
    assert {"bin/hocket", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert not [each for each in names if each.startswith("tests")]
    assert {(each.mtime, each.uid, each.uname) for each in members} == {(EPOCH, 0, "")}


def run(*words: "str | Path", home: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET", "PYTHON"))}
    done = subprocess.run(
        [str(each) for each in words],
        capture_output=True,
        text=True,
        cwd=home.parent,
        env={**environment, "HOCKET_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TASKS = """
import hocket

@hocket.job("acme.where")
def where(ctx):
    return hocket.__file__
"""


def check_works(program: Path, home: Path, environment: Path) -> None:
    (home.parent / "tasks.py").write_text(TASKS)
    assert run(program, "--version", home=home).startswith("hocket ")
    run(program, "init", home=home)
    job_id = run(program, "submit", "acme.where", home=home).split()[-1]
    run(program, "work", "tasks.py", "--until-idle", home=home)
    assert str(environment) in run(program, "show", job_id, home=home)


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip in this environment")
def test_the_wheel_works_in_a_clean_environment(wheel: Path, clean: Path, tmp_path: Path) -> None:
    """The dependencies come from this environment, by a path that does not show its editable Hocket."""
    python = clean / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", home=tmp_path / "home")
    (Path(packages.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    check_works(clean / "bin" / "hocket", tmp_path / "home", clean)


INSTALLERS = {
    "pip": "{bin}/pip install {wheel}[all]",
    "uv tool": "uv tool install {wheel}[all]",
    "uvx": "uvx --from {wheel} hocket --version",
    "pipx": "pipx install {wheel}[all]",
}


@pytest.mark.soak
@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_make_the_program_from_the_wheel(
    installer: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the registry, so it runs only where one can be reached; uv and pipx come from there, too."""
    for name in ("UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_CACHE_DIR", "PIPX_HOME", "PIPX_BIN_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
    needed = installer.split()[0].replace("uvx", "uv")
    if subprocess.run([tools / "bin" / "pip", "install", "--quiet", needed], capture_output=True).returncode:
        pytest.skip(f"no registry gives {needed} here")
    words = INSTALLERS[installer].format(bin=tools / "bin", wheel=wheel).split()
    done = subprocess.run([str(tools / "bin" / words[0]), *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if installer == "uvx":
        assert done.stdout.startswith("hocket ")
    else:
        places = {"pip": tools / "bin", "uv tool": tmp_path / "UV_TOOL_BIN_DIR", "pipx": tmp_path / "PIPX_BIN_DIR"}
        check_works(places[installer] / "hocket", tmp_path / "home", tmp_path)
