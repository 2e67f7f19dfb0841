"""The view of tempo and the sheet of scores, as a text browser reads them: without scripts, from plain HTML."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.extensions.tempo.score import read_score
from hocket.kernel import extension
from hocket.node.runtime import Runtime
from hocket.page.views import extension_views
from tests.page.tempo_home import SCORE, WINDOWS, fill_tempo
from tests.page.test_views import HIDDEN, MARKUP
from tests.page.visitors import Form, Shown, Visitor
from tests.server.served import Served, serving
from tests.server.served import hocket as command
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def tempo_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    home: Path = tmp_path_factory.mktemp("tempo") / "home"
    Runtime.init(home, name="box").close()
    return home, fill_tempo(home)


@pytest.fixture(scope="module")
def served_tempo(tempo_home: tuple[Path, str]) -> Iterator[Served]:
    with serving(tempo_home[0]) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(served_tempo: Served) -> Visitor:
    return Visitor(served_tempo, "--agent", "ada")


@pytest.fixture(scope="module")
def reader(served_tempo: Served) -> Visitor:
    return Visitor(served_tempo, "--read-only")


def test_without_the_extension_there_is_no_tab(monkeypatch: pytest.MonkeyPatch):
    extension_views.cache_clear()
    assert "Tempo" in {each.name for each in extension_views()}
    rest = {each.name: each for each in extension.extensions() if each.name != "tempo"}
    monkeypatch.setattr(extension, "_EXTENSIONS", rest)
    extension_views.cache_clear()
    assert extension_views() == ()
    monkeypatch.undo()
    extension_views.cache_clear()


@pytest.mark.req("BB-01", "BB-06", "BB-15")
def test_the_view_shows_beat_windows_and_figures_as_the_shell_does(visitor: Visitor, served_tempo: Served):
    shown = visitor.get("/tempo")
    assert re.search(r"Beat [1-8] of 8", shown.text) and "at 120 beats a minute" in shown.text
    told = json.loads(command(served_tempo.home, "report", "--window", str(WINDOWS), "--json").stdout)
    rows = [named["id"] for tag, named in shown.tags if tag == "tr" and named.get("id", "").startswith("window-")]
    assert len(rows) == WINDOWS == len(told["windows"])
    assert f"deliverables {told['kpis']['deliverables']} " in shown.text
    for each in told["alarms"]:
        assert each["alarm"] in shown.text
    sentence = next(named["aria-label"] for tag, named in shown.tags if tag == "svg" and "windows" in named["class"])
    tasks = sum(each["tasks"] for each in told["windows"])
    broken = sum(each["broken_promises"] for each in told["windows"])
    assert f"{tasks} tasks" in sentence and f"{broken} broken promises" in sentence


@pytest.mark.req("BB-08", "BB-14")
def test_the_view_shows_promises_budgets_and_costs_by_account(visitor: Visitor, tempo_home: tuple[Path, str]):
    shown = visitor.get("/tempo")
    promises = shown.text.partition("Promises of the last hour")[2].partition("Budgets of")[0]
    assert [each for each in promises.split() if each in ("open", "kept", "broken")] == ["broken", "kept", "open"]
    budgets = shown.text.partition("Budgets of")[2].partition("Costs by account")[0]
    assert tempo_home[1][-6:] in budgets and "0 of 8" in budgets and "ends at bar+4" in budgets
    told = json.loads(command(tempo_home[0], "cost", "--by", "account", "--json").stdout)

    def costs() -> str:
        return visitor.get("/tempo").text.partition("Costs by account")[2]

    wait_for(lambda: told["rows"][0]["name"] in costs(), "the server to count")
    assert f"{told['rows'][0]['cost']:.6g}" in costs() and told["total"]["cost"] > 0


def test_the_first_view_has_the_alarms_of_the_newest_window(visitor: Visitor):
    sentence = visitor.get("/").text.partition("need")[2]
    assert "raised promise_miss_rate and overrun_rate" in sentence
    assert "promise_miss_rate" not in Visitor(visitor.served, "--may", "mesh:read").get("/").text


def test_a_node_without_tempo_says_how_to_get_one(tmp_path: Path):
    Runtime.init(tmp_path / "home", name="box").close()
    with serving(tmp_path / "home", "--base-path", "/hocket") as served:
        visitor = Visitor(served)
        shown = visitor.get("/tempo")
        assert "This node has no tempo" in shown.text and "No window is on the log yet" in shown.text
        assert {"/hocket/tempo/score", "/hocket/tempo"} <= {named.get("href") for _, named in shown.tags}
        form = score_form(visitor.get("/tempo/score"))
        assert form.action == "/hocket/tempo/score"
        (served.home / "tempo.yaml").write_text("cluster_id: [1]\n")
        assert "Bad tempo policy" in visitor.get("/tempo").text


def test_foreign_text_is_text(visitor: Visitor):
    hostile = f'# {MARKUP}{HIDDEN}\nscore: {{phases: {{plan: 1}}, "{MARKUP[:20]}": 1}}\n'
    for shown in (visitor.get("/tempo"), checked(visitor, hostile)):
        assert shown.status == 200
        assert {named["type"] for tag, named in shown.tags if tag == "script"} == {"module"}
        assert "img" not in {tag for tag, _ in shown.tags}
        assert not [name for _, named in shown.tags for name in named if name.startswith("on") or name == "style"]
        assert not re.search("[\u200b\u202a-\u202e\u2066-\u2069\x07\x1b]", shown.html)
        assert MARKUP[:40] in shown.text and "{{ 7777*7777" in shown.text and "\\u202e" in shown.text


# The sheet.


def score_form(shown: Shown) -> Form:
    return next(each for each in shown.forms if each.action.endswith("/tempo/score"))


def checked(visitor: Visitor, text: str, **fields: str) -> Shown:
    form = score_form(visitor.get("/tempo/score"))
    key = form.fields["form_key"]
    return visitor.post(form.action, {"form_key": key, "score": text, **fields})


def text_of(shown: Shown) -> str:
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", shown.html, re.DOTALL)
    assert found is not None
    return found[1].replace("&#34;", '"').replace("&#39;", "'")


COMMENTED = """\
# the score of answers
score:
  phases:  # three of them
    plan: 2
    work: 4   # most of it
    review: 2
  # waits
  wait_budget: {help: 2, io: 1}  # beats
