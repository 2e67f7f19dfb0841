"""The units and the container file on docs/service.md: systemd accepts the units, and the program knows every command
and option that they use.
"""

import json
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import reader
from tests.docs.reader import ROOT

PAGE = ROOT / "docs" / "service.md"
PROGRAM = "/opt/hocket/bin/hocket"
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
PLIST = next(plistlib.loads(each.text.encode()) for each in reader.blocks(PAGE) if each.language == "xml")
UNITS = {
    Path(named[1]).name: block.text
    for block in reader.blocks(PAGE)
    if block.language == "ini" and (named := re.match(r"# (/etc/systemd/system/\S+)\n", block.text))
}


def commands() -> list[list[str]]:
    """Every command of ours on the page, as words after the program's name."""
    found = [
        shlex.split(line) for unit in UNITS.values() for line in re.findall(rf"^ExecStart={PROGRAM} (.*)$", unit, re.M)
    ]
    for block in reader.blocks(PAGE):
        if block.language == "sh":
            found += [shlex.split(line, comments=True) for line in re.findall(rf"{PROGRAM} (.*)$", block.text, re.M)]
            found += [shlex.split(line) for line in re.findall(r"podman run .* hocket ([a-z].*)$", block.text, re.M)]
    found.append(json.loads(re.findall(r"^CMD (.*)$", CONTAINERFILE, re.M)[0]))
    found.append(json.loads(re.findall(r"^HEALTHCHECK .* CMD (.*)$", CONTAINERFILE, re.M)[0])[1:])
    found.append(PLIST["ProgramArguments"][1:])
    return found


def test_the_container_is_not_roots() -> None:
    lines = CONTAINERFILE.splitlines()
    assert lines.index("USER hocket") < next(at for at, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert (ROOT / "requirements" / "all.txt").exists() and "requirements/all.txt" in CONTAINERFILE


def test_launchd_can_read_its_file() -> None:
    assert PLIST["ProgramArguments"][0] == PROGRAM and PLIST["ExitTimeOut"] > 60


def test_there_is_a_worker_a_server_and_a_backup() -> None:
    assert set(UNITS) == {
        *("hocket-work.service", "hocket-serve.service", "hocket-backup.service", "hocket-backup.timer"),
    }
    assert {words[0] for words in commands()} >= {"work", "mesh", "log", "init"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, text in UNITS.items():
        # The program of the page is not installed here; any program will do.
        (tmp_path / name).write_text(text.replace(PROGRAM, shutil.which("true") or "/bin/true"))
    files = [str(tmp_path / name) for name in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "hocket-" in line]
    assert done.returncode == 0 and not ours, done.stderr


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_program_knows_the_commands(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hocket", *words, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_has_time_for_its_grace() -> None:
    """Otherwise it is killed before it has returned its jobs."""
    unit = UNITS["hocket-work.service"]
    grace, timeout = re.findall(r"--grace (\d+)s", unit), re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert int(grace[0]) < int(timeout[0])
