"""The pages are followed to the letter: every python block runs, every console line is typed, and prints what the
page shows.
"""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.kernel.mesh_rules import HOCKET, STRICT, encode_rules, rules_hash
from tests.docs import reader
from tests.docs.reader import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LITERAL = [page for page in PAGES if any(block.language == "console" for block in reader.blocks(page))]
PROGRAMS = [page for page in PAGES if reader.program(page)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.touches("VX-01")
@pytest.mark.parametrize("page", LITERAL, ids=name)
def test_a_reader_can_follow_the_page(page: Path, tmp_path: Path):
    typed = [
        command for block in reader.blocks(page) if block.language == "console" for command in reader.commands(block)
    ]
    done = reader.shell(page, tmp_path, reader.environment(tmp_path))
    for command, code, output in done:
        where = f"{name(page)}:{command.line}: $ {command.text}\n{output}"
        assert code == 0, where
        assert not command.shown or reader.matches(command.shown, output), f"{where}\nbut the page shows\n" + "\n".join(
            command.shown
        )
    assert len(done) == len(typed), f"{name(page)}:{typed[len(done)].line}: $ {typed[len(done)].text}\ndid not end"


@pytest.mark.slow
@pytest.mark.touches("VX-01", "LW-41")
@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_the_python_on_the_page_runs(page: Path, tmp_path: Path):
    env = reader.environment(tmp_path)
    reader.shell(page, tmp_path, env) if page not in LITERAL else None
    home = Path(env["HOME"])
    subprocess.run(["hocket", "init"], cwd=home, env=env, check=True, timeout=reader.PATIENCE_S)
    for block in reader.blocks(page):
        if named := re.match(r"# ([\w./-]+\.py)\n", block.text):
            (home / named[1]).write_text(block.text)
    # The name that a traceback shows, so that its lines are the page's.
    script = home / f"{page.stem}.py"
    script.write_text(reader.program(page))
    ran = subprocess.run(
        [sys.executable, script], cwd=home, env=env, capture_output=True, text=True, timeout=reader.PATIENCE_S
    )
    assert ran.returncode == 0, f"{name(page)}\n{ran.stdout}\n{ran.stderr}"


_FIXED_PORT = re.compile(r"""(?:--port[ =]|127\.0\.0\.1:|localhost:|127\.0\.0\.1["'], )([1-9]\d*)""")


def test_a_page_that_is_typed_names_no_port_but_the_one_that_the_reader_replaces():
    ports = {
        (name(page), port)
        for page in LITERAL
        for block in reader.blocks(page)
        if block.language in ("console", "python")
        for port in _FIXED_PORT.findall(block.text)
    }
    assert ports == {("docs/webhooks.md", reader.WRITTEN_PORT)}


def test_the_pages_with_commands_are_the_ones_we_think():
    assert {"README.md", "docs/quickstart.md", "docs/mesh.md", "docs/cli.md"} <= {name(page) for page in LITERAL}


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [public for public in hocket.__all__ if not re.search(rf"\b{public}\b", text)] == []


def test_every_option_of_a_job_is_in_the_reference():
    from hocket.families.jobs.drafts import _OPTIONS

    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [option for option in _OPTIONS if f"| `{option}` |" not in text] == []


_BOUND = re.compile(r"^\| `([\w.]+)\.([A-Z0-9_]+)` \| ([0-9_.]+) \|", re.MULTILINE)
_NUMBER = re.compile(r"^([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = [0-9]|^([A-Z][A-Z0-9_]*) = \w+ \* ", re.MULTILINE)
# What a limit is called. Other numbers set the pace of the machinery.
_LIMIT = re.compile(r"_(MAX|MIN|DEFAULT)$")
# Numbers that are names or formats, not bounds.
NOT_BOUNDS = {
    *("APPLICATION_ID", "VERSION", "SCHEMA_VERSION", "EXTENSION_BASE", "INTERRUPTED", "PIPE_CLOSED", "MIB"),
    *("ORIGIN_BYTES", "KEY_BYTES", "SIGNATURE_BYTES", "ID_BYTES", "FORM", "NEVER", "U32_MAX", "U64_MAX"),
    *("SIGNATURE_CHARS", "SIGNATURE_END_CHARS", "DEBUG", "INFO", "WARNING", "ERROR", "NODE_AT", "HLC_BYTES", "GONE"),
    *("BARS_WIDTH", "BARS_HEIGHT", "MINUTE_MS", "UNAPPROVED_MS", "HASH_BYTES", "DAY_MS", "FORMAT", "INCREMENTAL"),
}


def bounds() -> dict[tuple[str, str], float]:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    return {(module, constant): float(value.replace("_", "")) for module, constant, value in _BOUND.findall(text)}


def test_the_bounds_on_the_page_are_the_bounds_in_the_code():
    wrong = {
        f"{module}.{constant}": (value, found)
        for (module, constant), value in bounds().items()
        if (found := getattr(importlib.import_module(f"hocket.{module}"), constant)) != value
    }
    assert bounds() and not wrong, "docs/limits.md says, the code says"


def unexplained(source: str, known: set[str]) -> list[str]:
    """The numbers of a module whose meaning stands neither among the known ones nor in a comment beside them."""
    lines = source.splitlines()
    missing = []
    for match in _NUMBER.finditer(source):
        at = source.count("\n", 0, match.start())
        has_reason = "#" in lines[at] or (at > 0 and lines[at - 1].startswith("#"))
        missing += [
            name
            for name in (match[1] or match[2]).split(", ")
            if name not in known and not (has_reason and not _LIMIT.search(name))
        ]
    return missing


def test_every_limit_is_on_the_page_and_every_number_has_its_reason():
    house = ROOT / "src" / "hocket"
    missing = []
    for path in sorted(house.rglob("*.py")):
        module = ".".join(path.relative_to(house).with_suffix("").parts).removesuffix(".__init__")
        if not module.startswith(("testing", "extensions.sim")):
            known = NOT_BOUNDS | {constant for place, constant in bounds() if place == module}
            missing += [f"{module}.{name}" for name in unexplained(path.read_text(encoding="utf-8"), known)]
    assert missing == [], "a limit needs its line in docs/limits.md, another number that or a comment beside it"


def test_a_number_without_a_reason_is_found():
    assert unexplained("A_MAX = 1  # why\nPACE_S = 2\n# why\nSTEP = 3\nPART = 4  # why", set()) == ["A_MAX", "PACE_S"]


@pytest.mark.req("LW-30")
def test_the_hashes_of_the_rules_are_on_the_page():
    text = (ROOT / "docs" / "wire-format.md").read_text(encoding="utf-8")
    assert rules_hash(STRICT).hex() in text and rules_hash(HOCKET).hex() in text
    assert f"{len(encode_rules(STRICT))} bytes" in text


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in [*PAGES, *(ROOT / "docs" / "decisions").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{name(page)}: {target}")
    assert broken == []