"""


@pytest.mark.req("BB-19")
def test_a_score_is_drawn_as_bars_and_beats(visitor: Visitor):
    shown = checked(visitor, json.dumps(SCORE))
    drawn = [named["aria-label"] for tag, named in shown.tags if tag == "g" and "data-cue" in named]
    assert drawn[:3] == ["plan: beats 1 to 2", "work: beats 3 to 6", "review: beats 7 to 8"]
    assert drawn[3] == "waits for help: 2 beats at most, anywhere in the phrase"
    assert drawn[5:8] == ["plan: beat 1", "work: beats 2 to 3", "review: beat 4"], "the second phrase is half as long"
    assert "fallback:coarse-answer" in shown.text and "the first phrase takes 4.0 s at most" in shown.text


@pytest.mark.req("BB-19")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        (COMMENTED.replace("work: 4", "work: 5"), "line 3: score.phases : they have 9 beats"),
        (COMMENTED.replace("help: 2", "help: x"), "line 8: score.wait_budget.help : 'x' is not allowed"),
        (COMMENTED.replace("plan", "plam"), "line 4: score.phases.plam : unknown field"),
        ("score: [", "the file cannot be read"),
        ("", "it is empty"),
    ],
)
def test_the_check_says_where_as_the_command_does(visitor: Visitor, tmp_path: Path, text: str, where: str):
    shown = checked(visitor, text)
    assert where in re.sub(r" +", " ", shown.text) and "drawn when the text is good" in shown.text
    assert text_of(shown) == text
    (tmp_path / "score.yaml").write_text(text)
    told = command(tmp_path, "score", "check", str(tmp_path / "score.yaml"))
    assert told.returncode == 1 and where.partition(":")[0] in told.stderr


@pytest.mark.req("BB-19")
def test_buttons_edit_the_text_and_keep_its_comments(visitor: Visitor):
    text = text_of(checked(visitor, COMMENTED.replace("\n", "\r\n"), edit="move:work:+1"))
    assert text == COMMENTED.replace("plan: 2", "plan: 3").replace("review: 2", "review: 1")
    text = text_of(checked(visitor, text, edit="grow:work:-2"))
    assert "    work: 2   # most of it\n" in text
    text = text_of(checked(visitor, text, edit="grow:help:+1"))
    assert "{help: 3, io: 1}  # beats" in text
    score = read_score(text.encode())
    assert (score.phases, score.wait_budget) == ({"plan": 3, "work": 2, "review": 1}, {"help": 3, "io": 1})


@pytest.mark.req("BB-19")
def test_fields_edit_the_text(visitor: Visitor):
    shown = checked(visitor, COMMENTED)
    form = score_form(shown)
    given = {"field tempo": "12", "field phases.plan": "", "field escalation.on_overrun": "checkpoint, fallback:less"}
    changed = checked(visitor, COMMENTED, **{**form.fields, **given}, do="apply")
    score = read_score(text_of(changed).encode())
    assert score.tempo == 12 and score.phases == {"work": 4, "review": 2}
    assert score.on_overrun == ("checkpoint", "fallback:less") and "# most of it" in text_of(changed)
    wrong = checked(visitor, COMMENTED, **{**form.fields, "field bar_len": "<b>"}, do="apply")
    assert "'<b>' is not a whole number" in wrong.text and text_of(wrong) == COMMENTED


@pytest.mark.req("BB-19")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("move:plan:+1", "Plan begins the bar"),
        ("move:review:+1", "no beat left after review"),
        ("grow:plan:-2", "keeps at least one beat"),
        ("grow:work:+9", "no beat left for work"),
        ("move:help:+1", "anywhere in the phrase"),
        ("drop:work:+1", "There is no change"),
    ],
)
def test_a_change_that_the_bar_has_no_room_for_is_refused_with_a_reason(visitor: Visitor, change: str, why: str):
    shown = checked(visitor, COMMENTED, edit=change)
    assert shown.status == 200 and why in shown.text and text_of(shown) == COMMENTED


@pytest.mark.req("BB-19")
def test_a_score_is_downloaded_as_it_stands(visitor: Visitor):
    answer = checked(visitor, COMMENTED, do="download").answer
    assert answer.body.decode() == COMMENTED
    assert answer.headers["content-disposition"] == 'attachment; filename="score.yaml"'
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.req("BB-19")
def test_a_job_is_submitted_with_the_score(visitor: Visitor, served_tempo: Served):
    form = checked(visitor, COMMENTED).form("Submit")
    done = visitor.send(form, kind="acme.answer", payload='{"question": "why"}')
    assert "Submitted the job" in done.text and "acme.answer" in done.text
    job = re.search(r"Submitted the job (\w{26})", done.text)
    assert job is not None
    told = json.loads(command(served_tempo.home, "show", job[1], "--json").stdout)
    assert told["payload"] == {"question": "why"}
    assert told["options"]["score"]["phases"] == {"plan": 2, "work": 4, "review": 2}
    opened = visitor.get(f"/tempo/score?job={job[1]}")
    assert read_score(text_of(opened).encode()).phases == {"plan": 2, "work": 4, "review": 2}
    bad = visitor.send(form, kind="acme.answer", payload="[1]")
    assert bad.status == 400 and "payload" in bad.text


@pytest.mark.req("BB-19")
def test_a_reader_edits_text_and_submits_nothing(reader: Visitor, visitor: Visitor, served_tempo: Served):
    shown = checked(reader, COMMENTED, edit="grow:work:-1")
    assert "work: 3" in text_of(shown) and "Submit" not in shown.verbs
    assert not {each.action for each in reader.get("/tempo").forms} - {"/leave", "/jobs"}
    before = command(served_tempo.home, "jobs", "--json").stdout
    fields = checked(visitor, COMMENTED).form("Submit").fields
    own = score_form(shown).fields["form_key"]
    forged = reader.post("/do/submit_job", {**fields, "form_key": own, "kind": "acme.answer"})
    assert forged.status == 403 and command(served_tempo.home, "jobs", "--json").stdout == before
    assert reader.post("/tempo/score", {"score": COMMENTED, "form_key": "0"}).status == 403
    assert reader.post("/tempo", {"form_key": own}).status == 405


def test_who_may_read_little_sees_little(served_tempo: Served, tempo_home: tuple[Path, str]):
    visitor = Visitor(served_tempo, "--may", "mesh:read")
    shown = visitor.get("/tempo")
    assert shown.status == 200 and tempo_home[1][-6:] not in shown.text and "window-" not in shown.html
    assert "may not read windows" in shown.text and "may not read costs" in shown.text
    assert visitor.get(f"/tempo/score?job={tempo_home[1]}").status == 403
