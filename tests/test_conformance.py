"""The requirement list and the tests' marks agree. The page may lag behind new tests; it names nothing unknown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import COLLECTED, PAGE, ROOT, Document, Marks, Requirement, faults, read_requirements, render

pytest_plugins = ["pytester"]

COUNTS = {"LW": 52, "VX": 19, "GR": 12, "GT": 16, "BB": 23}
LEVELS = {"must", "should", "optional", "ours"}


def test_every_requirement_is_listed_once_and_in_order():
    documents = read_requirements()
    assert {document.prefix: len(document.requirements) for document in documents} == COUNTS
    for document in documents:
        ids = [requirement.id for requirement in document.requirements]
        assert ids == [f"{document.prefix}-{number:02}" for number in range(1, COUNTS[document.prefix] + 1)]
        assert {requirement.level for requirement in document.requirements} <= LEVELS


def test_marks_name_known_requirements():
    assert faults(read_requirements(), COLLECTED) == []


@pytest.mark.soak
def test_the_command_checks_the_marks_of_all_tests():
    # In a process of its own: pytest does not collect inside a running collection.
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_names_known_requirements():
    known = {requirement.id for document in read_requirements() for requirement in document.requirements}
    named = set(re.findall(r"^\| ([A-Z]{2}-\d{2}) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named == known, "run `make conformance`"


def test_limits_are_those_of_known_lines(tmp_path: Path):
    limits = {each.id: each.limit for document in read_requirements() for each in document.requirements if each.limit}
    assert limits["LW-09"].startswith("Open jobs.")
    wrong = tmp_path / "requirements.toml"
    wrong.write_text('document = [{prefix = "AA", title = "A", lines = []}]\n[notes]\nAA-01 = "x"\n')
    with pytest.raises(ValueError, match="AA-01"):
        read_requirements(wrong)


DOCUMENTS = [
    Document("AA", "A document", (Requirement("AA-01", "must", "a | b", "some"), Requirement("AA-02", "ours", "c")))
]


def test_render_tells_shown_from_touched_and_names_what_is_missing():
    shown, both = "tests/test_x.py::test_one", {"tests/test_x.py::test_one", "tests/test_x.py::test_two"}
    page = render(DOCUMENTS, Marks(shown={"AA-01": {shown}}, touched={"AA-01": both}))
    assert "| AA-01 | must | a \\| b | some | `test_x.py::test_one` | 1 |" in page
    assert "| AA-02 | ours | c |  | not yet |  |" in page
    assert "| A document | 2 | 1 | 0 | 1 |" in page


def test_marks_that_claim_too_much_are_faults():
    assert faults(DOCUMENTS, Marks(shown={"AA-01": {"t"}}, touched={"AA-02": {"t"}})) == []
    unknown = faults(DOCUMENTS, Marks(shown={"AA-09": {"t"}}, touched={"AA-08": {"u"}}))
    assert [each.partition(":")[0] for each in unknown] == ["AA-08", "AA-09"]
    [module] = faults(DOCUMENTS, Marks(shown={"AA-01": {"t"}}, of_modules={"tests/test_x.py"}))
    assert "a module as a whole shows nothing" in module


def test_a_req_mark_on_a_module_is_found(pytester: pytest.Pytester):
    path = pytester.makepyfile(
        """
        import pytest
        pytestmark = [pytest.mark.req("AA-01"), pytest.mark.touches("AA-02")]
        @pytest.mark.req("AA-02")
        def test_one(): ...
        """
    )
    marks = Marks()
    pytester.inline_run("--collect-only", str(path), plugins=[marks])
    assert len(marks.of_modules) == 1 and set(marks.shown) == {"AA-01", "AA-02"} and set(marks.touched) == {"AA-02"}
