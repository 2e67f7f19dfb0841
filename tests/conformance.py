"""The conformance page: which tests show which requirement.

`python -m tests.conformance` collects the suite, reads every `req` and `touches` mark, and writes docs/conformance.md
from docs/requirements.toml. With `--check` it writes nothing and fails only on marks that are wrong: those that name no
known requirement, and `req` marks on whole modules, which would claim too much. Collecting is pytest's own, so
parametrised and generated tests count like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "conformance.md"

Tests = dict[str, set[str]]


@dataclass(frozen=True)
class Requirement:
    id: str
    level: str
    text: str
    limit: str = ""


@dataclass(frozen=True)
class Document:
    prefix: str
    title: str
    requirements: tuple[Requirement, ...]


def read_preface() -> str:
    """What the page says before its tables."""
    preface: str = tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))["preface"]
    return preface


def read_requirements(path: Path = REQUIREMENTS) -> list[Document]:
    with path.open("rb") as file:
        data = tomllib.load(file)
    notes: dict[str, str] = data.get("notes", {})
    documents = [
        Document(
            entry["prefix"],
            entry["title"],
            tuple(Requirement(*line, limit=notes.pop(line[0], "")) for line in entry["lines"]),
        )
        for entry in data["document"]
    ]
    if notes:
        raise ValueError(f"{path.name} has notes on lines that it does not have: {', '.join(notes)}")
    return documents


@dataclass(eq=False)  # pytest hashes its plugins
class Marks:
    """Which tests show and which merely touch each requirement, and which modules claim one as a whole."""

    shown: Tests = field(default_factory=lambda: defaultdict(set))
    touched: Tests = field(default_factory=lambda: defaultdict(set))
    of_modules: set[str] = field(default_factory=set)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # "tests/kernel/test_clock.py::test_tick[3]" and "[4]" are one test to a reader.
        name = item.nodeid.split("[", 1)[0]
        for node, mark in item.iter_markers_with_node("req"):
            if isinstance(node, pytest.Module | pytest.Package):
                self.of_modules.add(node.nodeid)
            for requirement in mark.args:
                self.shown[requirement].add(name)
        for mark in item.iter_markers("touches"):
            for requirement in mark.args:
                self.touched[requirement].add(name)


COLLECTED = Marks()
"""The marks of the tests that this run of pytest has collected, those that it leaves out among them."""


class CollectionFailed(Exception):
    """Some test module does not import; a page written now would claim too little."""


def collect_marks() -> Marks:
    marks = Marks()
    output = io.StringIO()
    # Soak tests are collected, too.
    options = ["--collect-only", "-q", "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.redirect_stdout(output):
        code = pytest.main([*options, str(ROOT / "tests")], plugins=[marks])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise CollectionFailed(output.getvalue())
    return marks


def faults(documents: list[Document], marks: Marks) -> list[str]:
    """What is wrong with the marks, a sentence each."""
    known = {requirement.id for document in documents for requirement in document.requirements}
    named = {
        name: marks.shown.get(name, set()) | marks.touched.get(name, set()) for name in {*marks.shown, *marks.touched}
    }
    found = [
        f"{name}: no such requirement, named by {', '.join(sorted(where))}"
        for name, where in sorted(named.items())
        if name not in known
    ]
    return found + [
        f"{module}: a module as a whole shows nothing; mark the tests that do with req, and the module with touches"
        for module in sorted(marks.of_modules)
    ]


def render(documents: list[Document], marks: Marks) -> str:
    lines = [
        read_preface(),
        "| document | lines | shown by a test | touched only | neither |",
        "|---|---:|---:|---:|---:|",
    ]
    for document in documents:
        ids = [requirement.id for requirement in document.requirements]
        shown = sum(1 for each in ids if marks.shown.get(each))
        touched = sum(1 for each in ids if marks.touched.get(each) and not marks.shown.get(each))
        lines.append(f"| {document.title} | {len(ids)} | {shown} | {touched} | {len(ids) - shown - touched} |")
    for document in documents:
        lines += ["", f"## {document.title}", ""]
        lines += ["| id | level | requirement | limit | shown by | touched by |", "|---|---|---|---|---|---:|"]
        lines += [_row(requirement, marks) for requirement in document.requirements]
    return "\n".join(lines) + "\n"


def _row(requirement: Requirement, marks: Marks) -> str:
    shown = marks.shown.get(requirement.id, set())
    touched = marks.touched.get(requirement.id, set()) - shown
    shown_by = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in sorted(shown)) or "not yet"
    text, limit = (each.replace("|", "\\|") for each in (requirement.text, requirement.limit))
    return f"| {requirement.id} | {requirement.level} | {text} | {limit} | {shown_by} | {len(touched) or ''} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on marks that are wrong")
    arguments = parser.parse_args()

    documents = read_requirements()
    try:
        marks = collect_marks()
    except CollectionFailed as failure:
        print(f"{failure}\nThe tests could not be collected, so nothing was written.", file=sys.stderr)
        return 1
    if found := faults(documents, marks):
        print("\n".join(found), file=sys.stderr)
        return 1
    if not arguments.check:
        PAGE.write_text(render(documents, marks), encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {len(marks.shown)} requirements shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
