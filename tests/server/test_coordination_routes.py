"""The routes of locks, messages, rows, nodes and agents, over real sockets: what each does, and for whom."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.served import Answer, Served
from tests.server.test_tokens import made
from tests.waiting import wait_for as until


class Client:
    """A program with a token."""

    def __init__(self, served: Served, name: str, *may: str) -> None:
        self._served, self.name = served, name
        self.token = made(served.home, name, *may)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._served.ask(method, path, self.token, body, sent)


@pytest.fixture(scope="module")
def editor(served: Served) -> Client:
    return Client(served, "editor", "all")


@pytest.fixture(scope="module")
def tester(served: Served) -> Client:
    return Client(served, "tester", "all")


# Locks.


@pytest.mark.touches("VX-03")
def test_a_lock_is_acquired_shown_renewed_and_released(editor: Client):
    taken = editor("POST", "/v1/locks", {"keys": ["file:src/lib.rs"], "ttl_ms": 60_000})
    assert taken.status == 201
    lock = taken.json
    assert (lock["keys"], lock["agent"], lock["mode"], lock["node_name"]) == (
        ["file:src/lib.rs"],
        "editor",
        "exclusive",
        "box",
    )
    assert lock["fence"] > 0 and lock["expires_ms"] > lock["since_ms"]
    key = "/v1/locks/file%3Asrc%2Flib.rs"
    assert editor("GET", key).json["holders"] == [lock]
    assert lock in editor("GET", "/v1/locks").json["items"]
    renewed = editor("POST", f"{key}/renew", {"fence": lock["fence"], "ttl_ms": 90_000})
    assert renewed.status == 200 and renewed.json["expires_ms"] > lock["expires_ms"]
    done = editor("POST", f"{key}/release", {"fence": lock["fence"]})
    assert (done.status, done.body) == (204, b"")
    assert editor("GET", key).json["holders"] == []


@pytest.mark.touches("VX-04")
def test_a_held_lock_is_a_conflict_that_names_its_holder(editor: Client, tester: Client):
    lock = editor("POST", "/v1/locks", {"keys": ["held"]}).json
    refused = tester("POST", "/v1/locks", {"keys": ["held"]})
    assert (refused.status, refused.json["error"]) == (409, "conflict")
    assert "held by editor on box since" in refused.json["message"] and "until" in refused.json["message"]
    # Neither the fence nor the agent of another is of any use.
    assert tester("POST", "/v1/locks/held/release", {"fence": lock["fence"]}).status == 409
    stolen = tester("POST", "/v1/locks/held/release", {"fence": lock["fence"], "agent": "editor"})
    assert stolen.status == 403 and "speaks for the agent tester" in stolen.json["message"]
    for fence in (lock["fence"] + 1, 2**52):
        assert editor("POST", "/v1/locks/held/release", {"fence": fence}).status == 409
    for bad in (0, -1, 2**63, "1", 1.5, None):
        assert editor("POST", "/v1/locks/held/release", {"fence": bad}).status == 400
    broken = tester("POST", "/v1/locks/held/break", {"reason": "editor is on holiday"})
    assert broken.status == 200 and [each["agent"] for each in broken.json] == ["editor"]
    next_one = tester("POST", "/v1/locks", {"keys": ["held"]}).json
    assert next_one["fence"] > lock["fence"]
    assert tester("POST", "/v1/locks/held/release", {"fence": next_one["fence"]}).status == 204


@pytest.mark.touches("VX-06")
def test_a_request_waits_for_a_lock_and_gets_it_when_it_is_released(editor: Client, tester: Client):
    lock = editor("POST", "/v1/locks", {"keys": ["queue"]}).json
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(tester, "POST", "/v1/locks", {"keys": ["queue"], "wait_ms": 30_000})
        until(lambda: editor("GET", "/v1/locks/queue").json["waiting"])
        assert editor("POST", "/v1/locks/queue/release", {"fence": lock["fence"]}).status == 204
        got = waiting.result()
    assert got.status == 201 and got.json["agent"] == "tester" and got.json["fence"] > lock["fence"]
    assert tester("POST", "/v1/locks/queue/release", {"fence": got.json["fence"]}).status == 204


def test_a_wait_ends_with_a_conflict(editor: Client, tester: Client):
    lock = editor("POST", "/v1/locks", {"keys": ["patience"]}).json
    assert tester("POST", "/v1/locks", {"keys": ["patience"], "wait_ms": 300}).status == 409
    assert editor("GET", "/v1/locks/patience").json["waiting"] == []
    assert tester("POST", "/v1/locks", {"keys": ["patience"], "wait_ms": 50_001}).status == 400
    assert editor("POST", "/v1/locks/patience/release", {"fence": lock["fence"]}).status == 204


def test_many_programs_wait_for_locks_at_once_and_nobody_is_held_up(served: Served, editor: Client):
    """More of them than there are threads."""
    count = 40
    lock = editor("POST", "/v1/locks", {"keys": ["crowd"]}).json
    waiters = [f"editor/{n}" for n in range(count)]

    def turn(agent: str) -> int:
        got = editor("POST", "/v1/locks", {"keys": ["crowd"], "agent": agent, "wait_ms": 50_000})
        assert got.status == 201, got.body
        fence = int(got.json["fence"])
        assert editor("POST", "/v1/locks/crowd/release", {"fence": fence, "agent": agent}).status == 204
        return fence

    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(turn, agent) for agent in waiters]
        until(lambda: len(editor("GET", "/v1/locks/crowd").json["waiting"]) == count)
        assert editor("GET", "/v1/nodes").status == 200
        assert editor("PUT", "/v1/rows/crowd/row", {"value": 1}).status == 200
        assert editor("POST", "/v1/locks/crowd/release", {"fence": lock["fence"]}).status == 204
        fences = [each.result() for each in waiting]
    assert len(set(fences)) == count and min(fences) > lock["fence"]


def test_a_repeated_request_for_a_lock_gets_the_same_fence(editor: Client):
    first = editor("POST", "/v1/locks", {"keys": ["again"]}, Idempotency_Key="lock-1")
    again = editor("POST", "/v1/locks", {"keys": ["again"]}, Idempotency_Key="lock-1")
    assert first.status == again.status == 201 and first.json == again.json
    assert editor("POST", "/v1/locks/again/release", {"fence": first.json["fence"]}).status == 204


@pytest.mark.parametrize(
    "body",
    [
        {"keys": []},
        {"keys": [""]},
        {"keys": ["a\x00b"]},
        {"keys": ["x" * 10_000]},
        {"keys": ["a"], "ttl_ms": 0},
        {"keys": ["a"], "ttl_ms": 365 * 86_400_000},
        {"keys": ["a"], "ttl_ms": "abc"},
        {"keys": ["a"], "agent": ""},
        {"keys": "a"},
        {"key": "a"},
        {},
    ],
)
def test_bad_requests_for_locks(editor: Client, body: dict[str, Any]):
    answer = editor("POST", "/v1/locks", body)
    assert (answer.status, answer.json["error"]) == (400, "usage")


def test_a_token_locks_only_below_its_prefix(served: Served):
    narrow = Client(served, "narrow", "lock:acquire:file:src/")
    taken = narrow("POST", "/v1/locks", {"keys": ["file:src/a"]})
    assert taken.status == 201
    for keys in (["file:doc/a"], ["file:src/b", "file:doc/a"], ["file:**"]):
        assert narrow("POST", "/v1/locks", {"keys": keys}).status == 403
    assert narrow("POST", "/v1/locks/file%3Asrc%2Fa/break", {"reason": "x"}).status == 403
    assert narrow("GET", "/v1/locks").status == 200
    assert narrow("POST", "/v1/locks/file%3Asrc%2Fa/release", {"fence": taken.json["fence"]}).status == 204


@pytest.mark.req("LW-49")
def test_a_token_breaks_nothing_outside_of_its_prefix(served: Served, editor: Client):
    breaker = Client(served, "breaker", "lock:break:mine/")
    held = editor("POST", "/v1/locks", {"keys": ["mine/a", "theirs"], "ttl_ms": 60_000, "scope": "breaking"}).json
    refused = breaker("POST", "/v1/locks/mine%2Fa/break", {"reason": "stuck", "scope": "breaking"})
    assert refused.status == 403 and "also covers keys" in refused.json["message"]
    assert editor("GET", "/v1/locks/theirs?scope=breaking").json["holders"] == [held]
    editor("POST", "/v1/locks", {"keys": ["mine/b"], "ttl_ms": 60_000, "scope": "breaking"})
    ended = breaker("POST", "/v1/locks/mine%2Fb/break", {"reason": "stuck", "scope": "breaking"})
    assert ended.status == 200 and [each["keys"] for each in ended.json] == [["mine/b"]]


def test_a_token_locks_only_in_its_scopes(served: Served, editor: Client):
    scoped = Client(served, "scoped", "lock@repo:acquire:src/", "lock@docs:acquire", "lock@docs:break")
    for scope, key, status in (
        ("repo", "src/a", 201),
        ("repo", "other", 403),
        ("docs", "other", 201),
        ("", "src/a", 403),
        ("else", "src/a", 403),
    ):
        assert scoped("POST", "/v1/locks", {"keys": [key], "ttl_ms": 60_000, "scope": scope}).status == status
    assert [each["keys"] for each in scoped("GET", "/v1/locks?scope=repo").json["items"]] == [["src/a"]]
    for path in ("/v1/locks", "/v1/locks?scope=else", "/v1/locks/src%2Fa"):
        assert scoped("GET", path).status == 403
    assert scoped("GET", "/v1/locks/src%2Fa?scope=repo").json["holders"][0]["agent"] == "scoped"
    body = {"reason": "stuck"}
    assert scoped("POST", "/v1/locks/src%2Fa/break", body | {"scope": "repo"}).status == 403
    assert scoped("POST", "/v1/locks/other/break", body | {"scope": "docs"}).status == 200


def test_a_key_in_another_form_is_not_below_the_prefix(served: Served):
    """It is locked as one letter with its accent, which does not begin with the letter alone."""
    narrow = Client(served, "letters", "lock:acquire:file:e")
    assert narrow("POST", "/v1/locks", {"keys": ["file:e\u0301tude"]}).status == 403
    assert narrow("POST", "/v1/locks/file%3Ae%CC%81tude/release", {"fence": 1}).status == 403


# Messages.


@pytest.mark.touches("VX-10")
def test_a_message_is_sent_claimed_and_acknowledged(editor: Client, tester: Client):
    sent = editor("POST", "/v1/inbox", {"to": "tester", "body": "please test", "type": "request"})
    assert sent.status == 201
    message = sent.json
    assert message["from"] == "editor@box" and message["to"] == "tester"
    assert [each["id"] for each in tester("GET", "/v1/inbox").json["items"]] == [message["id"]]
    (held,) = tester("POST", "/v1/inbox/claim", {"count": 5, "lease_ms": 60_000}).json
    assert (held["id"], held["body"], held["tries"]) == (message["id"], "please test", 1) and held["lease_until"]
    path = f"/v1/inbox/{message['id']}"
    # Only the holder acknowledges.
    assert editor("POST", f"{path}/ack", {}).status == 409
    assert editor("POST", f"{path}/ack", {"agent": "tester"}).status == 403
    assert tester("POST", f"{path}/ack", {}).status == 204
    assert tester("POST", f"{path}/ack", {}).status == 409
    assert tester("POST", "/v1/inbox/claim", {}).json == []


def test_a_returned_message_comes_again_and_a_thread_is_shown_in_order(editor: Client, tester: Client):
    first = editor("POST", "/v1/inbox", {"to": "tester", "body": "one"}).json
    assert tester("POST", "/v1/inbox/claim", {}).json[0]["id"] == first["id"]
    path = f"/v1/inbox/{first['id']}"
    assert tester("POST", f"{path}/nack", {"reason": "not now"}).status == 204
    (again,) = tester("POST", "/v1/inbox/claim", {}).json
    assert (again["id"], again["tries"]) == (first["id"], 2)
    reply = tester("POST", "/v1/inbox", {"to": "editor", "body": "two", "reply_to": first["id"]}).json
    assert tester("POST", f"{path}/ack", {}).status == 204
    thread = f"/v1/inbox/{reply['id']}/thread"
    assert [each["body"] for each in editor("GET", thread).json["items"]] == ["one", "two"]
    page = editor("GET", f"{thread}?limit=1").json
    assert [each["body"] for each in page["items"]] == ["one"]
    rest = editor("GET", f"{thread}?limit=1&after={page['next']}").json
    assert [each["body"] for each in rest["items"]] == ["two"] and rest["next"] is None
    assert editor("POST", "/v1/inbox/claim", {}).json[0]["id"] == reply["id"]
    assert editor("POST", f"/v1/inbox/{reply['id']}/ack", {}).status == 204


def test_a_message_that_was_returned_too_often_is_dead_and_can_be_retried(editor: Client, tester: Client):
    sent = editor("POST", "/v1/inbox", {"to": "tester", "body": "poison"}).json
    path = f"/v1/inbox/{sent['id']}"
    while tester("POST", "/v1/inbox/claim", {}).json:
        assert tester("POST", f"{path}/nack", {}).status == 204
    assert [each["id"] for each in tester("GET", "/v1/inbox/dead").json["items"]] == [sent["id"]]
    assert tester("POST", f"{path}/retry", {}).status == 200
    assert tester("POST", f"{path}/retry", {}).status == 409
    assert tester("POST", "/v1/inbox/claim", {}).json[0]["id"] == sent["id"]
    assert tester("POST", f"{path}/ack", {}).status == 204


def test_a_message_carries_any_bytes_and_attachments(editor: Client, tester: Client):
    content = bytes(range(256))
    sent = editor(
        "POST",
        "/v1/inbox",
        {
            "to": "tester",
            "body_base64": base64.b64encode(content).decode(),
            "attachments": [{"name": "a.bin", "content_base64": base64.b64encode(b"hello").decode()}],
        },
    )
    assert sent.status == 201
    (held,) = tester("POST", "/v1/inbox/claim", {}).json
    assert held["body"] is None and base64.b64decode(held["body_base64"]) == content
    assert [(each["name"], each["size"]) for each in held["attachments"]] == [("a.bin", 5)]
    assert tester("POST", f"/v1/inbox/{held['id']}/ack", {}).status == 204


def test_a_repeated_message_is_sent_once(editor: Client, tester: Client):
    asked = {"to": "tester", "body": "once"}
    sent = [editor("POST", "/v1/inbox", asked, Idempotency_Key="once").json["id"] for _ in range(3)]
    assert len(set(sent)) == 1 and len(tester("GET", "/v1/inbox").json["items"]) == 1
    tester("POST", "/v1/inbox/claim", {})
    assert tester("POST", f"/v1/inbox/{sent[0]}/ack", {}).status == 204


def test_answers_with_large_messages_end_early(editor: Client, tester: Client):
    large = "x" * 1_000_000
    sent = [editor("POST", "/v1/inbox", {"to": "tester", "body": large}).json["id"] for _ in range(20)]
    page = tester("GET", "/v1/inbox?limit=1000").json
    assert len(page["items"]) == 16
    rest = tester("GET", f"/v1/inbox?limit=1000&after={page['next'].replace(' ', '%20')}").json
    assert [each["id"] for each in page["items"] + rest["items"]] == sent and rest["next"] is None
    claimed = tester("POST", "/v1/inbox/claim", {"count": 1000}).json
    claimed += tester("POST", "/v1/inbox/claim", {"count": 1000}).json
    assert [each["id"] for each in claimed] == sent
    for each in sent:
        assert tester("POST", f"/v1/inbox/{each}/ack", {}).status == 204


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"body": "to nobody"}, 400),
        ({"to": "", "body": "x"}, 400),
        ({"to": "a b", "body": "x"}, 400),
        ({"to": "a@nowhere", "body": "x"}, 404),
        ({"to": "a", "body": "x", "body_base64": "eA=="}, 400),
        ({"to": "a", "body_base64": "!"}, 400),
        ({"to": "a", "body": "x" * (1024 * 1024 + 1)}, 400),
        ({"to": "a", "body": "x", "ttl_ms": 0}, 400),
        ({"to": "a", "body": "x", "reply_to": "01JZZZZZZZZZZZZZZZZZZZZZZZ"}, 404),
    ],
)
def test_bad_messages(editor: Client, body: dict[str, Any], status: int):
    assert editor("POST", "/v1/inbox", body).status == status


def test_a_token_reads_and_sends_only_within_its_prefix(served: Served, editor: Client):
    narrow = Client(served, "mail", "inbox:claim:mail", "inbox:write:team/")
    assert narrow("POST", "/v1/inbox", {"to": "team/", "body": "x", "ttl_ms": 1_000}).status == 201
    assert narrow("POST", "/v1/inbox", {"to": "all", "body": "x"}).status == 403
    assert narrow("GET", "/v1/inbox").status == 200
    assert narrow("GET", "/v1/inbox?agent=editor").status == 403
    secret = editor("POST", "/v1/inbox", {"to": "somebody", "body": "secret"}).json
    assert narrow("GET", f"/v1/inbox/{secret['id']}/thread").json == {"items": [], "next": None}
    assert narrow("POST", f"/v1/inbox/{secret['id']}/retry", {}).status == 403


# Rows.


@pytest.mark.touches("VX-12")
def test_a_row_is_written_read_listed_and_deleted(editor: Client):
    path = "/v1/rows/memories/people%2Fada"
    made_row = editor("PUT", path, {"value": {"born": 1815}})
    assert made_row.status == 200 and made_row.json["outcome"] == "written"
    row = editor("GET", path).json
    assert (row["table"], row["key"], row["value"], row["agent"]) == (
        "memories",
        "people/ada",
        {"born": 1815},
        "editor",
    )
    changed = editor("PUT", path, {"value": {"born": 1815, "died": 1852}, "version": row["version"]})
    assert changed.status == 200
    listed = editor("GET", "/v1/rows/memories?prefix=people/").json
    assert [each["value"] for each in listed["items"]] == [{"born": 1815, "died": 1852}] and listed["next"] is None
    version = changed.json["row"]["version"].replace("+", "%2B").replace(":", "%3A").replace("@", "%40")
    assert editor("DELETE", f"{path}?version={version}").status == 200
    assert editor("GET", path).status == 404


@pytest.mark.touches("VX-12")
def test_a_write_of_an_old_version_is_a_conflict_that_can_be_resolved(editor: Client, tester: Client):
    path = "/v1/rows/memories/contested"
    version = editor("PUT", path, {"value": "a"}).json["row"]["version"]
    assert editor("PUT", path, {"value": "b", "version": version}).status == 200
    late = tester("PUT", path, {"value": "c", "version": version, "strategy": "manual"})
    assert (late.status, late.json["error"]) == (409, "conflict")
    assert editor("GET", path).json["value"] == "b"
    (conflict,) = tester("GET", "/v1/conflicts?open_only=true").json["items"]
    assert (conflict["left"], conflict["right"], conflict["base"]) == ("c", "b", "a")
    assert conflict["id"] in late.json["message"]
    assert tester("GET", f"/v1/conflicts/{conflict['id']}").json == conflict
    assert tester("POST", f"/v1/conflicts/{conflict['id']}/resolve", {}).status == 400
    solved = tester("POST", f"/v1/conflicts/{conflict['id']}/resolve", {"value": "b and c"})
    assert solved.status == 200 and editor("GET", path).json["value"] == "b and c"
    assert tester("GET", "/v1/conflicts?open_only=true").json["items"] == []


def test_pages_of_rows_have_each_of_them_once(editor: Client):
    for number in range(7):
        assert editor("PUT", f"/v1/rows/pages/{number}", {"value": number}).status == 200
    seen: list[int] = []
    after = ""
    while True:
        page = editor("GET", f"/v1/rows/pages?limit=3{after}").json
        seen += [each["value"] for each in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == list(range(7))
    assert editor("GET", "/v1/rows/pages?after=").status == 400


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/rows/t/k", {}, 400),
        ("/v1/rows/t/k", {"value": 1, "version": "abc"}, 400),
        ("/v1/rows/t/k", {"value": 1, "strategy": "mine"}, 400),
        ("/v1/rows/t/k", {"value": "x" * 70_000}, 400),
        ("/v1/rows/t/%00", {"value": 1}, 400),
        ("/v1/rows/" + "t" * 65 + "/k", {"value": 1}, 400),
        ("/v1/rows/a%2Fb/k", {"value": 1}, 400),
        ("/v1/rows/t/" + "k" * 10_000, {"value": 1}, 400),
    ],
)
def test_bad_rows(editor: Client, path: str, body: dict[str, Any], status: int):
    assert editor("PUT", path, body).status == status


def test_a_token_writes_only_rows_below_its_prefix(served: Served, editor: Client):
    narrow = Client(served, "scribe", "row:write:memories/")
    assert narrow("PUT", "/v1/rows/memories/x", {"value": 1}).status == 200
    assert narrow("PUT", "/v1/rows/secrets/x", {"value": 1}).status == 403
    assert narrow("GET", "/v1/rows/memories").status == 200
    assert narrow("GET", "/v1/rows/secrets").status == 403
    version = editor("PUT", "/v1/rows/secrets/y", {"value": 1}).json["row"]["version"]
    editor("PUT", "/v1/rows/secrets/y", {"value": 2, "version": version})
    editor("PUT", "/v1/rows/secrets/y", {"value": 3, "version": version, "strategy": "manual"})
    (conflict,) = editor("GET", "/v1/conflicts?open_only=true").json["items"]
    assert narrow("GET", "/v1/conflicts").json["items"] == []
    assert narrow("GET", f"/v1/conflicts/{conflict['id']}").status == 403
    assert narrow("POST", f"/v1/conflicts/{conflict['id']}/resolve", {"take": "left"}).status == 403


# Nodes and agents.


@pytest.mark.touches("VX-11")
def test_nodes_and_agents_are_listed(served: Served, editor: Client, tester: Client):
    (node,) = editor("GET", "/v1/nodes").json["items"]
    assert editor("GET", "/v1/nodes/box").json == editor("GET", f"/v1/nodes/{node['node']}").json == node
    (live,) = editor("GET", "/v1/nodes/live").json["items"]
    assert (live["node"], live["grade"], live["here"]) == (node["node"], "live", True)
    said = editor("POST", "/v1/agents", {"doing": "editing src/lib.rs"})
    assert said.status == 200
    held = tester("POST", "/v1/locks", {"keys": ["file:secret"]}).json
    shown = {each["name"]: each["doing"] for each in editor("GET", "/v1/agents").json["items"]}
    assert shown["editor"].startswith("editing src/lib.rs") and "holds file:secret until " in shown["tester"]
    # Who may not read locks and messages is not told of them.
    plain = Client(served, "plain", "mesh:read")("GET", "/v1/agents").json["items"]
    assert [(each["name"], each["doing"]) for each in plain] == [("editor", "editing src/lib.rs")]
    tester("POST", "/v1/locks/file%3Asecret/release", {"fence": held["fence"]})


def test_a_node_is_drained_and_resumed(editor: Client):
    for verb, state in {"drain": "draining", "quarantine": "quarantined", "resume": "active"}.items():
        done = editor("POST", f"/v1/nodes/here/{verb}", {"reason": "upgrade"})
        assert (done.status, done.json["availability"]["state"]) == (200, state)
    assert editor("POST", "/v1/nodes/nobody/drain", {}).status == 404


def test_answers_are_the_answers_of_the_command_line(served: Served, editor: Client):
    from tests.server.served import hocket

    shown = json.loads(hocket(served.home, "nodes", "--json").stdout)
    assert editor("GET", "/v1/nodes").json["items"] == shown
