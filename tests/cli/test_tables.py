"""Tables on a terminal of 80 columns: every row on its line, no word broken, no column that tells nothing."""

import json

import pytest
from rich.console import Console

from hocket.cli.printing import drawn, lines_drawn

from .conftest import Program
from .test_program import on_a_terminal
from .test_shown import without_colours

LONG_KIND = "acme.render.preview.thumbnails-of-everything"
ERROR = "frame 7 has a width of 0 pixels, and the encoder at /srv/render/bin/encode refuses frames that are so narrow"
ADDRESS = "http://127.0.0.1:7315"
TASKS = f"""
import hocket

@hocket.job("{LONG_KIND}", retries=1, backoff="1ms")
def thumbnails(ctx, n):
    if n % 7 == 0:
        raise ValueError({ERROR!r})
    return n
"""


def on_80_columns(program: Program, *arguments: str) -> list[str]:
    lines = without_colours(on_a_terminal(program, *arguments, columns=80)).splitlines()
    assert all(len(line) <= 80 for line in lines), lines
    return lines


@pytest.fixture
def busy(hocket: Program) -> Program:
    """A home with 60 jobs of several kinds and states."""
    (hocket.home.parent / "tasks.py").write_text(TASKS)
    batch = [{"kind": LONG_KIND, "payload": {"n": n}} for n in range(40)]
    batch += [{"kind": "acme.mail", "priority": 5} for _ in range(19)] + [{"kind": "acme.mail", "not_before": "+3h"}]
    hocket("submit", "--batch", "-", input="\n".join(map(json.dumps, batch)), code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    return hocket


def test_jobs_fit_80_columns(busy: Program) -> None:
    head, rule, *rows, foot = on_80_columns(busy, "jobs")
    assert head.split() == ["job", "kind", "state", "tries", "prio", "when", "node", "note"]
    assert set(rule) == {"─"} and len(rows) == 50
    assert foot == "50 of 60; --limit N shows more"
    jobs = busy("jobs", "--json", code=0).json
    for row, job in zip(rows, jobs, strict=True):
        ending, kind, state, *rest = row.split()
        assert job["job_id"].endswith(ending) and len(ending) < 8
        assert kind == job["kind"] or (kind.startswith("acme.") and "…" in kind and kind.endswith("g"))
        assert state in ("succeeded", "failed", "pending", "delayed")
        assert state != "failed" or "ValueErr" in row
        assert state != "delayed" or rest[:1] == ["in"]
    assert busy.show(rows[0].split()[0])["job_id"] == jobs[0]["job_id"]


def test_columns_that_tell_nothing_are_left_out(busy: Program) -> None:
    head, _, row = on_80_columns(busy, "jobs", "--state", "pending", "--kind", "acme.mail", "--limit", "20")[:3]
    assert head.split() == ["job", "kind", "state", "prio", "when"] and row.split()[1] == "acme.mail"
    assert on_80_columns(busy, "jobs", "--kind", "acme") == [
        "no jobs of kind acme; `--kind acme.` lists the kinds below it"
    ]


def test_show_has_a_line_for_each_op(busy: Program) -> None:
    job_id = busy("jobs", "--outcome", "failed", "--limit", "1", "--json", code=0).json[0]["job_id"]
    lines = without_colours(on_a_terminal(busy, "show", job_id, columns=80)).splitlines()
    head, _, *ops = lines[lines.index("ops:") + 1 :]
    assert head.split() == ["seq", "time", "node", "op", "detail"]
    assert [line.split()[3] for line in ops] == ["ScheduleJob", *["ClaimWork", "FailWork"] * 2]
    assert all(len(line) <= 80 for line in ops) and "FailWork" in ops[-1] and ops[-1].endswith("…")


def rendered(columns: list[str], rows: list[tuple[str, ...]], width: int) -> str | None:
    console = Console(width=width, color_system=None)
    shown = drawn(columns, rows, width)
    if shown is None:
        return None
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_other_tables_wrap_between_words() -> None:
    rows = [("ok", "the first check", "a sentence of many words that takes more than one line"), ("bad", "second", "-")]
    shown = rendered(["", "check", "finding"], rows, 50)
    assert shown is not None
    words = shown.split()
    assert all(word in words for row in rows for word in " ".join(row).split())
    assert max(len(line) for line in shown.splitlines()) <= 50


def test_a_table_that_would_break_words_is_not_drawn() -> None:
    ids = "0" * 40
    assert rendered(["one", "two"], [(ids, ids)], 80) is None
    assert rendered(["one", "two"], [(ids, ids)], 82) is not None


def test_wide_characters_count_twice() -> None:
    console = Console(width=20, color_system=None)
    with console.capture() as captured:
        console.print(lines_drawn(["kind", "note"], [("仕事" * 10, "注" * 30)], 20, middle=("kind",)))
    assert len(captured.get().splitlines()) == 3


def test_fields_wrap_between_words(hocket: Program) -> None:
    shown = without_colours(
        on_a_terminal(hocket, "invite", "phone", "--worker", "acme.", "--address", ADDRESS, columns=80)
    )
    lines = shown.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("may "))
    assert all(len(line) <= 80 for line in lines[start:])
    may = " ".join(
        line.split(maxsplit=1)[1] if index == 0 else line.strip() for index, line in enumerate(lines[start:])
    )
    assert "read jobs of kind acme.*, artifacts of jobs of kind acme.*, delegations and routes" in may


def test_nodes_become_blocks_where_a_table_does_not_fit(hocket: Program) -> None:
    lines = on_80_columns(hocket, "mesh", "nodes")
    assert lines[0].split()[0] == "name" and any(line.startswith("standing  active") for line in lines)
