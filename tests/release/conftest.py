"""The packages of this checkout, built once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from release.build import build

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000
PARTS = ("src", "bin", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the packages as they stand in the checkout, without what was built there."""
    folder = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="session")
def packages(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tree, tmp_path_factory.mktemp("packages"), EPOCH)


@pytest.fixture(scope="session")
def wheel(packages: list[Path]) -> Path:
    return packages[1]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """An environment with nothing in it."""
    folder = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder
