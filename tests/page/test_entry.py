"""Who may use the page: one browser for each address, no other site, and no reader's hand-made form."""

import http.client
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hocket.node.runtime import Runtime
from hocket.server.api import STRANGERS_BURST, STREAMS_OF_PROGRAM_MAX
from tests.page.visitors import Visitor
from tests.server.served import PATIENCE_S, Served, serving
from tests.server.served import hocket as command

# More than any machine sends at the rate that strangers have.
GUESSES = 2_000


@pytest.fixture(scope="module")
def job(served: Served) -> str:
    return command(served.home, "submit", "acme.render", "{}").stdout.split()[-1]


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/01M7SP0K1QY7PBSJAF8JX2N0G9", "/changes"])
def test_the_page_is_closed_to_a_browser_that_has_not_entered(served: Served, path: str):
    answer = served.ask("GET", path)
    assert answer.status == 401 and b"hocket page" in answer.body and b"box" not in answer.body


def test_an_address_can_be_used_once(served: Served):
    visitor = Visitor(served)
    assert visitor.get("/").status == 200
    again = served.ask("GET", urlsplit(visitor.address).path)
    assert again.status == 401 and "set-cookie" not in again.headers and b"was used" in again.body
    forged = visitor.address[:-4] + "AAAA"
    assert served.ask("GET", urlsplit(forged).path).status == 401


