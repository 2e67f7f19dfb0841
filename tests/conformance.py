"""The conformance page: which tests show which requirement.

`python -m tests.conformance` collects the suite, reads every `req` mark, and writes docs/conformance.md from
docs/requirements.toml. With `--check` it writes nothing and fails only on marks that name no known requirement.
Collecting is pytest's own, so parametrised and generated tests count like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "docs" / "requirements.toml"
PAGE = ROOT / "docs" / "conformance.md"


@dataclass(frozen=True)
class Requirement:
    id: str
    level: str
    text: str


@dataclass(frozen=True)
class Document:
    prefix: str
    title: str
    requirements: tuple[Requirement, ...]


def read_requirements(path: Path = REQUIREMENTS) -> list[Document]:
    with path.open("rb") as file:
        data = tomllib.load(file)
    return [
        Document(entry["prefix"], entry["title"], tuple(Requirement(*line) for line in entry["lines"]))
        for entry in data["document"]
    ]


class MarkCollector:
    """A pytest plugin that notes the `req` marks of everything collected, soak tests included."""

    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # "tests/kernel/test_clock.py::test_tick[3]" and "[4]" are one test to a reader.
        name = item.nodeid.split("[", 1)[0]
        for mark in item.iter_markers("req"):
            for requirement in mark.args:
                self.tests[requirement].add(name)


class CollectionFailed(Exception):
    """Some test module does not import; a page written now would claim too little."""


def collect_marks() -> dict[str, set[str]]:
    collector = MarkCollector()
    output = io.StringIO()
    options = ["--collect-only", "-q", "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.redirect_stdout(output):
        code = pytest.main([*options, str(ROOT / "tests")], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise CollectionFailed(output.getvalue())
    return dict(collector.tests)


def unknown_ids(documents: list[Document], tests: dict[str, set[str]]) -> dict[str, set[str]]:
    known = {requirement.id for document in documents for requirement in document.requirements}
    return {name: where for name, where in tests.items() if name not in known}


def render(documents: list[Document], tests: dict[str, set[str]]) -> str:
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance` from `docs/requirements.toml` and the tests' `req` marks; do not edit by hand.",
        "Level: *must*, *should* and *optional* as the source document has it; *ours* goes beyond it.",
        "",
        "| document | lines | shown by a test |",
        "|---|---:|---:|",
    ]
    for document in documents:
        shown = sum(1 for requirement in document.requirements if tests.get(requirement.id))
        lines.append(f"| {document.title} | {len(document.requirements)} | {shown} |")
    for document in documents:
        lines += ["", f"## {document.title}", "", "| id | level | requirement | shown by |", "|---|---|---|---|"]
        for requirement in document.requirements:
            names = sorted(tests.get(requirement.id, ()))
            shown_by = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in names) or "not yet"
            text = requirement.text.replace("|", "\\|")
            lines.append(f"| {requirement.id} | {requirement.level} | {text} | {shown_by} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on unknown requirement ids")
    arguments = parser.parse_args()

    documents = read_requirements()
    try:
        tests = collect_marks()
    except CollectionFailed as failure:
        print(f"{failure}\nThe tests could not be collected, so nothing was written.", file=sys.stderr)
        return 1
    unknown = unknown_ids(documents, tests)
    for name, where in sorted(unknown.items()):
        print(f"{name}: no such requirement, named by {', '.join(sorted(where))}", file=sys.stderr)
    if unknown:
        return 1
    if not arguments.check:
        PAGE.write_text(render(documents, tests), encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {len(tests)} requirements shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
