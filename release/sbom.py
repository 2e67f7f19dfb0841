"""The list of what a release needs, as CycloneDX 1.6 in JSON, from the pinned requirements: `python release/sbom.py
OUT`. It has every package of `hocket[all]`, its files by their hashes, and what asks for it.
"""

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, RFC 9562


class Package(NamedTuple):
    name: str
    version: str
    marker: str
    hashes: list[str]
    asked_by: list[str]


def read_packages(requirements: Path) -> list[Package]:
    """What a file of requirements pins, as uv writes them."""
    found: list[Package] = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if named := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*(.*?))?\s*\\?$", line):
            found.append(Package(named[1], named[2], named[3] or "", [], []))
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            found[-1].hashes.append(digest[1])
        elif (by := re.match(r"    #(?: via)?\s+(\S+)", line)) and by[1] not in ("via", "-c"):
            found[-1].asked_by.append(by[1])
    return found


def sbom(version: str, requirements: Path, required: set[str]) -> dict[str, Any]:
    """Packages that are not `required` come with an extra."""
    packages = read_packages(requirements)
    own = f"pkg:pypi/hocket@{version}"
    asks: dict[str, list[str]] = {own: [], **{_purl(each): [] for each in packages}}
    by_name: dict[str, list[str]] = {"hocket": [own]}
    for each in packages:
        by_name.setdefault(each.name, []).append(_purl(each))
    for each in packages:
        for asker in (one for name in each.asked_by for one in by_name[name]):
            asks[asker].append(_purl(each))
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "hocket",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_component(each, is_required=each.name in required) for each in packages],
        "dependencies": [{"ref": asker, "dependsOn": sorted(asked)} for asker, asked in asks.items()],
    }
    # The same list has the same number.
    return {**made, "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps(made))}"}


def _purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package, *, is_required: bool) -> dict[str, Any]:
    files = [{"alg": "SHA-256", "content": each} for each in package.hashes]
    marked = [{"name": "hocket:marker", "value": package.marker}] if package.marker else []
    return {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        "scope": "required" if is_required else "optional",
        # Of each file of the package, as the registry has them.
        "externalReferences": [{"type": "distribution", "url": _purl(package), "hashes": files}],
        **({"properties": marked} if marked else {}),
    }


def write(out: Path) -> None:
    text = (ROOT / "src" / "hocket" / "kernel" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "([^"]+)"', text)
    assert version is not None
    base = {each.name for each in read_packages(ROOT / "requirements" / "base.txt")}
    listed = sbom(version[1], ROOT / "requirements" / "all.txt", base)
    out.write_text(json.dumps(listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
