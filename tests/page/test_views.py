"""What the page shows and does, read as a text browser reads it: without scripts, from plain HTML."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import segno

import hocket
from hocket.api.rows import ConflictShown
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.node.runtime import Runtime
from hocket.page.rendering import JSON_CHARS_MAX
from hocket.page.views.coordination import proposal
from tests.page.visitors import Shown, Visitor
from tests.server.served import Served
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client
from tests.server.test_worker_routes import Worker
from tests.waiting import wait_for

# What strangers could write where a text is shown.
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)> ' \" & </pre>{{ 7777*7777 }}"
HIDDEN = "\u202egnp.exe\u2066\u200b\x07\x1b[31m"
KIND = "acme.render"


@pytest.fixture(scope="module")
def visitor(served: Served) -> Visitor:
    return Visitor(served, "--agent", "ada")


@pytest.fixture(scope="module")
def jobs(served: Served) -> dict[str, str]:
    """A job in each state, by its state."""

    def run(ctx: hocket.Context, fails: bool = False, **values: Any) -> Any:
        if fails:
            raise RuntimeError(f"{MARKUP}{HIDDEN}")
        return {"text": MARKUP, "large": 2**63 + 1}

    job_type = hocket.job(KIND, retries=0)(run)
    with closing(hocket.open_sync(served.home)) as node:
        done = node.submit(job_type, note=f"{MARKUP}{HIDDEN}", large=2**70)
        failed = node.submit(job_type, fails=True)
        node.work([job_type], until_idle=True)
        ready = node.submit(hocket.kind("acme.later", tags=["team=video"]))
        blocked = node.submit(hocket.kind("acme.later", after=[ready.job_id]))
        cancelled = node.submit(hocket.kind("acme.later"))
        cancelled.cancel("no longer needed")
    made = {"succeeded": done, "failed": failed, "ready": ready, "blocked": blocked, "cancelled": cancelled}
    return {state: each.job_id for state, each in made.items()}


def fill(home: Path) -> None:
    """A lock, a dead message and an open conflict, with texts of strangers."""
    command(home, "lock", "acquire", "file:<b>src</b>.py", "--agent", "<i>editor", "--lease", "10m")
    command(home, "send", "reviewer", f"{MARKUP}{HIDDEN}")
    for _ in range(5):
        message = command(home, "inbox", "--agent", "reviewer", "--claim", "1").stdout.split("\t")[0]
        command(home, "nack", message, "--agent", "reviewer", "--reason", MARKUP)
    for text in (MARKUP, HIDDEN):
        command(home, "rows", "put", "memories", "sky", json.dumps({"text": text}), "--strategy", "manual")


@pytest.fixture(scope="module")
def shared(served: Served) -> None:
    fill(served.home)


def test_locks_messages_and_conflicts_are_shown_and_decided(visitor: Visitor, served: Served, shared: None):
    shown = visitor.get("/coordination")
    assert "file:<b>src</b>.py" in shown.text and "<i>editor" in shown.text and MARKUP in shown.text
    assert {"Break…", "Deliver again", "Take this…"} <= shown.verbs
    links = [named["href"] for tag, named in shown.tags if named.get("href", "").startswith("/messages/")]
    told = visitor.get(links[-1])
    assert MARKUP in told.text and "script" not in {tag for tag, named in told.tags if named.get("type") != "module"}
    done = visitor.send(visitor.send(shown.form("Break…")).form("Break"))
    assert "Broke the lock file:<b>src</b>.py." in done.text and "There are no locks." in done.text
    assert "Break…" not in done.verbs
    done = visitor.send(done.form("Deliver again"))
    assert "Deliver again" not in done.verbs
    done = visitor.send(visitor.send(done.form("Take this…")).form("Take this"))
    assert "Take this…" not in done.verbs
    row = json.loads(command(served.home, "rows", "get", "memories", "sky", "--json").stdout)
    assert row["value"] == {"text": HIDDEN}


def test_a_conflict_is_merged_by_hand(visitor: Visitor, served: Served, shared: None):
    for value in ('{"colour": "blue", "kept": 1}', '{"colour": "grey", "more": [2]}'):
        command(served.home, "rows", "put", "memories", "merged", value, "--strategy", "manual")
    forms = [each for each in visitor.get("/coordination").forms if each.verb == "Merge…"]
    form = next(each for each in forms if each.fields["conflict"] in open_conflicts(served, "merged"))
    assert visitor.send(form, value="{", confirmed="yes").status == 400
    # As browsers send it: with the ends of lines of forms.
    asked = visitor.send(form, value=json.dumps({"colour": MARKUP, "kept": 2**70}, indent=1).replace("\n", "\r\n"))
    assert "Make this the value of the row?" in asked.text and MARKUP[:20] in asked.text and "\\r" not in asked.text
    visitor.send(asked.form("Take this"))
    row = json.loads(command(served.home, "rows", "get", "memories", "merged", "--json").stdout)
    assert row["value"] == {"colour": MARKUP, "kept": 2**70} and open_conflicts(served, "merged") == []


def test_a_conflict_that_a_form_would_cut_is_merged_by_command(visitor: Visitor, served: Served):
    for name in ("left", "right"):
        value = json.dumps({name: "x" * (JSON_CHARS_MAX // 2)})
        command(served.home, "rows", "put", "memories", "long", value, "--strategy", "manual")
    (conflict,) = open_conflicts(served, "long")
    shown = visitor.get("/coordination")
    assert conflict not in {each.fields["conflict"] for each in shown.forms if each.verb == "Merge…"}
    assert conflict in {each.fields.get("conflict") for each in shown.forms if each.verb == "Take this…"}
    assert f"hocket rows conflicts resolve {conflict} @FILE" in shown.text
    command(served.home, "conflicts", "resolve", conflict, "--take", "left")


def open_conflicts(served: Served, key: str) -> list[str]:
    found = json.loads(command(served.home, "conflicts", "list", "--open", "--json").stdout)
    return [each["id"] for each in found if each["key"] == key]


@pytest.mark.parametrize(
    ("base", "left", "right", "together"),
    [
        (None, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 2}, {"a": 1, "b": 2}),
        ({"a": 0}, {"a": 1}, {"a": 2}, {"a": 1}),
        ({"a": 0, "b": 0}, {"b": 0}, {"a": 0, "b": 2}, {"b": 2}),
        ({"a": 0}, {}, {"a": 2}, {"a": 2}),
        (None, [1], {"b": 2}, [1]),
    ],
)
def test_the_proposed_merge_has_the_changes_of_both(base: Any, left: Any, right: Any, together: Any):
    texts = ("id", "memories", "sky", "manual", True, "ada", "node", None, 0)
    assert proposal(ConflictShown(*texts, left, False, right, False, base, None, "v")) == together


def test_the_log_is_verified(visitor: Visitor, served: Served):
    assert "Not verified since the server began" in visitor.get("/log").text
    visitor.send(visitor.get("/log").form("Verify"))
    wait_for(lambda: "Verifying since" not in visitor.get("/log").text, "the end of the check")
    shown = visitor.get("/log")
    ops = json.loads(command(served.home, "log", "verify", "--json").stdout)["ops"]
    assert re.search(rf"verified .{{1,8}} ago : {ops} ops", shown.text) and shown.form("Verify"), shown.text


def test_a_machine_is_invited_once_with_a_drawing(visitor: Visitor, served: Served, tmp_path: Path):
    form = visitor.get("/mesh").form("Invite")
    assert visitor.send(form).status == 400 and visitor.send(form, name="x", valid="soon").status == 400
    shown = visitor.send(form, name="gpu-box", worker="acme.", may="job:schedule", expires="30d")
    token = re.search(r"hocket mesh join (\S+)", shown.text)
    assert token is not None and "style" not in {name for _, named in shown.tags for name in named}
    (drawing,) = [named["d"] for tag, named in shown.tags if tag == "path"]
    dark = {(int(x), int(y)) for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", drawing)}
    wanted = segno.make(token[1], error="l").matrix_iter(border=4)
    assert dark == {(x, y) for y, row in enumerate(wanted) for x, is_dark in enumerate(row) if is_dark}
    again = visitor.get("/mesh")
    assert "gpu-box" in again.text and token[1] not in again.html and token[1] not in visitor.get("/").html
    joined = command(tmp_path / "other", "join", token[1])
    assert joined.returncode == 0, joined.stderr


def test_a_node_is_drained_and_resumed(visitor: Visitor, served: Served):
    asked = visitor.send(visitor.get("/mesh").form("Drain…"))
    done = visitor.send(asked.form("Drain"), reason="new disk")
    assert "new disk (by ada)" in done.text and "draining" in done.text
    assert "active" in visitor.send(done.form("Resume")).text


def test_the_log_goes_back_to_its_beginning(visitor: Visitor, served: Served, jobs: dict[str, str]):
    places: list[int] = []
    path = "/log"
    while path:
        shown = visitor.get(path)
        places += [int(named["id"].removeprefix("op-")) for tag, named in shown.tags if tag == "tr" and "id" in named]
        links = [named["href"] for _, named in shown.tags if named.get("rel") == "next"]
        path = links[0] if links else ""
    assert places == sorted(set(places), reverse=True) and places[-1] == 1
    logged = json.loads(command(served.home, "log", "--limit", "100000", "--json").stdout)
    assert set(places) <= {each["seq"] for each in logged} and jobs["failed"][-6:] in visitor.get("/log").text
    assert visitor.get("/log?before=x").status == 400 and visitor.get("/log?before=0").status == 400


def state_of(served: Served, job: str) -> str:
    return str(json.loads(command(served.home, "show", job, "--json").stdout)["state"])


def ids(shown: Shown) -> set[str]:
    return {
        attributes["id"].removeprefix("job-") for tag, attributes in shown.tags if tag == "tr" and "id" in attributes
    }


def test_foreign_text_is_text_everywhere(visitor: Visitor, jobs: dict[str, str]):
    for path in ("/", "/jobs", f"/jobs/{jobs['failed']}", f"/jobs/{jobs['succeeded']}", f"/jobs?error={MARKUP[:40]}"):
        shown = visitor.get(path.replace("<", "%3C").replace(">", "%3E").replace(" ", "+"))
        assert shown.status == 200
        scripts = [attributes for tag, attributes in shown.tags if tag == "script"]
        assert [each["type"] for each in scripts] == ["module"] and "img" not in {tag for tag, _ in shown.tags}
        assert not [a for _, attributes in shown.tags for a in attributes if a.startswith("on") or a == "style"]
        assert not re.search("[\u200b\u202a-\u202e\u2066-\u2069\x07\x1b]", shown.html)
    shown = visitor.get(f"/jobs/{jobs['failed']}")
    assert MARKUP in shown.text and "\\u202e" in shown.text and str(7777 * 7777) not in shown.text


def test_whole_numbers_stay_exact(visitor: Visitor, jobs: dict[str, str]):
    shown = visitor.get(f"/jobs/{jobs['succeeded']}")
    assert str(2**70) in shown.text and str(2**63 + 1) in shown.text


def test_the_first_view_counts_jobs_and_says_what_is_wrong(visitor: Visitor, jobs: dict[str, str], served: Served):
    shown = visitor.get("/")
    counts = json.loads(command(served.home, "status", "--json").stdout)["jobs"]
    for state, count in counts.items():
        assert re.search(rf"\b{count} \S+ {state}", shown.text), state
    assert "box (here)" in shown.text


def test_the_first_view_names_kinds_that_no_worker_serves(visitor: Visitor, jobs: dict[str, str]):
    assert "of acme.later is ready, and no worker serves that kind" in visitor.get("/").text
    assert f"of {KIND} is ready" not in visitor.get("/").text


@pytest.mark.parametrize("query", ["state={0}", "q=state:{0}"])
def test_jobs_are_found_by_state(visitor: Visitor, jobs: dict[str, str], query: str):
    for state, job in jobs.items():
        assert job in ids(visitor.get(f"/jobs?{query.format(state)}&id={job}"))
        other = "failed" if state != "failed" else "succeeded"
        assert job not in ids(visitor.get(f"/jobs?{query.format(other)}"))


def test_a_search_of_one_line_finds_by_kind_tag_error_time_and_id(visitor: Visitor, jobs: dict[str, str]):
    assert ids(visitor.get("/jobs?q=team%3Dvideo")) == set()
    assert ids(visitor.get("/jobs?q=tag:team%3Dvideo")) == {jobs["ready"]}
    assert ids(visitor.get("/jobs?q=kind:acme.later")) == {jobs["ready"], jobs["blocked"], jobs["cancelled"]}
    assert ids(visitor.get("/jobs?q=acme.")) == set(jobs.values())
    assert ids(visitor.get("/jobs?q=error:RuntimeError")) == {jobs["failed"]}
    assert ids(visitor.get("/jobs?q=since:1d+kind:acme.")) == set(jobs.values())
    assert ids(visitor.get("/jobs?q=until:1d+kind:acme.")) == set()
    assert ids(visitor.get(f"/jobs?q={jobs['ready'][-8:].lower()}")) == {jobs["ready"]}
    assert ids(visitor.get("/jobs?q=error:%22RuntimeError:+%3Cscript%22")) == {jobs["failed"]}
    assert ids(visitor.get("/jobs?q=error:%22RuntimeError:+%3Cother")) == set()


def test_a_search_finds_by_the_arguments_that_a_kind_declares(visitor: Visitor, served: Served):
    def run(ctx: hocket.Context, **values: Any) -> None: ...

    job_type = hocket.job("indexed.one", index=["frame", "camera.name"])(run)
    with closing(hocket.open_sync(served.home)) as node:
        earlier = node.submit(hocket.kind("indexed.one"), frame=7)
        node.work([job_type], until_idle=True)
        one = node.submit(hocket.kind("indexed.one"), frame=7, camera={"name": MARKUP}).job_id
        two = node.submit(job_type, frame=8, camera={"name": "front left"}).job_id
    assert ids(visitor.get("/jobs?q=args.frame:7")) == {one}
    assert ids(visitor.get("/jobs?arg=frame%3D7&kind=indexed.&state=ready")) == {one}
    assert ids(visitor.get("/jobs?arg=frame%3D7&state=running")) == set()
    assert ids(visitor.get("/jobs?q=args.camera.name:%22front+left%22")) == {two}
    assert "1 job matches" in visitor.get("/jobs?q=args.frame:8").text
    unknown = visitor.get("/jobs?q=args.user:%3Cb%3E42")
    assert "No job is found by the argument user" in unknown.text and ids(unknown) == set()
    assert visitor.get("/jobs?arg=frame").status == 400
    listed = command(served.home, "jobs", "--arg", "frame=7", "--json").stdout
    assert [each["job_id"] for each in json.loads(listed)] == [one]
    done = visitor.send(visitor.send(visitor.get("/jobs?q=args.frame:7").form("Cancel all…")).form("Cancel all"))
    assert "Cancelled 1 of 1 jobs." in done.text and state_of(served, two) == "pending"
    assert state_of(served, earlier.job_id) == "succeeded"


@pytest.mark.parametrize("query", ["state=sleeping", "since=soon", "submitter=nobody", "after=x", "id=" + "A" * 40])
def test_a_bad_filter_is_an_error_that_names_it(visitor: Visitor, query: str):
    shown = visitor.get(f"/jobs?{query}")
    name, _, value = query.partition("=")
    assert shown.status in (400, 404) and (value in shown.text or f"$.{name}" in shown.text)


def test_an_unknown_page_and_job_say_so(visitor: Visitor):
    assert visitor.get("/jobs/01M7SP0K1QY7PBSJAF8JX2N0G9").status == 404
    assert visitor.get("/assets/none.js").status == 404
    assert visitor.post("/", {}).status == 405
    assert visitor.get("/do/cancel_job").status == 405


def test_a_job_tells_its_story_and_why_it_waits(visitor: Visitor, jobs: dict[str, str]):
    story = visitor.get(f"/jobs/{jobs['succeeded']}").text
    assert [each for each in ("submitted", "claimed", "succeeded") if each in story.partition("What happened")[2]]
    assert "Why it does not run" in visitor.get(f"/jobs/{jobs['ready']}").text
    blocked = visitor.get(f"/jobs/{jobs['blocked']}")
    assert jobs["ready"][-6:] in blocked.text.partition("It waits for")[2].partition("This job")[0]
    ready = visitor.get(f"/jobs/{jobs['ready']}")
    assert jobs["blocked"][-6:] in ready.text.partition("These wait for it")[2].partition("What happened")[0]


def test_a_cancelled_job_asks_first_and_names_the_person(visitor: Visitor, served: Served, jobs: dict[str, str]):
    job = command(served.home, "submit", "acme.once", "{}").stdout.split()[-1]
    asked = visitor.send(visitor.get(f"/jobs/{job}").form("Cancel…"))
    assert asked.status == 200 and f"Cancel the job {job}?" in asked.text and state_of(served, job) == "pending"
    done = visitor.send(asked.form("Cancel"), reason=f"not needed {MARKUP}")
    assert f"Cancelled the job {job}." in done.text and state_of(served, job) == "cancelled"
    assert "Cancelled the job" not in visitor.get(f"/jobs/{job}").text
    assert "(by ada)" in done.text and done.form("Retry")
    assert "by ada" in visitor.send(done.form("Retry")).text.replace("(by ada)", "")
    assert state_of(served, job) == "pending"


def test_all_that_match_are_cancelled_after_a_question_with_their_number(visitor: Visitor, served: Served):
    made = [command(served.home, "submit", "bulk.one", "{}").stdout.split()[-1] for _ in range(3)]
    other = command(served.home, "submit", "bulk.two", "{}").stdout.split()[-1]
    asked = visitor.send(visitor.get("/jobs?kind=bulk.one").form("Cancel all…"))
    assert "Cancel 3 jobs?" in asked.text and {state_of(served, each) for each in made} == {"pending"}
    done = visitor.send(asked.form("Cancel all"))
    assert "Cancelled 3 of 3 jobs." in done.text
    assert {state_of(served, each) for each in made} == {"cancelled"} and state_of(served, other) == "pending"
    assert "Cancel all…" not in visitor.get("/jobs").verbs


def test_pages_are_turned_by_key(visitor: Visitor, served: Served):
    lines = "\n".join(json.dumps({"kind": "paged.one", "payload": {}}) for _ in range(205)).encode()
    (served.home.parent / "batch.jsonl").write_bytes(lines)
    command(served.home, "submit", "--batch", str(served.home.parent / "batch.jsonl"))
    seen: list[set[str]] = []
    path = "/jobs?kind=paged.one"
    while path:
        shown = visitor.get(path)
        seen.append(ids(shown))
        links = [attributes["href"] for tag, attributes in shown.tags if attributes.get("rel") == "next"]
        path = links[0] if links else ""
    assert [len(each) for each in seen] == [100, 100, 5] and len(set.union(*seen)) == 205


def test_the_assets_never_change_under_their_name(visitor: Visitor):
    shown = visitor.get("/")
    names = [a.get("src") or a.get("href", "") for tag, a in shown.tags if tag in ("script", "link")]
    assert len(names) == 3
    for name in names:
        answer = visitor.get(name).answer
        assert answer.status == 200 and "immutable" in answer.headers["cache-control"]


def test_a_pending_job_is_postponed_and_its_story_says_so(visitor: Visitor, served: Served, jobs: dict[str, str]):
    job = command(served.home, "submit", "moved.one", "{}").stdout.split()[-1]
    asked = visitor.send(visitor.get(f"/jobs/{job}").form("Postpone…"))
    assert f"Postpone the job {job}?" in asked.text and "in an hour" in asked.text
    done = visitor.send(asked.form("Postpone"), delay_ms="3600000", reason="no disk")
    assert "Moved the start of the job" in done.text and "not before" in done.text
    assert "postponed" in done.text.partition("What happened")[2] and "no disk (by ada)" in done.text
    asked = visitor.send(visitor.get("/jobs?kind=moved.one").form("Postpone all…"))
    assert "Postpone 1 job?" in asked.text
    assert "Moved the start of 1 of 1 jobs." in visitor.send(asked.form("Postpone all"), delay_ms="0").text
    assert json.loads(command(served.home, "show", job, "--json").stdout)["stage"] == "ready"
    assert "Postpone…" not in visitor.get(f"/jobs/{jobs['succeeded']}").verbs


def test_the_named_visitor_approves_or_refuses_and_no_other_is_asked(visitor: Visitor, served: Served):
    def asked(agent: str) -> str:
        return command(served.home, "submit", "gated.one", "{}", "--approval-by", agent).stdout.split()[-1]

    mine, other, refused = asked("ada"), asked("bob"), asked("ada")
    shown = visitor.get(f"/jobs/{other}")
    assert "waits for approval by bob" in shown.text and not {"Approve…", "Refuse…", "Postpone…"} & shown.verbs
    form = visitor.get(f"/jobs/{mine}").form("Approve…")
    forged = visitor.post("/do/approve_job", {**form.fields, "job": other, "confirmed": "yes"})
    assert forged.status == 403 and "waits for the approval of bob" in forged.text
    done = visitor.send(visitor.send(form).form("Approve"), reason="checked")
    assert f"Approved the job {mine}." in done.text and "approved by ada: checked" in done.text
    assert "Approve…" not in done.verbs
    question = visitor.send(visitor.get(f"/jobs/{refused}").form("Refuse…"))
    assert "It is cancelled." in question.text
    done = visitor.send(question.form("Refuse"), reason="not today")
    assert "refused by ada: not today" in done.text and state_of(served, refused) == "cancelled"


def test_the_owner_answers_what_a_job_asks(visitor: Visitor, served: Served):
    job = command(served.home, "submit", "asking.one", "{}").stdout.split()[-1]
    program = Client(served, "asker", "all")
    work = Worker(program, "asking.one")
    (held,) = work.claim()
    ask = {"question": "Which <b>one</b>?", "within_ms": 600_000}
    assert work.end(held, "ask", **ask).json["answer"] is None
    shown = visitor.get(f"/jobs/{job}")
    assert "waits for an answer by owner on this node" in shown.text and "Which <b>one</b>?" in shown.text
    refused = program("POST", f"/v1/jobs/{job}/answer", {"text": "mine"})
    assert refused.status == 403 and "waits for an answer by owner@" in refused.json["message"]
    done = visitor.send(shown.form("Answer"), text="the first")
    assert f"Answered what the job {job} asked." in done.text and "It asks" not in done.text
    assert work.end(held, "ask", **ask).json["answer"] == "the first"
    assert visitor.post("/do/answer_job", {**shown.form("Answer").fields, "text": "again"}).status == 409


def test_threads_are_listed_with_their_newest_message(visitor: Visitor, served: Served):
    first = command(served.home, "send", "thread-reader", "the question", "--agent", "asker").stdout.split()[0]
    command(served.home, "send", "asker", f"the answer {MARKUP}", "--agent", "thread-reader", "--reply-to", first)
    shown = visitor.get("/coordination")
    row = shown.html.partition(f'id="thread-{first}"')[2].partition("</tr>")[0]
    assert "the answer" in row and "the question" not in row and '<td class="number">2</td>' in row
    assert "the question" in visitor.get(f"/messages/{first}").text
    other = Visitor(served, "--may", "mesh:read", "--may", "inbox:read:someone-else")
    assert "the answer" not in other.get("/coordination").text
    assert "the answer" not in Visitor(served, "--may", "mesh:read").get("/coordination").text


def test_each_job_that_the_log_names_is_a_page(visitor: Visitor, served: Served, jobs: dict[str, str]):
    def run(ctx: hocket.Context) -> None:
        ctx.artifact(b"made", type="text.plain")

    job_type = hocket.job("logged.artifact")(run)
    with closing(hocket.open_sync(served.home)) as node:
        node.submit(job_type)
        node.work([job_type], until_idle=True)
    shown = visitor.get("/log")
    links = {named["href"] for tag, named in shown.tags if tag == "a" and named.get("href", "").startswith("/jobs/")}
    assert "artifact.created" in shown.text and links
    assert {visitor.get(each).status for each in links} == {200}


def test_a_node_that_calls_itself_markup_is_shown_by_its_id(visitor: Visitor, served: Served):
    name, guest = "<img/src=x onerror=alert(1)>", SigningKey(bytes(31) + b"g")
    with closing(Runtime.open(served.home)) as runtime:
        # Our own programs refuse such a name.
        now_s, user = runtime.log.physical() // 1000, runtime.home.user_key()
        token = issue(user, guest.public, [Capability("Job", "Read", {})], now_s - 60, None, name=name)
        runtime.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
    for path in ("/", "/mesh", "/log"):
        shown = visitor.get(path)
        assert "img" not in {tag for tag, _ in shown.tags} and name not in shown.text
    assert node_text(node_id(guest.public)) in visitor.get("/mesh").text


def test_what_was_done_is_told_to_the_person_and_not_to_a_script(visitor: Visitor, served: Served):
    job = command(served.home, "submit", "told.one", "{}").stdout.split()[-1]
    asked = visitor.send(visitor.get(f"/jobs/{job}").form("Cancel…"))
    assert visitor.post(asked.form("Cancel").action, asked.form("Cancel").fields).status == 303
    # Another tab of the browser loads itself again just then.
    assert "Cancelled the job" not in visitor.get("/", **{"X-Scripted": "1"}).text
    assert "Cancelled the job" in visitor.get(f"/jobs/{job}").text


def test_a_change_of_many_is_about_the_text_that_was_searched(visitor: Visitor, jobs: dict[str, str]):
    shown = visitor.get(f"/jobs?state=failed&error={quote(HIDDEN[:4])}")
    assert ids(shown) == {jobs["failed"]}
    asked = visitor.send(shown.form("Retry all…"))
    assert "Retry 1 job?" in asked.text
    assert asked.form("Retry all").fields["error"] == HIDDEN[:4]
