"""What other nodes wrote, as it is shown here: it may be no JSON, nested without end, or made to drive a terminal."""

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import open as open_node
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft, Held
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy
from hocket.kernel.texts import clean, clean_json
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from tests.cli.conftest import Program
from tests.cli.test_program import on_a_terminal

# Erases the screen, the same by one character, turns the text round, is invisible, is half a character's worth of tags.
HOSTILE = "\x1b[2J \x9b2J \x7f \u202egnp.exe \u2066 \u200f \u2028 \u200b \ufeff \U000e0041 end"


def held_job(home: Path, note: bytes, payload: bytes = b"{}", error: str = "") -> str:
    """A job as another node might leave it: its holder's note, then its failure."""
    with Runtime.open(home) as runtime:
        held = runtime.log.run(lambda tx: _hold(tx, payload))
        if note:
            runtime.log.run(lambda tx: jobs.report(tx, held, note))
        if error:
            runtime.log.run(lambda tx: jobs.fail(tx, held, error, f"Traceback\n  {error}\n", retry=False))
        return ulid_text(held.job_id)


def _hold(tx: Transaction, payload: bytes) -> Held:
    job = claiming.take(tx, Draft("test.held", payload, Policy(open=True)), 1, 60_000).job
    assert job.claim_op is not None
    return Held(job.id, job.claim_op)


DEEP = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
NEARLY = b"[" * 900 + b"]" * 900
NOTES = {"bytes": b"\xff", "none": b"", "deep": DEEP, "nearly": NEARLY, "digits": b"9" * 5_000, "half": b'"\\ud800"'}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_no_note_and_no_payload_breaks_what_shows_it(hocket: Program, note: bytes) -> None:
    job_id = held_job(hocket.home, note, note)
    assert [each["job_id"] for each in hocket("jobs", "--json", code=0).json] == [job_id]
    assert job_id in hocket("jobs", code=0).out
    shown = hocket.show(job_id)
    assert job_id in hocket("show", job_id, code=0).out
    if note == b"\xff":
        assert shown["progress"] == shown["payload"] == {"hex": "ff"}
    if note == NEARLY:
        assert shown["progress"] == {"omitted": "it is nested more than 100 levels deep"}
    assert hocket("log", "--json", code=0).json


def test_what_a_handler_nests_deeply_comes_back_whole(hocket: Program) -> None:
    nested: object = 1
    for _ in range(300):
        nested = [nested]
    job_id = hocket.submit("test.echo", json.dumps({"nested": nested}))
    hocket("work", "tasks.py", "--until-idle", code=0)
    with open_node(hocket.home) as node:
        assert node.job(job_id).result(timeout=10) == {"nested": nested}
    assert hocket.show(job_id)["result"] == {"omitted": "it is nested more than 100 levels deep"}


TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def safe(text: str) -> bool:
    """By what Unicode itself says about characters."""
    return not any(
        (unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") and each not in "\r\n\t")
        or unicodedata.bidirectional(each) in TURNING
        or each in "\u200b\u200e\u200f\u061c\ufeff\U000e0041"
        for each in text
    )


def without_colours(text: str) -> str:
    """Less what rich itself writes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_hostile_text_reaches_no_terminal(hocket: Program) -> None:
    encoded = json.dumps(HOSTILE, ensure_ascii=False).encode()
    job_id = held_job(hocket.home, encoded, b'{"text":' + encoded + b"}", HOSTILE)
    for words in (("show", job_id), ("jobs",), ("log",)):
        for shown in (
            hocket(*words, code=0).out,
            without_colours(on_a_terminal(hocket, *words)),
            hocket(*words, "--json", code=0).out,
            without_colours(on_a_terminal(hocket, *words, "--json")),
        ):
            assert safe(shown), shown
    assert hocket.show(job_id)["error"] == HOSTILE and hocket.show(job_id)["progress"] == HOSTILE
    assert "\\x1b[2J \\x9b2J \\x7f \\u202egnp.exe" in hocket("show", job_id, code=0).out


def test_the_output_of_a_command_drives_a_terminal_only_if_asked_to(hocket: Program) -> None:
    hocket("run", "--detach", "--", "printf", r"\033[2J\302\2332J\342\200\256x\n\377", code=0)
    hocket("work", "--until-idle", code=0)
    job_id = hocket("jobs", "--json", code=0).json[0]["job_id"]
    assert on_a_terminal(hocket, "logs", job_id) == "\\x1b[2J\\x9b2J\\u202ex\r\n\\xff"


@given(st.text(), st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" ")))
def test_clean_text_is_safe_and_plain_text_stays(text: str, plain: str) -> None:
    assert safe(clean(text)) and safe(clean_json(json.dumps(text, ensure_ascii=False)))
    assert json.loads(clean_json(json.dumps(text, ensure_ascii=False))) == text
    assert clean(plain) == clean_json(plain) == plain
