"""The tokens of programs, shown to a real server: which are accepted, for what, and until when."""

import hmac
import http.client
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

import hocket.testing
from hocket.api import Service, programs
from hocket.api.programs import UnknownToken, chosen_token, recognise
from hocket.errors import Conflict, NotAuthorised, NotFound, Usage
from hocket.kernel.capabilities import Grant, held_grants
from hocket.kernel.ucan import Capability
from hocket.mesh.grants import parse_grants
from hocket.node.runtime import Runtime
from tests.mesh.world import enrolled, run
from tests.server.served import PATIENCE_S, Served, serving
from tests.server.served import hocket as command

NODES = "/v1/nodes"


def made(home: Path, name: str, *may: str, lifetime_ms: int | None = None) -> str:
    with Service(Runtime.open(home)) as service:
        return programs.create(service, name, may, lifetime_ms).token


def refused(served: Served, token: str | None, **headers: str) -> str:
    answer = served.ask("GET", NODES, token, headers=headers)
    assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert answer.json["error"] == "unknown_token"
    return str(answer.json["message"])


@pytest.mark.touches("VX-17")
def test_a_token_is_shown_once_and_opens_what_it_grants(served: Served):
    shown = command(served.home, "token", "create", "reader", "--may", "mesh:read", "--expires", "30d")
    token, name, may, expires, trial = shown.stdout.splitlines()
    assert re.fullmatch(r"hkt_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", token)
    assert (name, may) == ("name\treader", "may\tread routes") and expires.startswith("expires\t")
    assert trial == f"try it\tcurl -H 'Authorization: Bearer {token}' '{served.address}{NODES}'"
    answer = served.ask("GET", NODES, token)
    assert answer.status == 200 and [each["name"] for each in answer.json["items"]] == ["box"]
    listed = command(served.home, "token", "list")
    assert listed.stdout.startswith("reader\tactive\t") and token not in listed.stdout
    database = b"".join(path.read_bytes() for path in served.home.rglob("*") if path.is_file())
    assert token.encode() not in database and token.split("_", 2)[2].encode() not in database


def test_the_commands_answer_in_json(served: Served):
    made_token = json.loads(command(served.home, "token", "create", "js", "--may", "mesh:read", "--json").stdout)
    token = made_token.pop("token")
    assert made_token.pop("curl").endswith(f"{token}' '{served.address}{NODES}'")
    assert served.ask("GET", NODES, token).status == 200
    assert (made_token["name"], made_token["state"], made_token["expires_ms"]) == ("js", "active", None)
    listed = {each["name"]: each for each in json.loads(command(served.home, "token", "list", "--json").stdout)}
    assert listed["js"] == made_token | {"used_ms": listed["js"]["used_ms"]} and listed["js"]["used_ms"]
    assert json.loads(command(served.home, "token", "revoke", "js", "--json").stdout)["state"] == "revoked"
    for words, code in (
        (("create", "js2"), 2),
        (("create", "js2", "--may", "mesh:read", "--expires", "abc"), 2),
        (("create", "js2", "--may", "mesh:read", "--expires", "0s"), 2),
        (("revoke", "nobody"), 2),
    ):
        failed = command(served.home, "token", *words)
        assert failed.returncode == code and failed.stderr.startswith("hocket: ") and failed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "grant", ["job:all:acme.", "all", "mesh:read", "inbox:claim:ci", "lock:acquire:src/", "row:write:a/", "job:claim"]
)
def test_the_command_that_tries_a_token_works(served: Served, grant: str):
    with Service(Runtime.open(served.home)) as service:
        new = programs.create(service, re.sub("[^a-z]", "-", f"try-{grant}").rstrip("-"), [grant])
    header, address = re.fullmatch(r"curl -H '(.*)' '(.*)'", new.curl).groups()  # type: ignore[union-attr]
    assert header == f"Authorization: Bearer {new.token}" and address.startswith(served.address)
    assert served.ask("GET", address.removeprefix(served.address), new.token).status == 200