def test_many_browsers_at_once_cannot_use_one_address(served: Served):
    path = urlsplit(command(served.home, "page", "--no-open").stdout.strip()).path
    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(each.status for each in pool.map(lambda _: served.ask("GET", path), range(8)))
    assert statuses == [303] + [401] * 7


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(served: Served):
    address = command(served.home, "page", "--no-open").stdout.strip()
    plain = served.ask("GET", urlsplit(address).path).headers["set-cookie"]
    assert "HttpOnly" in plain and "SameSite=Lax" in plain and "Path=/;" in plain and "Secure" not in plain
    address = command(served.home, "page", "--no-open").stdout.strip()
    tls = served.ask("GET", urlsplit(address).path, headers={"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert tls.endswith("; Secure")


def test_no_page_can_be_framed_scripted_or_kept(served: Served):
    for answer in (Visitor(served).get("/").answer, served.ask("GET", "/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "'unsafe" not in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        assert answer.headers["cache-control"] == "no-store" and answer.headers["x-frame-options"] == "DENY"


def test_a_site_whose_name_turns_out_to_be_this_machine_gets_nothing(served: Served):
    visitor = Visitor(served)
    port = urlsplit(served.address).port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert visitor.get("/", Host=host).status == 403
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "box.localhost"):
        assert visitor.get("/", Host=host).status == 200


def test_a_form_of_another_site_does_nothing(served: Served, job: str):
    visitor = Visitor(served)
    form = visitor.get(f"/jobs/{job}").form("Cancel…")
    foreign = [
        ({**form.fields, "confirmed": "yes"}, {"Origin": "http://evil.example"}),
        ({**form.fields, "confirmed": "yes"}, {"Origin": "null"}),
        ({**form.fields, "confirmed": "yes"}, {"Sec-Fetch-Site": "cross-site"}),
        ({**form.fields, "confirmed": "yes", "form_key": "0" * 32}, {}),
        ({**form.fields, "confirmed": "yes", "form_key": ""}, {}),
        # The key of another browser's forms.
        ({**form.fields, "confirmed": "yes", "form_key": Visitor(served).get("/").forms[-1].fields["form_key"]}, {}),
    ]
    for fields, headers in foreign:
        assert visitor.post(form.action, fields, **headers).status == 403
    assert visitor.get("/leave").status == 405
    assert json.loads(command(served.home, "show", job, "--json").stdout)["state"] == "pending"


def test_a_form_goes_back_to_no_other_site(served: Served, job: str):
    visitor = Visitor(served)
    form = visitor.get(f"/jobs/{job}").form("Cancel…")
    for back in ("//evil.example", "https://evil.example", "/\\evil.example"):
        assert visitor.post(form.action, {**form.fields, "back": back}).status == 400


def test_a_reader_sees_no_buttons_and_cannot_act_by_hand(served: Served, job: str):
    visitor = Visitor(served, "--read-only", "--agent", "ada")
    shown = visitor.get(f"/jobs/{job}")
    assert shown.status == 200 and shown.verbs == {"Leave", ""}
    key = visitor.get("/").forms[-1].fields["form_key"]
    fields = {"form_key": key, "job": job, "reason": "x", "confirmed": "yes", "back": "/"}
    for name, more in (("cancel_job", {}), ("retry_job", {}), ("reschedule_job", {"delay_ms": "0"})):
        assert visitor.post(f"/do/{name}", fields | more).status == 403
    for name in ("cancel_jobs", "drain_node", "break_lock"):
        form = {"form_key": key, "kind": "acme.render", "node": "box", "key": "x", "confirmed": "yes", "back": "/"}
        assert visitor.post(f"/do/{name}", form).status in (400, 403)
    for name in ("invite", "verify"):
        assert visitor.post(f"/do/{name}", {"form_key": key, "name": "box2", "back": "/"}).status == 403
    assert json.loads(command(served.home, "invite", "--list", "--json").stdout) == []
    assert json.loads(command(served.home, "show", job, "--json").stdout)["state"] == "pending"


@pytest.mark.parametrize("grants", [("mesh:all",), ("registration:write", "mesh:read"), ("job:all", "mesh:all")])
def test_nobody_invites_without_all_rights(served: Served, grants: tuple[str, ...]):
    visitor = Visitor(served, *(word for grant in grants for word in ("--may", grant)))
    shown = visitor.get("/mesh")
    assert shown.status == 200 and "Invite" not in shown.verbs
    key = next(each.fields["form_key"] for each in shown.forms if "form_key" in each.fields)
    assert visitor.post("/do/invite", {"form_key": key, "name": "box2", "may": "all"}).status == 403
    assert json.loads(command(served.home, "invite", "--list", "--json").stdout) == []


def test_a_visitor_sees_only_the_kinds_of_the_grant(served: Served, job: str):
    command(served.home, "submit", "other.kind", "{}")
    visitor = Visitor(served, "--may", "job:read:acme.", "--may", "mesh:read")
    assert "other.kind" not in visitor.get("/").text and "acme.render" in visitor.get("/").text
    assert "other.kind" not in visitor.get("/jobs").text and "acme.render" in visitor.get("/jobs").text
    assert visitor.get("/jobs?kind=other.kind").status == 403
    assert "other.kind" not in visitor.get("/log").text and "acme.render" in visitor.get("/log").text
    assert visitor.get("/coordination").status == 200
    other = json.loads(command(served.home, "jobs", "--kind", "other.kind", "--json").stdout)[0]["job_id"]
    assert visitor.get(f"/jobs/{other}").status == 403


def test_a_change_of_many_reaches_only_the_kinds_of_the_grant(served: Served, job: str):
    other = command(served.home, "submit", "other.kind", "{}").stdout.split()[-1]
    visitor = Visitor(served, "--may", "job:read", "--may", "job:schedule:acme.")
    key = visitor.get("/").forms[-1].fields["form_key"]
    fields = {"form_key": key, "confirmed": "yes", "back": "/"}
    assert visitor.post("/do/cancel_jobs", {**fields, "kind": "other.kind"}).status == 403
    assert visitor.post("/do/cancel_job", {**fields, "job": other}).status == 403
    assert "Cancel all…" not in visitor.get("/jobs?kind=other.kind").verbs
    assert "Cancel all…" in visitor.get("/jobs?kind=acme.render").verbs
    assert json.loads(command(served.home, "show", other, "--json").stdout)["state"] == "pending"


def test_a_browser_whose_token_is_revoked_or_that_left_is_a_stranger(served: Served):
    visitor = Visitor(served, "--agent", "bob")
    listed = command(served.home, "token", "list").stdout
    name = re.search(r"bob~browser-\d+", listed)
    assert name is not None and visitor.get("/").status == 200
    command(served.home, "token", "revoke", name[0])
    assert visitor.get("/").status == 401
    left = Visitor(served)
    shown = left.post("/leave", {"form_key": left.get("/").forms[-1].fields["form_key"]})
    assert shown.status == 303 and "Max-Age=0" in shown.answer.headers["set-cookie"]
    assert left.get("/").status == 401


def test_no_token_can_be_named_like_that_of_a_browser(served: Served):
    assert command(served.home, "token", "create", "bob~browser-9", "--may", "all").returncode == 2


def test_the_address_is_no_token_of_the_api(served: Served):
    code = urlsplit(command(served.home, "page", "--no-open").stdout.strip()).path.rpartition("/")[2]
    assert served.ask("GET", "/v1/jobs", code).status == 401


def test_a_stranger_that_guesses_addresses_is_told_to_wait(tmp_path: Path):
    Runtime.init(tmp_path / "home").close()
    with serving(tmp_path / "home") as served:
        guess = "/enter/hkp_1000_000000000000_" + "A" * 43
        answers = (served.ask("GET", guess) for _ in range(GUESSES))
        statuses = [*takewhile(lambda status: status == 401, (each.status for each in answers))]
        assert STRANGERS_BURST <= len(statuses) < GUESSES


def test_one_browser_has_so_many_open_pages_at_most(served: Served):
    visitor = Visitor(served)
    where = urlsplit(served.address)
    with ExitStack() as stack:
        statuses = []
        for _ in range(STREAMS_OF_PROGRAM_MAX + 1):
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
            stack.callback(connection.close)
            connection.request("GET", "/changes", headers={"Cookie": visitor.cookie})
            statuses.append(connection.getresponse().status)
        assert statuses == [200] * STREAMS_OF_PROGRAM_MAX + [429]


def test_without_a_server_the_command_says_what_to_do(tmp_path: Path):
    Runtime.init(tmp_path / "home").close()
    done = command(tmp_path / "home", "page")
    assert done.returncode == 5 and "hocket mesh serve" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("--expires", "soon"), ("--expires", "0s"), ("--agent", "a b"), ("--read-only", "--may", "all")]
)
def test_a_bad_option_is_named(served: Served, words: tuple[str, ...]):
    done = command(served.home, "page", "--no-open", *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr and not done.stdout


def test_a_proxy_may_put_the_page_below_a_path(tmp_path: Path):
    Runtime.init(tmp_path / "home").close()
    with serving(tmp_path / "home", "--base-path", "/hocket") as served:
        address = command(served.home, "page", "--no-open").stdout.strip()
        entered = served.ask("GET", "/hocket" + urlsplit(address).path)
        assert entered.headers["location"] == "/hocket/" and "Path=/hocket/;" in entered.headers["set-cookie"]
        page = served.ask("GET", "/hocket/", headers={"Cookie": entered.headers["set-cookie"].partition(";")[0]})
        links = re.findall(rb'(?:href|src|action|data-changes)="(/[^"]*)"', page.body)
        assert len(links) > 5 and all(each.startswith(b"/hocket/") for each in links)
