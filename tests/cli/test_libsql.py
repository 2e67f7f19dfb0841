"""Commands on nodes whose store is in libSQL, against a real sqld."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.store.libsql import LibsqlStore
from tests.cli.conftest import PATIENCE_S, TASKS, Program, until
from tests.libsql_relay import LibsqlRelay
from tests.libsql_server import LibsqlServer, new_server
from tests.libsql_tokens import public_key, token
from tests.log.roster.world import READER, introduction, new_log
from tests.server.test_server import certificate

TOKEN = "HOCKET_DB_TOKEN"
JOBS = 300


@pytest.fixture
def server() -> LibsqlServer:
    return new_server()


@pytest.fixture
def hocket(server: LibsqlServer, tmp_path: Path) -> Iterator[Program]:
    """A node whose home remembers its store."""
    (tmp_path / "tasks.py").write_text(TASKS)
    program = Program(tmp_path / "home")
    program("init", "--store", server.address, code=0)
    yield program
    program.end_started()


@pytest.mark.req("VX-01", "VX-14")
def test_a_home_remembers_its_store_and_everything_works_there(hocket: Program) -> None:
    done = hocket.submit("test.echo", '{"n": 1}', "--concurrency", 1)
    failed = hocket.submit("test.fail", "--retries", 0)
    unique = [hocket.submit("test.echo", "--unique", "once") for _ in range(2)]
    assert unique[0] == unique[1]
    hocket("cron", "add", "nightly", "0 3 * * *", "test.echo", code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(done)["result"] == {"n": 1} and hocket.show(failed)["outcome"] == "failed"
    hocket("log", "verify", code=0)
    hocket("log", "rebuild", code=0)
    assert hocket.show(done)["result"] == {"n": 1}
    assert [each["name"] for each in hocket("cron", "list", "--json", code=0).json] == ["nightly"]
    said = hocket("doctor", code=0).out
    assert "in libSQL" in said and "polling, because libSQL sends no notifications" in said
    assert "nothing to do" in hocket("store", "migrate", "--dry-run", code=0).out
    assert not (hocket.home / "log.db").exists()


@pytest.mark.req("VX-01", "LW-39")
def test_nodes_share_one_database(hocket: Program, server: LibsqlServer, tmp_path: Path) -> None:
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    assert process.stdout.readline(), process.communicate(timeout=PATIENCE_S)
    invitation = hocket("invite", "second", "--share", "--may", "all", "--json", code=0).json["token"]
    second, third = Program(tmp_path / "second"), Program(tmp_path / "third")
    second("join", invitation, "--store", server.address, code=0)
    third("init", "--store", server.address, "--user-key", hocket.home / "user.key", code=0)
    job_id = hocket.submit("test.echo", '{"n": 1}')
    second("work", "tasks.py", "--until-idle", code=0)
    assert third.show(job_id)["result"] == {"n": 1}
    held = second("lock", "acquire", "file:a", "--agent", "ann", "--ttl", "5m", "--json", code=0).json
    third("lock", "acquire", "file:a", "--agent", "bob", code=3)
    second("lock", "release", "file:a", "--agent", "ann", "--fence", held["fence"], code=0)
    third("lock", "acquire", "file:a", "--agent", "bob", code=0)
    for program in (hocket, second, third):
        program("log", "verify", code=0)
        assert "in libSQL, shared by 3 nodes" in program("doctor", code=0).out
    stranger = Program(tmp_path / "stranger")
    assert "has the log of node" in stranger("init", "--store", server.address, code=3).sentence


@pytest.mark.req("VX-14")
def test_a_replica_answers_reads_and_changes_go_to_the_server_and_are_read_at_once(
    hocket: Program, server: LibsqlServer, tmp_path: Path
) -> None:
    here = {"HOCKET_REPLICA": str(tmp_path / "replica.db")}
    job_id = hocket("submit", "test.echo", '{"n": 1}', environment=here, code=0).job_id
    assert hocket("show", job_id, "--json", environment=here, code=0).json["state"] == "pending"
    hocket("work", "tasks.py", "--until-idle", environment=here, code=0)
    assert hocket("show", job_id, "--json", environment=here, code=0).json["result"] == {"n": 1}
    there, local = (hocket("status", "--json", environment=each, code=0).json for each in ({}, here))
    assert local["chain_head"] == there["chain_head"] and local["replica"]["ops"] == there["ops"]
    assert "old" in hocket("status", environment=here, code=0).out
    server.kill()
    until(lambda: hocket("jobs", environment=here, code=0).err, "the first look at the server")
    away = hocket("jobs", "--json", environment=here, code=0)
    assert [each["job_id"] for each in away.json] == [job_id]
    assert "read from the replica" in away.sentence and "cannot connect" in away.sentence
    assert "cannot connect" in hocket("cancel", job_id, environment=here, code=5).err
    server.start()
    other = hocket("submit", "test.echo", environment=here, code=0).job_id
    assert {each["job_id"] for each in hocket("jobs", "--json", environment=here, code=0).json} == {job_id, other}


@pytest.mark.req("VX-14")
def test_a_log_moves_there_and_back(tmp_path: Path) -> None:
    program, other = Program(tmp_path / "home"), new_server()
    program("init", code=0)
    job_id = program.submit("test.echo")
    file, address = str(program.home / "log.db"), f"libsql://127.0.0.1:{other.port}?tls=0"
    program("store", "move", file, address, code=0)
    assert (program.home / "store").read_text().strip() == address and program.show(job_id)["state"] == "pending"
    program("log", "verify", code=0)
    Path(file).unlink()
    program("store", "move", address, file, code=0)
    program("log", "verify", code=0)
    assert program.show(job_id)["state"] == "pending" and not (program.home / "store").exists()
    said = program("submit", "test.echo", environment={"HOCKET_STORE": address}, code=3).sentence
    assert "was moved to" in said


@pytest.mark.req("VX-17")
@pytest.mark.parametrize("variable", ["HOCKET_STORE", "HOCKET_DB_URL"])
def test_the_token_comes_from_its_variable_and_is_seen_nowhere(tmp_path: Path, variable: str) -> None:
    server, good = new_server(environment=public_key()), token()
    program, where = Program(tmp_path / "home"), {variable: server.address}
    ran = [
        program("init", environment=where, code=5),
        program("init", environment=where | {TOKEN: "no.t.hush"}, code=5),
    ]
    assert "there is no token" in ran[0].sentence and "the token is refused" in ran[1].sentence
    program("init", environment=where | {TOKEN: good}, code=0)
    ran.append(program("submit", "test.echo", environment={TOKEN: good}, code=0))
    ran.append(program("submit", "test.echo", environment={TOKEN: token("ro")}, code=5))
    assert "does not let this token write" in ran[-1].err
    ran.append(program("init", "--store", f"{server.address}?authToken={good}", code=2))
    assert "the address contains a token" in ran[-1].sentence
    ran.append(program("doctor", environment={TOKEN: good}, code=0))
    ran.append(program("init", "--blobs", "store", "--store", server.address, environment={TOKEN: good}, code=2))
    assert "--blobs store is for a store in PostgreSQL" in ran[-1].sentence
    kept = [path.read_bytes() for path in program.home.rglob("*") if path.is_file()]
    assert not any(good in each.out + each.err or "hush" in each.err for each in ran)
    assert not any(good.encode() in each for each in kept)


@pytest.mark.req("VX-14")
def test_what_another_store_has_is_refused_with_a_sentence(hocket: Program) -> None:
    read = {"HOCKET_STORE_READ": "postgresql://a@127.0.0.1/b"}
    assert "for one in libSQL, set HOCKET_REPLICA" in hocket("jobs", environment=read, code=2).sentence


@pytest.mark.req("VX-01")
def test_a_submit_and_a_drained_job_cost_few_round_trips(hocket: Program, server: LibsqlServer) -> None:
    with closing(LibsqlStore(new_server(has_store=True).address)) as store:
        log = new_log(store)
        log.run(lambda tx: tx.author(introduction(READER).payload))
        log.append_plain("k", b"{}")
        before = store.round_trips
        log.append_plain("k", b"{}")
        assert store.round_trips - before == 3
    with closing(LibsqlRelay(server.port)) as relay:
        through = {"HOCKET_STORE": relay.address}
        lines = "".join(f'{{"kind": "test.echo", "payload": {{"n": {n}}}}}\n' for n in range(JOBS))
        hocket("submit", "--batch", "-", input=lines, environment=through, code=0)
        submitted = relay.requests
        hocket("work", "tasks.py", "--until-idle", environment=through, code=0)
        drained = relay.requests - submitted
    assert hocket("status", "--json", code=0).json["jobs"]["succeeded"] == JOBS
    # A drain also looks at the queue every second or so, and a slow machine has more seconds.
    assert submitted < JOBS * 0.2 and drained < JOBS * 3, (submitted, drained)


@pytest.mark.req("VX-14")
def test_tls_and_certificates(hocket: Program, server: LibsqlServer, tmp_path: Path) -> None:
    trusted, key, _ = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, key)
    with closing(LibsqlRelay(server.port, context)) as relay:
        where = {"HOCKET_STORE": f"libsql://127.0.0.1:{relay.port}"}
        said = hocket("submit", "test.echo", environment=where, code=5).sentence
        assert "certificate is not trusted" in said and "SSL_CERT_FILE" in said
        hocket("submit", "test.echo", environment=where | {"SSL_CERT_FILE": str(trusted)}, code=0)
        plain = hocket("jobs", environment={"HOCKET_STORE": relay.address}, code=5).sentence
        assert relay.address in plain
