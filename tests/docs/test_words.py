"""Users read one word for the node that decides: coordinator. `arbiter` is a word of the code and of its decisions. The
page about a mesh begins with what most readers want.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Program
from tests.docs.reader import ROOT, blocks, commands

# Pages that say what the word of the code means, or quote names of tests and wordings of requirements.
EXEMPT = ("concepts.md", "conformance.md")
PAGES = [ROOT / "README.md", *sorted(each for each in (ROOT / "docs").glob("*.md") if each.name not in EXEMPT)]
ARBITER = re.compile("arbiter", re.IGNORECASE)


def strings(path: Path) -> Iterator[str]:
    """The sentences of a module that people can read: not its docstrings, which in `cli` are the help, and no names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    is_help = path.parent.name == "cli"
    first = [] if is_help else [node.body[0] for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    unread = {id(each.value) for each in first if isinstance(each, ast.Expr)}
    unread |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and not is_help}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unread:
            yield node.value


def test_no_message_and_no_help_says_arbiter() -> None:
    sources = sorted((ROOT / "src" / "hocket").rglob("*.py"))
    modules = [path for path in sources if ARBITER.search(path.read_text(encoding="utf-8"))]
    found = {(path.name, text) for path in modules for text in strings(path) if " " in text and ARBITER.search(text)}
    assert not found


def test_no_event_says_arbiter() -> None:
    modules = [each.read_text(encoding="utf-8") for each in (ROOT / "src/hocket/events").glob("*.py")]
    names = {name for module in modules for name in re.findall(r"^class (\w+)", module, re.MULTILINE)}
    assert not [each for each in names if ARBITER.search(each)]
    assert {"CoordinatorUnreachable", "CoordinatorFailed", "CoordinatorReachable"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_says_arbiter(page: Path) -> None:
    prose = re.sub("`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    assert not ARBITER.search(prose)


def test_no_json_says_it(tmp_path: Path) -> None:
    program = Program(tmp_path / "home")
    program("init", code=0)
    for command in (("rules", "show"), ("status",), ("coordinator",), ("doctor",)):
        assert not ARBITER.search(program(*command, "--json", code=None).out)
    assert program("rules", "show", "--json", code=0).json["extensions"]["coordinator"] is True


def test_the_page_about_a_mesh_begins_with_two_machines_and_a_result() -> None:
    page = ROOT / "docs" / "mesh.md"
    typed = [each for block in blocks(page) if block.language == "console" for each in commands(block)]
    first = [each for each in typed if each.line <= 120]
    steps = iter(
        [
            each.text.removeprefix("hocket ").removeprefix("--home gpu ").removeprefix("mesh ").split()[0]
            for each in first
        ]
    )
    assert all(step in steps for step in ("init", "serve", "invite", "join", "work", "submit", "jobs"))
    assert [line for each in first for line in each.shown].count('{"frame":7,"fence":1}') == 1
