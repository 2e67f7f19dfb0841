"""Runs the tests on the other Pythons of this machine: `make pythons`, with `ARGS="--only 3.14t tests/log"` on one of
them and a part of the tests. It looks for interpreters on the PATH and where pyenv and uv put theirs.

Each gets an environment of its own in .cache/pythons, with the pinned packages of the tests. Packages that have no
wheel for that Python are left out and named; what needs them is skipped. `--smoke` only makes small environments for
`tests/portable/test_pythons.py`, with what `pip install hocket` brings.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "pythons"
# 3.14t is the free-threaded one.
NAMES = ("3.11", "3.12", "3.13", "3.14", "3.14t")
FOLDERS = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
ASK = "import sys; print('%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', '').replace('d', ''))"
PROBED_WITHIN_S = 30
INSTALLED_WITHIN_S = 600
# Packages without a wheel are found one after the other.
LEFT_OUT_MAX = 20
NO_WHEEL = re.compile(r"No matching distribution found for ([\w.-]+)==")


def name_of(python: Path) -> str | None:
    """What it calls itself, like 3.13 or 3.14t; None if it does not run, as a link of pyenv's to no version does."""
    try:
        done = subprocess.run([python, "-I", "-c", ASK], capture_output=True, text=True, timeout=PROBED_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def interpreters() -> dict[str, Path]:
    """One interpreter for each of `NAMES` that is here, but for the Python that runs this."""
    candidates = [Path(path) for name in NAMES if (path := shutil.which(f"python{name}"))]
    for folder in FOLDERS:
        candidates += sorted(Path.home().glob(f"{folder}/python3.*"), reverse=True)
    found: dict[str, Path] = {}
    for path in candidates:
        if re.fullmatch(r"python3\.\d+t?", path.name) and (name := name_of(path)) in NAMES:
            found.setdefault(name, path)
    own = name_of(Path(sys.executable))
    return {name: found[name] for name in NAMES if name in found and name != own}


def without(text: str, package: str) -> str:
    """A file of pins without one package."""
    blocks = re.split(r"(?m)^(?=\S)", text)
    return "".join(each for each in blocks if not re.match(rf"{re.escape(package)}(\[[^]]*\])?==", each))


def pip(python: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(python), "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "15"]
    command += ["--disable-pip-version-check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S, cwd=ROOT)


def installed(
    python: Path, pins: Path, folder: Path, left_out_max: int = LEFT_OUT_MAX
) -> tuple[Path, list[str], str | None]:
    """An environment's Python, the packages that are left out, and why there is no environment, if there is none."""
    made, ready = folder / "bin" / "python", folder / ".ready"
    text = pins.read_text(encoding="utf-8")
    state = hashlib.sha256(f"{python}\n{text}".encode()).hexdigest()
    if ready.exists() and (lines := ready.read_text().splitlines())[0] == state:
        return made, lines[1:], None
    done = subprocess.run([python, "-m", "venv", "--clear", folder], capture_output=True, text=True)
    if done.returncode:
        return made, [], "it cannot make an environment: Debian has that in a package of its own, python3-venv"
    left_out: list[str] = []
    for _ in range(left_out_max + 1):
        (folder / "pins.txt").write_text(text, encoding="utf-8")
        try:
            done = pip(made, "--only-binary", ":all:", "--require-hashes", "-r", str(folder / "pins.txt"))
        except subprocess.TimeoutExpired:
            return made, left_out, f"its packages did not come within {INSTALLED_WITHIN_S} seconds"
        if done.returncode == 0:
            ready.write_text("\n".join([state, *left_out]) + "\n")
            return made, left_out, None
        is_away = "Retrying (" in done.stderr  # then pip finds no package at all
        if is_away or (match := NO_WHEEL.search(done.stderr)) is None or (fewer := without(text, match[1])) == text:
            break
        text = fewer
        left_out.append(match[1])
    reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return made, left_out, (reasons or ["pip gives no reason"])[-1].removeprefix("ERROR: ")


def smoke_folder(name: str) -> Path:
    return CACHE / f"smoke-{name}"


def make_smoke() -> Iterator[str]:
    for name, python in interpreters().items():
        _, _, why = installed(python, ROOT / "requirements" / "base.txt", smoke_folder(name), left_out_max=0)
        if why:
            yield f"Python {name}, {python}: {why}; its smoke test is skipped"


def run_tests(only: str | None, words: list[str]) -> int:
    found = {name: path for name, path in interpreters().items() if only in (None, name)}
    print(f"found: {', '.join(f'{name} ({path})' for name, path in found.items()) or 'no other Python'}", flush=True)
    failed = [] if found or only is None else [only]
    for name, python in found.items():
        made, left_out, why = installed(python, ROOT / "requirements" / "dev.txt", CACHE / name)
        if why is None:
            done = pip(made, "--no-index", "--no-deps", "--no-build-isolation", "--editable", ".")
            why = done.stderr.strip() if done.returncode else None
        print(f"\nPython {name}: {why or 'without ' + (', '.join(left_out) or 'nothing')}", flush=True)
        command = [str(made), "-m", "pytest", "-q", "--dist=worksteal", "-o", f"cache_dir=.cache/pytest-{name}", *words]
        # Programs that tests start are those of this environment.
        environment = os.environ | {"PATH": f"{made.parent}{os.pathsep}{os.environ['PATH']}"}
        if why or subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on the other Pythons of this machine.")
    parser.add_argument("--smoke", action="store_true", help="only make the environments of the smoke tests")
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    options, words = parser.parse_known_args()
    if not options.smoke:
        return run_tests(options.only, words)
    for line in make_smoke():
        print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
