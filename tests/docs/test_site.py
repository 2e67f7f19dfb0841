"""The documentation: each page is in the navigation of the site, its links lead somewhere, and its code can be read."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
import yaml

import hocket
from hocket.server.routes import ROUTES
from tests.docs import picture, reader, site
from tests.docs.reader import ROOT

PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in site.MOVED if name.endswith(".md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("README.md"))
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return site.pages()


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, made as GitHub and the site make them."""
    found: set[str] = set()
    for is_prose, part in site.prose(text):
        for heading in re.findall(r"^#+ (.*)$", part, re.MULTILINE) if is_prose else ():
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
            plain = unicodedata.normalize("NFKC", plain).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
            found.add(slug if slug not in found else f"{slug}-1")
    return found


def test_every_page_is_in_the_navigation_once(pages: dict[str, str]) -> None:
    listed = [where for _, where in site.navigation(site.project()["nav"])]
    assert len(listed) == len(set(listed))
    below = {where for where in pages if where.startswith(("decisions/", "examples/"))}
    missing = set(pages) - below - set(listed)
    assert not missing, "zensical.toml needs a line for each of these pages"
    assert set(listed) <= set(pages)


def test_every_page_begins_with_what_it_is_for(pages: dict[str, str]) -> None:
    listed = [where for _, where in site.navigation(site.project()["nav"])]
    assert [where for where in listed if not pages[where].startswith("# ")] == []
    assert [where for where in listed if len(site.summary(pages[where])) < 20] == []


READERS = r"those|people|programs|authors|readers|agents|owners|fleets|every (program|handler)"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_says_in_its_first_paragraph_whom_it_is_for(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n\n")[1]
    assert re.search(rf"\bfor ({READERS})\b", " ".join(first.split()), re.IGNORECASE), first


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_pictures_of_the_tour_show_what_it_printed_and_need_nothing_from_elsewhere() -> None:
    printed = (
        "home /tmp",
        "315 jobs are submitted",
        "log verified: " + "a" * 64,
        "gpu is killed",
        "53 runs for 52 jobs",
    )
    for name, lines in picture.pictures("\n".join([*printed, "Now two agents", "log of desk"])).items():
        assert not any("/tmp" in line or "aaaaaaaaa" in line for line in lines)
        for svg in (picture.draw(lines), (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")):
            assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", svg) == []
            assert lines[0].split()[-1] in svg


def test_programs_find_every_page(pages: dict[str, str]) -> None:
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): .+$", site.llms(pages), re.MULTILINE)
    assert listed == [where for _, where in site.navigation(site.project()["nav"])]


def test_links_lead_to_pages_and_headings_of_the_site(pages: dict[str, str]) -> None:
    files = set(site.sources()) | set(pages)
    known = {where: anchors(text) for where, text in pages.items()}
    broken = []
    for where, text in pages.items():
        for is_prose, part in site.prose(text):
            for target, anchor in LINK.findall(part) if is_prose else ():
                path = (ROOT / where).parent / target if target else ROOT / where
                to = PurePosixPath(path.resolve().relative_to(ROOT)).as_posix()
                if to not in files or (anchor and anchor not in known[to]):
                    broken.append(f"{where}: {target}#{anchor}")
    assert broken == []


def test_the_reference_has_every_name_command_and_route(pages: dict[str, str]) -> None:
    python, commands, routes = (pages[f"reference/{name}.md"] for name in ("python", "cli", "http"))
    assert set(hocket.__all__) <= set(re.findall(r"^## (\w+)$", python, re.MULTILINE))
    assert "### Node.submit_many\n" in python and "### Admin.schedule\n" in python and "append_plain" not in python
    assert {"submit", "log verify", "lock run"} <= set(re.findall(r"^## ([a-z -]+)$", commands, re.MULTILINE))
    assert {f"{route.method} {route.path}" for route in ROUTES} <= set(re.findall(r"^## (.*)$", routes, re.MULTILINE))


def unreadable(block: reader.Block) -> str | None:
    """Why the code of a block cannot be read, in the languages that Python or the shell can read."""
    text = block.text
    try:
        if block.language in ("python", "py"):
            ast.parse(text)
        elif block.language == "json" and "…" not in text:
            [json.loads(line) for line in text.splitlines()] if "\n{" in text else json.loads(text)
        elif block.language == "toml":
            tomllib.loads(text)
        elif block.language == "yaml":
            [*yaml.safe_load_all(text)]
        elif block.language == "sh":
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
            return done.stderr or None
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_on_the_page_can_be_read(page: Path) -> None:
    wrong = {block.line: why for block in reader.blocks(page) if (why := unreadable(block))}
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="`make docs` installs Zensical")
def test_the_site_can_be_built(pages: dict[str, str], tmp_path: Path) -> None:
    site.build(tmp_path)
    built = tmp_path / site.project()["site_dir"]
    for where in pages:
        assert (built / where).read_text(encoding="utf-8") == pages[where]
        assert (built / where).with_suffix(".html").is_file()
    assert "quickstart.md" in (built / "llms.txt").read_text(encoding="utf-8")
    found = json.loads((built / "search.json").read_text(encoding="utf-8"))
    assert any("ExpireWork" in json.dumps(item) for item in found["items"])
    shutil.rmtree(built)
