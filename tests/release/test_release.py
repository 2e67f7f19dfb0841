"""The list of what a release needs, and a release whose proof in-toto's libraries verify."""

import json
import shutil
from pathlib import Path

import pytest

from release.__main__ import make
from release.check import check
from release.sbom import read_packages, sbom, write
from tests.dependencies import REQUIREMENTS, read_pins

from .conftest import ROOT

ONE, OTHER = "aa" * 32, "bb" * 32
PINNED = f"""\
aa==1.0 \\
    --hash=sha256:{ONE} \\
    --hash=sha256:{OTHER}
    # via
    #   -c requirements/dev.txt
    #   hocket (pyproject.toml)
    #   bb
bb==2.0 ; python_full_version < '3.14' \\
    --hash=sha256:{ONE}
    # via hocket
"""


def test_a_list_says_who_asks_for_what(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text(PINNED)
    listed = sbom("9.0", file, {"aa"})
    assert [(each["purl"], each["scope"]) for each in listed["components"]] == [
        ("pkg:pypi/aa@1.0", "required"),
        ("pkg:pypi/bb@2.0", "optional"),
    ]
    first, second = listed["components"]
    assert [each["content"] for each in first["externalReferences"][0]["hashes"]] == [ONE, OTHER]
    assert second["properties"] == [{"name": "hocket:marker", "value": "python_full_version < '3.14'"}]
    assert {each["ref"]: each["dependsOn"] for each in listed["dependencies"]} == {
        "pkg:pypi/hocket@9.0": ["pkg:pypi/aa@1.0", "pkg:pypi/bb@2.0"],
        "pkg:pypi/aa@1.0": [],
        "pkg:pypi/bb@2.0": ["pkg:pypi/aa@1.0"],
    }
    assert sbom("9.0", file, {"aa"}) == listed
    assert sbom("9.1", file, {"aa"})["serialNumber"] != listed["serialNumber"]


def test_the_list_has_every_package_with_every_hash(tmp_path: Path) -> None:
    write(tmp_path / "sbom.json")
    listed = json.loads((tmp_path / "sbom.json").read_text())
    pins = read_pins(REQUIREMENTS / "all.txt")[0]
    assert {(each["name"], each["version"]) for each in listed["components"]} == {tuple(each) for each in pins}
    hashes = [digest for each in read_packages(REQUIREMENTS / "all.txt") for digest in each.hashes]
    assert len(hashes) == (REQUIREMENTS / "all.txt").read_text().count("--hash=sha256:")
    known = {each["bom-ref"] for each in listed["components"]} | {listed["metadata"]["component"]["bom-ref"]}
    assert {one for each in listed["dependencies"] for one in (each["ref"], *each["dependsOn"])} == known


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs the commit")
@pytest.mark.req("GT-12")
def test_a_release_is_proved_and_nothing_else_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_HOME", raising=False)
    out = tmp_path / "dist"
    key = make(out)
    names = sorted(check(out, key))
    assert names == ["hocket-0.1.0-py3-none-any.whl", "hocket-0.1.0.tar.gz", "hocket.cdx.json"]
    with pytest.raises(SystemExit, match="is not signed by"):
        check(out, "did:key:z6MktqFpSdNMowD8VV9uzYzPnt5yRUrUFhukGFjA144Ury8H")
    wheel = out / names[0]
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SystemExit, match="is not the file that the proof is about"):
        check(out, key)
    wheel.unlink()
    with pytest.raises(SystemExit, match="the proof is about"):
        check(out, key)
