"""The requirement list and the tests' marks agree. The page may lag behind new tests; it names nothing unknown."""

import re
import subprocess
import sys

from tests.conformance import PAGE, ROOT, Document, Requirement, read_requirements, render, unknown_ids

COUNTS = {"LW": 46, "VX": 18, "GR": 10, "GT": 15, "BB": 19}
LEVELS = {"must", "should", "optional", "ours"}


def test_every_requirement_is_listed_once_and_in_order():
    documents = read_requirements()
    assert {document.prefix: len(document.requirements) for document in documents} == COUNTS
    for document in documents:
        ids = [requirement.id for requirement in document.requirements]
        assert ids == [f"{document.prefix}-{number:02}" for number in range(1, COUNTS[document.prefix] + 1)]
        assert {requirement.level for requirement in document.requirements} <= LEVELS


def test_marks_name_known_requirements():
    # In a process of its own: pytest does not collect inside a running collection.
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_names_known_requirements():
    known = {requirement.id for document in read_requirements() for requirement in document.requirements}
    named = set(re.findall(r"^\| ([A-Z]{2}-\d{2}) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named == known, "run `make conformance`"


def test_render_shows_what_is_missing():
    documents = [
        Document("AA", "A document", (Requirement("AA-01", "must", "a | b"), Requirement("AA-02", "ours", "c")))
    ]
    page = render(documents, {"AA-01": {"tests/test_x.py::test_one"}})
    assert "| AA-01 | must | a \\| b | `test_x.py::test_one` |" in page
    assert "| AA-02 | ours | c | not yet |" in page
    assert "| A document | 2 | 1 |" in page
    assert unknown_ids(documents, {"AA-09": {"t"}, "AA-01": {"t"}}) == {"AA-09": {"t"}}
