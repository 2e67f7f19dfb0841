"""The environment variables of a node: each of them changes what the program does, and a bad value is one sentence."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.node import variables
from tests.cli.conftest import Program, until
from tests.cli.fork_server import start_command
from tests.libsql_server import new_server
from tests.libsql_tokens import public_key, token

DOCS = Path(__file__).parents[2] / "docs"


BAD_VALUES = [
    (variables.MESH_ENABLED, "maybe"),
    (variables.DB_CIRCUIT_BREAKER, "2"),
    (variables.MESH_NODE_ID, "a b"),
    (variables.MESH_SCOPE_ID, "my mesh"),
    (variables.MESH_CONTROL_ADDR, "ftp://nowhere"),
    (variables.MESH_TOKEN, "short"),
    (variables.DB_URL, "redis://nowhere"),
    (variables.STORE, "nowhere"),
    (variables.BUS, "amqp://nowhere"),
]


@pytest.fixture
def served(hocket: Program) -> Iterator[str]:
    """The address of a server of the home."""
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    found = re.search(r'"address":\s*"([^"]+)"', process.stdout.readline())
    assert found is not None
    yield found[1]
    process.terminate()
    hocket.finished(process)


def joined(hocket: Program, place: Path, **environment: str) -> Program:
    token = hocket("invite", "leaf", "--may", "job:schedule:test.", "--json", code=0).json["token"]
    leaf = Program(place)
    leaf("join", environment={variables.MESH_TOKEN: token, **environment}, code=0)
    return leaf


@pytest.mark.req("VX-17")
def test_the_page_lists_every_variable_and_the_help_names_those_of_a_command(hocket: Program):
    page = (DOCS / "environment.md").read_text()
    assert [name for name in variables.ALL if f"| `{name}` |" not in page] == []
    assert "$HOCKET_MESH_TOKEN" in hocket("join", "--help").out
    assert "$HOCKET_MESH_NODE_ID" in hocket("init", "--help").out
    assert "$HOCKET_MESH_CONTROL_ADDR" in hocket("sync", "--help").out
    assert "$HOCKET_MESH_ENABLED" in hocket("serve", "--help").out
    listed = hocket("--help").out
    assert [name for name in variables.ALL if name not in listed] == []


@pytest.mark.req("VX-17")
def test_the_token_lets_a_machine_join_without_an_argument(hocket: Program, served: str, tmp_path: Path):
    leaf = joined(hocket, tmp_path / "leaf")
    assert leaf("whoami", "--json", code=0).json["name"] == "leaf"
    said = Program(tmp_path / "other")("join", code=2).sentence
    assert "HOCKET_MESH_TOKEN" in said and not (tmp_path / "other").exists()


@pytest.mark.req("VX-17")
def test_enabled_off_talks_to_no_other_node_and_says_where_things_are(hocket: Program, served: str, tmp_path: Path):
    leaf, off = joined(hocket, tmp_path / "leaf"), {variables.MESH_ENABLED: "0"}
    leaf("sync", code=0)
    kept = leaf("submit", "test.echo", "--json", environment=off, code=0)
    assert kept.json["waits_here"].startswith("HOCKET_MESH_ENABLED is off; what was written waits here")
    assert leaf("status", "--json", environment=off).json["outbox"]["ops"] == 1
    for command in (["sync"], ["serve", "--port", "0"]):
        assert "HOCKET_MESH_ENABLED is off" in leaf(*command, environment=off, code=5).sentence
    token = hocket("invite", "third", "--may", "job:schedule", "--json", code=0).json["token"]
    assert "HOCKET_MESH_ENABLED is off" in Program(tmp_path / "third")("join", token, environment=off, code=2).sentence
    (tmp_path / "leaf-tasks.py").write_text("import hocket\n\n@hocket.job('test.other')\ndef other(ctx): pass\n")
    leaf("work", "leaf-tasks.py", "--until-idle", environment=off, code=0)
    assert leaf("status", "--json", environment=off).json["outbox"]["ops"] >= 1, "a worker does not send it, either"
    assert "no job" in hocket("show", kept.json["job_id"], code=2).sentence, "the coordinator has not heard of it"
    leaf("sync", environment={variables.MESH_ENABLED: "1"}, code=0)
    assert hocket.show(kept.json["job_id"])["state"] == "pending"


@pytest.mark.req("VX-17")
def test_the_node_id_names_a_new_node_and_guards_an_existing_one(tmp_path: Path):
    hocket, named = Program(tmp_path / "home"), {variables.MESH_NODE_ID: "gpu-box"}
    made = hocket("init", "--json", environment=named, code=0).json
    assert made["name"] == "gpu-box"
    for good in ("gpu-box", made["node"]):
        hocket("status", environment={variables.MESH_NODE_ID: good}, code=0)
    said = hocket("submit", "test.echo", environment={variables.MESH_NODE_ID: "laptop"}, code=2).sentence
    assert "HOCKET_MESH_NODE_ID is laptop" in said and made["node"] in said and "(gpu-box)" in said
    other = Program(tmp_path / "other")
    assert "gets one of its own" in other("init", environment={variables.MESH_NODE_ID: "0" * 16}, code=2).sentence
    assert not other.home.exists()


@pytest.mark.req("VX-17")
def test_the_scope_guards_against_a_node_of_another_mesh(hocket: Program, served: str, tmp_path: Path):
    user = hocket("whoami", "--json").json["user"]
    right, wrong = {variables.MESH_SCOPE_ID: user}, {variables.MESH_SCOPE_ID: "did:key:z6Mkother"}
    hocket("status", environment=right, code=0)
    said = hocket("submit", "test.echo", environment=wrong, code=2).sentence
    assert "HOCKET_MESH_SCOPE_ID is did:key:z6Mkother" in said and user in said
    token = hocket("invite", "leaf", "--may", "job:schedule", "--json", code=0).json["token"]
    leaf = Program(tmp_path / "leaf")
    leaf("join", token, environment=wrong, code=2)
    assert not leaf.home.exists()
    leaf("join", token, environment=right, code=0)
    new = Program(tmp_path / "new")
    assert "this mesh is a new one" in new("init", environment=right, code=2).sentence
    new("init", "--user-key", hocket.home / "user.key", environment=right, code=0)


@pytest.mark.req("VX-17")
def test_the_control_address_is_where_a_node_finds_the_coordinator(hocket: Program, served: str, tmp_path: Path):
    leaf = joined(hocket, tmp_path / "leaf")
    leaf("peers", "remove", served, code=0)
    where = {variables.MESH_CONTROL_ADDR: served}
    job_id = leaf("submit", "test.echo", environment=where, code=0).job_id
    assert hocket.show(job_id)["state"] == "pending"
    assert [each["address"] for each in leaf("peers", "list", "--json").json["peers"]] == [served]
    hocket("status", environment=where, code=0)
    assert hocket("peers", "list", "--json").json["peers"] == [], "the coordinator is no peer of its own"
    bad = leaf("status", environment={variables.MESH_CONTROL_ADDR: "ftp://nowhere"}, code=2).sentence
    assert bad.startswith("bad HOCKET_MESH_CONTROL_ADDR")


@pytest.mark.req("VX-17")
@pytest.mark.parametrize("way", ["path", "url"])
def test_the_database_may_be_elsewhere(tmp_path: Path, way: str):
    place = tmp_path / "fast disk"
    place.mkdir()
    database = place / "jobs.db"
    url = f"sqlite://{str(database).replace(' ', '%20')}"
    where = {variables.DB_PATH: str(database)} if way == "path" else {variables.DB_URL: url}
    hocket = Program(tmp_path / "home")
    hocket("init", environment=where, code=0)
    job_id = hocket("submit", "test.echo", environment=where, code=0).job_id
    assert database.stat().st_mode & 0o777 == 0o600 and not (hocket.home / "log.db").exists()
    assert hocket("show", job_id, "--json", environment=where, code=0).json["state"] == "pending"
    hocket("doctor", environment=where, code=0)
    hocket("log", "verify", environment=where, code=0)
    assert "has lost log.db" in hocket("status", code=2).sentence
    other = Program(tmp_path / "other")
    assert "has the log of another node" in other("init", environment=where, code=3).sentence
    assert hocket("log", "verify", "--json", environment=where, code=0).json["ops"] == 3


@pytest.mark.req("VX-17")
@pytest.mark.parametrize("scheme", ["libsql", "postgresql"])
def test_the_url_may_name_a_server_and_no_secret_is_repeated(hocket: Program, scheme: str):
    remote = {variables.DB_URL: f"{scheme}://user:hush@127.0.0.1:9/jobs", variables.DB_TOKEN: "very-secret"}
    ran = hocket("submit", "test.echo", environment=remote, code=2 if scheme == "libsql" else 5)
    said = ran.sentence
    assert ("cannot read the store's address" in said) if scheme == "libsql" else ("cannot connect to" in said)
    assert "hush" not in ran.out + ran.err and "very-secret" not in ran.out + ran.err
    other = hocket("status", environment={variables.DB_URL: "oracle://db.example/jobs"}, code=2).sentence
    assert "bad HOCKET_DB_URL (oracle)" in other and "libsql://host" in other
    file = {variables.DB_URL: "sqlite:///a/log.db", variables.DB_TOKEN: "very-secret"}
    assert "names a file" in hocket("status", environment=file, code=2).sentence
    two = {variables.DB_URL: "sqlite:///a/log.db", variables.DB_PATH: "/b/log.db"}
    assert "two different files" in hocket("status", environment=two, code=2).sentence


FULL = """
import hocket, hocket.store.sqlite as sqlite, sys
node = hocket.open_sync()
store = node.runtime.store
connection = getattr(store, "_store", store)._writer
connection.execute("PRAGMA max_page_count=1")
said = []
for _ in range(40):
    try:
        node.submit("test.echo", text="x" * 100_000)
    except hocket.StoreError as error:
        said.append(type(error).__name__)