def test_without_a_token(served: Served):
    assert "hocket token create" in refused(served, None)
    assert "hocket token create" in refused(served, None, Authorization="Basic aGk6aGk=")
    assert "hocket token create" in refused(served, None, Authorization="Bearer ")


@pytest.mark.parametrize(
    "token", ["x", "hkt_", "hkt_zz_yy", "eyJhbGciOiJFZERTQSJ9.e30.AA", "hkt_" + "0" * 12 + "_" + "A" * 44, "\xff" * 60]
)
def test_a_malformed_token(served: Served, token: str):
    assert "malformed" in refused(served, token)


def test_a_token_of_another_home(served: Served, tmp_path: Path):
    Runtime.init(tmp_path / "other").close()
    assert "does not know" in refused(served, made(tmp_path / "other", "ci", "all"))


def test_a_token_with_a_changed_secret(served: Served):
    token = made(served.home, "changed", "mesh:read")
    assert served.ask("GET", NODES, token).status == 200
    other = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
    assert "does not know" in refused(served, other)


def test_a_revoked_token_is_refused_at_once(served: Served):
    token = made(served.home, "gone", "mesh:read")
    assert served.ask("GET", NODES, token).status == 200
    assert command(served.home, "token", "revoke", "gone").returncode == 0
    assert refused(served, token) == "the token gone is revoked"
    # Another one may have its name, and the old one stays dead.
    again = made(served.home, "gone", "mesh:read")
    assert served.ask("GET", NODES, again).status == 200
    assert "does not know" in refused(served, token)


def test_a_token_without_the_grant_is_refused_with_the_grant_that_it_lacks(served: Served):
    answer = served.ask("GET", NODES, made(served.home, "poor", "job:read"))
    assert (answer.status, answer.json["error"]) == (403, "not_authorised")
    assert "mesh:read" in answer.json["message"]


def test_a_token_expires():
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        token = programs.create(service, "short", ["mesh:read"], 60_000).token
        assert recognise(service, token).name == "short"
        node.clock.advance(61)
        with pytest.raises(UnknownToken, match="the token short is expired"):
            recognise(service, token)
        assert [each.state for each in programs.listing(service)] == ["expired"]


