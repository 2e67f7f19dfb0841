"""A part that is missing, an older Python, or a second copy: each is one sentence that says what to install or do."""

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dependencies import REQUIREMENTS, normal, read_pins

from .conftest import ROOT

SITE = Path(sysconfig.get_path("purelib", "venv", {"base": "BASE"})).relative_to("BASE")


class Installation:
    """An environment into which files are put as pip would put them."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.site, self.home = folder, folder / SITE, home

    def add_wheel(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        [script] = self.site.glob("hocket-*.data/scripts/hocket")
        program = self.folder / "bin" / "hocket"
        program.write_text(script.read_text().replace("#!python", f"#!{self.folder}/bin/python"))
        program.chmod(0o755)

    def add_packages(self, names: set[str]) -> None:
        for package in importlib.metadata.distributions():
            if normal(package.name) in names:
                tops = {each.parts[0] for each in package.files or () if each.parts[0] not in ("..", "__pycache__")}
                for top in tops - {each.name for each in self.site.iterdir()}:
                    (self.site / top).symlink_to(Path(str(package.locate_file(top))))

    def run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET", "PYTHON"))}
        return subprocess.run(
            [str(self.folder / "bin" / "hocket"), *words],
            capture_output=True,
            text=True,
            env=kept | {"HOCKET_HOME": str(self.home)} | variables,
        )

    def sentence(self, *words: str, **variables: str) -> str:
        done = self.run(*words, **variables)
        assert done.returncode == 2 and not done.stdout, done
        [line] = done.stderr.splitlines()
        return line


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What `pip install hocket` gives, without any extra, and a home."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    made = Installation(folder / "venv", folder / "home")
    made.add_wheel(wheel)
    made.add_packages({pin.name for pin in read_pins(REQUIREMENTS / "base.txt")[0]})
    assert made.run("init").returncode == 0
    assert made.run("peers", "add", "http://127.0.0.1:1").returncode == 0
    return made


POSTGRES = "postgresql://ada@db.example/work"
MISSING = {
    "serve": ("talking to other nodes needs aiohttp", "server"),
    "join TOKEN": ("joining needs aiohttp", "server"),
    "peers find": ("finding peers needs zeroconf", "server"),
    "sync": ("talking to other nodes needs aiohttp", "server"),
    "work --until-idle --metrics 127.0.0.1:0": ("--metrics needs starlette", "server"),
    "mcp": ("`hocket mcp` needs anyio", "mcp"),
    f"--home other init --store {POSTGRES}": ("a store in PostgreSQL needs psycopg", "postgres"),
}


@pytest.mark.parametrize("line", MISSING)
def test_what_needs_an_extra_names_it(line: str, base: Installation) -> None:
    needs, extra = MISSING[line]
    said = base.sentence(*line.split())
    assert said.startswith(f"hocket: {needs}") and f"hocket[{extra}]" in said


def test_a_variable_that_needs_an_extra_names_it(base: Installation) -> None:
    said = base.sentence("submit", "acme.render", HOCKET_TRACES="http://localhost:4318")
    assert said == "hocket: HOCKET_TRACES is set, and traces need opentelemetry; install hocket[traces]"
    said = base.sentence("work", "--until-idle", HOCKET_BUS="nats://localhost")
    assert said == "hocket: the bus nats://localhost needs nats; install hocket[nats]"


def test_a_package_that_every_install_has_is_named_if_it_is_gone(base: Installation) -> None:
    gone = base.site / "blake3"
    place = gone.readlink()
    gone.unlink()
    try:
        said = base.sentence("status")
    finally:
        gone.symlink_to(place)
    assert said == f"hocket: the package blake3 is missing in {base.folder}; install hocket again there"


OLD = "import sys; sys.version_info = (3, 10, 4, 'final', 0); sys.version = '3.10.4 (main)'; "
TOO_OLD = "Hocket needs Python 3.11 or newer, and this is 3.10.4; install a newer Python"


def test_an_older_python_is_told_which_one_it_needs() -> None:
    program = (ROOT / "bin" / "hocket").read_text()
    for code, said in ((program, f"hocket: {TOO_OLD}"), ("import hocket", f"ImportError: {TOO_OLD}")):
        done = subprocess.run([sys.executable, "-c", f"{OLD}exec({code!r})"], capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.splitlines()[-1] == said
        assert ("Traceback" in done.stderr) == (code != program)


def test_an_older_python_can_read_what_tells_it() -> None:
    for path in (ROOT / "bin" / "hocket", ROOT / "src" / "hocket" / "__init__.py"):
        ast.parse(path.read_text(), feature_version=(3, 7))


@pytest.fixture
def second(base: Installation) -> Iterator[Path]:
    """Another version beside the first, as a copy to the system and one to the user would be."""
    folder = base.folder / "second"
    shutil.copytree(next(base.site.glob("hocket-*.dist-info")), folder / "hocket-9.0.0.dist-info")
    metadata = folder / "hocket-9.0.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("\nVersion: 0.1.0\n", "\nVersion: 9.0.0\n"))
    listed = base.site / "second.pth"
    listed.write_text(f"{folder}\n")
    yield folder
    listed.unlink()
    shutil.rmtree(folder)


def findings(base: Installation, **variables: str) -> list[str]:
    lines = base.run("doctor", **variables).stdout.splitlines()
    return [line for line in lines if line.split("\t")[1] == "installation"]


def test_doctor_names_two_installations(base: Installation, second: Path) -> None:
    [line] = findings(base, PATH="")
    assert line == (
        f"warn\tinstallation\tHocket is installed 2 times for this Python: 0.1.0 in {base.site}, 9.0.0 in {second};"
        " uninstall all but one"
    )


def test_doctor_names_the_programs_that_a_shell_could_run(base: Installation, tmp_path: Path) -> None:
    ours = base.folder / "bin"
    assert findings(base, PATH=str(ours)) == ["ok\tinstallation\tthis one alone"]
    other, link = tmp_path / "other", tmp_path / "link"
    for folder in (other, link):
        folder.mkdir()
    shutil.copy(ours / "hocket", other)
    (link / "hocket").symlink_to(ours / "hocket")
    [line] = findings(base, PATH=os.pathsep.join(map(str, (link, ours, other))))
    assert line.endswith(f"a shell runs {ours}/hocket; other copies, to be kept at one version: {other}/hocket")
