"""What Hocket depends on, audited: `make audit`.

Three checks. Pins: every requirement in requirements/*.txt is one version with hashes, the files agree on versions, and
every extra and group of pyproject.toml has a file that pins all of it. Licences: each pinned package is listed with its
licence, and a licence outside ALLOWED fails. Vulnerabilities: pip-audit is asked about every pinned version; a finding
fails, and if pip-audit cannot reach its data, that is said and does not fail.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PROJECT = ROOT / "pyproject.toml"
TIMEOUT_S = 600

# Permissive licences, and weak copyleft ones, which ask nothing of a program that merely imports the package.
ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0"),
    *("Python-2.0", "Unlicense", "Zlib", "any-OSI", "MPL-2.0"),
    *("LGPL-2.0-or-later", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later"),
}
# Older metadata has no SPDX expression. These are the words that it uses instead.
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL-2.0-or-later",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}

# Sentences by which the text of a licence is known.
SIGNS = {"Permission is hereby granted, free of charge, to any person obtaining a copy": "MIT"}

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)(?:\s*;\s*[^#]*)?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_CLASSIFIER = "License :: OSI Approved :: "


class Pin(NamedTuple):
    name: str
    version: str


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Pins.


def read_pins(path: Path) -> tuple[set[Pin], list[str]]:
    """What a requirements file pins, and what is wrong with it."""
    pins, faults = set(), []
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    for line in filter(None, (line.partition(" #")[0].strip() for line in text.splitlines())):
        if line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+(?=--hash)", line)
        found = _PIN.fullmatch(requirement)
        if found is None:
            faults.append(f"{path.name}: {requirement!r} is not a version of a package")
        elif not hashes or not all(_HASH.fullmatch(each) for each in hashes):
            faults.append(f"{path.name}: {requirement!r} has no hashes, or bad ones")
        else:
            pins.add(Pin(normal(found["name"]), found["version"]))
    return pins, faults


def read_extras(project: Path) -> dict[str, set[str]]:
    """The packages that each extra and each group asks for, those of the base install under the empty name."""
    document = tomllib.loads(project.read_text(encoding="utf-8"))
    table = document["project"]
    asked = {
        "": table["dependencies"],
        **table.get("optional-dependencies", {}),
        **document.get("dependency-groups", {}),
    }
    own = normal(table["name"])

    def packages(extra: str) -> Iterator[str]:
        for requirement in asked[extra]:
            found = re.match(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?", requirement)
            assert found is not None, requirement
            if normal(found[1]) != own:
                yield normal(found[1])
                continue
            for other in filter(None, (each.strip() for each in (found[2] or "").split(","))):
                yield from packages(other)

    return {extra: set(packages(extra)) for extra in asked}


def pin_faults(files: dict[str, set[Pin]], extras: dict[str, set[str]]) -> list[str]:
    """Versions that differ between files, and extras that no file pins."""
    found = []
    # A file may have several versions of a package, each for some versions of Python.
    versions: dict[str, dict[str, str]] = {}
    for file, pins in files.items():
        for pin in sorted(pins):
            known = versions.setdefault(pin.name, {})
            known[file] = f"{known[file]} and {pin.version}" if file in known else pin.version
    for name, by_file in sorted(versions.items()):
        if len(set(by_file.values())) > 1:
            found.append(
                f"{name} has several versions: " + ", ".join(f"{v} in {f}" for f, v in sorted(by_file.items()))
            )
    for extra, packages in extras.items():
        if not any(packages <= {pin.name for pin in pins} for pins in files.values()):
            what = f"the extra or group {extra!r}" if extra else "the base install"
            found.append(f"{what} is pinned by no file in requirements/; run `make pin`")
    return found


# Licences.


def licence_of(headers: Iterable[tuple[str, str]], files: Iterable[str] = ()) -> str:
    """A package's licence from its metadata: the SPDX expression, else the classifiers, else the free text; and where
    the metadata says nothing, from the texts of its licence files.
    """
    told: dict[str, list[str]] = {}
    for name, value in headers:
        told.setdefault(name.lower(), []).append(value.strip())
    if expression := told.get("license-expression"):
        return expression[0]
    named = [each.removeprefix(_CLASSIFIER) for each in told.get("classifier", ()) if each.startswith(_CLASSIFIER)]
    text = [each.splitlines()[0] for each in told.get("license", ()) if each]
    # The classifier says "BSD" or "LGPL" where the free text may name the very version.
    exact = [each for each in text if is_allowed(each)]
    if exact or named or text:
        return " OR ".join(exact or [SPELLINGS.get(each, each) for each in named or text])
    return next((licence for text in files for sign, licence in SIGNS.items() if sign in text), "unknown")


def is_allowed(expression: str) -> bool:
    """Of alternatives one must be allowed, and of what is joined by AND everything."""
    words = SPELLINGS.get(expression, expression).replace("(", " ").replace(")", " ")
    return any(
        all(SPELLINGS.get(each.strip(), each.strip()) in ALLOWED for each in re.split(r"\s+AND\s+", alternative))
        for alternative in re.split(r"\s+OR\s+", words)
    )


def installed_licences() -> dict[Pin, str]:
    return {
        Pin(normal(each.name), each.version): licence_of(each.metadata.items(), _texts(each))
        for each in importlib.metadata.distributions()
    }


def _texts(package: importlib.metadata.Distribution) -> Iterator[str]:
    for file in package.files or ():
        if _is_licence(str(file)):
            yield _words(file.read_text())


def _is_licence(name: str) -> bool:
    return ".dist-info/" in name and "licen" in name.rpartition("/")[2].lower()


def _words(text: str) -> str:
    """The text with its lines joined."""
    return " ".join(text.split())


def fetched_licences(pins: Iterable[Pin], pip: list[str]) -> Iterator[tuple[Pin, str]]:
    """The licences of packages that are not installed, from their wheels, as far as those can be had here."""
    for pin in pins:
        with tempfile.TemporaryDirectory() as folder:
            order = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
            done = subprocess.run([*pip, *order, f"{pin.name}=={pin.version}"], capture_output=True, timeout=TIMEOUT_S)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode == 0 and wheels:
                yield pin, licence_in(wheels[0])


def licence_in(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(each for each in names if each.endswith(".dist-info/METADATA"))
        texts = [_words(archive.read(each).decode(errors="replace")) for each in names if _is_licence(each)]
        return licence_of(HeaderParser().parsestr(archive.read(metadata).decode()).items(), texts)


# Vulnerabilities.


class Vulnerabilities(NamedTuple):
    """What pip-audit found. `unknown` says why nothing, or not everything, could be asked."""

    findings: list[str]
    unknown: list[str]


def vulnerabilities(pins: Iterable[Pin], pip_audit: list[str]) -> Vulnerabilities:
    """pip-audit takes one version of a package at a time, so packages with several are asked about in rounds."""
    rounds: list[dict[str, Pin]] = []
    for pin in sorted(pins):
        fitting = next((each for each in rounds if pin.name not in each), None)
        if fitting is None:
            rounds.append(fitting := {})
        fitting[pin.name] = pin
    told = [_asked(each.values(), pip_audit) for each in rounds]
    findings = [one for each in told for one in each.findings]
    return Vulnerabilities(findings, [one for each in told for one in each.unknown])


def _asked(pins: Iterable[Pin], pip_audit: list[str]) -> Vulnerabilities:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{pin.name}=={pin.version}\n" for pin in pins)
        file.flush()
        order = [
            "--no-deps",
            "--disable-pip",
            "--format",
            "json",
            "--progress-spinner",
            "off",
            "--requirement",
            file.name,
        ]
        try:
            done = subprocess.run([*pip_audit, *order], capture_output=True, text=True, timeout=TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Vulnerabilities([], [str(error)])
    return read_report(done.stdout, done.stderr)


def read_report(out: str, err: str) -> Vulnerabilities:
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = [line for line in err.splitlines() if line.strip()]
        return Vulnerabilities([], [said[-1].strip() if said else "pip-audit gave no answer"])
    findings = [
        f"{each['name']} {each['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'no version'}"
        for each in packages
        for one in each.get("vulns", ())
    ]
    return Vulnerabilities(
        findings, [f"{each['name']}: {each['skip_reason']}" for each in packages if "skip_reason" in each]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dependencies", description=__doc__.splitlines()[0])
    parser.add_argument("--pip", default=f"{shlex.quote(sys.executable)} -m pip", help="how pip is called")
    arguments = parser.parse_args()

    files: dict[str, set[Pin]] = {}
    faults: list[str] = []
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        files[path.name], wrong = read_pins(path)
        faults += wrong
    faults += pin_faults(files, read_extras(PROJECT))
    pins = set().union(*files.values())

    licences = {pin: licence for pin, licence in installed_licences().items() if pin in pins}
    licences |= dict(fetched_licences(sorted(pins - licences.keys()), shlex.split(arguments.pip)))
    for pin in sorted(pins):
        licence = licences.get(pin)
        print(f"{pin.name} {pin.version}\t{licence or 'not checked: neither installed here nor to be had as a wheel'}")
        if licence is not None and not is_allowed(licence):
            faults.append(
                f"{pin.name} {pin.version} has the licence {licence!r}, which is not on the list of allowed ones"
            )

    told = vulnerabilities(pins, [sys.executable, "-m", "pip_audit"])
    if told.unknown:
        more = f" (and {len(told.unknown) - 1} more)" if len(told.unknown) > 1 else ""
        print(f"known vulnerabilities were not all checked: {told.unknown[0]}{more}", file=sys.stderr)
    faults += told.findings
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(pins)} packages in {len(files)} files, {len(licences)} licences read, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
