"""Webhooks: a real server, a receiver in a process of its own, kills of both, and addresses that are not allowed."""

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.api import Service, programs
from hocket.errors import NotAuthorised, Usage
from hocket.extensions.webhooks import addresses
from hocket.extensions.webhooks.addresses import AllowList, connected, read_entry, read_url
from hocket.node.runtime import Runtime
from tests.cli.fork_server import start_command
from tests.server.served import PATIENCE_S, ROOT, Served, environment, serving
from tests.server.served import hocket as command
from tests.waiting import wait_for

RECEIVER = Path(__file__).with_name("receiver.py")


class Receiver:
    """The receiver. It keeps its port when it is started again."""

    def __init__(self, folder: Path) -> None:
        self._came, self._answer = folder / "came.jsonl", folder / "answer.json"
        self.port = 0
        self.start()

    def start(self) -> None:
        words = [sys.executable, str(RECEIVER), str(self._came), str(self._answer), str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def answers(self, status: int, **headers: str) -> None:
        self._answer.write_text(json.dumps({"status": status, "headers": headers}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?from=hocket"

    def came(self) -> list[Any]:
        return [json.loads(line) for line in self._came.read_text().splitlines()] if self._came.exists() else []

    def taken(self, count: int, status: int = 200) -> list[Any]:
        def look() -> list[Any]:
            found = [each for each in self.came() if each["status"] == status]
            return found if len(found) >= count else []

        return wait_for(look, f"{count} deliveries")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home", name="box").close()
    return tmp_path / "home"


def token_for(home: Path, name: str, *may: str) -> str:
    with Runtime.open(home) as runtime:
        return programs.create(Service(runtime), name, may).token


def submit(home: Path, *kinds: str) -> list[str]:
    with closing(hocket.open_sync(home)) as node:
        return [node.submit(kind).job_id for kind in kinds]


def is_signed(secret: str, delivery: Any) -> bool:
    """As a receiver checks it, with nothing of Hocket's."""
    headers = delivery["headers"]
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{delivery['body']}".encode()
    made = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return headers["webhook-signature"] == f"v1,{made}"


def subjects(deliveries: list[Any]) -> list[str]:
    return [json.loads(each["body"])["subject"] for each in deliveries]


def test_events_are_delivered_once_signed_and_filtered(home: Path, receiver: Receiver) -> None:
    token = token_for(home, "maker", "all")
    command(home, "webhook", "allow", "127.0.0.1").check_returncode()
    with serving(home) as served:
        asked = {"name": "ci", "url": receiver.url, "kind": "acme.", "type": "job.submitted,job.cancelled"}
        made = served.ask("POST", "/v1/webhooks", token, asked)
        assert made.status == 201
        secret = made.json["secret"]
        tested = served.ask("POST", "/v1/webhooks/ci/test", token, {})
        assert tested.json == {"delivered": True, "status": 200, "detail": ""}
        first, _, third = submit(home, "acme.a", "other.b", "acme.c")
        served.ask("POST", f"/v1/jobs/{third}/cancel", token, {"reason": "no"})
        test, *deliveries = receiver.taken(4)
        assert json.loads(test["body"])["type"] == "webhook.test"
        assert sorted(subjects(deliveries)) == sorted([first, third, third])
        assert all(is_signed(secret, each) for each in (test, *deliveries))
        assert not is_signed(secret, deliveries[0] | {"body": "{}"})
        for each in deliveries:
            body = json.loads(each["body"])
            assert (each["path"], each["headers"]["webhook-id"]) == ("/hook?from=hocket", body["id"])
        (shown,) = served.ask("GET", "/v1/webhooks", token).json["items"]
        assert "secret" not in shown and (shown["name"], shown["failed"]) == ("ci", 0)
        # A delivery is a job, and makes no event for a webhook itself.
        wait_for(lambda: served.ask("GET", "/v1/webhooks", token).json["items"][0]["pending"] == 0)
        assert len(receiver.came()) == 4
        assert served.ask("DELETE", "/v1/webhooks/ci", token).status == 204
        assert served.ask("DELETE", "/v1/webhooks/ci", token).status == 404


def test_a_refused_delivery_is_tried_again_and_no_redirect_is_followed(home: Path, receiver: Receiver) -> None:
    command(home, "webhook", "allow", "127.0.0.1").check_returncode()
    receiver.answers(302, Location=f"http://127.0.0.1:{receiver.port}/elsewhere")
    with serving(home):
        command(home, "webhook", "add", "ci", receiver.url, "--type", "job.submitted").check_returncode()
        (job_id,) = submit(home, "acme.a")
        receiver.taken(1, 302)
        receiver.answers(204)
        (delivery,) = receiver.taken(1, 204)
        assert subjects([delivery]) == [job_id]
    first, second = receiver.came()
    assert {each["path"] for each in (first, second)} == {"/hook?from=hocket"}
    # Both tries have one id, by which the receiver knows the second.
    assert first["headers"]["webhook-id"] == second["headers"]["webhook-id"]


def test_kills_of_server_and_receiver_lose_no_event(home: Path, receiver: Receiver) -> None:
    command(home, "webhook", "allow", "127.0.0.1").check_returncode()
    command(home, "webhook", "add", "ci", receiver.url, "--type", "job.submitted").check_returncode()
    submitted: list[str] = []
    for kills_receiver in (False, True):
        ours, theirs = os.pipe()
        words = ["--home", str(home), "serve", "--port", "0", "--json"]
        process = start_command(words, environment({}), ROOT, (theirs, 2))
        os.close(theirs)
        with open(ours) as said:
            Served(home, json.loads(said.readline())["address"])
            submitted += submit(home, *[f"acme.k{at}" for at in range(5)])
            receiver.taken(len(submitted) - 4)
            if kills_receiver:
                receiver.kill()
                submitted += submit(home, "acme.away")
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
        submitted += submit(home, "acme.between")
    receiver.start()
    with serving(home):
        wait_for(lambda: set(submitted) <= set(subjects(receiver.came())), "every event", 2 * PATIENCE_S)
    ids = {each["headers"]["webhook-id"] for each in receiver.came()}
    assert len(ids) == len(submitted)


def test_a_webhook_goes_nowhere_that_the_owner_has_not_allowed(home: Path, receiver: Receiver) -> None:
    token = token_for(home, "maker", "mesh:write", "mesh:read")
    asked = {"name": "ci", "url": receiver.url}
    with serving(home) as served:
        refused = served.ask("POST", "/v1/webhooks", token, asked)
        assert (refused.status, "hocket webhook allow 127.0.0.1" in refused.json["message"]) == (403, True)
        # A program cannot allow it.
        assert served.ask("POST", "/v1/webhooks/allow", token, {"entry": "127.0.0.1"}).status in (404, 405)
        # A name that leads to this machine is not enough; nor is what was allowed once.
        command(home, "webhook", "allow", "localhost").check_returncode()
        local = {"name": "local", "url": f"http://localhost:{receiver.port}/"}
        assert served.ask("POST", "/v1/webhooks", token, local).status == 201
        tested = served.ask("POST", "/v1/webhooks/local/test", token, {}).json
        assert (tested["delivered"], "not public" in tested["detail"]) == (False, True)
        command(home, "webhook", "allow", "127.0.0.0/8").check_returncode()
        assert served.ask("POST", "/v1/webhooks", token, asked).status == 201
        assert served.ask("POST", "/v1/webhooks/ci/test", token, {}).json["delivered"] is True
        command(home, "webhook", "forbid", "127.0.0.0/8").check_returncode()
        assert served.ask("POST", "/v1/webhooks/ci/test", token, {}).json["delivered"] is False
        weak = token_for(home, "weak", "job:read", "mesh:read")
        assert served.ask("POST", "/v1/webhooks", weak, asked).status == 403
        assert served.ask("DELETE", "/v1/webhooks/ci", weak).status == 403
    assert len(receiver.came()) == 1


def test_a_webhook_of_a_program_sends_what_its_token_may_read_while_in_force(home: Path, receiver: Receiver) -> None:
    token = token_for(home, "maker", "mesh:write", "job:read:acme.")
    command(home, "webhook", "allow", "127.0.0.1").check_returncode()
    with serving(home) as served:
        assert served.ask("POST", "/v1/webhooks", token, {"name": "ci", "url": receiver.url}).status == 201
        submit(home, "other.a", "acme.b")
        assert [json.loads(each["body"])["kind"] for each in receiver.taken(1)] == ["acme.b"]
        command(home, "token", "revoke", "maker").check_returncode()
        # Another of the owner's shows that the first had time.
        command(home, "webhook", "add", "own", receiver.url, "--kind", "acme.").check_returncode()
        submit(home, "acme.c")
        receiver.taken(2)
    assert [json.loads(each["body"])["kind"] for each in receiver.came()] == ["acme.b", "acme.c"]


def test_python_adds_and_lists_webhooks(home: Path) -> None:
    with closing(hocket.open_sync(home)) as node:
        admin = hocket.admin(node)
        with pytest.raises(NotAuthorised, match=r"hocket webhook allow hooks\.example\.com"):
            admin.add_webhook("ci", "https://hooks.example.com/x")
        admin.allow_webhooks("*.example.com")
        assert admin.add_webhook("ci", "https://hooks.example.com/x", kind="acme.").secret.startswith("whsec_")
        assert [each.name for each in admin.list_webhooks()] == ["ci"]
        with pytest.raises(AttributeError, match="no operation 'no_such'"):
            admin.no_such()


def test_the_file_of_webhooks_is_the_owners_alone(home: Path) -> None:
    command(home, "webhook", "allow", "hooks.example.com").check_returncode()
    assert (home / "webhooks.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "255.255.255.255"),
        *("fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1"),
        *("100.64.0.1", "198.18.0.1", "192.0.2.1", "ff02::1", "::"),
    ],
)
def test_a_name_leads_to_no_address_that_is_not_public(address: str) -> None:
    assert "not public" in (AllowList(["hooks.example.com"]).refusal("hooks.example.com", address) or "")
    assert AllowList(["hooks.example.com", "0.0.0.0/0", "::/0"]).refusal("hooks.example.com", address) is None


def test_hosts_are_allowed_by_name_or_range() -> None:
    allowed = AllowList(["hooks.example.com", "*.example.org", "10.1.0.0/16"])
    for host, address in (("hooks.example.com", "8.8.8.8"), ("a.b.example.org", "2606:4700::1"), ("other", "10.1.9.9")):
        assert allowed.refusal(host, address) is None
    for host, address in (
        ("example.com", "8.8.8.8"),
        ("example.org", "8.8.8.8"),
        ("evilexample.org", "8.8.8.8"),
        ("other", "10.2.0.1"),
    ):
        assert allowed.refusal(host, address) is not None
    for text in ("http://x", "a b", "-", "", "1.2.3", "10.1.2.3/16", "*", "*.*.com"):
        with pytest.raises(Usage):
            read_entry(text)
    for url in (
        "ftp://x/",
        "http://",
        "https://user:secret@x/",
        "http://x/#part",
        "http://x:0/",
        "http://x:99999/",
        "http://é/",
        "//x",
    ):
        with pytest.raises(Usage):
            read_url(url)


def test_a_name_that_leads_elsewhere_when_the_connection_is_made_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    target, allowed = read_url("http://hooks.example.com/"), AllowList(["hooks.example.com"])
    allowed.check(target)
    resolved: list[str] = []

    def rebound(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port)), (2, 1, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", rebound)
    with pytest.raises(NotAuthorised, match="not public"):
        connected(target, allowed, 1.0)
    # What was judged is what is connected to: the name is resolved once.
    assert resolved == ["hooks.example.com"]
