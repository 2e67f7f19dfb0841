"""Builds the site of the documentation: `make docs`.

The pages are plain Markdown in the repository, and read well there. This program copies them to build/pages with links
that fit the site's layout, lets Zensical build build/site as zensical.toml says, and writes what programs read beside
the pages: each page as .md, and llms.txt.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tests.docs import reference
from tests.docs.reader import ROOT

CONFIG = ROOT / "zensical.toml"
# Where the files outside docs/ stand on the site.
MOVED = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-reports.md",
    "LICENSE": "LICENSE",
}
SECTIONS = {"decisions": "Decisions", "examples": "Examples"}

_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)]*)?\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def place(path: str) -> str:
    """The place on the site of a file, given its path in the repository."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("examples/") and path.endswith("/README.md"):
        return path.removesuffix("README.md") + "index.md"
    return path.removeprefix("docs/")


def sources() -> dict[str, Path]:
    """The files of the site, by their place on it."""
    files = [*(ROOT / "docs").rglob("*"), *(ROOT / "examples").rglob("*"), *(ROOT / name for name in MOVED)]
    paths = [file for file in files if file.is_file() and "__pycache__" not in file.parts]
    return {place(path.relative_to(ROOT).as_posix()): path for path in sorted(paths)}


def prose(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a page, each with whether it is prose and not a code block."""
    for number, part in enumerate(_FENCED.split(text)):
        yield number % 2 == 0, part


def moved(text: str, source: Path) -> str:
    """The page with the links that lead to the same files from its place on the site."""
    here = PurePosixPath(place(source.relative_to(ROOT).as_posix())).parent

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if target.is_dir():
            target /= "index.md"
        to = os.path.relpath(place(target.relative_to(ROOT).as_posix()), here)
        return f"]({PurePosixPath(to).as_posix()}{match[2] or ''})"

    return "".join(_LINK.sub(link, part) if is_prose else part for is_prose, part in prose(text))


def title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").strip()


def summary(text: str) -> str:
    """The first sentence of a page, as plain text."""
    paragraphs = text.split("\n\n")[1:]
    first = next((each for each in paragraphs if not each.startswith(("!", "<", "|", "```", "#", "-"))), "")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split())).replace("**", "").replace("`", "")
    return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0].rstrip(":")


def contents(pages: dict[str, str], folder: str, name: str) -> str:
    """A page that lists the pages of a folder."""
    below = sorted(each for each in pages if each.startswith(f"{folder}/"))
    lines = [f"- [{title(pages[each])}]({each.removeprefix(folder + '/')})" for each in below]
    return "\n".join([f"# {name}", "", f"{len(below)} pages, one for each.", "", *lines, ""])


def navigation(entries: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """Every page of the navigation with its section, in order."""
    for entry in entries:
        if isinstance(entry, str):
            yield section, entry
        else:
            for name, below in entry.items():
                inner = [below] if isinstance(below, str) else below
                yield from navigation(inner, f"{section}: {name}" if section else name)


def project() -> dict[str, Any]:
    config: dict[str, Any] = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]
    return config


def pages() -> dict[str, str]:
    """Every page as it stands on the site, by its place."""
    texts = {
        where: moved(file.read_text(encoding="utf-8"), file)
        for where, file in sources().items()
        if where.endswith(".md")
    }
    texts |= reference.pages()
    for folder, name in SECTIONS.items():
        texts[f"{folder}/index.md"] = contents(texts, folder, name)
    return texts


def llms(texts: dict[str, str]) -> str:
    """llms.txt: the pages in the order of the navigation, each with its first sentence."""
    lines = [f"# {project()['site_name']}", "", f"> {project()['site_description']}"]
    last = ""
    for section, where in navigation(project()["nav"]):
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        lines.append(f"- [{title(texts[where])}]({where}): {summary(texts[where])}")
    return "\n".join([*lines, ""])


def write(folder: Path, texts: dict[str, str]) -> None:
    for where, text in texts.items():
        (folder / where).parent.mkdir(parents=True, exist_ok=True)
        (folder / where).write_text(text, encoding="utf-8")


def build(folder: Path) -> None:
    """Builds the site into folder/build, with the configuration of the repository."""
    staged, site = folder / project()["docs_dir"], folder / project()["site_dir"]
    for old in (staged, site):
        shutil.rmtree(old, ignore_errors=True)
    texts = pages()
    write(staged, texts)
    for where, file in sources().items():
        if not where.endswith(".md"):
            (staged / where).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, staged / where)
    if folder != ROOT:
        shutil.copyfile(CONFIG, folder / CONFIG.name)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=True)
    write(site, texts | {"llms.txt": llms(texts)})


if __name__ == "__main__":
    build(ROOT)
    print(f"the site is in {project()['site_dir']}")
