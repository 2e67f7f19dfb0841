"""Builds the source package and the wheel with the setuptools of this Python and without the network: `python
release/build.py SOURCE OUT`, SOURCE a folder or a tar file. Two builds of a commit give the same bytes, whatever the
times, modes and order of the files, because everything but their contents comes from SOURCE_DATE_EPOCH. The wheel is
built from the source package.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HOOK = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(source: Path, out: Path, epoch: int) -> list[Path]:
    """The source package and the wheel, in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        given, raw, unpacked, built = (Path(folder) / name for name in ("given", "raw", "unpacked", "built"))
        if source.is_dir():
            shutil.copytree(source, given)
        else:
            _unpack(source, given)
        sdist = out / _built_by("build_sdist", given, raw, epoch).name
        _repack(next(raw.iterdir()), sdist, epoch)
        _unpack(sdist, unpacked)
        wheel = _built_by("build_wheel", next(unpacked.iterdir()), built, epoch)
        return [sdist, Path(shutil.copyfile(wheel, out / wheel.name))]


def _built_by(hook: str, tree: Path, out: Path, epoch: int) -> Path:
    for path in tree.rglob("*"):
        path.chmod(_mode(path.is_dir() or bool(path.stat().st_mode & 0o100)))
    out.mkdir()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    done = subprocess.run(
        [sys.executable, "-c", HOOK, hook, str(out)], cwd=tree, env=environment, umask=0o022, capture_output=True
    )
    if done.returncode:
        raise SystemExit(done.stderr.decode(errors="replace"))
    return next(out.iterdir())


def _mode(is_executable: bool) -> int:
    return 0o755 if is_executable else 0o644


def _unpack(package: Path, folder: Path) -> None:
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")


def _repack(package: Path, out: Path, epoch: int) -> None:
    """Setuptools keeps owners and times of the moment in a source package."""
    packed = io.BytesIO()
    with tarfile.open(package) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = _mode(member.isdir() or bool(member.mode & 0o100)), {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with out.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


if __name__ == "__main__":
    if "SOURCE_DATE_EPOCH" not in os.environ or len(sys.argv) != 3:
        raise SystemExit("usage: SOURCE_DATE_EPOCH=SECONDS python release/build.py SOURCE OUT")
    for path in build(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["SOURCE_DATE_EPOCH"])):
        print(path)
