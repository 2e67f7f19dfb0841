"""What we depend on is pinned with hashes, extra by extra, under licences that we may use; and the audit finds it when
one is not.
"""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.dependencies import (
    PROJECT,
    REQUIREMENTS,
    Pin,
    installed_licences,
    is_allowed,
    licence_in,
    licence_of,
    pin_faults,
    read_extras,
    read_pins,
    read_report,
    vulnerabilities,
)

HASH = f"--hash=sha256:{'ab' * 32}"


def test_everything_is_pinned_with_hashes_and_every_extra_is_covered():
    files = {}
    for path in REQUIREMENTS.glob("*.txt"):
        files[path.name], faults = read_pins(path)
        assert faults == [] and "://" not in path.read_text()
    assert pin_faults(files, read_extras(PROJECT)) == []


def test_the_licences_of_what_is_installed_are_allowed():
    pins = set().union(*(read_pins(path)[0] for path in REQUIREMENTS.glob("*.txt")))
    licences = {pin: licence for pin, licence in installed_licences().items() if pin in pins}
    assert len(licences) > 20
    assert {pin: licence for pin, licence in licences.items() if not is_allowed(licence)} == {}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("a>=1 " + HASH, "is not a version"),
        ("a==1.* " + HASH, "is not a version"),
        ("a @ https://example.org/a.whl " + HASH, "is not a version"),
        ("--index-url https://example.org", "is not a version"),
        ("-e .", "is not a version"),
        ("a==1", "has no hashes"),
        ("a==1 --hash=md5:00", "has no hashes"),
        (f"a==1 {HASH} --hash=sha256:12", "has no hashes"),
    ],
)
def test_a_line_that_pins_nothing_is_found(tmp_path: Path, line: str, part: str):
    path = tmp_path / "x.txt"
    path.write_text(f"# by hand\nB_b==2 ; sys_platform == 'win32' \\\n    {HASH} \\\n    {HASH}\n    # via c\n{line}\n")
    pins, [fault] = read_pins(path)
    assert pins == {Pin("b-b", "2")} and part in fault and fault.startswith("x.txt: ")


def test_an_extra_without_a_file_and_two_versions_are_found(tmp_path: Path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "own"\ndependencies = ["a>=1"]\n[project.optional-dependencies]\n'
        'b = ["B_b[x]>=1; sys_platform != \'win32\'"]\nall = ["own[b,c]"]\nc = ["c"]\n'
        '[dependency-groups]\nd = ["d>=2"]\n'
    )
    extras = read_extras(project)
    assert extras == {"": {"a"}, "b": {"b-b"}, "c": {"c"}, "all": {"b-b", "c"}, "d": {"d"}}
    one, two = {Pin("a", "1"), Pin("b-b", "1")}, {Pin("c", "1"), Pin("a", "2")}
    several, missing, group = pin_faults({"one.txt": one, "two.txt": two}, extras)
    assert several == "a has several versions: 1 in one.txt, 2 in two.txt"
    assert "the extra or group 'all' is pinned by no file" in missing and "group 'd' is pinned" in group
    assert "the base install" in pin_faults({}, {"": {"a"}})[0]


@pytest.mark.parametrize(
    ("headers", "licence", "allowed"),
    [
        ({"License-Expression": "Apache-2.0 AND MIT"}, "Apache-2.0 AND MIT", True),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, "MIT AND GPL-3.0-only", False),
        ({"License-Expression": "GPL-2.0-only OR MIT"}, "GPL-2.0-only OR MIT", True),
        ({"License": "MIT\nlong text"}, "MIT", True),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause", True),
        ({"Classifier": "License :: OSI Approved :: GNU Affero General Public License v3"}, None, False),
        ({"License": "Proprietary"}, "Proprietary", False),
        ({}, "unknown", False),
    ],
)
def test_licences(headers: dict[str, str], licence: str | None, allowed: bool):
    found = licence_of(headers.items())
    assert licence in (None, found) and is_allowed(found) == allowed


def test_a_licence_is_read_from_its_text_where_the_metadata_is_silent(tmp_path: Path):
    text = "Copyright (c) Ada\n\nPermission is hereby granted, free of charge, to any\nperson obtaining a copy of this"
    for name, expected in (("x-1.dist-info/licenses/LICENSE", "MIT"), ("x/LICENSE", "unknown")):
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
            archive.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.4\nName: x\nVersion: 1\n\nWords.\n")
            archive.writestr(name, text)
        assert licence_in(tmp_path / "x.whl") == expected


def test_a_vulnerability_is_a_finding_and_silence_is_not():
    package = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    skipped = {"name": "b", "skip_reason": "not on the index"}
    report = json.dumps({"dependencies": [package, skipped, {"name": "c", "version": "1", "vulns": []}]})
    assert read_report(report, "") == (["a 1: PYSEC-1, mended in 2"], ["b: not on the index"])
    assert read_report("", "warning\nConnectionError: no route\n") == ([], ["ConnectionError: no route"])
    assert read_report("[]", "") == ([], ["pip-audit gave no answer"])


def test_an_audit_that_cannot_run_says_so():
    told = vulnerabilities([Pin("a", "1")], [sys.executable, "-m", "no_such_module"])
    assert told.findings == [] and "no_such_module" in told.unknown[0]
    assert len(vulnerabilities([Pin("a", "1"), Pin("a", "2"), Pin("b", "1")], ["/no/such/program"]).unknown) == 2
    assert vulnerabilities([], ["/no/such/program"]) == ([], [])