print(*sorted(set(said)), flush=True)
sys.stdin.read()
"""


@pytest.mark.req("VX-17")
@pytest.mark.parametrize("switch", ["1", "0"])
def test_the_breaker_of_the_store_can_be_turned_off(hocket: Program, switch: str):
    """Five failures open it; another process sees that in `status` and in `doctor`."""
    environment = hocket.environment() | {variables.DB_CIRCUIT_BREAKER: switch}
    process = subprocess.Popen(
        [sys.executable, "-c", FULL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    breakers = hocket("status", "--json", code=0).json["breakers"]
    if switch == "1":
        assert said == ["StoreAway", "StoreCircuitOpen"]
        assert [(each["what"], each["process"], each["state"]) for each in breakers] == [
            ("the store", process.pid, "open")
        ]
        assert f"the store in process {process.pid} is open: 5 failures in a row" in hocket("status").out
        assert f"the store in process {process.pid} is open after 5 failures" in hocket("doctor").out
    else:
        assert said == ["StoreAway"] and breakers == []
    process.kill()
    process.communicate()
    assert hocket("status", "--json", code=0).json["breakers"] == []
    hocket("submit", "test.echo", code=0)


def test_an_empty_variable_is_not_set(hocket: Program):
    hocket("status", environment=dict.fromkeys(variables.ALL, ""), code=0)


@pytest.mark.req("VX-17")
@pytest.mark.parametrize("name, value", BAD_VALUES)
def test_a_bad_value_is_an_error_of_every_command(hocket: Program, name: str, value: str):
    for command in (["jobs"], ["init"], ["beat", "now"], ["doctor"], ["serve", "--port", "0"], ["git", "list", "."]):
        said = hocket(*command, environment={name: value}, code=2)
        assert name in said.sentence and (name != variables.MESH_TOKEN or value not in said.err)


@pytest.mark.req("VX-14", "VX-17")
@pytest.mark.parametrize("has_path", [True, False])
def test_the_documents_block_of_variables_gives_local_reads(tmp_path: Path, has_path: bool):
    server = new_server(environment=public_key())
    block = {variables.MESH_ENABLED: "1", variables.DB_URL: server.address, variables.DB_TOKEN: token()}
    if has_path:
        block[variables.DB_PATH] = str(tmp_path / "local.db")
    hocket = Program(tmp_path / "home")
    hocket("init", environment=block, code=0)
    job_id = hocket("submit", "test.echo", environment=block, code=0).job_id
    assert hocket("show", job_id, "--json", environment=block, code=0).json["state"] == "pending"
    known = hocket("status", "--json", environment=block, code=0).json["replica"]
    assert known["path"] == block.get(variables.DB_PATH, str(hocket.home / "replica.db"))
    server.kill()
    until(lambda: hocket("jobs", environment=block, code=0).err, "the first look at the server")
    away = hocket("jobs", "--json", environment=block, code=0)
    assert [each["job_id"] for each in away.json] == [job_id] and "read from the replica" in away.err
    kept = hocket("submit", "test.echo", environment=block, code=0).job_id
    server.start()
    assert {each["job_id"] for each in hocket("jobs", "--json", environment=block, code=0).json} == {job_id, kept}


@pytest.mark.req("VX-17")
def test_the_mesh_token_is_a_bearer_token_of_the_server(hocket: Program):
    secret = "0123456789abcdef" * 3
    environment = hocket.environment() | {variables.MESH_TOKEN: secret}
    process = start_command(["serve", "--port", "0", "--json"], environment, hocket.home)
    hocket.started.append(process)
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    request = urllib.request.Request(f"{address}/v1/locks", headers={"Authorization": f"Bearer {secret}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