def test_the_hash_of_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    """Also when the id is unknown: then as long as for a wrong secret."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(programs, "hmac", SimpleNamespace(compare_digest=compare))
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        token = programs.create(service, "ci", ["mesh:read"]).token
        recognise(service, token)
        for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), "hkt_" + "0" * 12 + token[16:]):
            with pytest.raises(UnknownToken, match="does not know"):
                recognise(service, wrong)
    assert len(compared) == 3 and all(len(one) == len(other) == 32 for one, other in compared)


@pytest.mark.parametrize("name", ["", "all", "a b", "-x", "a/b", "x" * 65, "ü", "a\n"])
def test_a_bad_name(name: str):
    with hocket.testing.node() as node, pytest.raises(Usage, match="bad name"):
        programs.create(Service(node.runtime), name, ["mesh:read"])


@pytest.mark.parametrize("may", [[], ["nope"], ["lock:nope"], ["lock:acquire:a*"], ["mesh:read:x"]])
def test_a_bad_grant(may: list[str]):
    with hocket.testing.node() as node, pytest.raises(Usage, match="grant"):
        programs.create(Service(node.runtime), "ci", may)


@pytest.mark.parametrize("lifetime", [0, -1, programs.LIFETIME_MS_MAX + 1])
def test_a_bad_lifetime(lifetime: int):
    with hocket.testing.node() as node, pytest.raises(Usage, match="expires after"):
        programs.create(Service(node.runtime), "ci", ["mesh:read"], lifetime)


def test_a_name_in_use_and_an_unknown_name():
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        programs.create(service, "ci", ["mesh:read"])
        with pytest.raises(Conflict, match="in force"):
            programs.create(service, "ci", ["mesh:read"])
        with pytest.raises(NotFound):
            programs.revoke(service, "cd")


def test_only_so_many_tokens_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "TOKENS_MAX", 2)
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        programs.create(service, "a", ["mesh:read"])
        programs.create(service, "b", ["mesh:read"])
        with pytest.raises(Conflict, match="no more fit"):
            programs.create(service, "c", ["mesh:read"])
        programs.revoke(service, "a")
        programs.create(service, "a", ["mesh:read"])


GRANTS: list[tuple[str, tuple[str, str, tuple[str, ...]], bool]] = [
    ("lock:acquire:file:src/", ("Lock", "Acquire", ("file:src/a", "file:src/b")), True),
    ("lock:acquire:file:src/", ("Lock", "Acquire", ("file:src/a", "file:doc/b")), False),
    ("lock:acquire:file:src/", ("Lock", "Acquire", ()), False),
    ("lock:acquire:file:src/", ("Lock", "Read", ()), True),
    ("lock:acquire:file:src/", ("Lock", "Break", ("file:src/a",)), False),
    ("lock:acquire", ("Lock", "Acquire", ("any",)), True),
    ("row:write:memories/", ("Row", "Write", ("memories/a",)), True),
    ("row:write:memories/", ("Row", "Read", ("memories/",)), True),
    ("row:write:memories/", ("Row", "Read", ("mem",)), False),
    ("inbox:write:team/", ("Inbox", "Claim", ("team/a",)), False),
    ("job:read:acme.", ("Mesh", "Read", ()), False),
    ("ops:read", ("Mesh", "Read", ()), True),
    ("ops:read", ("Row", "Write", ("a/b",)), False),
    ("ops:write", ("Lock", "Acquire", ("a",)), True),
    ("all", ("Lock", "Break", ("a",)), True),
]


@pytest.mark.parametrize(("may", "wanted", "is_allowed"), GRANTS)
def test_what_a_grant_admits(may: str, wanted: tuple[str, str, tuple[str, ...]], is_allowed: bool):
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        program = recognise(service, programs.create(service, "ci", [may]).token)
        assert program.may(*wanted) == is_allowed


def test_a_caveat_on_kinds_restricts_jobs_and_nothing_else():
    grant = Grant("Ops", "*", kind_prefix=("acme.",))
    assert grant.admits("Mesh", "Read") and grant.admits("Lock", "Acquire", ("x",))
    assert grant.admits("Job", "Read", ("acme.render",)) and not grant.admits("Job", "Read", ("other",))


def test_duties_and_times_of_the_nodes_own_grants_do_not_stop_its_programs():
    (wanted,) = parse_grants(["job:read"], of_node=False)
    own = Grant("Job", "Read", sanitize=("StripGeo",), time_range=(0, 9), audit_inference=True)
    assert held_grants([wanted], [own]) == [Grant("Job", "Read")]
    assert held_grants([wanted], [own._replace(kind_prefix=("acme.",))]) == []
    assert held_grants([Capability("Job", "Read", {"new": 1})], [own]) == []


def test_a_token_grants_no_more_than_its_node_may(tmp_path: Path):
    async def test(a) -> None:  # type: ignore[no-untyped-def]
        b = await enrolled(tmp_path / "b", a, parse_grants(["lock:acquire:file:src/"]))
        try:
            service = Service(b.runtime)
            with pytest.raises(NotAuthorised, match="this node itself may not acquire locks with key file:\\*"):
                programs.create(service, "wide", ["lock:acquire:file:"])
            with pytest.raises(NotAuthorised, match="do everything"):
                programs.create(service, "wide", ["all"])
            token = programs.create(service, "narrow", ["lock:acquire:file:src/lib/"]).token
            assert recognise(service, token).may("Lock", "Acquire", ("file:src/lib/a",))
            chosen = recognise(service, "x" * 40, "x" * 40)
            assert chosen.may("Lock", "Acquire", ("file:src/",)) and not chosen.may("Lock", "Acquire", ("file:",))
        finally:
            await b.close()

    run(tmp_path, test, "a")


@pytest.mark.parametrize(
    ("name", "agent"), [(None, "ci"), ("ci", "ci"), ("ci/build", "ci/build")], ids=["none", "its own", "below its own"]
)
def test_a_program_speaks_for_its_own_agents(name: str | None, agent: str):
    assert programs.Program("ci", "ci", ()).agent_named(name) == agent


@pytest.mark.parametrize("name", ["cd", "cia", "", "all", "c", "ci2/x"])
def test_a_program_does_not_speak_for_others(name: str):
    with pytest.raises(NotAuthorised, match="speaks for the agent ci"):
        programs.Program("ci", "ci", ()).agent_named(name)


@pytest.mark.touches("VX-17")
def test_a_server_takes_the_token_that_its_operator_chose(tmp_path: Path):
    home, chosen = tmp_path / "home", "correct-horse-battery-staple-0123456789"
    Runtime.init(home).close()
    with serving(home, HOCKET_TOKEN=chosen) as served:
        assert served.ask("GET", NODES, chosen).status == 200
        assert served.ask("GET", NODES, chosen[:-1]).status == 401


def test_a_short_chosen_token_is_an_error(tmp_path: Path):
    Runtime.init(tmp_path / "home").close()
    shown = command(tmp_path / "home", "serve", "--port", "0", HOCKET_TOKEN="hunter2")
    assert shown.returncode == 2 and "at least 32" in shown.stderr and "hunter2" not in shown.stderr


def test_a_token_for_another_program_in_the_servers_environment_opens_nothing():
    assert chosen_token({"HOCKET_TOKEN": "hkt_" + "0" * 12 + "_" + "A" * 43}) is None
    assert chosen_token({}) is None and chosen_token({"HOCKET_TOKEN": ""}) is None


def test_many_guesses_are_slowed_down(tmp_path: Path):
    home = tmp_path / "home"
    Runtime.init(home).close()
    token = made(home, "ci", "mesh:read")
    with serving(home) as served:
        statuses = [served.ask("GET", NODES, "guess").status for _ in range(80)]
        assert set(statuses) == {401, 429}
        assert served.ask("GET", NODES, token).status == 200


def test_a_revoked_token_ends_what_it_has_open(served: Served):
    """A request that waits for a lock, and a stream of a job that nobody runs."""
    own, other = (made(served.home, name, "all") for name in ("leaving", "staying"))
    key = "file:revoked"
    assert served.ask("POST", "/v1/locks", other, {"keys": [key], "ttl_ms": 60_000}).status == 201
    job = served.ask("POST", "/v1/jobs", other, {"kind": "acme.nobody"}).json["job_id"]
    streams: list[http.client.HTTPResponse] = []
    for token in (own, other):
        where = urlsplit(served.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
        connection.request("GET", f"/v1/jobs/{job}/parts", headers={"Authorization": f"Bearer {token}"})
        streams.append(connection.getresponse())
        assert streams[-1].status == 200
    with ThreadPoolExecutor() as threads:
        waits = {"keys": [key], "ttl_ms": 60_000, "wait_ms": 50_000}
        waiting = threads.submit(served.ask, "POST", "/v1/locks", own, waits)
        deadline = time.monotonic() + PATIENCE_S
        while not served.ask("GET", f"/v1/locks/{key.replace(':', '%3A')}", other).json["waiting"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert command(served.home, "token", "revoke", "leaving").returncode == 0
        answer = waiting.result(PATIENCE_S)
    assert (answer.status, answer.json["message"]) == (401, "the token leaving is revoked")
    assert json.loads(streams[0].read().splitlines()[-1])["error"] == "unknown_token"
    assert served.ask("GET", f"/v1/locks/{key.replace(':', '%3A')}", other).json["waiting"] == []
    # The other program's stream goes on to the job's end.
    assert served.ask("POST", f"/v1/jobs/{job}/cancel", other, {"reason": "done"}).status == 200
    assert b'"outcome":"cancelled"' in streams[1].read()
